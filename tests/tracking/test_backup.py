"""The copy of a study folder in MLflow: whole at every moment, verified when it is fetched."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import services
from heads import free_ports
from noisy_race import reached
from sims import racing, simulate

from autotune.cli import main, study_commands
from autotune.cli.console import Output, study_in
from autotune.errors import UserError
from autotune.storage import journal
from autotune.study import result as results
from autotune.tracking import backup, mirror
from autotune.tracking.mirror import FURTHER, NO_COPY, REFUSED, default_uri, environment
from autotune.tracking.restore import restore
from autotune.trial import Checkpoint, Clock, Ended, Interrupted, Saved, Started, State, Target

from .conftest import HARDWARE


class Shelf:
    """A store that is a folder; it breaks off before the upload with the number `breaks`."""

    def __init__(self, folder: Path, breaks: int | None = None) -> None:
        self.folder = folder
        self.tags: dict[str, str] = {}
        self.breaks = breaks
        self.uploads: list[list[str]] = []

    def upload(self, number: int, folder: Path) -> None:
        if self.breaks == len(self.uploads):
            raise ConnectionError("broke off")
        names = [p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()]
        self.uploads.append(sorted(names))
        shutil.copytree(folder, self.folder, dirs_exist_ok=True)

    def remove(self, number: int, names: Iterable[str]) -> None:
        for name in names:
            if (self.folder / name).is_dir():
                shutil.rmtree(self.folder / name)
            else:
                (self.folder / name).unlink()

    def list_files(self, number: int, folder: str) -> list[str]:
        found = (self.folder / folder).rglob("*")
        return [p.relative_to(self.folder).as_posix() for p in found if p.is_file()]

    def tag(self, number: int, tags: Mapping[str, str]) -> None:
        self.tags.update(tags)

    @property
    def files(self) -> set[str]:
        return {p.relative_to(self.folder).as_posix() for p in self.folder.rglob("*.pt")}


def save(study, number: int, step: int, content: str = "") -> None:
    """A checkpoint of two ranks, as the driver has them written; the one before is removed."""
    folder = study.path.absolute() / "checkpoints" / f"trial-{number:04d}"
    before = list(folder.glob("step-*"))
    place = folder / f"step-{step}"
    place.mkdir(parents=True)
    for rank in (0, 1):
        (place / f"rank-{rank}.pt").write_text(content or f"{number} {step} {rank}")
    study.write(Saved(number, Checkpoint(step, str(place), Clock(train=step / 100))))
    for path in before:
        shutil.rmtree(path)


def copy_of(shelf: Shelf, place: Path) -> Path:
    return Path(shutil.copytree(shelf.folder / "study", place / "copy"))


def test_what_is_kept_and_what_is_given_back(study, tmp_path: Path) -> None:
    study.trial(0, 2.0)  # ended, no checkpoint
    study.begin(1)
    study.report(1, [0, 100])
    save(study, 1, 100)
    (study.path / "experience.json.gz").write_bytes(b"\x1f\x8b of others")
    shelf, kept = Shelf(tmp_path / "shelf"), backup.Backup(study.path, -1)
    kept.keep(shelf, over=False)
    assert shelf.uploads[0] == [
        "study/checkpoints/trial-0001/step-100/rank-0.pt",
        "study/checkpoints/trial-0001/step-100/rank-1.pt",
        "study/experience.json.gz",
        "study/experiment.json",
        "study/journal.jsonl",
    ]
    assert shelf.uploads[1] == ["study/manifest.json"]
    study.report(1, [200])
    save(study, 1, 200)
    kept.keep(shelf, over=False)
    assert len(shelf.uploads) == 2, "not so soon again"
    kept.keep(shelf, over=True)
    assert "study/experiment.json" not in shelf.uploads[2], "what did not change is not sent"
    assert shelf.files == {f"study/checkpoints/trial-0001/step-200/rank-{r}.pt" for r in (0, 1)}
    assert 0 <= backup.seconds_since_heartbeat(shelf.tags) < 10
    assert not list(study.path.glob(".*")), "nothing temporary is left"

    said: list[str] = []
    restore(copy_of(shelf, tmp_path), tmp_path / "else" / "where", said.append)
    assert said == []
    knew = tmp_path / "else" / "where" / "experience.json.gz"
    assert knew.read_bytes() == b"\x1f\x8b of others"
    theirs, ours = journal.read(study.path), journal.read(tmp_path / "else" / "where")
    assert len(theirs) == len(ours)
    saved = [e for e in ours if isinstance(e, Saved)]
    assert [e.checkpoint.step for e in saved] == [100, 200]
    place = Path(saved[-1].checkpoint.path)
    assert place == tmp_path / "else" / "where" / "checkpoints" / "trial-0001" / "step-200"
    assert (place / "rank-1.pt").read_text() == "1 200 1"
    assert [e for e in ours if not isinstance(e, Saved)] == [
        e for e in theirs if not isinstance(e, Saved)
    ]


def test_what_an_earlier_process_sent_is_removed_once_it_is_superseded(
    study, tmp_path: Path
) -> None:
    """Only the process that sent it would remember it; one that was killed remembers nothing."""
    for number in (0, 1):
        study.begin(number)
        study.report(number, [0, 100])
        save(study, number, 100)
    shelf = Shelf(tmp_path / "shelf", breaks=3)
    kept = backup.Backup(study.path, -1)
    kept.keep(shelf, over=True)
    study.report(0, [200])
    save(study, 0, 200)
    with pytest.raises(ConnectionError):
        kept.keep(shelf, over=True)  # sent, and in no manifest
    save(study, 0, 300)
    study.end(1, State.CENSORED, "limit", 1.0)
    shelf.breaks = 4
    with pytest.raises(ConnectionError):
        backup.Backup(study.path, -1).keep(shelf, over=True)
    assert "study/checkpoints/trial-0000/step-100/rank-0.pt" in shelf.files, "it is named still"
    shelf.breaks = None
    backup.Backup(study.path, -1).keep(shelf, over=True)
    assert shelf.files == {f"study/checkpoints/trial-0000/step-300/rank-{r}.pt" for r in (0, 1)}


def test_who_is_best_by_its_races_keeps_its_checkpoint(tmp_path: Path) -> None:
    saved = []
    for number in (0, 1):
        (tmp_path / str(number)).mkdir()
        saved.append(Checkpoint(100, str(tmp_path / str(number)), Clock(train=1.0)))
    trials = [reached(0, 4.0, checkpoint=saved[0]), reached(1, 5.0, checkpoint=saved[1])]
    target = Target("acc", 0.9, limit=30.0)
    assert [t.number for t in backup.needed({t.number: t for t in trials}, target)] == [0]
    for of, seconds in ((0, 9.0), (0, 29.0), (1, 5.2), (1, 5.1)):
        trials.append(reached(len(trials), seconds, kind="race", repeats=of))
    assert [t.number for t in backup.needed({t.number: t for t in trials}, target)] == [1]
    shutil.rmtree(tmp_path / "1")
    assert [t.number for t in backup.needed({t.number: t for t in trials}, target)] == [0]


def test_a_store_that_cannot_list_keeps_a_whole_copy(study, tmp_path: Path) -> None:
    class Blind(Shelf):
        def list_files(self, number: int, folder: str) -> list[str]:
            raise NotImplementedError

    study.begin(0)
    study.report(0, [0, 100])
    save(study, 0, 100)
    shelf = Blind(tmp_path / "shelf")
    backup.Backup(study.path, -1).keep(shelf, over=True)
    restore(copy_of(shelf, tmp_path), tmp_path / "to", print)
    assert [e.trial for e in journal.read(tmp_path / "to") if isinstance(e, Saved)] == [0]


@pytest.mark.parametrize("breaks", [1, 2, 3])
def test_a_copy_that_broke_off_leaves_the_one_before(study, tmp_path: Path, breaks: int) -> None:
    """Whatever was uploaded of the next one, the manifest names a whole copy."""
    study.begin(0)
    study.report(0, [0, 100])
    save(study, 0, 100)
    shelf, kept = Shelf(tmp_path / "shelf", breaks), backup.Backup(study.path, -1)
    if breaks > 1:
        kept.keep(shelf, over=True)
        study.report(0, [200])
        save(study, 0, 200)
    with pytest.raises(ConnectionError):
        kept.keep(shelf, over=True)
    if breaks == 1:  # nothing was ever named
        with pytest.raises(UserError, match=r"has no manifest\.json"):
            restore(copy_of(shelf, tmp_path), tmp_path / "to", print)
        return
    restore(copy_of(shelf, tmp_path), tmp_path / "to", print)
    last = [e for e in journal.read(tmp_path / "to") if isinstance(e, Saved)][-1]
    assert last.checkpoint.step == 100
    assert (Path(last.checkpoint.path) / "rank-0.pt").read_text() == "0 100 0"


def test_documents_that_change_are_those_of_the_copy_that_is_named(study, tmp_path: Path) -> None:
    """A controller writes down what it has learned at every trial's end; `resume` the manifest."""
    manifest = study.path / "experiment.json"
    study.trial(0, 2.0)
    content = manifest.read_text()
    (study.path / "controller.json").write_text('{"weights": 1}')
    shelf = Shelf(tmp_path / "shelf", breaks=3)
    kept = backup.Backup(study.path, -1)
    kept.keep(shelf, over=True)
    study.trial(1, 2.0)
    (study.path / "controller.json").write_text('{"weights": 2}')
    manifest.write_text(content.replace("{", '{"again": true,', 1))
    with pytest.raises(ConnectionError):
        kept.keep(shelf, over=True)
    assert "study/controller.json" in shelf.uploads[2], "of the copy that broke off"
    restore(copy_of(shelf, tmp_path), tmp_path / "to", print)
    assert (tmp_path / "to" / "controller.json").read_text() == '{"weights": 1}'
    assert (tmp_path / "to" / "experiment.json").read_text() == content


