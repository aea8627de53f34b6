"""Which checkpoints are kept of trials whose standing changes."""

from __future__ import annotations

from pathlib import Path

from autotune import keeping
from autotune.repeats import merged
from autotune.trial import Checkpoint, State, Target, Trial


def reached(number: int, seconds: float, saved: bool) -> Trial:
    checkpoint = Checkpoint(10, f"/checkpoints/trial-{number:04d}/step-10") if saved else None
    return Trial(
        number, {}, state=State.REACHED, seconds=seconds, attempts=1, checkpoint=checkpoint
    )


def test_the_fastest_that_has_a_checkpoint_keeps_it() -> None:
    """Repeats can make one lead that was not saved when it ended."""
    assert keeping.kept([reached(0, 5.0, True), reached(1, 4.0, False)], 1) == {0}
    assert keeping.kept([reached(0, 5.0, True), reached(1, 4.0, True)], 1) == {1}


def test_a_repeat_that_misses_takes_no_checkpoint_away(tmp_path: Path) -> None:
    """The only saved trial stands as one that missed, until more of its repeats have arrived."""
    missed = Trial(1, {}, state=State.CENSORED, reason="limit", seconds=9.0, attempts=1, repeats=0)
    trials = [reached(0, 5.0, True), missed]
    standing = merged(trials, Target("accuracy", 1.0, limit=9.0))
    assert standing[0].state is State.CENSORED
    saved = tmp_path / "trial-0000" / "step-10"
    saved.mkdir(parents=True)
    (tmp_path / "trial-0007").mkdir()
    keeping.sweep(str(tmp_path), trials, standing, 1)
    assert [p.name for p in tmp_path.iterdir()] == ["trial-0000"]
    assert saved.is_dir()


def test_only_what_lies_inside_is_removed(tmp_path: Path) -> None:
    home, other = tmp_path / "checkpoints", tmp_path / "other"
    for folder in (home / "trial-0001", other):
        folder.mkdir(parents=True)
    keeping.discard(str(other), str(home))
    keeping.discard(str(home / ".." / "other"), str(home))
    keeping.discard(f"memory://{other}", str(home))
    assert other.is_dir()
    keeping.discard(str(home / "trial-0001"), str(home))
    assert not (home / "trial-0001").exists()
