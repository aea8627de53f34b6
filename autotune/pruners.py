"""When to stop a trial: `(trial, others, target) -> Stop | None`, with a reason in words.

A pruner is a function of frozen trials, called at each report of a running trial that has not
reached the target. What it stops is CENSORED at the seconds spent so far.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from autotune.errors import UserError, unknown
from autotune.trial import Stop, Target, Trial, incumbent

Pruner = Callable[[Trial, Sequence[Trial], Target], Stop | None]


def slower_than_best(factor: float = 1.0) -> Pruner:
    """Stop a trial that has already spent `factor` times the incumbent's time to target.

    With factor 1.0 nothing is lost: without repeats such a trial can no longer win. This is the
    adaptive capping of algorithm configuration (Hutter et al. 2009, ParamILS). Only trials on
    equal hardware are compared.

    Raises:
        ValueError: a factor below 1.
    """
    if not factor >= 1:
        raise ValueError(f"slower_than_best factor must be >= 1 but got {factor!r}")

    def prune(trial: Trial, others: Sequence[Trial], target: Target) -> Stop | None:
        best = incumbent(others, like=trial.hardware)
        if best is None or trial.seconds < factor * best.seconds:
            return None
        spent, took = (
            f"{trial.seconds:.2f} s spent",
            f"trial {best.number} took {best.seconds:.2f} s",
        )
        return Stop("capped", f"{spent}, {took}")

    return prune


def never(trial: Trial, others: Sequence[Trial], target: Target) -> Stop | None:
    """Stop nothing: only the target's limit censors."""
    return None


PRUNERS: dict[str, Callable[[], Pruner]] = {
    "convergence": slower_than_best,
    "slower_than_best": slower_than_best,
    "none": lambda: never,
}


def make_pruner(pruner: str | Pruner) -> Pruner:
    """A pruner by name, or the pruner itself.

    Raises:
        UserError: an unknown name.
    """
    if callable(pruner):
        return pruner
    if pruner not in PRUNERS:
        raise UserError(unknown("pruner", pruner, PRUNERS))
    return PRUNERS[pruner]()
