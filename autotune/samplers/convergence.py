"""`convergence`: a Bayesian sampler that knows it is looking for time.

An ensemble of extremely randomised trees (Geurts et al. 2006) is fitted to how trials stand in the
race (`samplers.standing`), stopped and running ones included. Candidates come from around the best
trials and, a quarter of them, from the whole space; each proposal takes the candidate that a random
fifth of the trees likes best, which is Thompson sampling by bootstrap, so that parallel proposals
differ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.parameters import Choice, Float, Int, Parameter, drawn
from autotune.space import SearchSpace
from autotune.standing import standings
from autotune.trial import Params, Target, Trial

_TREES, _DRAWN_TREES = 60, 12
_CANDIDATES, _ANYWHERE = 256, 0.25
_FIRST = 10  # trials drawn around the baseline or anywhere, before there is a model
_KEPT_FIRST, _KEPT_LAST = 0.8, 0.3  # shares of the baseline, before the first and at the end
_ELITE, _LEAST_ELITE = 0.2, 4
_ABSENT = -0.5  # stands for a parameter that a point does not have


class ConvergenceSampler:
    """Proposes points by a forest over how the trials so far stand.

    Args:
        space: what is searched; conditions included.
        target: what the trials race to.
        seed: of the random numbers, together with the number of the trial that is asked for.
    """

    def __init__(self, space: SearchSpace, target: Target, seed: int) -> None:
        self._space = space
        self._target = target
        self._seed = seed
        self._parameters = space.parameters()

    def ask(self, number: int, trials: Sequence[Trial]) -> Params:
        """The point of trial `number`: a function of the trials, the seed and the number."""
        random = Random(f"{self._seed}/{number}")
        inside = [t for t in trials if t.params is not None]
        places = standings(inside, self._target)
        told = sorted((t for t in inside if t.number in places), key=lambda t: places[t.number])
        if len(told) < _FIRST or not self._parameters:
            return self._first(random, number, inside)
        points: list[Params] = [t.params or {} for t in told]
        elite = points[: max(_LEAST_ELITE, math.ceil(_ELITE * len(points)))]
        count = round(_CANDIDATES * _ANYWHERE)
        candidates = [self._anywhere(random) for _ in range(count)]
        candidates += [self._near(random, elite) for _ in range(_CANDIDATES - count)]
        scores = self._liked(points, [places[t.number] for t in told], candidates, random)
        return candidates[int(np.argmin(scores))]

    # --- candidates ---------------------------------------------------------------------------

    def _first(self, random: Random, number: int, trials: Sequence[Trial]) -> Params:
        """Around the baseline, keeping less and less of it; anywhere without one."""
        known = next((t.params for t in trials if t.kind == "baseline" and t.params), {})
        left = min(number / _FIRST, 1.0)
        share = _KEPT_FIRST + (_KEPT_LAST - _KEPT_FIRST) * left

        def draw(name: str, parameter: Parameter) -> Any:
            if name in known and random.random() < share:
                return known[name]
            return drawn(parameter, random)

        return self._space.suggest(draw)

    def _anywhere(self, random: Random) -> Params:
        return self._space.suggest(lambda _, parameter: drawn(parameter, random))

    def _near(self, random: Random, elite: Sequence[Params]) -> Params:
        """A child of two of the best, most of its numbers moved a little, some drawn anew."""
        mother, father = random.choice(elite), random.choice(elite)
        width = 10 ** random.uniform(-2.0, -0.5)

        def draw(name: str, parameter: Parameter) -> Any:
            parent = father if random.random() < 0.3 else mother
            if name not in parent or random.random() < 0.08:
                return drawn(parameter, random)
            return moved(parameter, parent[name], width, random)

        return self._space.suggest(draw)

    # --- the model ----------------------------------------------------------------------------

    def _liked(
        self,
        points: Sequence[Params],
        places: Sequence[float],
        candidates: Sequence[Params],
        random: Random,
    ) -> NDArray[Any]:
        """What the model expects of each candidate, lower is better."""
        from scipy.special import ndtri
        from sklearn.ensemble import ExtraTreesRegressor

        forest = ExtraTreesRegressor(
            _TREES, min_samples_leaf=2, max_features=0.7, random_state=random.getrandbits(31)
        )
        count = len(places)
        normal = ndtri((np.asarray(places) * (count - 1) + 0.6) / (count + 0.2))
        forest.fit(self._encoded(points), normal)
        trees = random.sample(range(_TREES), _DRAWN_TREES)
        encoded = self._encoded(candidates).astype(np.float32)
        each = [forest.estimators_[tree].predict(encoded) for tree in trees]
        liked: NDArray[Any] = np.mean(each, axis=0)
        return liked

    def _encoded(self, points: Sequence[Params]) -> NDArray[Any]:
        rows = [
            [x for name, p in self._parameters.items() for x in features(p, point.get(name, _NONE))]
            for point in points
        ]
        return np.array(rows, dtype=float)


_NONE = object()


def features(parameter: Parameter, value: Any) -> list[float]:
    """A value as numbers: its place in the unit interval, or one number an option of a choice."""
    if isinstance(parameter, Choice):
        return [float(value is not _NONE and value == option) for option in parameter.options]
    return [_ABSENT] if value is _NONE else [place(parameter, value)]


def place(parameter: Float | Int, value: float) -> float:
    """Where a number lies in its range, from 0 to 1; on a log scale where it is searched on one.

    >>> place(Float(0.01, 1.0, log=True), 0.1), place(Int(1, 5), 2)
    (0.5, 0.25)
    """
    low, high = parameter.low, parameter.high
    if high == low:
        return 0.5
    if parameter.log or (isinstance(parameter, Int) and parameter.power_of_two):
        return math.log(value / low) / math.log(high / low)
    return (value - low) / (high - low)


def moved(parameter: Parameter, value: Any, width: float, random: Random) -> Any:
    """A value near `value`, a normal step of `width` in the unit interval; choices mostly stay."""
    if isinstance(parameter, Choice):
        return random.choice(parameter.options) if random.random() < width / 2 else value
    goal = place(parameter, value) + random.gauss(0.0, width)
    goal = -goal if goal < 0 else 2.0 - goal if goal > 1 else goal
    goal = min(max(goal, 0.0), 1.0)
    low, high = parameter.low, parameter.high
    by_factors = parameter.log or (isinstance(parameter, Int) and parameter.power_of_two)
    at = low * (high / low) ** goal if by_factors and high > low else low + goal * (high - low)
    if isinstance(parameter, Float):
        return min(max(at, low), high)
    if parameter.power_of_two:
        return 2 ** round(math.log2(at))
    return min(low + parameter.step * round((at - low) / parameter.step), options_end(parameter))


def options_end(parameter: Int) -> int:
    """The greatest value of a whole number that is searched in steps."""
    return parameter.high - (parameter.high - parameter.low) % parameter.step