def test_a_study_that_was_fetched_leaves_the_copy_that_it_came_from(study, tmp_path: Path) -> None:
    """Its journal is another one, with places of its own, until all of its first copy is there."""
    study.begin(0)
    study.report(0, [0, 100])
    save(study, 0, 100)
    shelf = Shelf(tmp_path / "shelf", breaks=3)
    backup.Backup(study.path, -1).keep(shelf, over=True)
    there = tmp_path / "another" / "place"
    restore(copy_of(shelf, tmp_path), there, print)
    with pytest.raises(ConnectionError):
        backup.Backup(there, -1).keep(shelf, over=True)
    assert len(shelf.uploads) == 3, "all but the manifest"
    restore(copy_of(shelf, tmp_path), tmp_path / "to", print)
    (last,) = [e for e in journal.read(tmp_path / "to") if isinstance(e, Saved)]
    assert (Path(last.checkpoint.path) / "rank-0.pt").read_text() == "0 100 0"

    shelf.breaks = None  # and once it is there, it is what is fetched, as often as that may be
    for number in (1, 2):
        with journal.Journal(there) as taken_up:
            taken_up.write(Interrupted(0, f"driver restarted {number}", broke=False))
        backup.Backup(there, -1).keep(shelf, over=True)
        assert len([*(shelf.folder / "study").glob("journal*")]) == 1, "and no other one is kept"
        there = tmp_path / f"place {number}"
        restore(copy_of(shelf, tmp_path), there, print)
        found = [e.reason for e in journal.read(there) if isinstance(e, Interrupted)]
        assert found == [f"driver restarted {n}" for n in range(1, number + 1)]


