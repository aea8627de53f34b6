"""`policy`: a network proposes, trained by reinforcement learning over simulated studies.

At each ask it sees the trials so far and some hundred candidates, with what known tasks say of them
(`experienced`), and draws one. It was trained on other tasks and spaces, by
`autotune train-policy`; no weight changes while a study runs. From the 40th ended trial on points
come from the study's own search: the network was trained on studies of 30 trials.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from threading import Lock

import numpy as np

from autotune.algorithms.experience.known_task import MARKS, Array
from autotune.algorithms.experience.posterior import limit_of
from autotune.algorithms.ranking.equal_time import GapCurves
from autotune.algorithms.samplers import Sampler
from autotune.algorithms.samplers.elite import informative_trials
from autotune.algorithms.samplers.experienced import ExperiencedSampler
from autotune.algorithms.samplers.feasibility import Feasible
from autotune.algorithms.samplers.trained_policy import network
from autotune.algorithms.samplers.trained_policy.expected import Expected, nothing_known
from autotune.algorithms.samplers.trained_policy.inputs import Seen, inputs, places, positions
from autotune.space.search_space import SearchSpace
from autotune.trial import Params, State, Target, Trial
from autotune.trial.values import point_key

OWN_FROM = 40  # ended trials from which on the study's own search proposes
_DRAWN = 256  # candidates where no task is known
_LEAST_LOG = math.log(1e-6)
_WORST = -1e30  # the metric of a trial that failed


class TrainedPolicySampler:
    """Draws points from a trained policy.

    Args:
        space: the search space, conditions included.
        target: the target of the trials.
        seed: of the random numbers, together with the number of the ask.
        own: the study's own search, for later trials.
        known: the search with what known tasks say; None where no task is known.
        trials: how many the study will have, on which the points then depend; None where nobody
            knows.
        weights: of the network; by default those of the package.
    """

    def __init__(
        self,
        space: SearchSpace,
        target: Target,
        seed: int,
        own: Sampler,
        known: ExperiencedSampler | None = None,
        trials: int | None = None,
        weights: network.Weights | None = None,
    ) -> None:
        self._space, self._target, self._seed = space, target, seed
        self._own, self._known, self._trials = own, known, trials
        self._weights = network.shipped() if weights is None else weights
        self._parameters = space.parameters()
        self._curves = GapCurves()
        self._feasible = Feasible(space)
        self._lock = Lock()

    def ask(self, number: int, trials: Sequence[Trial]) -> Params | None:
        """A point: a function of the trials, the seed and the number of the ask."""
        ended = informative_trials(trials)
        if len(ended) >= OWN_FROM or not self._parameters:
            return self._own.ask(number, trials)
        random = Random(f"{self._seed}/{number}/policy")
        with self._lock:
            points, scores = self.scored(trials, ended, random)
        drawn = np.cumsum(np.exp(scores - scores.max()))
        place = int(np.searchsorted(drawn, random.random() * drawn[-1], side="right"))
        return points[min(place, len(points) - 1)]

    def scored(
        self, trials: Sequence[Trial], ended: Sequence[Trial], random: Random
    ) -> tuple[list[Params], Array]:
        """The candidates of an ask, and the network's scores of them."""
        running = [t for t in trials if t.state is State.RUNNING and t.params]
        shown = [*ended, *running]
        points, expected = self._candidates(shown, trials, random)
        here, choices = positions(self._parameters, points)
        found = inputs(self._seen(ended, running), here, choices, expected)
        scores = network.scores(self._weights, found)
        chances = self._feasible.chances(ended, points)
        return points, scores + np.log(np.maximum(chances, 1e-9))

    def _candidates(
        self, shown: Sequence[Trial], trials: Sequence[Trial], random: Random
    ) -> tuple[list[Params], Expected]:
        tried = {point_key(t.params) for t in trials if t.params}
        if self._known is not None:
            points, expected = self._known.considered(shown, trials)
        else:
            points = self._space.sample(_DRAWN, random.getrandbits(31))
            expected = nothing_known(len(points), len(shown))
        new = [i for i, point in enumerate(points) if point_key(point) not in tried]
        new = new or list(range(len(points)))  # a space of few points
        return [points[i] for i in new], expected.of(new)

    def _seen(self, ended: Sequence[Trial], running: Sequence[Trial]) -> Seen:
        """What the trials have shown, the ended ones first."""
        shown, limit = [*ended, *running], limit_of([*ended, *running], self._target)
        here, _ = positions(self._parameters, [t.params or {} for t in shown])
        shares = [max(t.seconds / limit, 0.0) for t in shown]
        logs = np.maximum(np.log(np.maximum(shares, 1e-12)), _LEAST_LOG)
        reached = np.array([t.state is State.REACHED for t in shown], dtype=bool)
        count = len(ended)
        curves = np.array([self._curve(t, limit) for t in ended]).reshape(count, len(MARKS))
        found = np.zeros(len(shown))
        found[:count] = places(logs[:count], reached[:count], curves)
        left = math.nan
        if self._trials is not None and count:
            left = max(self._trials - len(shown), 0) * float(np.mean(shares[:count]))
        elif self._trials is not None:
            left = float(self._trials)
        return Seen(here, logs, found, reached, np.arange(len(shown)) >= count, left)

    def _curve(self, trial: Trial, limit: float) -> Array:
        """The metric until each mark, higher is better; nan where the trial was not seen."""
        if trial.state in (State.FAILED, State.INFEASIBLE):
            return np.full(len(MARKS), _WORST)
        curve = self._curves.of(trial, self._target)
        gaps = np.array([curve.at(mark * limit) for mark in MARKS])
        seen = (min(curve.until, trial.seconds) * (1 + 1e-9) >= MARKS * limit) & np.isfinite(gaps)
        return np.where(seen, -gaps, np.nan)
