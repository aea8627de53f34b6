"""The study folder is opened before Ray is started, and is left as it was where Ray cannot be."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sims import racing, simulate
from toys import METRIC, paced

import autotune as at
from autotune.errors import StudyError
from autotune.storage.journal import JOURNAL
from autotune.study import place


def study() -> at.Experiment:
    space = at.SearchSpace({"rate": at.Float(0.4, 1.0)})
    return at.Experiment("toy", paced, space, at.Target(METRIC, 0.95, limit=60))


def damaged(folder: Path) -> Path:
    folder.mkdir()
    (folder / JOURNAL).write_text('{"event":"suggested"}\n{}\n{}\n')
    return folder


MISTAKES: dict[str, tuple[Callable[[Path], Path], str]] = {
    "cannot be made": (lambda _: Path("/proc/nowhere/study"), "cannot write the study folder"),
    "is a file": (lambda place: Path(__file__), "cannot write the study folder"),
    "below a file": (lambda place: Path(__file__) / "study", "cannot write the study folder"),
    "no manifest": (damaged, "has a journal.jsonl but no experiment.json"),
}


@pytest.mark.parametrize("what", MISTAKES)
def test_a_mistake_is_found_before_ray_starts(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, says = MISTAKES[what]

    def started(*_: Any) -> None:
        raise AssertionError("Ray was started")

    monkeypatch.setattr(place, "made_pool", started)
    with pytest.raises(at.UserError, match=says):
        at.run(study(), out=make(tmp_path / "study"), tracking_uri="off")


def test_nothing_is_left_where_ray_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that was there stays, and what it holds."""

    def fails(*_: Any) -> None:
        raise StudyError("Ray does not start")

    monkeypatch.setattr(place, "made_pool", fails)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").touch()
    for out in (tmp_path / "new" / "study", tmp_path / "mine"):
        with pytest.raises(StudyError, match="Ray does not start"):
            at.run(study(), out=out, tracking_uri="off")
    assert [p.relative_to(tmp_path).as_posix() for p in sorted(tmp_path.rglob("*"))] == [
        "mine",
        "mine/notes",
    ]


def test_a_complete_study_is_shown_without_starting_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: Any) -> None:
        raise StudyError("workers were started")

    settings: dict[str, Any] = {"out": tmp_path / "s", "tracking_uri": "off", "pruner": "none"}
    first = simulate(racing([1.0, 2.0]), tmp_path / "s", 3, pruner="none")
    before = (tmp_path / "s" / JOURNAL).read_bytes()
    monkeypatch.setattr(place, "made_pool", fails)
    capsys.readouterr()
    again = at.run(racing([1.0, 2.0]), trials=3, racing=0, sampler="random", **settings)
    assert capsys.readouterr().err == f"{tmp_path / 's'}: 3 of 3 trials were done\n"
    assert (again.trials, again.ended) == (first.trials, "done")
    assert (tmp_path / "s" / JOURNAL).read_bytes() == before
    with pytest.raises(StudyError, match="workers were started"):
        again.confirm(repeats=2)
