"""`convergence`: a Bayesian sampler for time to target.

A trial's value is its rank at equal training time (`ranking.equal_time`). A trial that was stopped
is thus ranked by what it reported until then; it counts neither as its bound nor as a failure. A
distribution over the space moves slowly to the elite of all trials (`samplers.distribution`). A
Gaussian process over the ranks, with more noise for a trial the earlier it was stopped, picks one
of a few candidates by a lower confidence bound. The width of the bound is random for every
proposal, so that parallel proposals differ. Once a trial has been infeasible, proposals are likely
to be feasible (`samplers.feasibility`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from threading import Lock
from typing import Protocol

import numpy as np

from autotune.algorithms.ranking.equal_time import equal_time_ranks, horizon
from autotune.algorithms.ranking.trial_index import common_prefix_length
from autotune.algorithms.samplers.distribution import centred_on, uniform
from autotune.algorithms.samplers.elite import (
    LEAST_UNIFORM,
    VERSION_INTERVAL,
    Version,
    baseline_point,
    elite_step,
    informative_trials,
    sample_point,
    select_trials,
)
from autotune.algorithms.samplers.feasibility import LIKELY, Feasible, likely
from autotune.algorithms.samplers.gaussian_process import Array, Hyper, Process, fit
from autotune.space.encoding import Encoder, rank_score
from autotune.space.search_space import SearchSpace
from autotune.trial import Params, State, Target, Trial

_STEP = 0.2  # of the natural gradient: small, for searches of hundreds of trials
_FADED = 40  # ended trials after which the share of uniform draws would be 0, but for its minimum
_START_UNIFORM = 0.5  # the first share of uniform draws, where a baseline is the centre
_FIRST = 16  # ended trials before the model is used
_CANDIDATES, _EXPLORED = 40, 20  # candidates in all, and those drawn uniformly
_KNOWN = 20  # further candidates, where other studies are known
_MODELLED = 60  # trials in the model: so many of the fastest and so many of the newest
_DRAWS = 20  # the most draws for one that is likely to be feasible
_REFIT = 1.5  # growth of the number of trials after which hyperparameters are fitted again
_SHRINK = 0.1  # added to the variance of what is expected: its slope is small if it hardly varies
_EARLY = 0.3  # noise that is added for a trial stopped at 1/e of the horizon


class Expectation(Protocol):
    """What is expected of points before the model has seen them, from other studies."""

    def expected(self, ended: Sequence[Trial], points: Sequence[Params]) -> Array:
        """A value for each point, low for the best, on any scale; a function of the trials."""
        ...

    def candidates(self, trials: Sequence[Trial], count: int, random: Random) -> list[Params]:
        """Points to choose from beside the model's own."""
        ...


