"""Which checkpoints stay, and what `sweep` and `discard` remove."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from autotune.algorithms.ranking.best import best as best_of
from autotune.storage import retention
from autotune.study.driver.checkpoints import fastest, kept
from autotune.trial import Checkpoint, State, Target, Trial

TARGET = Target("accuracy", 1.0, limit=9.0)


def reached(number: int, seconds: float, saved: bool) -> Trial:
    checkpoint = Checkpoint(10, f"/checkpoints/trial-{number:04d}/step-10") if saved else None
    return Trial(
        number, {}, state=State.REACHED, seconds=seconds, attempts=1, checkpoint=checkpoint
    )


def test_the_fastest_that_has_a_checkpoint_keeps_it() -> None:
    """Repeats can make one lead that was not saved when it ended."""
    assert kept([reached(0, 5.0, True), reached(1, 4.0, False)], TARGET, 1) == {0}
    assert kept([reached(0, 5.0, True), reached(1, 4.0, True)], TARGET, 1) == {1}


def test_who_can_be_resumed_keeps_its_checkpoint() -> None:
    running = Trial(1, {}, attempts=1, checkpoint=Checkpoint(5, "/checkpoints/trial-0001/step-5"))
    interrupted = replace(running, number=2, state=State.CENSORED, reason="interrupted")
    pruned = replace(running, number=3, state=State.CENSORED, reason="capped")
    assert kept([reached(0, 5.0, True), running, interrupted, pruned], TARGET, 1) == {0, 1, 2}


def test_a_repeat_that_misses_takes_no_checkpoint_away() -> None:
    """The only saved trial has a slower mean after the miss of its repeat."""
    missed = Trial(1, {}, state=State.CENSORED, reason="limit", seconds=9.0, attempts=1, repeats=0)
    assert kept([reached(0, 5.0, True), missed], TARGET, 1) == {0}


def test_one_ranking_decides_whose_checkpoint_stays() -> None:
    """Others were faster once: the best trial of a study is the one that was fast three times."""
    own = {0: 4.0, 1: 3.1, 2: 3.2, 3: 3.3, 4: 2.0}
    trials = [reached(number, seconds, True) for number, seconds in own.items()]
    for again, seconds in ((0, 5.0), (0, 5.0), (4, 8.0), (4, 8.0)):
        trials.append(replace(reached(len(trials), seconds, False), repeats=again))
    best = best_of(trials, TARGET)
    assert best is not None
    assert kept(trials, TARGET, 1) == {best.number} == {0}
    assert kept(trials, TARGET, 2) == {0, 4}
    assert fastest(trials, TARGET, 2) == {4, 1}, "which races may still show to be the best"


def test_the_confirmed_winner_keeps_its_checkpoint() -> None:
    trials = [reached(0, 5.0, True), reached(1, 3.0, True), reached(2, 4.0, True)]
    for again, seconds in ((1, 7.0), (2, 4.5), (1, 7.0), (2, 4.5)):
        run = replace(reached(len(trials), seconds, False), repeats=again, kind="confirm")
        trials.append(run)
    best = best_of(trials, TARGET)
    assert best is not None
    assert kept(trials, TARGET, 1) == {best.number} == {2}
    assert kept(trials, TARGET, 2) == {2, 1}


def test_a_sweep_removes_what_is_not_kept(tmp_path: Path) -> None:
    for name in ("trial-0000/step-10", "trial-0007", "other"):
        (tmp_path / name).mkdir(parents=True)
    retention.sweep(str(tmp_path), {0, 3})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["other", "trial-0000"]
    assert (tmp_path / "trial-0000" / "step-10").is_dir()


def test_only_what_lies_inside_is_removed(tmp_path: Path) -> None:
    home, other = tmp_path / "checkpoints", tmp_path / "other"
    for folder in (home / "trial-0001", other):
        folder.mkdir(parents=True)
    retention.discard(str(other), str(home))
    retention.discard(str(home / ".." / "other"), str(home))
    retention.discard(f"memory://{other}", str(home))
    retention.discard(str(home), str(home))
    assert other.is_dir()
    assert (home / "trial-0001").is_dir(), "nor is the root itself removed"
    retention.discard(str(home / "trial-0001"), str(home))
    assert not (home / "trial-0001").exists()
