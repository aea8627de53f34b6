"""Pruners: functions `(trial, others, target) -> Stop | None` that stop trials early.

A pruner is a function of frozen trials, called at each report of a running trial that has not
reached the target. A stopped trial is CENSORED at the seconds spent so far. Seconds are what the
target's clock shows: where it counts steps, trials are compared at equal steps.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

from autotune.algorithms import specs
from autotune.algorithms.ranking.equal_time import GapCurve, GapCurves
from autotune.algorithms.ranking.trial_index import RECENT_LIMIT, Others, recent
from autotune.errors import UserError, unknown
from autotune.trial import STEPS, Stop, Target, Trial, incumbent
from autotune.trial.wording import amount

Pruner = Callable[[Trial, Sequence[Trial], Target], Stop | None]


def slower_than_best(factor: float = 1.0) -> Pruner:
    """Stop a trial that cannot reach the target within `factor` times the incumbent's time.

    It has trained as long, or its next report comes later: that is expected no sooner than after
    the shortest time between two of its reports so far. With factor 1.0 nothing is lost: without
    repeats such a trial cannot become best. This is the adaptive capping of algorithm
    configuration (Hutter et al. 2009, ParamILS). Only trials on equal hardware are compared.

    Raises:
        ValueError: a factor below 1.
    """
    if not factor >= 1:
        raise ValueError(f"slower_than_best factor must be >= 1 but got {factor!r}")

    def prune(trial: Trial, others: Sequence[Trial], target: Target) -> Stop | None:
        best = incumbent(others, hardware=trial.hardware)
        if best is None:
            return None
        cap, ahead = factor * best.seconds, 0.0
        if trial.seconds < cap:
            ahead = _until_next_report(trial)
            if trial.seconds + ahead <= cap:
                return None
        spent, took = amount(target, trial.seconds), amount(target, best.seconds)
        later = f"the next report in {amount(target, ahead)} or more, " if ahead else ""
        return Stop("capped", f"{spent} spent, {later}trial {best.number} took {took}")

    return prune


def _until_next_report(trial: Trial) -> float:
    """The shortest time between two reports of a trial; 0 before there are two."""
    times = pairwise(report.seconds for report in trial.reports)
    return min((after - before for before, after in times if after > before), default=0.0)


def bottom_at_same_time(share: float = 0.5, least: int = 5) -> Pruner:
    """Stop a trial that is among the worst `share` of all trials at equal seconds.

    Ranks at equal steps disadvantage slow steps that learn more; this rule uses the target's clock.
    The median rule of Vizier (Golovin et al. 2017) is `share=0.5` at equal steps.

    Args:
        share: more than 0, less than 1.
        least: the least number of other trials with a report at that time.

    Raises:
        ValueError: an argument outside its range.
    """
    _check_share("bottom_at_same_time share", share)
    _check_count("bottom_at_same_time least", least, 0)
    curves = GapCurves()

    def prune(trial: Trial, others: Sequence[Trial], target: Target) -> Stop | None:
        found = _rank(trial, recent(others, RECENT_LIMIT), target, trial.seconds, curves)
        if found is None or found[1] < least or found[0] < (1 - share) * found[1]:
            return None
        return Stop("bottom", _detail(*found, target, trial.seconds))

    return prune


def asha(
    reduction: float = 3.0, first: float = 1 / 27, least: int = 2, brackets: int = 1
) -> Pruner:
    """Asynchronous successive halving (Li et al. 2018, arXiv 1810.05934), over seconds.

    At each rung, `first * limit`, then `reduction` times later and so on, only the best
    1 / `reduction` of the trials with a report there continue. With `brackets` a trial is compared
    only with those whose number has the same remainder.

    Raises:
        ValueError: a reduction of 1 or less, a first rung outside (0, 1), or no bracket.
    """
    if not reduction > 1:
        raise ValueError(f"asha reduction must be more than 1 but got {reduction!r}")
    _check_share("asha first", first)
    _check_count("asha least", least, 0)
    _check_count("asha brackets", brackets, 1)
    curves = GapCurves()

    def prune(trial: Trial, others: Sequence[Trial], target: Target) -> Stop | None:
        before = trial.reports[-2].seconds if len(trial.reports) > 1 else 0.0
        if not math.isfinite(target.horizon):
            return None
        rung = first * target.horizon
        while rung * reduction <= trial.seconds:
            rung *= reduction
        if not before < rung <= trial.seconds:
            return None
        peers = [
            t
            for t in recent(others, RECENT_LIMIT)
            if t.number % brackets == trial.number % brackets
        ]
        found = _rank(trial, peers, target, rung, curves)
        if found is None or found[1] < least or found[0] < (found[1] + 1) / reduction:
            return None
        return Stop("asha", _detail(*found, target, rung))

    return prune


def hyperband(reduction: float = 3.0, brackets: int = 3) -> Pruner:
    """Hyperband (Li et al. 2017, arXiv 1603.06560) over seconds: `asha` from several first rungs.

    A trial's bracket is its number modulo `brackets`. The first rungs of the brackets are the limit
    divided by `reduction**brackets` (the first one) to `reduction` (the last one).

    Raises:
        ValueError: as `asha`, or no bracket.
    """
    _check_count("hyperband brackets", brackets, 1)
    rules = [
        asha(reduction, reduction**-power, brackets=brackets) for power in range(brackets, 0, -1)
    ]

    def prune(trial: Trial, others: Sequence[Trial], target: Target) -> Stop | None:
        stop = rules[trial.number % brackets](trial, others, target)
        return Stop("hyperband", stop.detail) if stop is not None else None

    return prune


def forecast(
    chance: float = 0.05, least_reports: int = 4, floor: float = 0.1, factor: float = 1.25
) -> Pruner:
    """Stop a trial that is unlikely to reach the target in time, by extrapolating its curve.

    In time is within `factor` times the incumbent's time to target, or within the target's limit
    while there is no incumbent. A trial is never stopped during the warm-up of its learning rate,
    and the forecast includes the gain from the remaining decay; see `pruners.learning_curve`.

    Args:
        chance: stop below this probability; more than 0, less than 1.
        least_reports: the number of reports before which no trial is stopped; at least 4.
        floor: the least error of a forecast over a factor of e in time, as a share of the gap to
            the target at the start of trials; more than 0. Too small a floor stops trials that
            would have become best; larger errors are learned from ended trials.
        factor: at least 1.

    Raises:
        ValueError: an argument outside its range.
    """
    from autotune.algorithms.pruners.learning_curve import (
        Lessons,  # numpy, which only this pruner needs
    )
    from autotune.algorithms.pruners.learning_curve import chance as chance_of

    _check_share("forecast chance", chance)
    _check_count("forecast least_reports", least_reports, 4)
    if not floor > 0:
        raise ValueError(f"forecast floor must be more than 0 but got {floor!r}")
    if not factor >= 1:
        raise ValueError(f"forecast factor must be >= 1 but got {factor!r}")
    lessons = Lessons()

    def prune(trial: Trial, others: Sequence[Trial], target: Target) -> Stop | None:
        best = incumbent(others, hardware=trial.hardware)
        if target.value is None:
            return None
        cap = target.horizon if best is None else min(factor * best.seconds, target.horizon)
        if len(trial.reports) < least_reports or trial.seconds >= cap:
            return None
        everyone = others if isinstance(others, Others) else [trial, *others]
        parameters = lessons.parameters(everyone, target, floor)
        found = chance_of(trial, cap, target, parameters, least_reports) if parameters else 1.0
        if not found < chance:
            return None
        gap = f"{target.metric} {target.best(trial):.6g} after {amount(target, trial.seconds)}"
        by = amount(target, cap)
        return Stop("forecast", f"{gap}: {found:.1%} chance of {target.value:g} by {by}")

    return prune


def policy(ratio: float = 1.0, weights: str | None = None) -> Pruner:
    """Stop a trial whose chance to be faster than the fastest so far is below that of a new one.

    The chance is what a network says that was trained over simulated studies; see
    `pruners.policy`. Nothing is stopped before two trials have ended.

    Args:
        ratio: of both chances, that of a new trial being 1 / (1 + ended trials); more than 0.
        weights: a file of `autotune train-policy`; by default those of the package.

    Raises:
        ValueError: a ratio of 0 or less, or weights that are no path.
        UserError: weights that cannot be read, or are of a sampler alone.
    """
    from autotune.algorithms.pruners.policy import made  # numpy, as above

    return made(ratio, weights)


def _policy_with(data: bytes) -> Callable[..., Pruner]:
    """`policy` with the weights in `data`, whatever file its settings name."""

    @functools.wraps(policy)
    def make(ratio: float = 1.0, weights: str | None = None) -> Pruner:
        from autotune.algorithms.pruners.policy import made

        return made(ratio, weights, data)

    return _capped(make)


def first_of(*pruners: Pruner) -> Pruner:
    """Stop as soon as one of several pruners does, with its reason."""

    def prune(trial: Trial, others: Sequence[Trial], target: Target) -> Stop | None:
        return next((s for p in pruners if (s := p(trial, others, target)) is not None), None)

    return prune


def _rank(
    trial: Trial, others: Sequence[Trial], target: Target, seconds: float, curves: GapCurves
) -> tuple[int, int] | None:
    """How many others on equal hardware had a smaller gap by then, and of how many."""
    own = GapCurve(trial, target)
    if not own.seconds:
        return None
    gap = own.at(seconds)
    curves.keep(others)
    seen = [curves.of(t, target) for t in others if t.hardware == trial.hardware and t.reports]
    gaps = [curve.at(seconds) for curve in seen if curve.until >= seconds]
    return sum(other < gap for other in gaps), len(gaps)


def _detail(better: int, seen: int, target: Target, seconds: float) -> str:
    how = "nearer to the target" if target.timed else "better"
    return f"{better} of {seen} others were {how} after {amount(target, seconds)}"


def _check_share(name: str, value: float) -> None:
    if not 0 < value < 1:
        raise ValueError(f"{name} must lie between 0 and 1 but got {value!r}")


def _check_count(name: str, value: int, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be a whole number >= {least} but got {value!r}")


def never(trial: Trial, others: Sequence[Trial], target: Target) -> Stop | None:
    """Stop nothing: trials are censored by the target's limit only."""
    return None


