"""Checks of what a trainer reports: its milestones, their metrics, and what it returns."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from autotune.errors import shown
from autotune.trial import Milestone
from autotune.trial.limit import measured_by


def check_milestone(milestone: object, before: Milestone | None) -> None:
    """Check what the trainer yielded after `before`.

    Raises:
        TypeError: it is no milestone.
        ValueError: its step does not grow.
    """
    if not isinstance(milestone, Milestone):
        raise TypeError(f"the trainer must yield autotune.Milestone but got {milestone!r:.80}")
    if before is not None and milestone.step <= before.step:
        raise ValueError(
            f"Milestone step must grow but got {milestone.step} after {before.step}: "
            "it counts the samples seen so far by all ranks"
        )


def evaluated(values: object) -> dict[str, float]:
    """The metrics that `evaluate` returned.

    Raises:
        TypeError: they are no dict of numbers.
    """
    if not isinstance(values, Mapping):
        raise TypeError(f"evaluate must return a dict of metrics but got {values!r:.80}")
    return numbers("evaluate must return numbers", values)


def measured(milestone: Milestone, late: bool, train: Callable[..., Any]) -> dict[str, float]:
    """The metrics that a milestone measures; nan where it measures none.

    Args:
        milestone: at which the rank waits.
        late: whether the report is of an earlier one, whose model is gone.

    Raises:
        TypeError: they are no dict of numbers.
        ValueError: the report is late.
    """
    if late:
        names = ", ".join(measured_by(train))
        raise ValueError(f"{names} cannot be measured: the report came after its milestone")
    if milestone.measure is None:
        return dict.fromkeys(measured_by(train), math.nan)
    return evaluated(milestone.measure())


def numbers(needed: str, values: Mapping[Any, Any]) -> dict[str, float]:
    """The metrics as floats.

    Raises:
        TypeError: one is no number; the message begins with what was `needed`.
    """
    made = {}
    for name, value in values.items():
        try:
            made[str(name)] = float(value)
        except (TypeError, ValueError):
            raise TypeError(f"{needed} but {shown(name)} is {shown(value)}") from None
    return made


def returned_metrics(value: object, metric: str) -> tuple[dict[str, float] | None, str]:
    """The metrics that a function returned at its end; or None, and what it returned in words.

    Args:
        value: a number, or a dict of numbers; scalars of numpy and torch are numbers, too.
        metric: the target's, which a number alone is.

    >>> returned_metrics(0.5, "accuracy"), returned_metrics("0.5", "accuracy")
    (({'accuracy': 0.5}, ''), (None, "returned '0.5'"))
    """
    if not isinstance(value, Mapping):
        number = None if _is_bool(value) else _number(value)
        return ({metric: number}, "") if number is not None else (None, f"returned {shown(value)}")
    metrics = {}
    for name, given in value.items():
        number = _number(given)
        if number is None:
            return None, f"returned a dict in which {shown(name)} is {shown(given)}, no number,"
        metrics[str(name)] = number
    return metrics, ""


def _number(value: Any) -> float | None:
    """The value as a float, if it is a number of any type; text that looks like one is none."""
    if isinstance(value, str | bytes | bytearray):
        return None
    try:
        return float(value)
    except Exception:  # it is an object of the user's, or a tensor of several elements
        return None


def _is_bool(value: object) -> bool:
    """Whether it is true or false, which says that a function is done more often than how well."""
    return isinstance(value, bool) or str(getattr(value, "dtype", "")).endswith("bool")
