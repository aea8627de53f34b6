"""`policy`: a network says which running trials will hardly be faster than the fastest so far.

It sees a trial's curve beside those of the others, as shares and ratios of times, so that neither
the metric's unit nor the number of seconds matters. `autotune train-policy` trains it over
simulated studies in which it is known how long each trial would take; no weight changes while a
study runs.

A trial is judged whenever a report passes one of `MARKS`, shares of the limit, and stopped where
its chance is below that of a new one: after n trials in random order the next one is the fastest
with probability 1 / (n + 1). While none has reached the target, the chance is that to reach it
within the limit.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from autotune.algorithms.experience.known_task import MARKS, Array
from autotune.algorithms.ranking.equal_time import GapCurves
from autotune.algorithms.ranking.trial_index import RECENT_LIMIT, recent
from autotune.algorithms.samplers.trained_policy import network
from autotune.errors import UserError
from autotune.trial import State, Stop, Target, Trial, incumbent
from autotune.trial.wording import amount

_BEFORE = float(MARKS[0] / MARKS[1]) * (1 + 1e-9)  # the earlier time that is looked at, as a share
_LEAST = 2  # ended trials, for one to be stopped
_MOST = 40  # trials that there were in training
_SOON = 1e-9  # a share of the limit
_FARTHEST = 3.0
_LEAST_SHARE = 0.01
_NORMAL = NormalDist()
Prune = Callable[[Trial, Sequence[Trial], Target], Stop | None]


@dataclass(frozen=True)
class Curve:
    """A trial as the network sees it; times are shares of the limit.

    Args:
        times: of the reports, ascending.
        gaps: to the target until each of them, lower is better.
        until: when it was seen last.
        took: its time to the target; infinite where it has not reached it.
    """

    times: Sequence[float]
    gaps: Sequence[float]
    until: float
    took: float = math.inf

    def at(self, time: float) -> float | None:
        """The gap at a time, -inf once the target was reached; None where nothing was seen."""
        if time >= self.took:
            return -math.inf
        place = bisect_right(self.times, time)
        return self.gaps[place - 1] if place and time <= self.until else None

    def first(self, gap: float) -> float:
        """When the gap was first as small, between two reports on a logarithmic scale."""
        place = bisect_left(self.gaps, -gap, key=lambda known: -known)
        if place == len(self.gaps):
            return self.took
        if not place:
            return self.times[0]
        before, after = self.gaps[place - 1], self.gaps[place]
        part = (before - gap) / (before - after) if math.isfinite(before - after) else 1.0
        logs = math.log(self.times[place - 1]), math.log(self.times[place])
        return min(math.exp(logs[0] + part * (logs[1] - logs[0])), self.took)


def inputs(now: float, own: Curve, others: Sequence[Curve], ended: int) -> Array | None:
    """What the network sees of a running trial at a time, (network.STOP,).

    Args:
        now: the share of the limit that it has trained.
        own: its curve.
        others: those of all other trials that did not fail.
        ended: how many of them have ended.

    Returns:
        None where the trial was not seen yet.
    """
    gap = own.at(now)
    if gap is None:
        return None
    earlier = now * _BEFORE
    before = own.at(earlier)
    there = [(other, at) for other in others if (at := other.at(now)) is not None]
    place = _place(gap, [at for _, at in there])
    change = lag = lag_change = left = 0.0
    if before is not None:
        seen = [at for other in others if (at := other.at(earlier)) is not None]
        change = _place(before, seen) - place if seen else 0.0
    best = min(others, key=lambda other: other.took, default=own)
    known = math.isfinite(best.took) and bool(best.times)
    if known:
        then = best.first(gap)
        lag = _clipped(math.log(now / then))
        left = math.log((now + best.took - then) / best.took)
        if before is not None:
            lag_change = _clipped(math.log(earlier / best.first(before))) - lag
    reached = sum(math.isfinite(other.took) for other in others)
    return np.array(
        [
            place,
            math.log1p(min(len(there), _MOST)) / 2,
            math.log(now),
            math.log(now / best.took) if known else math.log(now),
            float(known),
            lag,
            _place(gap, [at for other, at in there if math.isfinite(other.took)]),
            change,
            lag_change,
            left,
            math.log1p(min(ended, _MOST)) / 2,
            reached / max(ended, 1),
            float(before is not None),
        ]
    )


def _place(gap: float, others: Sequence[float]) -> float:
    """The normal score of the share of others that were better; 0 without any."""
    if not others:
        return 0.0
    better = sum((other < gap) + 0.5 * (other == gap) for other in others)
    share = (better + 0.5) / (len(others) + 1)
    return _NORMAL.inv_cdf(min(max(share, _LEAST_SHARE), 1 - _LEAST_SHARE))


def _clipped(log: float) -> float:
    return min(max(log, -_FARTHEST), _FARTHEST)


# --- the pruner -----------------------------------------------------------------------------------


def bar(ended: int, ratio: float = 1.0) -> float:
    """The chance below which a trial is stopped, after so many trials have ended.

    >>> bar(1), bar(4), bar(9, ratio=2.0)
    (0.0, 0.2, 0.2)
    """
    return ratio / (ended + 1) if ended >= _LEAST else 0.0


def made(ratio: float, weights: str | None, data: bytes = b"") -> Prune:
    """The pruner `rules.policy`.

    Args:
        ratio, weights: its settings.
        data: what there is in place of the file that `weights` names; empty to read it.

    Raises:
        ValueError, UserError: as there.
    """
    if not ratio > 0:
        raise ValueError(f"policy ratio must be more than 0 but got {ratio!r}")
    if weights is not None and (not isinstance(weights, str) or not weights):
        raise ValueError(
            f"policy weights must be the path of a file, in quotes, or None but got {weights!r}"
        )
    where = weights or "of the package"
    known = network.parsed(data or network.file_bytes(weights or ""), where)
    if not network.STOP_SHAPES.keys() <= known.keys():
        raise UserError(
            f"policy weights {where}: they are of a sampler alone; make new ones with autotune "
            "train-policy"
        )
    return trained(ratio, known)


def trained(ratio: float, weights: network.Weights) -> Prune:
    """The pruner `rules.policy`, with its weights."""
    curves = GapCurves()

    def curve_of(trial: Trial, target: Target) -> Curve:
        own, limit, took = curves.of(trial, target), target.horizon, math.inf
        stretched = 1.0
        if trial.state is State.REACHED:
            took = max(trial.seconds / limit, _SOON)
            if own.seconds and own.seconds[-1] > 0:  # of several runs: their mean time
                stretched = trial.seconds / own.seconds[-1]
        times = [max(stretched * seconds / limit, _SOON) for seconds in own.seconds]
        return Curve(times, own.gaps, own.until / limit, took)

    def prune(trial: Trial, others: Sequence[Trial], target: Target) -> Stop | None:
        before = trial.reports[-2].seconds if len(trial.reports) > 1 else 0.0
        now = trial.seconds / target.horizon
        if not ((before / target.horizon < MARKS) & (now >= MARKS)).any():
            return None
        best = incumbent(others, hardware=trial.hardware)
        curves.keep(others)
        failed = (State.FAILED, State.INFEASIBLE)
        among = [t for t in recent(others, RECENT_LIMIT) if t.state not in failed]
        among = [t for t in among if t.hardware == trial.hardware and t.reports]
        if best is not None and all(t.number != best.number for t in among):
            among.append(best)
        ended = sum(t.ended for t in among)
        if not (least := bar(ended, ratio)):
            return None
        seen = inputs(now, curve_of(trial, target), [curve_of(t, target) for t in among], ended)
        if seen is None or (chance := network.chance(weights, seen)) >= least:
            return None
        after = f"{target.metric} {target.best(trial):.6g} after {amount(target, trial.seconds)}"
        first, new = "the limit", f"{least:.1%}"
        if best is not None:
            first, new = f"trial {best.number}", f"the {new} of a new trial"
        chances = f"{chance:.1%} chance to reach the target before {first}, less than {new}"
        return Stop("policy", f"{after}: {chances}")

    return prune
