"""Simulated studies of recorded tasks, with what the policy sees at each decision.

A study runs points of a `Table` on some workers. A trial ends when it reaches the target, at the
time of the fastest one (the cap), at the limit, or, where the study has a pruner, earlier.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from autotune.algorithms.experience.known_task import MARKS, Array
from autotune.algorithms.experience.model import Predictions
from autotune.algorithms.experience.posterior import (
    MOST,
    Posterior,
    expected_improvement,
    normalised,
    of_pairs,
    of_time,
    prior,
    shifts,
)
from autotune.algorithms.samplers.trained_policy.expected import (
    Expected,
    expectation,
    nothing_known,
)
from autotune.algorithms.samplers.trained_policy.inputs import (
    Inputs,
    Rows,
    Seen,
    inputs,
    places,
)
from autotune.evaluation.policy_training.settings import Setting

GRID: Array = np.array([0.5, 1.0, 2.0, 3.0, 5.0, 7.0, 10.0, 14.0, 20.0])
"""Spends, in limits, at which a study's regret counts."""
SPEND = 20.0  # limits: what a study may spend
MOST_TRIALS = 60
_LEAST_WEIGHT = 1e-3  # of a model at one time scale, for its expected improvement to count


@dataclass
class Decision:
    """A proposal: what was seen, the candidates' rows, and when it was asked for, in limits."""

    inputs: Inputs
    rows: Rows
    clock: float
    expected: Expected


@dataclass
class Run:
    """A trial under way; times are in limits."""

    row: int
    start: float
    time: float  # to the target in this run
    stop: float  # when the pruner stops it


