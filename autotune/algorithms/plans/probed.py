"""How many times as fast as the default plan each probed plan is, with an interval.

A probe is compared with the probes of the default plan just before and after it, so that whatever
slows the machine for longer than a probe cancels. What comes and goes from one probe to the next is
seen between the probes of the default, and widens every interval.

The best of many plans that are worth nothing looks faster by chance. So what is called faster is so
at an error of 5 % divided by the number of plans compared (Bonferroni), combinations included.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean
from typing import Any

from autotune.algorithms.plans.measured import PROBED, Measured, measured
from autotune.algorithms.ranking.difference import LEVEL, student_t
from autotune.algorithms.ranking.repeats import probes
from autotune.trial import INTERRUPTED_REASONS, Params, Trial
from autotune.trial.values import point_key

LEAST_GAIN = 1.01
"""A plan that is faster by less is not worth another one than the default."""


@dataclass(frozen=True)
class ProbedPlan:
    """A probed plan beside the default one.

    Args:
        point: where it was probed.
        changes: the parameters in which that differs from the default's point, with their values.
        runs: its probes that have measured.
        ratio: the default's seconds per sample over its own; None where nothing is measured.
        interval: of the ratio, at 95 %.
        least: the lower end of its interval at 95 % for all plans compared together.
        seconds: per sample, the mean of its runs.
        peak: the most bytes of a rank, where they are reported.
        setup: seconds before training, the least of its runs: the first one may start processes.
        state, reason: of its last probe.
    """

    point: Params
    changes: tuple[tuple[str, Any], ...]
    runs: int = 0
    ratio: float | None = None
    interval: tuple[float, float] | None = None
    seconds: float | None = None
    peak: float | None = None
    setup: float | None = None
    state: str = ""
    reason: str = ""
    least: float | None = None

    @property
    def failed(self) -> bool:
        """Whether its last probe has ended without measuring, whatever those before it did."""
        return self.reason not in ("", PROBED)

    @property
    def faster(self) -> bool:
        """Whether it is faster than the default, and not only by chance."""
        if self.ratio is None or self.least is None or self.failed:
            return False
        return self.least > 1 and self.ratio >= LEAST_GAIN

    @property
    def names(self) -> frozenset[str]:
        """The parameters that it changes."""
        return frozenset(name for name, _ in self.changes)


def same(one: Params | None, other: Params | None) -> bool:
    """Whether two points are one; 1 and True are different values.

    >>> same({"a": 1}, {"a": 1}), same({"a": 1}, {"a": True}), same({"a": 1}, {})
    (True, False, False)
    """
    if one is None or other is None:
        return False
    return point_key(one) == point_key(other)


def changes(point: Params, default: Params) -> tuple[tuple[str, Any], ...]:
    """In what a point differs from the default's; only in what it has more, if in nothing else.

    >>> changes({"precision": "bf16", "lr": 1}, {"precision": "fp32", "lr": 1, "bucket": 2})
    (('precision', 'bf16'),)
    """
    shared = {n: v for n, v in point.items() if n in default and repr(v) != repr(default[n])}
    own = shared or {n: v for n, v in point.items() if n not in default}
    return tuple(own.items())


def ended(trials: Iterable[Trial]) -> list[Trial]:
    """The probes that have ended, in their order, but for those that the time limit ended."""
    return [t for t in probes(trials) if t.ended and t.reason not in INTERRUPTED_REASONS]


@dataclass(frozen=True)
class _Run:
    """A probe of another plan than the default, with the default's probes beside it."""

    own: Measured
    beside: tuple[Measured, ...]

    @property
    def logarithm(self) -> float:
        """Of how many times as fast it is."""
        return fmean(math.log(d.seconds) for d in self.beside) - math.log(self.own.seconds)

    @property
    def within(self) -> float:
        """The variance of that, in variances of a block."""
        return 1 / self.own.blocks + sum(1 / d.blocks for d in self.beside) / len(self.beside) ** 2

    @property
    def between(self) -> float:
        """The variance of that, in variances of a probe beyond its blocks'."""
        return 1 + 1 / len(self.beside)


@dataclass(frozen=True)
class _Noise:
    """What the probes of a study show of chance: variances of logarithms.

    Args:
        block: of a block of any probe about the mean of its probe; infinite if none shows it.
        blocks: degrees of freedom of that.
        probe: of a probe of the default plan, beyond what its blocks show.
        probes: degrees of freedom of that.
    """

    block: float
    blocks: int
    probe: float
    probes: float


def _noise(known: Sequence[Measured], defaults: Sequence[Measured]) -> _Noise:
    """The noise of all probes, of which some are the default's.

    The blocks' variance is that of all probes together: a probe that is over as soon as its blocks
    agree would say that they always do. Of the default's probes successive ones are compared, so
    that a machine that slows down all the time shows no noise. Such differences overlap: n probes
    have 2 (n - 1)^2 / (3 n - 4) degrees of freedom (von Neumann and others 1941), less than n - 1.
    """
    shown = [(m.spread**2, m.blocks - 1) for m in known if m.blocks > 1]
    freedom = sum(count for _, count in shown)
    block = math.fsum(v * count for v, count in shown) / freedom if freedom else math.inf
    logs = [math.log(m.seconds) for m in defaults]
    steps = [(b - a) ** 2 for a, b in pairwise(logs)]
    if not steps or not freedom:
        return _Noise(block, freedom, 0.0, 0.0)
    independent = 2 * len(steps) ** 2 / (3 * len(steps) - 1)
    own = block * fmean(1 / m.blocks for m in defaults)
    return _Noise(block, freedom, max(fmean(steps) / 2 - own, 0.0), independent)


