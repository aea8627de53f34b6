"""The best trial of a study and the order of the others: the one definition.

`best`, `status`, `compare`, exports, reports, MLflow and `StudyResult` all use it:

1. The best is the confirmed configuration with the least mean time of its confirmations. Before any
   is confirmed, it is the trial with the least time that one more run should take (`expected`),
   which counts how often a configuration, run again in the search, has missed the target.
2. The others that reached the target follow by that expected time. Among these, confirmed ones take
   each other's places so that they are in the order of their confirmed times.
3. Then come those that did not reach the target, by `Target.score`.

Where the target has no value, the metric takes the place of the time: trials that completed are
ranked by `Target.result`, and then come those that were stopped.

In a mean, a run that missed the target counts as the limit, and a disturbed run only where there is
no other, without the seconds in which it waited. Times are ranked on comparable hardware
only: confirmations on the hardware that most of them ran on, trials on that of most trials.

What samplers, pruners and races rank by while a study searches is something else: see `equal_time`
and `racing`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median_high

from autotune.algorithms.ranking.confirmation import Confirmation, confirmations
from autotune.algorithms.ranking.difference import Difference, difference
from autotune.algorithms.ranking.expected import expected_seconds
from autotune.algorithms.ranking.hardware import scores
from autotune.algorithms.ranking.repeats import (
    VALIDATED,
    means_of_runs,
    repeats_by_trial,
    searched,
    unconfirmed,
    with_mean_times,
)
from autotune.algorithms.ranking.speedup import Speedup, speedup
from autotune.trial import Target, Trial, undisturbed, usual_hardware


@dataclass(frozen=True)
class Ranked:
    """A searched trial in the order of its study. `rank` is from 1; None without such a result."""

    trial: Trial
    rank: int | None


def best(trials: Sequence[Trial], target: Target) -> Trial | None:
    """The best trial of a study; None if none has reached the target (without a value: completed).

    Its `seconds` are those of its first run, not of its repeats.
    """
    return next(iter(by_result(trials, target)), None)


def ranking(trials: Sequence[Trial], target: Target) -> tuple[Ranked, ...]:
    """All searched trials, the best first, with the rank of those that `by_result` ranks."""
    reached = by_result(trials, target)
    first = {t.number for t in reached}
    known = [t for t in with_mean_times(unconfirmed(trials), target) if t.number not in first]
    by_score = scores(known, target)

    def order(trial: Trial) -> tuple[bool, float, int]:
        score = by_score[trial.number]
        return score is None, score or 0.0, trial.number

    own = {t.number: t for t in searched(trials)}
    rest = [own[t.number] for t in sorted(known, key=order)]
    ranked = [Ranked(trial, rank) for rank, trial in enumerate(reached, 1)]
    return (*ranked, *(Ranked(trial, None) for trial in rest))


def by_result(trials: Sequence[Trial], target: Target) -> list[Trial]:
    """The searched trials that succeeded on comparable hardware, the best first.

    A configuration of which every confirmation missed the target is last.
    """
    known = by_expected_result(trials, target)
    own = {t.number: t for t in known}  # some succeeded only when they were run again
    own |= {t.number: t for t in trials if t.succeeded}
    found = [c for c in confirmations(trials, target) if c.number in own]
    confirmed = [c.number for c in found if c.reached]
    missed = [c.number for c in found if not c.reached]
    expected = [t.number for t in known]
    expected += [number for number in confirmed if number not in expected]
    in_turn = iter(confirmed)
    order = [next(in_turn) if n in confirmed else n for n in expected if n not in missed]
    return [own[n] for n in dict.fromkeys((*confirmed[:1], *order, *missed))]


def by_expected_result(trials: Sequence[Trial], target: Target) -> list[Trial]:
    """The searched trials that succeeded, by the result that one more run should have.

    With a value of the target that is `expected_seconds`. Without one it is the mean of the runs
    of a trial that has been run `VALIDATED` times; any other result may owe something to luck, and
    the median difference between mean and first result among those is added. Only trials on the
    hardware of most trials are ranked, and confirmations are not used: this is how finalists are
    chosen. Results are the means of runs.
    """
    asked = unconfirmed(trials)
    runs = repeats_by_trial(asked)
    known = means_of_runs(asked, runs, target)
    if target.timed:
        expected = expected_seconds(asked, runs, target)
    else:
        expected = _expected_metrics(asked, known, runs, target)
    usual = usual_hardware(known)
    done = [t for t in known if t.succeeded and t.hardware == usual]
    return sorted(done, key=lambda t: (expected[t.number], target.order(t)))


def _expected_metrics(
    trials: Sequence[Trial],
    known: Sequence[Trial],
    runs: Mapping[int, Sequence[Trial]],
    target: Target,
) -> dict[int, float]:
    """As `expected_seconds`, where the target has no value; `known` are trials by their means."""
    first = {t.number: undisturbed(t) for t in searched(trials)}
    done = {t.number: t for t in known if t.succeeded}
    validated = {number for number, own in runs.items() if 1 + len(own) >= VALIDATED}
    results = {n: (target.result(first[n]), target.result(t)) for n, t in done.items()}
    lost = [
        mean - one
        for n, (one, mean) in results.items()
        if n in validated and one is not None and mean is not None
    ]
    more = max(0.0, median_high(lost)) if lost else 0.0
    return {
        n: math.inf if mean is None else mean if n in validated else mean + more
        for n, (_, mean) in results.items()
    }


def confirmed_gain(trials: Sequence[Trial], target: Target) -> Difference | None:
    """How much better the best configuration's metric is than the baseline's, both confirmed.

    None where the target has a value: then there is a `confirmed_speedup`.
    """
    pair = None if target.timed else _confirmed_pair(trials, target)
    return difference(pair[0].timed_runs, pair[1].timed_runs) if pair is not None else None


def confirmed_speedup(trials: Sequence[Trial], target: Target) -> Speedup | None:
    """The speedup of the best configuration over the baseline; None unless both are confirmed."""
    pair = _confirmed_pair(trials, target) if target.timed else None
    return speedup(pair[0].timed_runs, pair[1].timed_runs) if pair is not None else None


def _confirmed_pair(
    trials: Sequence[Trial], target: Target
) -> tuple[Confirmation, Confirmation] | None:
    """The confirmations of the best configuration and of the baseline, if both have any."""
    leading = best(trials, target)
    baseline = next((t for t in trials if t.kind == "baseline"), None)
    if leading is None or baseline is None:
        return None
    found = {c.number: c for c in confirmations(trials, target)}
    if not {leading.number, baseline.number} <= found.keys():
        return None
    return found[leading.number], found[baseline.number]


def nearest(trials: Sequence[Trial], target: Target) -> Trial | None:
    """The searched trial whose metric came nearest to the target so far; None without reports."""
    known = [(t, target.best(t)) for t in searched(trials)]
    gaps = [(target.shortfall(value), t.number, t) for t, value in known if value is not None]
    finite = [found for found in gaps if math.isfinite(found[0])]
    return min(finite, default=(0.0, 0, None))[2]
