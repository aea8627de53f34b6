"""What the network sees of a study: numbers that depend on no name, order, or unit.

Trials and candidates are seen as positions within the ranges of the space. For each candidate there
are three kinds of rows, each of which the network pools: of the candidate and each trial, of the
candidate and each parameter, and of the candidate itself. So neither the order of the trials nor
that of the parameters matters, and a space of any size can be read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.algorithms.experience.known_task import MARKS, Array, at_common_marks, last_marks
from autotune.algorithms.samplers.trained_policy.expected import Expected
from autotune.space.encoding import unit_of
from autotune.space.parameters import Choice, Parameter

Bools = NDArray[np.bool_]
Rows = NDArray[np.signedinteger[Any]]
PAIR, PARAMETER, POINT, STATE = 8, 6, 9, 9
"""How many numbers there are for each pair, parameter and point, and for the state."""
ABSENT = -1.0  # the position of a parameter that a point does not have
_NARROW, _WIDE = 0.1, 0.3  # widths of the kernels, as shares of a range
_SCALE, _NOISE = 0.7, 0.3  # of the Gaussian process: length, and variance of the noise
_LEAST_LOG = -8.0  # of a share of the largest gain


@dataclass(frozen=True, eq=False)
class Seen:
    """What the trials of a study have shown.

    Args:
        positions: of their points, (trials, parameters).
        logs: log times until which they ran, as shares of the limit, (trials,).
        places: normal scores of their places at equal times, low for the best, (trials,).
        reached: whether they reached the target, (trials,).
        running: whether they still run, (trials,).
        left: what the study may still spend, in limits; nan where nobody knows.
    """

    positions: Array
    logs: Array
    places: Array
    reached: Bools
    running: Bools
    left: float


@dataclass(frozen=True, eq=False)
class Inputs:
    """The network's inputs for one decision.

    Args:
        pairs: (candidates, trials, PAIR).
        parameters: (candidates, parameters, PARAMETER).
        points: (candidates, POINT).
        state: (STATE,).
    """

    pairs: Array
    parameters: Array
    points: Array
    state: Array


def positions(
    parameters: Mapping[str, Parameter], points: Sequence[Mapping[str, Any]]
) -> tuple[Array, Bools]:
    """The positions of points, and which of the parameters are choices.

    A choice's position is the number of its option.
    """
    rows = [[_position(p, point, name) for name, p in parameters.items()] for point in points]
    choices = np.array([isinstance(p, Choice) for p in parameters.values()], dtype=bool)
    return np.array(rows, dtype=float).reshape(len(points), len(parameters)), choices


def _position(parameter: Parameter, point: Mapping[str, Any], name: str) -> float:
    if name not in point:
        return ABSENT
    if isinstance(parameter, Choice):
        value = point[name]
        return float(parameter.options.index(value)) if value in parameter.options else ABSENT
    return unit_of(parameter, point[name])


def differences(one: Array, other: Array, choices: Bools) -> Array:
    """How far points are apart in each parameter, from 0 to 1: (one, other, parameters).

    Different options, and a parameter that only one of them has, are 1 apart.
    """
    apart = np.abs(one[:, None, :] - other[None, :, :])
    absent = (one == ABSENT)[:, None, :] != (other == ABSENT)[None, :, :]
    return np.where(absent | (choices[None, None, :] & (apart > 0)), 1.0, np.minimum(apart, 1.0))


def places(logs: Array, reached: Bools, curves: Array) -> Array:
    """Normal scores of the places of trials at equal times, low for the best; (trials,).

    Those that reached the target come first, by their time; each other one by the share of trials
    that were better at the last of `MARKS` at which both were seen.

    Args:
        logs: log times until which they ran, as shares of the limit, (trials,).
        reached: whether they reached the target then, (trials,).
        curves: the best metric until each of `MARKS`, higher is better, nan if not seen; (n, 12).
    """
    count = len(logs)
    if not count:
        return np.zeros(0)
    last = np.where(reached, len(MARKS) - 1, last_marks(curves))
    never = np.minimum.outer(last, last) < 0
    own = np.where(never, -np.inf, at_common_marks(curves, last))
    loses = (own < own.T) + 0.5 * (own == own.T)
    loses = np.where(reached[:, None] & ~reached[None], 0.0, loses)
    loses = np.where(~reached[:, None] & reached[None], 1.0, loses)
    both = reached[:, None] & reached[None]
    later = (logs[:, None] > logs[None]) + 0.5 * (logs[:, None] == logs[None])
    loses = np.where(both, later, loses)
    np.fill_diagonal(loses, 0.0)
    shares = (loses.sum(axis=1) + 0.5) / count
    return _normal(shares)


def _normal(shares: Array) -> Array:
    from scipy.special import ndtri

    return np.asarray(ndtri(np.clip(shares, 0.01, 0.99)))


# --- the inputs -----------------------------------------------------------------------------------


def inputs(seen: Seen, candidates: Array, choices: Bools, expected: Expected) -> Inputs:
    """The network's inputs.

    Args:
        seen: what the trials have shown.
        candidates: the positions of the candidates, (candidates, parameters).
        choices: which of the parameters are choices.
        expected: what known tasks say.
    """
    apart = differences(candidates, seen.positions, choices)
    return Inputs(
        _pairs(seen, apart, expected),
        _parameters(seen, apart),
        _points(seen, apart, choices, expected),
        _state(seen, expected),
    )


def _pairs(seen: Seen, apart: Array, expected: Expected) -> Array:
    count, trials, size = apart.shape
    distance = np.sqrt((apart**2).mean(axis=2)) if size else np.zeros((count, trials))
    shape = (count, trials)
    best = _best(seen)
    columns = [
        distance,
        np.exp(-0.5 * (distance / _NARROW) ** 2),
        np.exp(-0.5 * (distance / _WIDE) ** 2),
        np.broadcast_to(seen.places, shape),
        np.broadcast_to(seen.reached.astype(float), shape),
        np.broadcast_to(seen.running.astype(float), shape),
        np.broadcast_to(np.clip(seen.logs - best, -3.0, 3.0), shape),
        np.clip(expected.means[:, None] - expected.of_trials[None], -3.0, 3.0),
    ]
    return np.stack(columns, axis=2)


def _parameters(seen: Seen, apart: Array) -> Array:
    """What the ended trials say of each candidate's value of each parameter, by itself."""
    count, _, size = apart.shape
    found = np.zeros((count, size, PARAMETER))
    ended = ~seen.running
    if not ended.any() or not size:
        return found
    apart, scores = apart[:, ended], seen.places[ended]
    mean = scores.mean()
    for column, width in ((0, _NARROW), (2, _WIDE)):
        weights = np.exp(-0.5 * (apart / width) ** 2)
        total = weights.sum(axis=1)
        found[:, :, column] = ((scores - mean)[None, :, None] * weights).sum(axis=1) / (total + 1.0)
        found[:, :, column + 1] = np.log1p(total)
    found[:, :, 4] = apart[:, int(np.argmin(scores))]
    found[:, :, 5] = apart.min(axis=1)
    return found