class ConvergenceSampler:
    """Proposes points by the equal-time ranks of the trials so far.

    Args:
        space: the search space, conditions included.
        target: the target of the trials.
        seed: of the random numbers, together with the number of the ask.
        prior: what other studies let expect: the mean of the model, scaled to fit the trials.
    """

    def __init__(
        self, space: SearchSpace, target: Target, seed: int, prior: Expectation | None = None
    ) -> None:
        self._space, self._target, self._seed = space, target, seed
        self._expectation = prior
        self._parameters = space.parameters()
        self._encoder = Encoder(space)
        self._prior = uniform(self._parameters)
        self._lock = Lock()
        self._ended: list[Trial] = []  # the trials behind `_versions` and `_hypers`
        self._versions: list[Version] = []
        self._hypers: dict[int, Hyper] = {}
        self._process: _Model | None = None
        self._feasible = Feasible(space)

    def ask(self, number: int, trials: Sequence[Trial]) -> Params:
        """A point: a function of the trials, the seed and the number of the ask."""
        with self._lock:
            return self._ask(number, trials)

    def _ask(self, number: int, trials: Sequence[Trial]) -> Params:
        ended = informative_trials(trials)
        version = self._latest_version(trials, ended)
        random = Random(f"{self._seed}/{number}")
        if len(ended) < _FIRST or not self._parameters:
            return self._draw_point(ended, version, random)
        actors = [self._prior] * _EXPLORED + [version.policy] * (_CANDIDATES - _EXPLORED)
        points = [sample_point(actor, self._space, random) for actor in actors]
        if self._expectation is not None:
            points += self._expectation.candidates(trials, _KNOWN, random)
        expected, deviation = self._model(ended, version).at(points)
        bounds = expected - random.expovariate(1.0) * deviation
        chances = self._feasible.chances(ended, points)
        return points[min(likely(chances), key=lambda i: bounds[i])]

    def _draw_point(self, ended: list[Trial], version: Version, random: Random) -> Params:
        """The first draw that is likely to be feasible, or the likeliest of 20."""
        points: list[Params] = []
        while len(points) < _DRAWS:
            explores = random.random() < version.uniform_share
            policy = self._prior if explores else version.policy
            points.append(sample_point(policy, self._space, random))
            chances = self._feasible.chances(ended, points[-1:])
            if chances[0] >= LIKELY:
                return points[-1]
        return points[int(self._feasible.chances(ended, points).argmax())]

    # --- the distribution -----------------------------------------------------------------------

    def _latest_version(self, trials: Sequence[Trial], ended: list[Trial]) -> Version:
        """The version after all ended trials; versions of unchanged trials are reused."""
        first = self._first_version(trials)
        same = common_prefix_length(self._ended, ended)
        if not self._versions or self._versions[0] != first:
            self._versions, same = [first], 0
        if same < len(self._ended) or len(ended) != len(self._ended):
            self._process = None
        del self._versions[1 + same // VERSION_INTERVAL :]
        self._hypers = {count: hyper for count, hyper in self._hypers.items() if count <= same}
        self._ended = ended
        while len(self._versions) <= len(ended) // VERSION_INTERVAL:
            count = VERSION_INTERVAL * len(self._versions)
            after = elite_step(self._versions[-1], ended[:count], self._target, _STEP)
            share = max(LEAST_UNIFORM, first.uniform_share * (1 - count / _FADED))
            self._versions.append(replace(after, uniform_share=share))
        return self._versions[-1]

    def _first_version(self, trials: Sequence[Trial]) -> Version:
        known = baseline_point(trials)
        if known:
            return Version(centred_on(self._parameters, known), _START_UNIFORM)
        return Version(self._prior, 1.0)

    # --- the model ------------------------------------------------------------------------------

    def _model(self, ended: list[Trial], version: Version) -> _Model:
        if self._process is None:
            count = _FIRST
            while count * _REFIT <= len(ended):
                count = math.ceil(count * _REFIT)
            if count not in self._hypers:
                earlier = self._versions[count // VERSION_INTERVAL]
                rows, scores, weights, _ = self._observations(ended[:count], earlier)
                self._hypers[count] = fit(rows, scores, weights)
            rows, scores, weights, mean = self._observations(ended, version)
            process = Process(rows, scores, weights, self._hypers[count])
            self._process = _Model(process, mean, self._encoder.rows)
        return self._process

    def _observations(
        self, ended: Sequence[Trial], version: Version
    ) -> tuple[Array, Array, Array, Mean]:
        """Points, the normal scores of their ranks less the mean, the scales of their noise."""
        chosen = select_trials(ended, version, _MODELLED, self._target)
        ranks = equal_time_ranks(chosen, self._target)
        scores = np.array([rank_score(ranks[t.number], len(chosen)) for t in chosen])
        kinds = {t.hardware for t in chosen}
        horizons = {kind: horizon(chosen, self._target, kind) for kind in kinds}
        weights = np.array([noise_scale(trial, horizons[trial.hardware]) for trial in chosen])
        points = [t.params or {} for t in chosen]
        mean = self._mean(ended, points, scores)
        return self._encoder.rows(points), scores - mean(points), weights, mean

    def _mean(self, ended: Sequence[Trial], points: Sequence[Params], scores: Array) -> Mean:
        """What is expected of points, scaled to the scores: not at all where they disagree."""
        known = self._expectation
        if known is None:
            return lambda points: np.zeros(len(points))
        expected = known.expected(ended, points)
        centre, spread = expected.mean(), expected.var() + _SHRINK
        slope = max(float(((expected - centre) * scores).mean() / spread), 0.0)
        return lambda points: slope * (known.expected(ended, points) - centre)


Mean = Callable[[Sequence[Params]], Array]


@dataclass(frozen=True)
class _Model:
    """A process about a mean."""

    process: Process
    mean: Mean
    rows: Callable[[Sequence[Params]], Array]

    def at(self, points: Sequence[Params]) -> tuple[Array, Array]:
        """The expected scores of points, and their standard deviations."""
        expected, deviation = self.process.at(self.rows(points))
        return expected + self.mean(points), deviation


def noise_scale(trial: Trial, horizon: float) -> float:
    """The noise variance of a trial, as a multiple of that of one that succeeded.

    It grows with the square of the logarithm of how early before `horizon` the trial was stopped.
    """
    if trial.state is not State.CENSORED or horizon <= 0:
        return 1.0
    early = math.log(horizon / max(trial.seconds, 1e-3 * horizon))
    return 1.0 + _EARLY * max(early, 0.0) ** 2