@dataclass
class Study:
    """A study under way.

    Args:
        setting: what is simulated.
        rng: of times, stops and candidates.
        candidates: how many are looked at in a decision; all others wait for the next one.
        trials: the most trials.
    """

    setting: Setting
    rng: np.random.Generator
    candidates: int = 96
    trials: int = MOST_TRIALS
    clock: float = 0.0
    best: float = 1.0  # the least time of a run, in limits
    leader: float = 1.0  # the time of that point without noise
    regrets: list[tuple[float, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.free = np.ones(len(self.setting.times), dtype=bool)
        self.running: list[Run] = []
        self.rows: list[int] = []
        self.ends: list[float] = []
        self.reached: list[bool] = []
        self.curves: list[Array] = []
        self.logs, self.none = prior(np.ones(len(self.setting.predicted.logs)))

    @property
    def over(self) -> bool:
        """Whether nothing more is proposed."""
        begun = len(self.rows) + len(self.running)
        spent = self.clock >= SPEND / self.setting.workers
        return spent or begun >= self.trials or not self.free.any()

    # --- deciding -----------------------------------------------------------------------------

    def decision(self) -> Decision:
        """What is to be decided now: the free worker's next point."""
        gains, now = self._gains()
        free = np.flatnonzero(self.free)
        if len(free) > self.candidates:
            gained = free[np.argsort(-gains[free], kind="stable")[: self.candidates // 3]]
            others = np.setdiff1d(free, gained)
            drawn = self.rng.choice(others, self.candidates - len(gained), replace=False)
            free = np.concatenate([gained, drawn])
        expected = self._expected(gains[free], now, free)
        found = inputs(self._seen(), self.setting.positions[free], self.setting.choices, expected)
        return Decision(found, free, self.clock * self.setting.workers, expected)

    def _gains(self) -> tuple[Array, Posterior]:
        predicted = self.setting.predicted
        now = normalised(self.logs, self.none)
        best = np.full((len(predicted.logs), len(shifts())), math.log(self.best))
        if not len(predicted.logs):
            return np.zeros(len(self.free)), now
        if self.running:
            least = predicted.of([run.row for run in self.running]).logs.min(axis=1)
            best = np.minimum(best, least[:, None] + shifts()[None])
        likely = np.flatnonzero(now.weights.max(axis=1) > _LEAST_WEIGHT)
        among = Predictions(
            predicted.logs[likely], predicted.deviations[likely], predicted.scores[likely]
        )
        return expected_improvement(among, now.weights[likely], best[likely]), now

    def _expected(self, gains: Array, now: Posterior, rows: Rows) -> Expected:
        tried = [*self.rows, *(run.row for run in self.running)]
        if not now.weights.size:
            return nothing_known(len(rows), len(tried))
        return expectation(self.setting.predicted, now, gains, rows.tolist(), tried)

    def _seen(self) -> Seen:
        rows = [*self.rows, *(run.row for run in self.running)]
        ages = [max(self.clock - run.start, 1e-3) for run in self.running]
        logs = np.log(np.maximum([*self.ends, *ages], 1e-6)) if rows else np.zeros(0)
        own, count = len(self.rows), len(rows)
        found = np.zeros(count)
        if own:
            found[:own] = places(logs[:own], np.array(self.reached), np.array(self.curves))
        reached = np.array([*self.reached, *(False for _ in self.running)], dtype=bool)
        left = SPEND - self.clock * self.setting.workers if self.setting.tells_left else math.nan
        here = self.setting.positions[rows].reshape(count, self.setting.positions.shape[1])
        return Seen(here, logs, found, reached, np.arange(count) >= own, left)

    # --- running ------------------------------------------------------------------------------

    def run(self, row: int) -> None:
        """Start a candidate, and go on until a worker is free."""
        self.free[row] = False
        self.running.append(self._begun(row))
        while len(self.running) >= self.setting.workers or (self.over and self.running):
            self._end_next()

    def _begun(self, row: int) -> Run:
        time = self.setting.times[row] * math.exp(self.setting.noise * self.rng.normal())
        time = time if time < 1.0 else math.inf
        stop = math.inf
        if self.rng.random() < (self.setting.pruner if time > self.best else 0.03):
            stop = self.best * self.rng.uniform(0.15, 1.0)
        return Run(int(row), self.clock, time, stop if self.setting.pruner else 9.0)

    def _end_next(self) -> None:
        ends = [self._end_of(run) for run in self.running]
        first = int(np.argmin(ends))
        run = self.running.pop(first)
        self.clock = max(ends[first], self.clock)
        lasted = max(self.clock - run.start, 1e-6)
        reached = run.time <= lasted + 1e-12
        seen = np.flatnonzero(lasted * (1 + 1e-9) >= MARKS)
        curve = np.full(len(MARKS), np.nan)
        curve[seen] = self._seen_of(run, seen)
        self.rows.append(run.row)
        self.ends.append(lasted)
        self.reached.append(reached)
        self.curves.append(curve)
        self._learn(len(self.rows) - 1)
        if reached and run.time < self.best:
            self.best, self.leader = run.time, min(float(self.setting.times[run.row]), 1.0)
            self.regrets.append((self.clock * self.setting.workers, math.log(self.leader)))

    def _seen_of(self, run: Run, seen: Rows) -> Array:
        """The best metric of a run until these of `MARKS`."""
        return np.asarray(self.setting.curves[run.row][seen])

    def _end_of(self, run: Run) -> float:
        return max(run.start + min(run.time, run.stop, self.best, 1.0), self.clock)

    def _learn(self, last: int) -> None:
        """The posterior after one more trial."""
        if not len(self.setting.predicted.logs) or last >= MOST:
            return
        one = self.setting.predicted.of([self.rows[last]])
        own, other = of_time(math.log(max(self.ends[last], 1e-6)), self.reached[last], one)
        self.logs, self.none = self.logs + own, self.none + other
        pairs = [(j, *self._compared(j, last)) for j in range(last)]
        pairs = [pair for pair in pairs if pair[2] is not None]
        if pairs:
            others = self.setting.predicted.of([self.rows[j] for j, _, _ in pairs])
            shares = np.array([share for _, share, _ in pairs])
            leads = np.array([leads for _, _, leads in pairs], dtype=bool)
            own, other = of_pairs(shares, leads, one, others)
            self.logs, self.none = self.logs + own, self.none + other

    def _compared(self, one: int, other: int) -> tuple[float, bool | None]:
        common = min(self.ends[one], self.ends[other])
        mark = int(np.searchsorted(MARKS, common * (1 + 1e-9), side="right")) - 1
        if mark < 0:
            return common, None
        first, second = self.curves[one][mark], self.curves[other][mark]
        if first == second or not (np.isfinite(first) and np.isfinite(second)):
            return common, None
        return common, bool(first > second)

    def log_regrets(self) -> Array:
        """Log regret at each spend of `GRID`, against the best candidate."""
        least = math.log(min(float(self.setting.times.min()), 1.0))
        found = np.zeros(len(GRID))
        for clock, log in self.regrets:
            found[clock <= GRID + 1e-9] = log
        return found - least
