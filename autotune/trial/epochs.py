"""Epochs as samples, which is what trainers count."""

from __future__ import annotations

from autotune.errors import shown
from autotune.trial.checks import is_finite, whole


def epochs(count: float, samples: int) -> int:
    """The samples of so many epochs, for `limit_steps` where a trainer's steps are samples.

    >>> epochs(20, 50_000)
    1000000

    Args:
        count: epochs, more than 0; half an epoch is 0.5.
        samples: samples of one epoch on all ranks together, such as `len(dataset)`.

    Raises:
        ValueError: an argument outside its range.
    """
    if not is_finite(count) or count <= 0:
        raise ValueError(f"epochs count must be more than 0 but got {shown(count)}")
    return max(round(count * whole("epochs samples", samples, 1)), 1)