def test_a_damaged_checkpoint_costs_its_trial_only(study, tmp_path: Path) -> None:
    for number in (0, 1):
        study.begin(number)
        study.report(number, [0, 100])
        save(study, number, 100)
    shelf = Shelf(tmp_path / "shelf")
    backup.Backup(study.path, -1).keep(shelf, over=True)
    copy = copy_of(shelf, tmp_path)
    (copy / "checkpoints" / "trial-0001" / "step-100" / "rank-1.pt").write_text("1 100 X")
    said: list[str] = []
    restore(copy, tmp_path / "to", said.append)
    assert said == ["checkpoints/trial-0001/step-100 is damaged in MLflow: its trial starts again"]
    assert [e.trial for e in journal.read(tmp_path / "to") if isinstance(e, Saved)] == [0]


def test_a_damaged_journal_is_refused(study, tmp_path: Path) -> None:
    study.trial(0, 2.0)
    shelf = Shelf(tmp_path / "shelf")
    backup.Backup(study.path, -1).keep(shelf, over=True)
    text = (shelf.folder / "study" / "journal.jsonl").read_text()
    (shelf.folder / "study" / "journal.jsonl").write_text(text.replace("REACHED", "FAILED1"))
    with pytest.raises(UserError, match=r"damaged: journal\.jsonl is not what was written"):
        restore(copy_of(shelf, tmp_path), tmp_path / "to", print)
    assert not (tmp_path / "to").exists()


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "checkpoints/../../outside"])
def test_a_manifest_cannot_name_files_outside(study, tmp_path: Path, name: str) -> None:
    study.trial(0, 2.0)
    shelf = Shelf(tmp_path / "shelf")
    backup.Backup(study.path, -1).keep(shelf, over=True)
    manifest = shelf.folder / "study" / "manifest.json"
    document = json.loads(manifest.read_text())
    document["files"][name] = {"size": 1, "sha256": "0"}
    manifest.write_text(json.dumps(document))
    with pytest.raises(UserError, match="is none"):
        restore(copy_of(shelf, tmp_path), tmp_path / "to", print)


