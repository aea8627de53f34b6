"""Population-based bandits: population-based training whose new numbers come from a model.

Parker-Holder et al. 2020 (arXiv 2002.02518). What a trial gained towards the target from one look
to the next is modelled by a Gaussian process of the time and the knobs, in which what was seen long
ago counts less; the new numbers are those with the highest upper confidence bound. It needs far
fewer trials at a time than chance does. Choices change by chance, as in `population`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve, cholesky, solve_triangular

from autotune.algorithms.controllers.pbt import (
    Population,
    Situation,
    born,
    known_knobs,
    pbt,
    perturbed,
    whole,
)
from autotune.algorithms.ranking.equal_time import Curve
from autotune.space.parameters import Choice, Float, Int, Parameter
from autotune.space.search_space import SearchSpace
from autotune.trial import Params, State, Target, Trial

Array = NDArray[np.float64]

_LEAST = 3  # gains, before which numbers move by chance
_MOST = 128  # gains that are modelled, the newest
_LENGTHS = (0.1, 0.2, 0.4, 0.8)  # of the box's side, times the root of the dimensions
_FORGETTING = (0.0, 0.1, 0.4)  # per look
_NOISES = (0.01, 0.1, 0.5)  # of the gains' variance
_ANYWHERE, _NEAR = 512, 256  # candidates in the box, and around the best so far
_WIDTHS = (0.1, 0.03, 0.01)
_SURE, _GROWING = 0.2, 0.4  # the squared weight of the uncertainty: 0.2 + ln(0.4 n)


def pb2(
    space: SearchSpace,
    target: Target,
    *,
    interval: float | None = None,
    knobs: Sequence[str] | None = None,
    share: float = 0.25,
    seed: int = 0,
) -> Population:
    """Population-based bandits; the arguments are those of `pbt`.

    Raises:
        UserError: see `population.Population`.
    """
    named = tuple(knobs) if knobs is not None else known_knobs(space)
    every = pbt(space, target, interval=interval, knobs=named).interval
    return Population(space, every, named, confident, share, seed)


def confident(
    situation: Situation, parameters: Mapping[str, Parameter], random: Random
) -> dict[str, Any]:
    """New values: of numbers by the model's upper confidence bound, of choices by chance."""
    by_chance = perturbed(situation, parameters, random)
    numbers = {n: p for n, p in parameters.items() if not isinstance(p, Choice)}
    seen = gains(situation, numbers)
    if len(seen.gain) < _LEAST or not numbers:
        return by_chance
    own = [t for t in situation.trials if t.state is State.RUNNING and _has(t, numbers)]
    tried = [_encoded(numbers, t.point or {}) for t in own]
    best = highest(fit(seen), float(situation.look), tried, np.random.default_rng(_bits(random)))
    chosen = {n: at_share(p, float(x)) for (n, p), x in zip(numbers.items(), best, strict=True)}
    return {**by_chance, **chosen}


def _bits(random: Random) -> int:
    return random.getrandbits(64)


# --- what was gained ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Gains:
    """What trials gained in one interval each: `time` in looks, `knobs` in the unit box."""

    time: Array
    knobs: Array
    gain: Array


