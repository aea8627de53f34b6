"""What is simulated: a recorded task as it is, or with a random target, limit, space and more."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from autotune.algorithms.experience.known_task import MARKS, Array, best_so_far
from autotune.algorithms.experience.model import Predictions
from autotune.algorithms.samplers.trained_policy.inputs import Bools, Rows
from autotune.evaluation.policy_training.tables import Table

_STEP = math.log(MARKS[1] / MARKS[0])
_DRAWN, _PROMISING = 128, 32  # candidates: drawn, and the best by the models of known tasks
_LEAST = 40  # candidates that a narrowed range must leave
_WORKERS = (1, 1, 1, 2, 4, 8)
_NOISES = (0.0, 0.05, 0.1, 0.2)


@dataclass(frozen=True, eq=False)
class Setting:
    """One study to simulate.

    Args:
        positions: of the candidates, (candidates, parameters).
        choices: which of the parameters are choices.
        times: to the target, as shares of the limit; inf where not reached, (candidates,).
        curves: the best metric until each of `MARKS`, (candidates, 12).
        predicted: what the models of known tasks say of the candidates.
        workers: trials at once.
        noise: standard deviation of the logarithm of a trial's time about `times`.
        pruner: the probability that a trial which cannot reach the target by the cap is stopped
            earlier.
        tells_left: whether the policy knows what the study may still spend.
    """

    positions: Array
    choices: Bools
    times: Array
    curves: Array
    predicted: Predictions
    workers: int = 1
    noise: float = 0.0
    pruner: float = 0.0
    tells_left: bool = True


def plain(table: Table) -> Setting:
    """The study of a table as it is: its own target, one worker, without noise."""
    return Setting(
        table.positions,
        table.choices,
        table.task.times,
        _filled(table.task.curves),
        table.predicted,
    )


def _filled(curves: Array) -> Array:
    """Curves that keep their last value where they were not seen any more."""
    filled = best_so_far(curves)
    return np.where(np.isfinite(filled), filled, np.nan)


def level_times(curves: Array, level: float) -> Array:
    """When each curve reaches a level, as a share of the limit; inf if it does not."""
    met = curves >= level
    first = met.argmax(axis=1)
    before = np.maximum(first - 1, 0)
    index = np.arange(len(first))
    low, high = curves[index, before], curves[index, first]
    with np.errstate(invalid="ignore", divide="ignore"):
        part = np.where(first > 0, (level - low) / (high - low), 1.0)
    part = np.where(np.isfinite(part), np.clip(part, 0.0, 1.0), 1.0)
    logs = np.log(MARKS)[before] + part * (np.log(MARKS)[first] - np.log(MARKS)[before])
    return np.where(met.any(axis=1), np.exp(logs), np.inf)


def without_tasks(setting: Setting) -> Setting:
    """The setting with no task known."""
    none = Predictions(
        setting.predicted.logs[:0], setting.predicted.deviations[:0], setting.predicted.scores[:0]
    )
    return replace(setting, predicted=none)


def drawn(table: Table, rng: np.random.Generator) -> Setting:
    """A study of a task with everything about it drawn.

    The target (a metric that 2 to 50 % of the points reach), the limit, which points there are,
    ranges, parameters without effect, workers, noise, a pruner, which tasks are known, and whether
    they have to do with this one.
    """
    whole = plain(table)
    rows, positions = _narrowed(whole, rng)
    if len(whole.predicted.logs):
        order = np.argsort(whole.predicted.logs[:, rows].min(axis=0), kind="stable")
        first = rng.choice(len(rows), min(_DRAWN, len(rows)), replace=False)
        chosen = np.union1d(first, order[:_PROMISING])
    else:
        chosen = rng.choice(len(rows), min(_DRAWN + _PROMISING, len(rows)), replace=False)
    rows, positions = rows[chosen], positions[chosen]
    times, curves = _timed(whole.curves, rows, rng)
    positions, choices = _with_nuisance(positions, whole.choices, rng)
    return Setting(
        positions,
        choices,
        times,
        curves,
        _sources(table, rows, rng),
        workers=int(rng.choice(_WORKERS)),
        noise=float(rng.choice(_NOISES)),
        pruner=float(rng.choice([0.0, 0.8])),
        tells_left=bool(rng.random() < 0.8),
    )


def _narrowed(setting: Setting, rng: np.random.Generator) -> tuple[Rows, Array]:
    """The rows of a part of the space, and their positions within it; often all of it."""
    rows, positions = np.arange(len(setting.times)), setting.positions
    numbers = np.flatnonzero(~setting.choices)
    if not len(numbers) or rng.random() < 0.6:
        return rows, positions
    column = int(rng.choice(numbers))
    width = rng.uniform(0.4, 0.9)
    low = rng.uniform(0.0, 1.0 - width)
    inside = (positions[:, column] >= low) & (positions[:, column] <= low + width)
    if inside.sum() < _LEAST:
        return rows, positions
    moved = positions[inside].copy()
    moved[:, column] = (moved[:, column] - low) / width
    return rows[inside], moved


def _timed(curves: Array, rows: Rows, rng: np.random.Generator) -> tuple[Array, Array]:
    """Times to a drawn target within a drawn limit, and the curves on that scale."""
    final = np.nan_to_num(curves[:, -1], nan=-np.inf)
    final = final[np.isfinite(final)]
    for _ in range(20):
        times = level_times(curves[rows], float(np.quantile(final, rng.uniform(0.5, 0.98))))
        shift = int(rng.integers(-2, 3))
        times = times * math.exp(-shift * _STEP)
        times = np.where(times < 1.0, times, np.inf)
        if np.isfinite(times).any():
            break
    marks = np.arange(len(MARKS)) + shift
    moved = curves[rows][:, np.clip(marks, 0, len(MARKS) - 1)]
    return times, np.where(marks >= 0, moved, np.nan)


def _with_nuisance(
    positions: Array, choices: Bools, rng: np.random.Generator
) -> tuple[Array, Bools]:
    """Positions with parameters that have no effect, or that say what another says."""
    columns, kinds = [positions], [choices]
    if rng.random() < 0.3:
        count = int(rng.integers(1, 5))
        columns.append(rng.random((len(positions), count)))
        kinds.append(np.zeros(count, dtype=bool))
    numbers = np.flatnonzero(~choices)
    if len(numbers) and rng.random() < 0.1:
        columns.append(positions[:, [int(rng.choice(numbers))]])
        kinds.append(np.zeros(1, dtype=bool))
    return np.concatenate(columns, axis=1), np.concatenate(kinds)


def _sources(table: Table, rows: Rows, rng: np.random.Generator) -> Predictions:
    """What some of the known tasks say, none to all; sometimes of other points than these."""
    owners = np.unique(table.owner)
    count = (
        0 if rng.random() < 0.15 else int(rng.integers(1, len(owners) + 1)) if len(owners) else 0
    )
    models = np.flatnonzero(np.isin(table.owner, rng.permutation(owners)[:count]))
    index = rng.permutation(len(table.task.points))[: len(rows)] if rng.random() < 0.15 else rows
    found = table.predicted
    return Predictions(
        found.logs[models][:, index],
        found.deviations[models][:, index],
        found.scores[models][:, index],
    )


def unrelated(setting: Setting, rng: np.random.Generator) -> Setting:
    """The setting where what is known is of other points: a task that only looks like the known."""
    index, found = rng.permutation(len(setting.times)), setting.predicted
    moved = Predictions(found.logs[:, index], found.deviations[:, index], found.scores[:, index])
    return replace(setting, predicted=moved)
