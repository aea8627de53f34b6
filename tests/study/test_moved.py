"""A study folder that was moved or copied: it is resumed, exported and replayed from there."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from sims import race, racing, simulate

import autotune as at
from autotune.backends.protocol import Launch
from autotune.backends.simulator import SimPool
from autotune.cli import main
from autotune.evaluation.export import replay
from autotune.storage.journal import JOURNAL
from autotune.study.manifest import Manifest
from autotune.trial import Change, Checkpoint, Hardware, State

PLACE = "checkpoint_folder"


@dataclass
class OnDisk(SimPool):
    """Its checkpoints are files, and it starts from nothing else."""

    given: list[str] = field(default_factory=list)
    _save: str = ""

    def start(self, launch: Launch) -> Hardware:
        if launch.checkpoint is not None:
            self.given.append(launch.checkpoint.path)
            read = json.loads(Path(launch.checkpoint.path, "rank-0.pt").read_text())
            assert read == launch.checkpoint.step
        return super().start(launch)

    def resume(self, trial: int, change: Change | None, save: str | None) -> None:
        self._save = save or ""
        super().resume(trial, change, save)

    def stop(self, trial: int, save: str | None) -> None:
        self._save = save or ""
        super().stop(trial, save)

    def _checkpoint(self, running: Any) -> Checkpoint:
        made = super()._checkpoint(running)
        Path(self._save).mkdir(parents=True)
        Path(self._save, "rank-0.pt").write_text(json.dumps(made.step))
        return replace(made, path=self._save)


def study(
    folder: Path, pool: SimPool, limit: float | None = None, place: str | None = None
) -> at.StudyResult:
    policy = at.FailurePolicy(checkpoint_interval=1, checkpoint_folder=place)
    experiment = racing([1.0, 3.0], failure=policy)
    return simulate(experiment, folder, 2, pool=pool, time_limit=limit)


@pytest.mark.parametrize("older", [False, True], ids=["relative", "absolute"])
@pytest.mark.parametrize("copied", [False, True], ids=["moved", "copied"])
def test_a_moved_study_goes_on_and_is_exported(
    fast_path: Path, older: bool, copied: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    before, folder = fast_path / "before", fast_path / "after"
    cut = study(before, OnDisk(race, 1), limit=5.5)
    assert [t.resumable for t in cut.trials] == [True]
    if older:
        text = (before / JOURNAL).read_text()
        absolute = text.replace('"checkpoints/trial', f'"{before}/checkpoints/trial')
        assert absolute != text
        (before / JOURNAL).write_text(absolute)
    if copied:
        shutil.copytree(before, folder)
        untouched = {p: p.stat().st_mtime_ns for p in before.rglob("*")}
    else:
        shutil.move(before, folder)
    pool = OnDisk(race, 1)
    result = study(folder, pool)
    assert [t.state for t in result.trials] == [State.REACHED, State.REACHED]
    (place,) = pool.given
    assert place.startswith(f"{folder}/checkpoints/trial-0000/step-")
    if copied:
        assert {p: p.stat().st_mtime_ns for p in before.rglob("*")} == untouched

    trial = result.best
    assert trial is not None
    assert trial.checkpoint is not None
    folder = Path(shutil.move(folder, fast_path / "again"))
    out = fast_path / "out"
    capsys.readouterr()
    assert main.main(["export", str(folder), "--to", str(out)]) == main.DONE
    assert capsys.readouterr().err == f"wrote trial {trial.number} to {out}\n"
    saved = json.loads((out / "checkpoint" / "rank-0.pt").read_text())
    assert saved == trial.checkpoint.step
    exported = replay.read(Path(shutil.move(out, fast_path / "elsewhere")))
    again = replayed(exported, fast_path / "replay", 1)
    assert [t.seconds for t in again.trials] == [trial.seconds]
    moved_replay = Path(shutil.move(fast_path / "replay", fast_path / "replay 2"))
    assert [t.state for t in replayed(exported, moved_replay, 2).trials] == [State.REACHED] * 2


@pytest.mark.parametrize("below", ["mine", "."])
def test_a_checkpoint_folder_below_the_study_folder_is_moved_with_it(
    fast_path: Path, below: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before, folder, out = fast_path / "before", fast_path / "after", fast_path / "out"
    result = study(before, OnDisk(race, 1), place=str(before / below))
    assert json.loads((before / "experiment.json").read_text())["failure"][PLACE] == below
    shutil.move(before, folder)
    assert Manifest.read(folder).failure[PLACE] == str(folder / below)
    assert main.main(["export", str(folder), "--to", str(out)]) == main.DONE
    assert capsys.readouterr().err == f"wrote trial {result.best and result.best.number} to {out}\n"
    assert (out / "checkpoint" / "rank-0.pt").is_file()


def test_a_relative_checkpoint_folder_of_an_older_manifest_is_in_the_working_directory(
    fast_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, elsewhere = fast_path / "study", fast_path / "elsewhere"
    study(folder, OnDisk(race, 1), place=str(fast_path / "shared"))
    written = json.loads((folder / "experiment.json").read_text())
    assert written["failure"][PLACE] == str(fast_path / "shared")
    written["failure"][PLACE] = "shared"
    (folder / "experiment.json").write_text(json.dumps(written))
    elsewhere.mkdir()
    for working, found in ((fast_path, fast_path / "shared"), (elsewhere, folder / "shared")):
        monkeypatch.chdir(working)
        assert Manifest.read(folder).failure[PLACE] == str(found)


def replayed(exported: replay.Exported, folder: Path, repeats: int) -> at.StudyResult:
    told = replay.options(exported, repeats)
    more = {name: getattr(told, name) for name in ("sampler", "pruner", "seed", "seeds", "recipe")}
    return simulate(replay.experiment(exported), folder, repeats, pool=OnDisk(race, 1), **more)


def test_an_export_without_a_checkpoint_says_so(
    fast_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = fast_path / "study"
    result = study(folder, OnDisk(race, 1))
    assert result.best is not None
    said = {}
    for name in ("kept", "lost", "none"):
        if name == "lost":
            shutil.rmtree(folder / "checkpoints")
        if name == "none":
            folder = fast_path / "another"
            simulate(racing([1.0]), folder, 1, pool=SimPool(race, 1))
            rows = (folder / JOURNAL).read_text().splitlines(keepends=True)
            kept = [row for row in rows if '"event":"saved"' not in row]
            (folder / JOURNAL).write_text("".join(kept))
        out = fast_path / name
        assert main.main(["export", str(folder), "--to", str(out)]) == main.DONE
        said[name] = capsys.readouterr().err
        assert (out / "checkpoint").exists() == (name == "kept")
        assert ("There is no checkpoint" in (out / "README.md").read_text()) == (name != "kept")
    assert "it has no checkpoint" not in said["kept"]
    assert f"it has no checkpoint: there is none in {fast_path}/study/check" in said["lost"]
    assert "it has no checkpoint: the trial saved none" in said["none"]