def probed_plans(trials: Iterable[Trial]) -> list[ProbedPlan]:
    """Every plan that was probed beside the default, in the order of the first probes."""
    done = ended(trials)
    if not done or done[0].params is None:
        return []
    default = done[0].params
    found = [measured(trial) for trial in done]
    mine = [same(trial.params, default) for trial in done]
    known = [m for m in found if m is not None]
    noise = _noise(known, [m for m, own in zip(found, mine, strict=True) if own and m is not None])
    plans: list[Params] = []
    for trial, own in zip(done, mine, strict=True):
        if not own and trial.params and not any(same(trial.params, p) for p in plans):
            plans.append(trial.params)
    made: list[tuple[ProbedPlan, list[_Run]]] = []
    for point in plans:
        at = [i for i, trial in enumerate(done) if same(trial.params, point)]
        runs = [run for i in at if (run := _run(i, found, mine)) is not None]
        last = done[at[-1]]
        state = ProbedPlan(
            point, changes(point, default), state=str(last.state), reason=last.reason
        )
        made.append((state, runs))
    compared = sum(bool(runs) for _, runs in made)
    return [_of_runs(state, runs, noise, compared) for state, runs in made]


def default_plan(trials: Iterable[Trial]) -> ProbedPlan | None:
    """The default plan, with its seconds per sample and bytes; None where it is not measured."""
    done = ended(trials)
    found = [measured(t) for t in done if same(t.params, done[0].params)]
    known = [m for m in found if m is not None]
    if not known:
        return None
    peaks = [m.peak for m in known if m.peak is not None]
    seconds, peak = fmean(m.seconds for m in known), max(peaks, default=None)
    setup = min(m.setup_seconds for m in known)
    return ProbedPlan(done[0].params or {}, (), len(known), seconds=seconds, peak=peak, setup=setup)


def _run(at: int, found: Sequence[Measured | None], mine: Sequence[bool]) -> _Run | None:
    """The run at a place of all; None unless it and a default before or after it have measured."""
    own = found[at]
    before = [i for i in range(at) if mine[i] and found[i] is not None]
    after = [i for i in range(at + 1, len(found)) if mine[i] and found[i] is not None]
    beside = [m for i in (*before[-1:], *after[:1]) if (m := found[i]) is not None]
    return _Run(own, tuple(beside)) if own is not None and beside else None


def _of_runs(plan: ProbedPlan, runs: Sequence[_Run], noise: _Noise, compared: int) -> ProbedPlan:
    """The plan with what its runs say, by Student's t with Welch's degrees of freedom.

    Args:
        compared: how many plans have measured, this one included.
    """
    if not runs:
        return plan
    squared, mean = len(runs) ** 2, fmean(run.logarithm for run in runs)
    parts = [
        (noise.block * math.fsum(run.within for run in runs) / squared, noise.blocks),
        (noise.probe * math.fsum(run.between for run in runs) / squared, noise.probes),
    ]
    shown = [(variance, freedom) for variance, freedom in parts if variance > 0]
    reach, surely = _reach(shown, LEVEL), _reach(shown, 1 - (1 - LEVEL) / compared)
    peaks = [run.own.peak for run in runs if run.own.peak is not None]
    return replace(
        plan,
        runs=len(runs),
        ratio=math.exp(mean),
        interval=(math.exp(mean - reach), math.exp(mean + reach) if reach < 700 else math.inf),
        seconds=fmean(run.own.seconds for run in runs),
        peak=max(peaks, default=None),
        setup=min(run.own.setup_seconds for run in runs),
        least=math.exp(mean - surely),
    )


def _reach(parts: Sequence[tuple[float, float]], level: float) -> float:
    """Half of the interval of a sum with these variances and degrees of freedom."""
    total = math.fsum(variance for variance, _ in parts)
    if total == 0:
        return 0.0
    if not math.isfinite(total) or any(freedom < 1 for _, freedom in parts):
        return math.inf
    freedom = total**2 / math.fsum(variance**2 / freedom for variance, freedom in parts)
    return student_t(freedom, level) * math.sqrt(total)


def pareto(plans: Sequence[ProbedPlan]) -> list[ProbedPlan]:
    """The plans for which no other has both fewer seconds per sample and fewer bytes.

    Where the bytes of any are not known, seconds alone count: a plan that fits is then as good as
    another one.
    """
    known = [plan for plan in plans if plan.seconds is not None]
    if any(plan.peak is None for plan in known):
        return [min(known, key=lambda p: p.seconds or 0.0)] if known else []

    def beats(one: ProbedPlan, other: ProbedPlan) -> bool:
        a = one.seconds or 0.0, one.peak or 0.0
        b = other.seconds or 0.0, other.peak or 0.0
        return a[0] <= b[0] and a[1] <= b[1] and a != b

    return [plan for plan in known if not any(beats(other, plan) for other in known)]
