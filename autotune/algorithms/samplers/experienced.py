"""`experienced`: a search that begins with what other studies have shown.

The first trials go to the points with the largest expected improvement in log time under the
posterior over known tasks (`experience.posterior`), corrected by what the study's own trials have
shown near them (`samplers.own_results`), and with the probability that the study is like none of
them, to points of a search of its own. From the 20th ended trial on all points come from
`convergence`, with the posterior's expectation as the mean of its Gaussian process. Ideas: Feurer
et al. 2018 (RGPE, arXiv 1802.02219) and Wang et al. 2024 (HyperBO, JMLR 25).
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from random import Random
from threading import Lock
from typing import Any

import numpy as np

from autotune.algorithms.experience.canonical import CanonicalSpace
from autotune.algorithms.experience.known_task import Array, KnownTask, log_times
from autotune.algorithms.experience.model import KnownTasks, Predictions
from autotune.algorithms.experience.posterior import (
    MOST,
    Evidence,
    Posterior,
    expected_improvement,
    limit_of,
    posterior,
    shifts,
)
from autotune.algorithms.experience.translation import translated
from autotune.algorithms.samplers import Sampler
from autotune.algorithms.samplers.convergence import ConvergenceSampler
from autotune.algorithms.samplers.elite import baseline_point, informative_trials
from autotune.algorithms.samplers.feasibility import Feasible
from autotune.algorithms.samplers.own_results import OwnResults
from autotune.algorithms.samplers.trained_policy.expected import Expected, expectation
from autotune.space.search_space import SearchSpace
from autotune.trial import Params, State, Target, Trial, incumbent
from autotune.trial.values import point_key

KNOWN_FIRST = 20  # ended trials until which the posterior proposes
_DRAWN, _BEST_ROWS = 64, 8  # points of the pool: drawn, and the best of each known task
_WORST = 3.0  # a normal score behind all


class ExperiencedSampler:
    """Proposes points by what the trials of known tasks and of this study have shown.

    Args:
        space: the search space, conditions included.
        target: the target of the trials.
        seed: of the random numbers, together with the number of the ask.
        canonical: the space in canonical names.
        tasks: what `experience.model.useful` returned for each known task, at least one.
        own: the study's own search, where it is like none of the known ones.
        first: ended trials until which the posterior proposes.
        published: further canonical points that may be good.
    """

    def __init__(
        self,
        space: SearchSpace,
        target: Target,
        seed: int,
        canonical: CanonicalSpace,
        tasks: Sequence[KnownTask],
        own: Sampler,
        first: int = KNOWN_FIRST,
        published: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self._first, self._published = first, tuple(published)
        self._space, self._target, self._seed = space, target, seed
        self._canonical, self._tasks, self._own = canonical, tuple(tasks), own
        self._later = ConvergenceSampler(space, target, seed, prior=self)
        self._parameters = space.parameters()
        self._lock = Lock()
        self._models: KnownTasks | None = None
        self._pool: tuple[Params | None, list[Params], Predictions] | None = None
        self._seen: dict[str, Predictions] = {}
        self._evidence = Evidence()
        self._feasible = Feasible(space, diverged=True)
        self._results = OwnResults(space, target)

    def ask(self, number: int, trials: Sequence[Trial]) -> Params | None:
        """A point: a function of the trials, the seed and the number of the ask."""
        ended = informative_trials(trials)
        if len(ended) >= self._first or not self._parameters:
            return self._later.ask(number, trials)
        with self._lock:
            random = Random(f"{self._seed}/{number}/experienced")
            now = self.posterior(ended)
            if random.random() >= now.none:
                point = self._best_point(now, ended, trials)
                if point is not None:
                    return point
        return self._own.ask(number, trials)

    # --- the posterior --------------------------------------------------------------------------

    @property
    def models(self) -> KnownTasks:
        """The models of the known tasks, fitted when they are first needed."""
        if self._models is None:
            self._models = KnownTasks(self._canonical, self._tasks)
        return self._models

    def posterior(self, ended: Sequence[Trial]) -> Posterior:
        """The probabilities of the known tasks after trials that have ended."""
        predicted = self._predictions([t.params or {} for t in ended[:MOST]])
        return posterior(ended, predicted, self._target, self.models.weights, self._evidence)

    def expected(self, ended: Sequence[Trial], points: Sequence[Params]) -> Array:
        """The expected log time of points, or place without a target value, by known tasks."""
        with self._lock:
            now = self.posterior(ended)
            known = now.weights.sum(axis=1) / max(float(now.weights.sum()), 1e-12)
            # Candidates are new in every ask: to keep them would take the more memory the longer.
            tried = {point_key(t.params or {}) for t in ended}
            return np.asarray(known @ self._goal(self._predictions(points, tried)).logs)

    def candidates(self, trials: Sequence[Trial], count: int, random: Random) -> list[Params]:
        """Points that were among the best of known tasks and have not been tried."""
        tried = {point_key(t.params) for t in trials if t.params}
        with self._lock:
            pool = [p for p in self._pool_of(trials)[0][_DRAWN:] if point_key(p) not in tried]
            return random.sample(pool, min(count, len(pool)))

    def _goal(self, predicted: Predictions) -> Predictions:
        """Predictions with what is minimised as `logs`: without a value, the place at the end."""
        if self._target.timed:
            return predicted
        last = predicted.scores[:, :, -1]
        return Predictions(last, np.zeros_like(last), predicted.scores)

    def _predictions(
        self, points: Sequence[Params], kept: Container[str] | None = None
    ) -> Predictions:
        """Predictions of points; those with the keys `kept`, or all, are computed only once."""
        keys = [point_key(point) for point in points]
        new = {k: p for k, p in zip(keys, points, strict=True) if k not in self._seen}
        found = self.models.at(list(new.values()))
        fresh = {key: found.of([i]) for i, key in enumerate(new)}
        self._seen |= {key: p for key, p in fresh.items() if kept is None or key in kept}
        each = [fresh[k] if k in fresh else self._seen[k] for k in keys] or [found]
        return Predictions(
            np.concatenate([p.logs for p in each], axis=1),
            np.concatenate([p.deviations for p in each], axis=1),
            np.concatenate([p.scores for p in each], axis=1),
        )

    # --- proposals ------------------------------------------------------------------------------

    def _best_point(
        self, now: Posterior, ended: list[Trial], trials: Sequence[Trial]
    ) -> Params | None:
        """The point with the largest expected improvement that is new; None: none is."""
        pool, predicted = self._pool_of(trials)
        best = self._best_so_far(ended, trials)
        of_trials = self._predictions([t.params or {} for t in ended])
        known = self._goal(predicted)
        curves = self._evidence.curves
        seen = self._results.correction(ended, self._goal(of_trials), now, curves, pool)
        known = replace(known, logs=known.logs + seen)
        gains = expected_improvement(known, now.weights, best)
        gains = gains * self._feasible.chances(ended, pool)
        tried = {point_key(t.params) for t in trials if t.params}
        new = [point_key(point) not in tried for point in pool]
        if not any(new):
            return None
        return pool[int(np.where(new, gains, -1.0).argmax())]

    def considered(
        self, shown: Sequence[Trial], trials: Sequence[Trial]
    ) -> tuple[list[Params], Expected]:
        """The points to choose from, with what is expected of them and of some trials.

        Args:
            shown: the trials, the ended ones first in the order in which they ended.
            trials: all of them.
        """
        with self._lock:
            ended = [t for t in shown if t.state is not State.RUNNING]
            pool, predicted = self._pool_of(trials)
            now, best = self.posterior(ended), self._best_so_far(ended, trials)
            gains = expected_improvement(self._goal(predicted), now.weights, best)
            of_trials = self._predictions([t.params or {} for t in shown])
            joined = self._goal(predicted.joined(of_trials))
            tried = range(len(pool), len(pool) + len(shown))
            return pool, expectation(joined, now, gains, range(len(pool)), tried)

    def _best_so_far(self, ended: Sequence[Trial], trials: Sequence[Trial]) -> Array:
        """The log time of the best under each model and scale; running trials as predicted."""
        count = len(self.models.owner)
        best = np.zeros((count, len(shifts())))  # the limit
        running = [t.params for t in trials if t.state is State.RUNNING and t.params]
        if not self._target.timed:
            known = [*(t.params or {} for t in ended), *running]
            least = self._goal(self._predictions(known)).logs.min(axis=1, initial=_WORST)
            return np.asarray(best + least[:, None] + shifts()[None])  # places have no scale
        leader = incumbent(ended)
        if leader is not None:
            limit = limit_of(ended, self._target)
            best = np.minimum(best, math.log(max(leader.seconds / limit, 1e-6)))
        if running:
            expected = self._predictions(running).logs.min(axis=1)
            best = np.minimum(best, expected[:, None] + shifts()[None])
        return best

    def _pool_of(self, trials: Sequence[Trial]) -> tuple[list[Params], Predictions]:
        """The points to choose from: drawn ones, and the best of each known task."""
        baseline = baseline_point(trials)
        if self._pool is None or self._pool[0] != baseline:
            random = Random(f"{self._seed}/pool")
            points = self._space.sample(_DRAWN, random.getrandbits(31))
            good = list(self._published)
            for task in self._tasks:
                order = np.argsort(log_times(task)[:, 0], kind="stable")[:_BEST_ROWS]
                good += [task.points[i] for i in order]
            # Also those far outside, at the ends of the ranges: without them regret is higher.
            for row in good:
                points.append(translated(row, self._canonical, baseline or {}, random)[0])
            found = self.models.at(points)
            self._seen |= {point_key(point): found.of([i]) for i, point in enumerate(points)}
            self._pool = baseline, points, found
        return self._pool[1], self._pool[2]
