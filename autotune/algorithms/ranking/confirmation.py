"""What several runs of one configuration say: confirmations after a search, races during it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

from autotune.algorithms.ranking.difference import mean_interval
from autotune.algorithms.ranking.repeats import (
    alone,
    confirming,
    repeats_by_trial,
    result_of_run,
    timed,
    unconfirmed,
)
from autotune.algorithms.ranking.speedup import Timed
from autotune.trial import Target, Trial, usual_hardware


@dataclass(frozen=True)
class Confirmation:
    """The runs of one configuration: its confirmations or, from `raced`, those of the search.

    Results are `Target.result`: times to target (in steps where these are the clock) or, without a
    value, metrics, signed so that lower is better.

    Args:
        number: the trial that they repeat.
        tuned: its result in the search, None if it missed the target.
        runs: those that have ended and count, in the order of their rounds.
        target: the study's.
    """

    number: int
    tuned: float | None
    runs: tuple[Trial, ...] = field(repr=False)
    target: Target

    @property
    def reached(self) -> int:
        """How many of the runs reached the target or, without a value, completed."""
        return sum(t.succeeded for t in self.runs)

    @property
    def results(self) -> tuple[float, ...]:
        """Each run's result; the limit for one that missed the target."""
        return tuple(result_of_run(t, self.target) for t in self.runs)

    @property
    def mean(self) -> float:
        """The mean result, restricted: a run that missed the target counts as the limit."""
        return fmean(self.results)

    @property
    def median(self) -> float | None:
        """The median result; None if half of the runs or more missed the target."""
        order = sorted(
            result if run.succeeded else math.inf
            for run, result in zip(self.runs, self.results, strict=True)
        )
        high = order[len(order) // 2]
        return (order[(len(order) - 1) // 2] + high) / 2 if math.isfinite(high) else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the mean result; None with a value, and for fewer than two runs."""
        return None if self.target.timed else mean_interval(self.results)

    @property
    def timed_runs(self) -> tuple[Timed, ...]:
        """The runs for a speedup: one that missed the target exceeds the limit."""
        pairs = zip(self.runs, self.results, strict=True)
        return tuple(Timed(result, t.succeeded, t.seed) for t, result in pairs)

    @property
    def times(self) -> tuple[float, ...]:
        """Each run's time to target; none where the target has no value."""
        return self.results if self.target.timed else ()

    @property
    def tuning_seconds(self) -> float | None:
        """The time to target in the search."""
        return self.tuned if self.target.timed else None

    @property
    def mean_seconds(self) -> float | None:
        """The mean time to target; None where the target has no value."""
        return self.mean if self.target.timed else None

    @property
    def median_seconds(self) -> float | None:
        """The median time to target; None also where the target has no value."""
        return self.median if self.target.timed else None


def confirmations(trials: Sequence[Trial], target: Target) -> tuple[Confirmation, ...]:
    """The confirmed configurations, the best first: by the mean of as many runs as all have.

    Only runs on the hardware that most confirmations ran on count; those that failed are left out.
    """
    ended = [t for t in confirming(trials) if timed(t)]
    usual = usual_hardware(ended)
    runs: dict[int, list[Trial]] = {}
    for trial in sorted(ended, key=lambda t: t.number):
        if trial.hardware == usual and trial.repeats is not None:
            runs.setdefault(trial.repeats, []).append(trial)
    own = {t.number: target.result(t) for t in trials}
    found = [Confirmation(n, own[n], tuple(r), target) for n, r in runs.items()]
    rounds = min((len(c.runs) for c in found), default=0)

    def order(one: Confirmation) -> tuple[float, float, int]:
        tuned = one.tuned if one.tuned is not None else target.horizon
        return fmean(one.results[:rounds]), tuned, one.number

    return tuple(sorted(found, key=order))


def raced(trial: Trial, trials: Sequence[Trial], target: Target) -> Confirmation | None:
    """The runs of a trial's configuration in the search that count, its own one included.

    None unless it was run again; `alone` says which count. As the first run may owe
    its time to luck, this is not a time to quote.
    """
    runs = repeats_by_trial(unconfirmed(trials)).get(trial.number)
    if runs is None or not timed(trial):
        return None
    counted = alone([trial, *runs], target)
    return Confirmation(trial.number, target.result(trial), tuple(counted), target)


def compared_runs(trial: Trial, other: Trial, trials: Sequence[Trial], target: Target) -> str:
    """How many runs of each are compared before either is confirmed, in words."""
    found = [raced(one, trials, target) for one in (trial, other)]
    own, their = (len(one.runs) if one is not None else 1 for one in found)
    if own == their == 1:
        return "one run each"
    words = [f"the mean of {n} runs" if n > 1 else "one run" for n in (own, their)]
    return " against ".join(words)
