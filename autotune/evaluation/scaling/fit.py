"""A law fitted to what trials needed, and predictions of it with intervals.

Both factors of the law are linear in their parameters, none of which is negative: non-negative
least squares of relative errors.

- **Samples** are taken from the configuration that needs the fewest in each factor of two of the
  batch size. The others say more about their learning rates than about the batch. Where none of an
  octave has reached the target, the fewest samples at which one of it was stopped are a lower
  bound.
- **Intervals** (95 %) are those of a bootstrap of the residuals. Drawing trials instead gives
  intervals that are much too narrow, as most draws contain the same fastest trials.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

import numpy as np

from autotune.evaluation.scaling.law import Law, ring
from autotune.evaluation.scaling.least_squares import DRAWS, Numbers, drawn, interval, relative
from autotune.evaluation.scaling.values import Run, Timing, TooLittleError

LEAST_BATCHES = 3  # octaves of the batch size from which samples are fitted
BEYOND = 4.0  # how far a batch size may lie from the measured ones, as a factor

MEASURED, FITTED, RING = "measured", "fitted", "ring"
NOT_MEASURED, UNKNOWN = "not measured", "unknown"
"""What is known of messages on a number of workers: `measured` there; `fitted` as over a ring to
several others; the measured share of a step on one other, as over a `ring`, down to none; `not
measured`: they are an unknown part of what a step takes anyhow; `unknown`: only one worker was
measured, which sends none."""


@dataclass(frozen=True)
class Prediction:
    """Training on a number of workers at the batch size of least time.

    Args:
        batch_interval: of that batch size, in which the data would have put it.
        seconds: of training to the target; an interval's upper end may be infinite.
        communication: what is known of messages there (`MEASURED` and the others).
        at_end: whether the law's own optimum lies beyond the batch sizes that are considered.
    """

    workers: int
    batch_size: int
    batch_interval: tuple[float, float]
    samples: float
    seconds: float
    seconds_interval: tuple[float, float]
    communication: str
    at_end: bool

    @property
    def device_seconds(self) -> float:
        return self.workers * self.seconds

    @property
    def device_seconds_interval(self) -> tuple[float, float]:
        low, high = self.seconds_interval
        return self.workers * low, self.workers * high


@dataclass(frozen=True)
class Fit:
    """A fitted law.

    Args:
        law: the likely one.
        other: as far as the data go with messages at other numbers of workers that cost as much
            less or more; None where nothing is open, or nothing can be said.
        drawn: the pairs of the bootstrap.
        batches: the smallest and the largest measured batch size.
        workers: the measured numbers of workers.
        away: what is known of messages on other numbers of workers.
        source: what the noise scale is taken from, `trials` or `gradient_noise_scale`.
    """

    law: Law
    other: Law | None
    drawn: tuple[tuple[Law, Law | None], ...]
    batches: tuple[float, float]
    workers: frozenset[int]
    away: str
    source: str

    def predict(self, workers: int) -> Prediction:
        """Batch size, time and cost on so many workers."""
        low, high = self.batches[0] / BEYOND, self.batches[1] * BEYOND
        known = workers in self.workers
        away = MEASURED if known else self.away
        laws = [pair[0] for pair in self.drawn]
        if not known:
            laws += [pair[1] for pair in self.drawn if pair[1] is not None]
        bests = [law.best_in(workers, low, high) for law in laws]
        times = [law.seconds(b, workers) for law, b in zip(laws, bests, strict=True)]
        best = self.law.best_in(workers, low, high)
        seconds = self.law.seconds(best, workers)
        least, most = interval(times, seconds)
        return Prediction(
            workers,
            best,
            interval(bests, best),
            self.law.samples(best),
            seconds,
            (least, math.inf if away == UNKNOWN else most),
            away,
            not low <= self.law.best_batch_size(workers) <= high,
        )

    @property
    def noise_interval(self) -> tuple[float, float]:
        """That of the law's noise scale."""
        return interval([pair[0].noise for pair in self.drawn], self.law.noise)


def fit(
    runs: Sequence[Run],
    timings: Sequence[Timing],
    generator: np.random.Generator,
    best: Timing | None = None,
) -> Fit:
    """The law of a problem.

    Args:
        runs: one for each configuration.
        timings: of trials that differ in nothing that changes the seconds of a step, but for batch
            size and workers.
        generator: of the bootstrap.
        best: the best trial's: as fast as it is the law there, which has the others' form.

    Raises:
        TooLittleError: not enough batch sizes have reached the target.
    """
    samples, source = _samples(runs, generator)
    steps, away = _steps(timings, generator)
    batches = [t.batch_size for t in timings] + [r.batch_size for r in runs if r.reached]
    pairs = []
    for (least, per_batch), (likely, other) in zip(samples, steps, strict=True):
        law = Law(least, per_batch, *likely)
        factor = _speed(law, best)
        second = None if other is None else _slower(Law(least, per_batch, *other), factor)
        pairs.append((_slower(law, factor), second))
    return Fit(
        *pairs[0],
        tuple(pairs[1:]),
        (min(batches), max(batches)),
        frozenset(t.workers for t in timings),
        away,
        source,
    )