def test_checkpoints_of_another_node_are_left_out(study, tmp_path: Path) -> None:
    """The driver's machine does not have them: their trial starts again."""
    study.begin(0)
    study.report(0, [0, 100])
    save(study, 0, 100)
    study.begin(1)
    study.report(1, [0, 100])
    save(study, 1, 100)
    shutil.rmtree(study.path / "checkpoints" / "trial-0000")
    shelf = Shelf(tmp_path / "shelf")
    backup.Backup(study.path, -1).keep(shelf, over=True)
    restore(copy_of(shelf, tmp_path), tmp_path / "to", print)
    assert [e.trial for e in journal.read(tmp_path / "to") if isinstance(e, Saved)] == [1]


def mirrored(study) -> None:
    manifest = study.path / "experiment.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "mirrored": True}))


def fetch(uri: str, *arguments: str | Path) -> tuple[int, str]:
    """The exit code of `autotune.tracking.fetch` and what it says, without a process of its own."""
    from autotune.tracking import fetch as module

    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stderr(said):
        patch.setenv("MLFLOW_TRACKING_URI", uri)
        code = module.main([str(a) for a in arguments])
    return code, said.getvalue()


@pytest.mark.slow
def test_fetched_from_mlflow_and_gone_on_with(study, tmp_path: Path) -> None:
    """The same MLflow runs go on from another folder; a study that is worked on is refused.

    That each is asked of a process of its own is in the test of a folder that its study has left.
    """
    uri = default_uri(study.path)
    code, said = fetch(uri, "digits", tmp_path / "to")
    assert (code, said.count("\n")) == (NO_COPY, 1)
    assert "unknown study in MLflow 'digits'" in said
    mirrored(study)
    study.begin(0)
    study.report(0, [0, 100])
    save(study, 0, 100)
    copier = study.copier()
    copier.catch_up(over=False)
    code, said = fetch(uri, "digits", tmp_path / "to")
    assert code == REFUSED
    assert "a driver is running the study 'digits'" in said
    study.write(Ended(0, State.CENSORED, "interrupted", 1.0))
    study.close("interrupted")
    copier.catch_up(over=True)
    before = study.runs()
    code, said = fetch(uri, "digits", tmp_path / "to")
    assert code == 0, said
    assert "fetched the study 'digits' from MLflow" in said
    assert (tmp_path / "to" / "checkpoints/trial-0000/step-100/rank-0.pt").is_file()

    with journal.Journal(tmp_path / "to") as taken_up:
        taken_up.write(Interrupted(0, "driver restarted", broke=False))
        taken_up.write(Started(0, 0.0, HARDWARE))
        taken_up.write(Ended(0, State.REACHED, "target", 1.0))
    there = copier_of(study, tmp_path / "to")
    there.catch_up(over=True)
    after = study.runs()
    assert study.ids(after) == study.ids(before)
    assert after["trial-0000"].info.status == "FINISHED"
    assert study.history(after["trial-0000"], "acc") == [(0, 0.0), (100, 0.1)]

    code, said = fetch(uri, FURTHER, tmp_path / "to")
    assert code == 0, said
    code, said = fetch(uri, FURTHER, study.path)
    assert code == REFUSED
    assert "was fetched from MLflow and continued elsewhere since" in said


@pytest.mark.parametrize("lives", [False, True])
def test_a_sign_from_far_ahead_counts_if_another_follows(
    study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lives: bool
) -> None:
    """The driver's clock was a day ahead. Killed, it would be taken for alive for a day."""
    from mlflow import MlflowClient

    from autotune.tracking.fetch import fetch as fetched

    mirrored(study)
    study.begin(0)
    study.copier().catch_up(over=False)
    client, run = MlflowClient(default_uri(study.path)), study.runs()["digits"].info.run_id
    sign = int(time.time()) + 86400
    client.set_tag(run, backup.MIRRORED, str(sign))
    monkeypatch.setattr(backup, "WATCH_SECONDS", 60.0 if lives else 3.0)
    begin = time.monotonic()
    if lives:
        later = threading.Timer(2.0, client.set_tag, (run, backup.MIRRORED, str(sign + 60)))
        later.start()
        with pytest.raises(UserError, match=r"a driver is running .*last heartbeat 0 s ago"):
            fetched(client, "digits", tmp_path / "to")
        later.join()
    else:
        fetched(client, "digits", tmp_path / "to")
        assert time.monotonic() - begin >= 3.0
    assert (tmp_path / "to").exists() is not lives


