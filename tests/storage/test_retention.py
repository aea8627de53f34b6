"""Which checkpoints are kept of trials whose standing changes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from autotune.algorithms.ranking.best import by_expected_time
from autotune.algorithms.ranking.repeats import merged
from autotune.storage import retention
from autotune.trial import Checkpoint, State, Target, Trial


def reached(number: int, seconds: float, saved: bool) -> Trial:
    checkpoint = Checkpoint(10, f"/checkpoints/trial-{number:04d}/step-10") if saved else None
    return Trial(
        number, {}, state=State.REACHED, seconds=seconds, attempts=1, checkpoint=checkpoint
    )


def test_the_fastest_that_has_a_checkpoint_keeps_it() -> None:
    """Repeats can make one lead that was not saved when it ended."""
    assert retention.kept([reached(0, 5.0, True), reached(1, 4.0, False)], 1) == {0}
    assert retention.kept([reached(0, 5.0, True), reached(1, 4.0, True)], 1) == {1}


def test_a_repeat_that_misses_takes_no_checkpoint_away(tmp_path: Path) -> None:
    """The only saved trial stands as slower than it was by the miss of its repeat."""
    missed = Trial(1, {}, state=State.CENSORED, reason="limit", seconds=9.0, attempts=1, repeats=0)
    trials = [reached(0, 5.0, True), missed]
    standing = merged(trials, Target("accuracy", 1.0, limit=9.0))
    assert (standing[0].state, standing[0].seconds) == (State.REACHED, 7.0)
    saved = tmp_path / "trial-0000" / "step-10"
    saved.mkdir(parents=True)
    (tmp_path / "trial-0007").mkdir()
    retention.sweep(str(tmp_path), trials, standing, 1)
    assert [p.name for p in tmp_path.iterdir()] == ["trial-0000"]
    assert saved.is_dir()


def test_who_has_proved_it_keeps_its_checkpoint(tmp_path: Path) -> None:
    """Others were faster once: who is the best of a study is who was fast three times."""
    own = {0: 4.0, 1: 3.1, 2: 3.2, 3: 3.3, 4: 2.0}
    trials = [reached(number, seconds, True) for number, seconds in own.items()]
    for again, seconds in ((0, 5.0), (0, 5.0), (4, 8.0), (4, 8.0)):
        trials.append(replace(reached(len(trials), seconds, False), repeats=again))
    target = Target("accuracy", 1.0, limit=9.0)
    best = by_expected_time(trials, target)
    assert [t.number for t in best[:2]] == [0, 4]
    for number in own:
        (tmp_path / f"trial-{number:04d}" / "step-10").mkdir(parents=True)
    retention.sweep(str(tmp_path), trials, merged(trials, target), 1, best=best)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["trial-0000", "trial-0001", "trial-0004"]


def test_only_what_lies_inside_is_removed(tmp_path: Path) -> None:
    home, other = tmp_path / "checkpoints", tmp_path / "other"
    for folder in (home / "trial-0001", other):
        folder.mkdir(parents=True)
    retention.discard(str(other), str(home))
    retention.discard(str(home / ".." / "other"), str(home))
    retention.discard(f"memory://{other}", str(home))
    assert other.is_dir()
    retention.discard(str(home / "trial-0001"), str(home))
    assert not (home / "trial-0001").exists()