# --- samples to the target ------------------------------------------------------------------------


def _samples(
    runs: Sequence[Run], generator: np.random.Generator
) -> tuple[list[tuple[float, float]], str]:
    """The law's `least` and `per_batch`, the fitted ones and then those of the bootstrap."""
    own = _fewest(run for run in runs if run.reached)
    if not own:
        raise TooLittleError("no trial that says its batch size has reached the target")
    if len(own) >= LEAST_BATCHES:
        points = own + _bounds(runs, own)
        found = drawn(*_table(points), generator)
        return [(float(least), float(more)) for least, more in found], "trials"
    scales = [r.noise_scale for r in runs if r.noise_scale is not None and r.noise_scale > 0]
    if not scales:
        shown = ", ".join(f"{run.batch_size:g}" for run in own)
        raise TooLittleError(
            f"the samples to the target are known at {len(own)} batch "
            f"size{'' if len(own) == 1 else 's'} ({shown}), and must be at {LEAST_BATCHES} that "
            "differ by factors of two: search batch_size, or use a trainer that reports "
            "gradient_noise_scale"
        )
    logs = np.log(scales)
    picked = generator.choice(logs, (DRAWS, len(logs))).mean(axis=1)
    noises = np.exp(np.concatenate([[logs.mean()], picked]))
    least = [fmean(run.samples / (1 + run.batch_size / noise) for run in own) for noise in noises]
    return [(e, e / float(n)) for e, n in zip(least, noises, strict=True)], "gradient_noise_scale"


def _fewest(runs: Iterable[Run]) -> list[Run]:
    """The run with the fewest samples of each octave of the batch size, by octaves."""
    found: dict[int, Run] = {}
    for run in runs:
        if run.octave not in found or run.samples < found[run.octave].samples:
            found[run.octave] = run
    return [found[octave] for octave in sorted(found)]


def _bounds(runs: Sequence[Run], own: Sequence[Run]) -> list[Run]:
    """Of octaves in which nothing has reached the target: bounds that the others' law breaks."""
    reached = {run.octave for run in own}
    stopped = _fewest(r for r in runs if not r.reached and r.samples > 0)
    least, more = relative(*_table(own))
    return [
        run
        for run in stopped
        if run.octave not in reached and run.samples > least + more * run.batch_size
    ]


def _table(runs: Sequence[Run]) -> tuple[Numbers, Numbers]:
    features = np.array([[1.0, run.batch_size] for run in runs])
    return features, np.array([run.samples for run in runs])


# --- seconds of a step ----------------------------------------------------------------------------

_Step = tuple[float, float, float]  # overhead, per_sample, exchange


def _steps(
    timings: Sequence[Timing], generator: np.random.Generator
) -> tuple[list[tuple[_Step, _Step | None]], str]:
    """The law's step, the likely one and the other; first fitted, then those of the bootstrap."""
    if len({t.octave for t in timings}) < 2:
        raise TooLittleError(
            "the seconds of a step must be known at two batch sizes that differ by a factor of "
            f"two, and {len(timings)} trials have measured them at "
            f"{'one' if timings else 'none'}: search batch_size"
        )
    several = len({t.workers for t in timings}) > 1
    features = [
        [1.0, t.batch_size / t.workers, *([ring(t.workers)] if several else ())] for t in timings
    ]
    found = drawn(np.array(features), np.array([t.step for t in timings]), generator)
    if several:
        return [((float(a), float(c), float(k)), None) for a, c, k in found], FITTED
    workers = timings[0].workers
    fixed = [(float(a), float(c)) for a, c in found]
    if workers == 1:
        return [((a, c, 0.0), None) for a, c in fixed], UNKNOWN
    waits = [t.exposed * t.step for t in timings if t.exposed is not None]
    if not waits:
        return [((a, c, 0.0), (0.0, c, a / ring(workers))) for a, c in fixed], NOT_MEASURED
    waited = median(waits)
    return [_split(a, c, min(waited, a), workers) for a, c in fixed], RING


def _split(fixed: float, per_sample: float, waited: float, workers: int) -> tuple[_Step, _Step]:
    """With messages as over a ring, and with none at all on other numbers of workers."""
    own = fixed - waited
    return (own, per_sample, waited / ring(workers)), (own, per_sample, 0.0)


def _speed(law: Law, best: Timing | None) -> float:
    """How many times as long as by the law the best trial's steps took."""
    if best is None:
        return 1.0
    expected = law.step_seconds(best.batch_size, best.workers)
    return best.step / expected if expected > 0 else 1.0


def _slower(law: Law, factor: float) -> Law:
    return replace(
        law,
        overhead=factor * law.overhead,
        per_sample=factor * law.per_sample,
        exchange=factor * law.exchange,
    )
