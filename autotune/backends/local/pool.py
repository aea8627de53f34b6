"""Trials in child processes on this machine, kept warm from one trial to the next, without Ray."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle

from autotune.backends.groups.pool import WorkerPool
from autotune.backends.groups.resources import fit, resolve_scaling
from autotune.backends.local import machine
from autotune.backends.local.processes import ChildProcesses
from autotune.backends.recipe_modules import pickled
from autotune.errors import UserError
from autotune.trial.failure import FailurePolicy
from autotune.trial.scaling import Scaling


class LocalPool(WorkerPool):
    """Runs trials on warm worker groups of child processes, as many as fit on this machine.

    Args:
        train: the trainer.
        scaling: workers of one trial; `max_concurrent_trials` bounds the number of groups.
        hang_timeout: seconds without an answer from every rank after which a group is ended.
        output: a folder for what trainers print, one file a rank; None drops it.

    Attributes:
        scaling: with what was left to the machine decided.
        decided: the decision about GPUs, in one line; empty where there was none to make.

    Raises:
        UserError: a trial can never fit here, or the trainer cannot be sent to a process.
    """

    def __init__(
        self,
        train: Callable[[dict[str, Any]], Any],
        scaling: Scaling,
        *,
        hang_timeout: float = FailurePolicy.hang_timeout,
        output: Path | None = None,
    ) -> None:
        scaling, self.decided = resolve_here(scaling)
        sent = pickled(train, cloudpickle)
        processes = ChildProcesses(sent, scaling, machine.gpus(), output)
        super().__init__(processes, scaling, hang_timeout)
        self._groups.grow([machine.resources()])


def resolve_here(scaling: Scaling) -> tuple[Scaling, str]:
    """The scaling with what it leaves open decided on this machine, and the decision in one line.

    Raises:
        UserError: not even one trial fits.
    """
    here = machine.resources()
    scaling, note = resolve_scaling(scaling, [here])
    try:
        fit(scaling, [here])
    except UserError as error:
        raise UserError(str(error).replace("the cluster has 1 node", "this machine has")) from None
    return scaling, note.replace("the cluster has", "this machine has")
