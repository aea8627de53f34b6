"""Checkpoints of trials: when a trial saves its state, where, and the removal of old ones.

A trial that runs or can be resumed keeps its last two: the one before is for when the last turns
out to be damaged. The driver says which other trials keep their last one (`driver.checkpoints`).
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from autotune.storage import checkpoint_files
from autotune.trial import FailurePolicy, Trial, measured

_FOLDER, _STEP = "trial-", "step-"


def place(root: str, number: int) -> str:
    """The folder of a trial's checkpoints."""
    return checkpoint_files.join(root, f"{_FOLDER}{number:04d}")


def path(root: str, trial: Trial) -> str:
    """The folder of the checkpoint that a trial may save at its last milestone."""
    return checkpoint_files.join(place(root, trial.number), f"{_STEP}{trial.reports[-1].step}")


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
    if not math.isfinite(every):
        return False
    step = trial.checkpoint.step if trial.checkpoint is not None else 0
    at, before = measured(clock, trial.reports[-1].step, now), measured(clock, step, saved)
    return at // every > before // every


def sweep(root: str, keep: Collection[int]) -> None:
    """Remove the checkpoints of all trials but those whose numbers are in `keep`.

    Raises:
        OSError: the root cannot be listed, now.
    """
    wanted = {f"{_FOLDER}{number:04d}" for number in keep}
    for name in checkpoint_files.names(root):
        if name.startswith(_FOLDER) and name not in wanted:
            checkpoint_files.remove(checkpoint_files.join(root, name))


def tidy(root: str, number: int, steps: Collection[int]) -> None:
    """Remove all checkpoints of a trial but those at `steps`.

    Raises:
        OSError: its folder cannot be listed, now.
    """
    folder, wanted = place(root, number), {f"{_STEP}{step}" for step in steps}
    for name in checkpoint_files.names(folder):
        if name not in wanted:
            checkpoint_files.remove(checkpoint_files.join(folder, name))


def lies_within(path: str, root: str) -> bool:
    """Whether a path or URL that a journal names is below `root`, which it may not be itself.

    On a disk, also behind `file://`, symbolic links are followed first, so that one inside does not
    lead outside.

    >>> lies_within("/etc", "studies"), lies_within("s3://a/b/../c", "s3://a/b")
    (False, False)
    """
    path, root = map(checkpoint_files.without_file_protocol, (path, root))
    if checkpoint_files.is_url(path) or checkpoint_files.is_url(root):
        return path.startswith(f"{root.rstrip('/')}/") and ".." not in path.split("/")
    try:
        place, home = Path(path).resolve(), Path(root).resolve()
    except (OSError, ValueError, RuntimeError):  # too long, with a NUL, or links in a circle
        return False
    return place != home and place.is_relative_to(home)


def discard(path: str, root: str) -> None:
    """Remove a checkpoint that a journal names, if it lies inside `root`."""
    if not checkpoint_files.is_url(path):
        remove(path, within=Path(root))
    elif lies_within(path, root):
        checkpoint_files.remove(path)


def remove(path: str | Path, *, within: Path) -> bool:
    """Remove the folder `path` with all that is in it, if it lies inside `within`; whether it does.

    `within` itself stays.

    >>> remove("/etc", within=Path("studies"))
    False
    """
    if not lies_within(str(path), str(within)):
        return False
    shutil.rmtree(Path(path).resolve(), ignore_errors=True)
    return True


def absolute(policy: FailurePolicy) -> FailurePolicy:
    """The policy with an absolute checkpoint folder, for a reader in another working directory."""
    place = policy.checkpoint_folder
    if place is None or checkpoint_files.is_url(place):
        return policy
    return replace(policy, checkpoint_folder=str(Path(place).absolute()))
