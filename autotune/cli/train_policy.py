"""`train-policy`: the weights of the sampler and the pruner `policy`, on studies of one's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.cli.console import DONE, say
from autotune.cli.given import TrainPolicyArguments
from autotune.errors import UserError

if TYPE_CHECKING:
    from autotune.algorithms.experience.known_task import KnownTask

_MINUTES = 10.0


def run(given: TrainPolicyArguments) -> int:
    """Train a policy and write its weights.

    Raises:
        UserError: wrong arguments, a file that cannot be read, or nothing to train on.
    """
    minutes = given.minutes
    if minutes is None and given.studies is None:
        minutes = _MINUTES
    if minutes is not None and minutes <= 0:
        raise UserError(f"--minutes must be more than 0 but got {minutes:g}")
    if given.studies is not None and given.studies < 1:
        raise UserError(f"--studies must be a whole number >= 1 but got {given.studies}")
    if given.training_seed < 0:
        raise UserError(f"--seed must be a whole number >= 0 but got {given.training_seed}")
    if given.weights.suffix != ".npz":
        raise UserError(f"--out must be a file name that ends in .npz but got {given.weights}")
    if not given.weights.absolute().parent.is_dir():
        raise UserError(f"--out {given.weights}: there is no folder {given.weights.parent}")
    tasks = _tasks(given)
    if not tasks:
        needed = "--data FILE, or --experience DIR with summaries of studies"
        raise UserError(f"train-policy: nothing to train on: give {needed}")
    from autotune.evaluation.policy_training import to_file

    count = to_file.train(tasks, given.weights, given.training_seed, minutes, given.studies, say)
    say(f"wrote {given.weights}, trained over {count} simulated studies")
    pruner = f"policy(weights={str(given.weights)!r})"
    say(f'use it with --sampler policy:{given.weights} or --pruner "{pruner}"')
    return DONE


def _tasks(given: TrainPolicyArguments) -> list[KnownTask]:
    """The tasks to train on; the shipped ones only where no folder is named."""
    from autotune.evaluation.policy_training import recorded
    from autotune.study.experience import store

    tasks = [task for file in given.data for task in recorded.read(file)]
    folder = store.folder_of(given.experience_folder)
    if folder is None:
        return tasks
    named = given.experience_folder is not None
    if named and not folder.is_dir():
        raise UserError(f"--experience must be a folder or off but got {folder}")
    return [*tasks, *(one.task() for one in store.known(folder, say, with_shipped=not named))]