def gains(situation: Situation, numbers: Mapping[str, Parameter]) -> Gains:
    """How much nearer to the target each trial came, from one look to the next, by itself.

    What a fork shares with its parent is the parent's, and is told once.
    """
    rows: list[tuple[float, list[float], float]] = []
    for trial in situation.trials:
        if trial.kind != "trial" or not _has(trial, numbers):
            continue
        curve, at = Curve(trial, situation.target), _encoded(numbers, trial.point or {})
        last = int(trial.seconds // situation.interval)
        for look in range(born(trial, situation.interval), last):
            gaps = [curve.at((look + i) * situation.interval) for i in (0, 1)]
            if all(map(math.isfinite, gaps)):
                rows.append((float(look), at, gaps[0] - gaps[1]))
    rows = sorted(rows, key=lambda row: row[0])[-_MOST:]
    times, knobs, gained = zip(*rows, strict=True) if rows else ((), (), ())
    shape = (len(rows), len(numbers))
    return Gains(np.array(times), np.array(knobs, dtype=float).reshape(shape), np.array(gained))


def _has(trial: Trial, numbers: Mapping[str, Parameter]) -> bool:
    return trial.point is not None and all(name in trial.point for name in numbers)


def _encoded(numbers: Mapping[str, Parameter], point: Params) -> list[float]:
    return [share_of(parameter, point[name]) for name, parameter in numbers.items()]


def _by_factors(parameter: Float | Int) -> bool:
    return parameter.log or (isinstance(parameter, Int) and parameter.power_of_two)


def share_of(parameter: Parameter, value: Any) -> float:
    """Where a number lies in its range, from 0 to 1, by its logarithm where that is searched.

    >>> share_of(Float(0.01, 1, log=True), 0.1), share_of(Int(1, 5), 2)
    (0.5, 0.25)
    """
    assert not isinstance(parameter, Choice)
    low, high = parameter.low, parameter.high
    if low == high:
        return 0.5
    if _by_factors(parameter):
        return math.log(value / low) / math.log(high / low)
    return float((value - low) / (high - low))


def at_share(parameter: Parameter, share: float) -> Any:
    """The value that lies there, the nearest one of whole numbers.

    >>> at_share(Int(16, 64, power_of_two=True), 0.6), at_share(Float(0, 2), 0.75)
    (32, 1.5)
    """
    assert not isinstance(parameter, Choice)
    low, high = parameter.low, parameter.high
    factors = _by_factors(parameter) and high > low
    goal = low * (high / low) ** share if factors else low + share * (high - low)
    return (
        float(min(max(goal, low), high)) if isinstance(parameter, Float) else whole(parameter, goal)
    )


# --- the model ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Model:
    """A Gaussian process fitted to gains, which are standardised to mean 0 and variance 1."""

    time: Array
    knobs: Array
    length: float
    forgetting: float
    noise: float
    factor: Array
    weights: Array

    def predict(self, time: float, knobs: Array) -> tuple[Array, Array]:
        """Mean and standard deviation of the standardised gain at `time`."""
        times = np.full(len(knobs), time)
        across = kernel(self.time, self.knobs, times, knobs, self.length, self.forgetting)
        half = solve_triangular(self.factor, across, lower=True)
        variance = np.maximum(1.0 - (half**2).sum(0), 1e-12)
        return across.T @ self.weights, np.sqrt(variance)

    def also(self, time: float, knobs: Array) -> Model:
        """The model once points were tried whose gains are not known yet: only surer of them."""
        mean, _ = self.predict(time, knobs)
        known = self.factor @ (self.factor.T @ self.weights)
        times = np.append(self.time, np.full(len(knobs), time))
        all_knobs = np.vstack([self.knobs, knobs])
        covariance = kernel(*2 * (times, all_knobs), self.length, self.forgetting)
        settings = self.length, self.forgetting, self.noise
        return _made(times, all_knobs, np.append(known, mean), settings, covariance)[0]


def kernel(
    time: Array, knobs: Array, times: Array, others: Array, length: float, forgetting: float
) -> Array:
    """exp(-|x - y|^2 / 2 l^2) (1 - forgetting)^(|t - s| / 2), between all of both."""
    squares = (knobs**2).sum(1)[:, None] + (others**2).sum(1)[None, :] - 2.0 * knobs @ others.T
    apart = np.abs(time[:, None] - times[None, :])
    fading = 0.5 * math.log1p(-forgetting) * apart
    found: Array = np.exp(fading - 0.5 * np.maximum(squares, 0.0) / length**2)
    return found


def fit(seen: Gains) -> Model:
    """The most likely of a grid of models: of lengths, of forgetting, of noise."""
    spread = float(seen.gain.std())
    standard = (seen.gain - seen.gain.mean()) / (spread if spread > 0 else 1.0)
    root = math.sqrt(seen.knobs.shape[1])
    lengths = [root * length for length in _LENGTHS]
    made = [
        _made(seen.time, seen.knobs, standard, (length, forgetting, noise), covariance)
        for length, forgetting in product(lengths, _FORGETTING)
        for covariance in [kernel(*2 * (seen.time, seen.knobs), length, forgetting)]
        for noise in _NOISES
    ]
    return max(made, key=lambda pair: pair[1])[0]


def _made(
    time: Array,
    knobs: Array,
    gain: Array,
    settings: tuple[float, float, float],
    covariance: Array,
) -> tuple[Model, float]:
    """A model, and the logarithm of its likelihood but for a constant."""
    noisy = covariance + settings[2] * np.eye(len(time))
    factor = cholesky(noisy, lower=True, check_finite=False)
    weights = cho_solve((factor, True), gain, check_finite=False)
    likelihood = -0.5 * float(gain @ weights) - float(np.log(np.diag(factor)).sum())
    return Model(time, knobs, *settings, factor, weights), likelihood


def highest(
    model: Model, time: float, tried: Sequence[Sequence[float]], random: np.random.Generator
) -> Array:
    """The knobs with the highest upper confidence bound at `time`, apart from what is tried."""
    sides = model.knobs.shape[1]
    if tried:
        model = model.also(time, np.array(tried, dtype=float))
    weight = math.sqrt(max(_SURE, _SURE + math.log(max(_GROWING * len(model.time), 1.0))))
    candidates = random.random((_ANYWHERE, sides))
    best: Array = candidates[0]
    most = -math.inf
    for width in (None, *_WIDTHS):
        if width is not None:
            near = best + width * random.standard_normal((_NEAR, sides))
            candidates = np.clip(near, 0.0, 1.0)
        mean, deviation = model.predict(time, candidates)
        bounds = mean + weight * deviation
        if bounds.max() > most:
            most, best = float(bounds.max()), candidates[int(bounds.argmax())]
    return best
