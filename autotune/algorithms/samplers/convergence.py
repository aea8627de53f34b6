"""`convergence`: a Bayesian sampler for time to target.

A trial's value is its rank at equal training time (`ranking.equal_time`). A trial that was stopped
is thus ranked by what it reported until then; it counts neither as its bound nor as a failure. A
distribution over the space moves slowly to the elite of all trials (`samplers.distribution`). A
Gaussian process over the ranks, with more noise for a trial the earlier it was stopped, picks one
of a few candidates by a lower confidence bound. The width of the bound is drawn anew for every
proposal, so that parallel proposals differ. Once a trial has been infeasible, proposals are likely
to be feasible (`samplers.feasibility`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from threading import Lock

import numpy as np

from autotune.algorithms.ranking.equal_time import equal_time_ranks
from autotune.algorithms.samplers.distribution import around, even
from autotune.algorithms.samplers.elite import (
    Version,
    common,
    in_order,
    learned_elite,
    remembered,
    sampled,
)
from autotune.algorithms.samplers.feasibility import SURE, Feasible, likely
from autotune.algorithms.samplers.gaussian_process import Array, Hyper, Process, fitted
from autotune.space.encoding import effective_rate, encoded, rank_score
from autotune.space.search_space import SearchSpace
from autotune.trial import Params, State, Target, Trial, incumbent

_EVERY = 4  # ended trials from one version of the distribution to the next
_STEP = 0.2  # of the distribution towards the elite; a search of hundreds of trials wants patience
_EVEN, _FADED = 0.1, 40  # least share of even draws, and trials until it would be none
_DOUBT = 0.5  # that share at first, where there is a baseline to begin around
_FIRST = 16  # ended trials before the model judges
_CANDIDATES, _ANYWHERE = 40, 20
_KNOWN = 60  # of the fastest and of the newest trials: more than the model sees
_DRAWS = 20  # at most, of which one is to be feasible
_REFIT = 1.5  # times the trials of the last fit of its hyperparameters
_EARLY = 0.3  # of the noise, for a trial stopped at 1/e of the time that counts, or its square


class ConvergenceSampler:
    """Proposes points by how the trials so far stand.

    Args:
        space: what is searched; conditions included.
        target: what the trials race to.
        seed: of the random numbers, together with the number of the trial that is asked for.
    """

    def __init__(self, space: SearchSpace, target: Target, seed: int) -> None:
        self._space, self._target, self._seed = space, target, seed
        self._parameters = space.parameters()
        self._effective = effective_rate(space)
        self._anywhere = even(self._parameters)
        self._one = Lock()
        self._told: list[Trial] = []  # what `_versions` and `_hypers` were made from
        self._versions: list[Version] = []
        self._hypers: dict[int, Hyper] = {}
        self._process: Process | None = None
        self._feasible = Feasible(space)

    def ask(self, number: int, trials: Sequence[Trial]) -> Params:
        """The point of trial `number`: a function of the trials, the seed and the number."""
        with self._one:
            return self._ask(number, trials)

    def _ask(self, number: int, trials: Sequence[Trial]) -> Params:
        told = in_order(trials)
        version = self._newest(trials, told)
        random = Random(f"{self._seed}/{number}")
        if len(told) < _FIRST or not self._parameters:
            return self._drawn(told, version, random)
        actors = [self._anywhere] * _ANYWHERE + [version.policy] * (_CANDIDATES - _ANYWHERE)
        points = [sampled(actor, self._space, random)[0] for actor in actors]
        expected, unsure = self._model(told, version).at(self._rows(points))
        bounds = expected - random.expovariate(1.0) * unsure
        chances = self._feasible.chances(told, points)
        return points[min(likely(chances), key=lambda i: bounds[i])]

    def _drawn(self, told: list[Trial], version: Version, random: Random) -> Params:
        """A draw, again if it is not likely to be feasible."""
        points: list[Params] = []
        while len(points) < _DRAWS:
            evenly = random.random() < version.even_share
            policy = self._anywhere if evenly else version.policy
            points.append(sampled(policy, self._space, random)[0])
            chances = self._feasible.chances(told, points[-1:])
            if chances[0] >= SURE:
                return points[-1]
        return points[int(self._feasible.chances(told, points).argmax())]

    # --- the distribution -----------------------------------------------------------------------

    def _newest(self, trials: Sequence[Trial], told: list[Trial]) -> Version:
        """The last version, folded from those that are known already as far as these hold."""
        first = self._begun(trials)
        same = common(self._told, told)
        if not self._versions or self._versions[0] != first:
            self._versions, same = [first], 0
        if same < len(self._told) or len(told) != len(self._told):
            self._process = None
        del self._versions[1 + same // _EVERY :]
        self._hypers = {count: hyper for count, hyper in self._hypers.items() if count <= same}
        self._told = told
        while len(self._versions) <= len(told) // _EVERY:
            count = _EVERY * len(self._versions)
            after = learned_elite(self._versions[-1], told[:count], self._target, _STEP)
            share = max(_EVEN, first.even_share * (1 - count / _FADED))
            self._versions.append(replace(after, even_share=share))
        return self._versions[-1]

    def _begun(self, trials: Sequence[Trial]) -> Version:
        known = next((t.params for t in trials if t.kind == "baseline" and t.params), None)
        if known:
            return Version(around(self._parameters, known), _DOUBT)
        return Version(self._anywhere, 1.0)

    # --- the model ------------------------------------------------------------------------------

    def _model(self, told: list[Trial], version: Version) -> Process:
        if self._process is None:
            count = _FIRST
            while count * _REFIT <= len(told):
                count = math.ceil(count * _REFIT)
            if count not in self._hypers:
                self._hypers[count] = fitted(
                    *self._seen(told[:count], self._versions[count // _EVERY])
                )
            self._process = Process(*self._seen(told, version), self._hypers[count])
        return self._process

    def _seen(self, told: Sequence[Trial], version: Version) -> tuple[Array, Array, Array]:
        """Points, their equal_time_ranks as normal scores, and how uncertain these are."""
        chosen = remembered(told, version, _KNOWN)
        places = equal_time_ranks(chosen, self._target)
        scores = np.array([rank_score(places[t.number], len(chosen)) for t in chosen])
        bests = {like: incumbent(chosen, like) for like in {t.hardware for t in chosen}}
        horizons = {k: b.seconds if b is not None else self._target.limit for k, b in bests.items()}
        weights = np.array([doubt(trial, horizons[trial.hardware]) for trial in chosen])
        return self._rows([t.params or {} for t in chosen]), scores, weights

    def _rows(self, points: Sequence[Params]) -> Array:
        rows = [encoded(self._parameters, point, self._effective) for point in points]
        return np.array(rows, dtype=float)


def doubt(trial: Trial, horizon: float) -> float:
    """How many times the noise of a reached trial one has that was stopped before `horizon`."""
    if trial.state is not State.CENSORED or horizon <= 0:
        return 1.0
    early = math.log(horizon / max(trial.seconds, 1e-3 * horizon))
    return 1.0 + _EARLY * max(early, 0.0) ** 2