def _points(seen: Seen, apart: Array, choices: Bools, expected: Expected) -> Array:
    count = len(apart)
    most = float(expected.gains.max(initial=0.0))
    share = expected.gains / most if most > 0 else np.ones(count)
    best = _best(seen)
    mean, known, deviation = _process(seen, apart, choices, expected)
    nearest = np.sqrt((apart**2).sum(axis=2)).min(axis=1, initial=3.0)
    columns = [
        np.maximum(np.log(np.maximum(share, 1e-12)), _LEAST_LOG) / 2,
        np.clip(expected.gains, 0.0, 3.0),
        np.clip(expected.means - best, -3.0, 3.0),
        expected.deviations,
        (expected.means - expected.means.mean()) / (expected.means.std() + 0.1),
        mean,
        mean - known,
        deviation,
        np.minimum(nearest, 3.0),
    ]
    return np.stack(columns, axis=1)


def _process(
    seen: Seen, apart: Array, choices: Bools, expected: Expected
) -> tuple[Array, Array, Array]:
    """A Gaussian process of the places at candidates; the same of what was expected of the trials.

    The difference of both is by how much the trials near a candidate surprised. Returned with the
    standard deviations.
    """
    ended = ~seen.running
    count = len(apart)
    if not ended.any():
        return np.zeros(count), np.zeros(count), np.ones(count)
    among = _matern(differences(seen.positions[ended], seen.positions[ended], choices))
    among[np.diag_indices_from(among)] += _NOISE
    cross = _matern(apart[:, ended])
    logs = expected.of_trials[ended]
    known = (logs - logs.mean()) / (logs.std() + 0.1)
    solved = np.linalg.solve(among, np.column_stack([seen.places[ended], known, cross.T]))
    means = cross @ solved[:, :2]
    variance = 1.0 - (cross * solved[:, 2:].T).sum(axis=1)
    return means[:, 0], means[:, 1], np.sqrt(np.maximum(variance, 0.0))


def _matern(apart: Array) -> Array:
    square = (apart**2).sum(axis=2) / _SCALE**2
    root = np.sqrt(5.0 * square)
    return np.asarray((1 + root + 5 / 3 * square) * np.exp(-root))


def _state(seen: Seen, expected: Expected) -> Array:
    ended = ~seen.running
    count = int(ended.sum())
    known_left = math.isfinite(seen.left)
    return np.array(
        [
            math.log1p(count) / 2,
            float(seen.reached.any()),
            float(seen.reached.sum()) / max(count, 1),
            max(_best(seen), -4.0),
            math.log1p(max(seen.left, 0.0)) / 2 if known_left else 0.0,
            float(known_left),
            math.log1p(float(seen.running.sum())),
            expected.none,
            math.log(max(expected.spread, 1.0)) / 4,
        ]
    )


def _best(seen: Seen) -> float:
    """The log time of the fastest trial, as a share of the limit; 0 for the limit."""
    return float(seen.logs[seen.reached].min(initial=0.0))