def test_a_sign_from_far_ahead_hides_no_driver_that_lives(
    study, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient

    from autotune.tracking.fetch import refuse_second

    mirrored(study)
    study.begin(0)
    study.copier().catch_up(over=False)
    client, run = MlflowClient(default_uri(study.path)), study.runs()["digits"]
    client.set_tag(run.info.run_id, backup.MIRRORED, str(int(time.time()) + 86400))
    monkeypatch.setattr(backup, "WATCH_SECONDS", 2.0)
    refuse_second(client, "digits")
    tags = {"autotune.kind": "study", backup.MIRRORED: str(int(time.time()))}
    client.create_run(run.info.experiment_id, tags=tags)
    with pytest.raises(UserError, match="a driver is running the study 'digits'"):
        refuse_second(client, "digits")


def test_mlflow_drops_what_an_earlier_process_sent(study) -> None:
    mirrored(study)
    study.begin(0)
    study.report(0, [0, 100, 200])
    save(study, 0, 100)
    study.copier().catch_up(over=True)
    save(study, 0, 200)
    study.copier().catch_up(over=True)
    own = study.path / "artifacts" / study.runs()["digits"].info.run_id / "artifacts" / "study"
    assert (own / "journal.jsonl").is_file()
    copies = sorted(p.relative_to(own).as_posix() for p in own.rglob("*.pt"))
    assert copies == [f"checkpoints/trial-0000/step-200/rank-{r}.pt" for r in (0, 1)]


def copier_of(study, folder: Path):
    """Copies another folder into the study's own store."""
    from autotune.tracking.cursor import Cursor
    from autotune.tracking.mlflow_store import MlflowStore
    from autotune.tracking.sync import Copier

    uri, artifacts = default_uri(study.path), study.path / "artifacts"
    cursor = Cursor(folder / "mlflow.json", "default")
    return Copier(folder, lambda f: MlflowStore(uri, f, artifacts, print), cursor, print)


def test_a_store_that_is_not_there(tmp_path: Path) -> None:
    """One line, without the password."""
    command = [sys.executable, "-m", "autotune.tracking.fetch", "digits", str(tmp_path / "to")]
    env = environment("http://127.0.0.1:1") | {"MLFLOW_TRACKING_PASSWORD": "Pa55"}
    done = subprocess.run(command, env={**env}, capture_output=True, text=True)
    assert done.returncode == 1
    assert "http://127.0.0.1:1: " in done.stderr.splitlines()[-1]
    assert "Pa55" not in done.stderr
    assert os.listdir(tmp_path) == []


def test_runs_are_shown_where_the_copy_is_refused(study, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store may take numbers and refuse files: only the copy, and the study's end, wait."""
    mirrored(study)
    study.trial(0, 2.0)
    copier = study.copier()
    copier.catch_up(over=False)

    def refused(*_: object) -> None:
        raise ConnectionError("413 too large")

    monkeypatch.setattr(backup.Backup, "keep", refused)
    study.trial(1, 1.0)
    study.close()
    with pytest.raises(ConnectionError, match="too large"):
        copier.catch_up(over=True)
    shown = study.runs()
    assert shown["trial-0001"].data.metrics["time_to_target_seconds"] == 1.0
    assert shown["digits"].info.status == "RUNNING", "its copy is not whole yet"
    monkeypatch.undo()
    study.copier().catch_up(over=True)
    assert study.runs()["digits"].info.status == "FINISHED"


def test_an_upload_that_takes_long_gives_signs_all_along(
    study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One upload of more than three minutes would look as if nobody was there."""
    study.trial(0, 2.0)
    monkeypatch.setattr(backup, "_HEARTBEAT_SECONDS", 0.05)
    enough = threading.Event()

    class Slow(Shelf):
        signs = 0

        def upload(self, number: int, folder: Path) -> None:
            self.signs, before = 0, dict(self.tags)
            enough.clear()
            assert enough.wait(120), f"no sign while it is uploaded, since {before}"
            super().upload(number, folder)

        def tag(self, number: int, tags: Mapping[str, str]) -> None:
            super().tag(number, tags)
            self.signs += 1
            if self.signs == 1:
                raise ConnectionError("a sign that was lost is no fault of the upload's")
            if self.signs > 2:
                enough.set()

    shelf = Slow(tmp_path / "shelf")
    shelf.signs = 1  # the one before it begins
    kept = backup.Backup(study.path, -1)
    kept.keep(shelf, over=False)
    assert [len(names) for names in shelf.uploads] == [2, 1]
    assert backup.alive("RUNNING", shelf.tags)
    signs = shelf.signs
    assert not [t for t in threading.enumerate() if t.name == "autotune-heartbeat"]
    assert shelf.signs == signs, "nobody signs once it is done"


RECIPE = """
from sims import racing
def study():
    return racing([2.0, 1.0])
"""


@pytest.mark.soak
def test_two_drivers_of_one_study_and_one_server(
    mlflow_server: services.Tracking,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """From Python and by the command line alike, the second is refused while the first lives."""
    from mlflow import MlflowClient

    client = MlflowClient(mlflow_server.uri)
    asked: list[str] = []
    (tmp_path / "twice.py").write_text(RECIPE)
    monkeypatch.chdir(tmp_path)
    experiment = racing([2.0, 1.0])
    more = {"mirror": True, "tracking_uri": mlflow_server.uri}

    def signed() -> bool:
        found = client.get_experiment_by_name(experiment.name)
        runs = client.search_runs([found.experiment_id]) if found else []
        return any(backup.MIRRORED in run.data.tags for run in runs)

    def watch(event: object, trials: object) -> None:
        """In the first driver: it works on the study until this returns."""
        end = time.monotonic() + 600
        while not asked and not signed():
            assert time.monotonic() < end, "no sign of the first driver"
            time.sleep(0.2)
        if asked:
            return
        asked.append("once")
        with pytest.raises(UserError, match="a driver is running the study 'racing'"):
            simulate(experiment, tmp_path / "python", 2, **more)
        flags = ["--mirror", "--tracking-uri", mlflow_server.uri, "--out", "typed", "--trials", "2"]
        assert main.main(["run", "twice.py:study", *flags]) == main.USER
        assert "a driver is running the study 'racing'" in capsys.readouterr().err

    simulate(experiment, tmp_path / "first", 2, watch=watch, **more)
    assert asked
    assert not (tmp_path / "python").exists()
    assert not (tmp_path / "typed").exists()
    simulate(experiment, tmp_path / "after", 2, **more)
    assert (tmp_path / "after" / "journal.jsonl").is_file(), "once it has ended, it may be run"


@pytest.mark.slow
def test_a_folder_that_its_study_has_left_is_not_gone_on_with(
    mlflow_server: services.Tracking, tmp_path: Path
) -> None:
    """Else two journals would name other trials by the same numbers, and write the same runs."""
    server, nobody = mlflow_server, f"http://127.0.0.1:{free_ports(1)[0]}"
    experiment = replace(racing([2.0, 1.0, 3.0, 1.5]), name="left")
    more = {"mirror": True, "tracking_uri": server.uri, "resume": True}
    simulate(experiment, tmp_path / "here", 2, **more)
    assert fetch(server.uri, experiment.name, tmp_path / "there")[0] == 0
    simulate(experiment, tmp_path / "here", 3, **more)  # nobody has gone on with the copy yet
    assert mirror.fetch(server.uri, experiment.name, tmp_path / "newer") == ""
    simulate(experiment, tmp_path / "newer", 4, **more)
    with pytest.raises(UserError, match=r"'left' was fetched .* since it was in .*here: "):
        simulate(experiment, tmp_path / "here", 4, **more)
    assert len(results.read(tmp_path / "here", experiment.target).trials) == 3
    result, ended = study_in(tmp_path / "here")
    with pytest.raises(UserError, match="continued elsewhere"):
        study_commands._shown(ended, result, Output(True, tracking_uri=server.uri))
    mirror.refuse_stale(nobody, tmp_path / "here")  # with nobody to ask it may go on


def test_a_mirrored_study_needs_a_server_from_python_too(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="needs the --tracking-uri of an MLflow server"):
        simulate(racing([1.0]), tmp_path / "study", 1, mirror=True)
    assert not (tmp_path / "study").exists()
