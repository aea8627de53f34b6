"""Which checkpoints there are: when a trial saves its state, where, and what is kept of it.

Kept are the last two of each trial that runs or is to be resumed (the one before is for when the
last turns out to be damaged), and the last of each of the fastest trials.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Collection, Sequence, Set
from pathlib import Path

from autotune.storage import checkpoint_files
from autotune.trial import FailurePolicy, State, Trial, usual_hardware

_FOLDER = "trial-"


def place(root: str, number: int) -> str:
    """The folder of a trial's checkpoints."""
    return checkpoint_files.join(root, f"{_FOLDER}{number:04d}")


def path(root: str, trial: Trial) -> str:
    """The folder of the checkpoint that a trial may save at its last milestone."""
    return checkpoint_files.join(place(root, trial.number), f"step-{trial.reports[-1].step}")


def is_saved(trial: Trial) -> bool:
    """Whether the trial's state at its last milestone is a checkpoint already."""
    return trial.checkpoint is not None and trial.checkpoint.step == trial.reports[-1].step


def is_due(trial: Trial, policy: FailurePolicy, every: float, clock: str) -> bool:
    """Whether a checkpoint is due: by the policy, or as the controller forks `every` seconds."""
    if is_saved(trial):
        return False
    now, saved = trial.clock, trial.saved_clock
    since = now.seconds("train") - saved.seconds("train")
    if since >= policy.checkpoint_interval:
        return True
    return math.isfinite(every) and now.seconds(clock) // every > saved.seconds(clock) // every


def is_among_best(trial: Trial, others: Sequence[Trial], state: State, count: int) -> bool:
    """Whether a trial that ends so is one of the `count` fastest on hardware like its own."""
    faster = [
        t
        for t in others
        if t.state is State.REACHED and t.hardware == trial.hardware and t.seconds <= trial.seconds
    ]
    return state is State.REACHED and len(faster) < count


def kept(trials: Collection[Trial], count: int) -> set[int]:
    """The numbers of the trials whose checkpoints are kept, as things stand."""
    found = {t.number for t in trials if t.goes_on}
    usual = usual_hardware(list(trials))
    reached = [t for t in trials if t.state is State.REACHED and t.hardware == usual]
    like = (t for t in reached if t.checkpoint is not None)  # of who leads now there may be none
    fastest = sorted(like, key=lambda t: (t.seconds, t.number))
    return found | {t.number for t in fastest[:count]}


def sweep(
    root: str,
    trials: Collection[Trial],
    standing: Collection[Trial],
    count: int,
    saving: Set[int] = frozenset(),
    best: Sequence[Trial] = (),
) -> None:
    """Remove the checkpoints that are no longer kept, but those of trials that are `saving` one.

    Those of the fastest stay both by their own time and as they stand among `standing`, where
    repeats are part of what they repeat: one that misses must not cost the only state there is. So
    do those of the first of `best`, who lead by what repeats have proven.
    """
    own = [t for t in trials if t.repeats is None]
    running = {t.number for t in trials if t.repeats is not None and t.goes_on}
    proven = {t.number for t in [t for t in best if t.checkpoint is not None][:count]}
    numbers = kept(own, count) | kept(standing, count) | proven | running | saving
    wanted = {f"{_FOLDER}{number:04d}" for number in numbers}
    for name in checkpoint_files.names(root):
        if name.startswith(_FOLDER) and name not in wanted:
            checkpoint_files.remove(checkpoint_files.join(root, name))


def discard(path: str, root: str) -> None:
    """Remove a checkpoint that a journal names, if it lies inside `root`."""
    if not checkpoint_files.is_url(path):
        remove(path, within=Path(root))
    elif path.startswith(f"{root.rstrip('/')}/") and ".." not in path.split("/"):
        checkpoint_files.remove(path)


def remove(path: str | Path, *, within: Path) -> bool:
    """Remove the folder `path` with all that is in it, if it lies inside `within`; whether it does.

    Symbolic links are followed first, so that one inside does not lead to something outside.
    `within` itself stays.

    >>> remove("/etc", within=Path("studies"))
    False
    """
    try:
        place, home = Path(path).resolve(), within.resolve()
    except (OSError, ValueError, RuntimeError):  # too long, with a NUL, or links in a circle
        return False
    if place == home or not place.is_relative_to(home):
        return False
    shutil.rmtree(place, ignore_errors=True)
    return True
