"""Trials that cannot fit into memory, as their trainer predicts it: they end without being tried.

A trainer may say, as its `memory`, how many bytes a rank needs: a function of the configuration,
the number of ranks, and the bytes that a rank has, below which any upper bound will do. A trial is
INFEASIBLE where a rank needs more than it has, by more than such a prediction may be wrong; of a
trainer with `memory_keys`, which can divide a batch, even with one sample in a forward pass. What
is predicted to fit and does not is found when it runs (`microbatch`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, SupportsFloat

from autotune.errors import text_of
from autotune.study.driver.microbatch import MICROBATCH, memory_settings
from autotune.study.driver.state import StudyState
from autotune.trial import Hardware, Trial
from autotune.trial.trainer import said

TOLERANCE = 0.15  # share of a prediction by which the truth may be less
Predict = Callable[[dict[str, Any], int, int], int]


def predictor(train: Callable[..., Any]) -> Predict | None:
    """The trainer's function that predicts bytes; None without one."""
    found: Predict | None = said(train, "memory")
    return found if callable(found) else None  # an agent's memory is of something else


def too_large(state: StudyState, trial: Trial, comparable: Hardware | None) -> str:
    """Why the trial does not fit into a rank's memory, or an empty string.

    A trial that has been tried is not asked about.
    """
    predict = predictor(state.settings.experiment.train)
    if predict is None or trial.attempts or trial.checkpoint is not None:
        return ""
    has = state.pool.memory(comparable)
    if has is None:
        return ""
    ranks = state.pool.next_hardware(comparable).num_workers
    needs = _predicted(state, predict, trial, ranks, has)
    if needs is None or needs * (1 - TOLERANCE) <= has:
        return ""
    each = " for one sample at a time" if state.memory_keys else ""
    return f"a rank would need about {shown(needs)}{each}, and has {shown(has)}; it was not tried"


def _predicted(
    state: StudyState, predict: Predict, trial: Trial, ranks: int, has: int
) -> int | None:
    """The bytes of a rank, with one sample in a forward pass where the trainer can divide a batch.

    It is asked once about trials of equal memory. None where they cannot be predicted: the trial
    shows whether it fits.
    """
    config, settings = dict(trial.config), f"{trial.config}"
    if state.memory_keys:
        config[MICROBATCH] = 1
        settings = f"{memory_settings(trial.config, state.memory_keys)[1:]}"  # whatever the batch
    key = f"{ranks} {has} {settings}"
    if key not in state.predicted:
        try:
            state.predicted[key] = _bytes(predict(config, ranks, has))
        except (ValueError, OSError):  # the trainer will say it
            state.predicted[key] = None
        except Exception as error:
            state.predicted[key] = None
            cause = f"{type(error).__name__}: {text_of(error)}"
            state.warn_once(
                f"trial {trial.number}: its memory cannot be predicted ({cause})", "predicted"
            )
    return state.predicted[key]


def _bytes(found: object) -> int:
    """What a trainer returned, which may be anything."""
    nbytes = float(found) if isinstance(found, SupportsFloat) else math.nan
    if isinstance(found, bool) or not math.isfinite(nbytes):
        raise TypeError(f"memory must return a number of bytes, got {found!r:.100}")
    return int(nbytes)


def shown(nbytes: float) -> str:
    """Bytes as text.

    >>> shown(3 * 2**30), shown(5 * 2**20)
    ('3.0 GiB', '5.0 MiB')
    """
    return f"{nbytes / 2**30:.1f} GiB" if nbytes >= 2**30 else f"{nbytes / 2**20:.1f} MiB"