def _capped(rule: Callable[..., Pruner], factor: float = 1.0) -> Callable[..., Pruner]:
    """Combine the rule with `slower_than_best`; a `factor` of the rule sets that of both."""

    @functools.wraps(rule)
    def make(**settings: Any) -> Pruner:
        made = rule(**settings)
        return first_of(slower_than_best(settings.get("factor", factor)), made)

    return make


PRUNERS: dict[str, Callable[..., Pruner]] = {
    "convergence": lambda: first_of(slower_than_best(), forecast()),
    "slower_than_best": slower_than_best,
    "bottom_at_same_time": _capped(bottom_at_same_time),
    "asha": _capped(asha),
    "hyperband": _capped(hyperband),
    "forecast": _capped(forecast, 1.25),
    "policy": _capped(policy),
    "none": lambda: never,
}
"""The pruners by name; each takes its settings by keyword, if it has any."""


_OF_VALUE = ("convergence", "slower_than_best", "forecast", "policy")
_OF_LIMIT = ("asha", "hyperband")


def usual_pruner(target: Target | None) -> str:
    """The name of the pruner that `auto` stands for."""
    return "convergence" if target is None or target.timed else "bottom_at_same_time"


def make_pruner(pruner: str | Pruner, target: Target | None = None, weights: bytes = b"") -> Pruner:
    """Build a pruner from its spec; a pruner itself is returned.

    Args:
        pruner: its name, with or without settings.
        target: of the trials that it will judge.
        weights: what `policy` takes in place of the file that it would read.

    Raises:
        UserError: an unknown name or argument, or one that is out of range; or one by name that
            cannot decide about trials with this target.
    """
    if callable(pruner):
        return pruner
    names = ("auto", *PRUNERS)
    if not isinstance(pruner, str):
        raise UserError(unknown("pruner", pruner, names))
    pruner = usual_pruner(target) if pruner == "auto" else pruner
    spec = specs.parse_spec("pruner", pruner, PRUNERS)
    if target is not None and not target.timed and spec[0] in _OF_VALUE:
        others = ", ".join(name for name in PRUNERS if name not in _OF_VALUE)
        raise UserError(f"pruner {spec[0]!r} needs a Target with a value; without one: {others}")
    if target is not None and not math.isfinite(target.horizon) and spec[0] in _OF_LIMIT:
        name = "limit_steps" if target.clock == STEPS else "limit"
        raise UserError(
            f"pruner {spec[0]!r} compares trials at shares of the Target's {name}, which it lacks"
        )
    rule = _policy_with(weights) if weights and spec[0] == "policy" else PRUNERS[spec[0]]
    return specs.build("pruner", pruner, spec, rule)
