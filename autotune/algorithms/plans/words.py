"""What probes have shown, in words: one line a plan, and one for what was decided."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from autotune.algorithms.plans.choice import chosen
from autotune.algorithms.plans.measured import nothing_decided
from autotune.algorithms.plans.probed import (
    ProbedPlan,
    changes,
    default_plan,
    ended,
    pareto,
    probed_plans,
    same,
)
from autotune.algorithms.ranking.repeats import probes
from autotune.trial import Trial


@dataclass(frozen=True)
class Line:
    """A probed plan as tables show it.

    Args:
        plan: what it changes of the default, such as `precision bf16`.
        probed: what is known of it.
        kept: whether the search goes on with it.
        leading: whether no other plan, the default included, is both faster and smaller.
        beaten: whether the plan that is kept is as fast.
        more_setup: seconds by which its set-up, compilation included, takes longer than the
            default's. Every trial with it pays them, and no factor has them.
    """

    plan: str
    probed: ProbedPlan
    kept: bool
    leading: bool
    beaten: bool = True
    more_setup: float = 0.0

    @property
    def verdict(self) -> str:
        """`kept`, or why it is not; and how much longer its set-up takes, from a second on."""
        later = f"; set-up {self.more_setup:.0f} s longer" if self.more_setup >= 1 else ""
        return self._verdict() + later

    def _verdict(self) -> str:
        if self.kept:
            return "kept"
        found = self.probed
        if found.failed:
            return f"out: {found.reason}"
        if found.ratio is None or found.interval is None:
            return "running"
        if found.faster:
            return "faster, but not the fastest" if self.beaten else "faster, but probed once only"
        return "slower" if found.interval[1] < 1 else "within the noise"


def lines(trials: Sequence[Trial]) -> list[Line]:
    """One line for each plan that was probed beside the default, in the order of the probes."""
    known, kept = probed_plans(trials), chosen(trials)
    default = default_plan(trials)
    front = _front(default, known)
    usual = default.setup if default is not None else None
    return [
        Line(
            plan_of(one),
            one,
            kept is not None and same(one.point, kept.point),
            any(one is other for other in front),
            kept is not None and (one.ratio or 0.0) <= (kept.ratio or 0.0),
            one.setup - usual if one.setup is not None and usual is not None else 0.0,
        )
        for one in known
    ]


def _front(default: ProbedPlan | None, known: Sequence[ProbedPlan]) -> list[ProbedPlan]:
    """The Pareto set of the plans that have measured, the default first if it is one of them."""
    own = [plan for plan in known if not plan.failed]
    return pareto([default, *own] if default is not None else own)


def pareto_text(trials: Sequence[Trial]) -> str:
    """Which plans no other one beats in both seconds and bytes; empty where none is measured."""
    front = _front(default_plan(trials), probed_plans(trials))
    if not front:
        return ""
    by = "seconds per sample (bytes are not known)"
    if all(plan.peak is not None for plan in front):
        by = "seconds per sample and peak bytes"
    return f"Pareto set of {by}: {'; '.join(plan_of(one) or 'the default' for one in front)}"


def plan_of(probed: ProbedPlan) -> str:
    """What a plan changes of the default.

    >>> plan_of(ProbedPlan({}, (("precision", "bf16"), ("compile", True))))
    'precision bf16, compile True'
    """
    return ", ".join(f"{name} {value}" for name, value in probed.changes)


def probed_plan(probe: Trial, trials: Iterable[Trial]) -> str:
    """What a probe changes of the default plan, which is that of the first probe."""
    first = next(iter(probes(trials)), probe)
    if probe.params is None or first.params is None or same(probe.params, first.params):
        return "the default plan"
    return plan_of(ProbedPlan(probe.params, changes(probe.params, first.params)))


def times(probed: ProbedPlan) -> str:
    """How many times as fast as the default, with its interval; a dash where nothing is known.

    >>> times(ProbedPlan({}, (), 1, 1.5, (1.4, 1.61)))
    '1.50x (1.40 to 1.61)'
    """
    if probed.ratio is None or probed.interval is None:
        return "-"
    low, high = probed.interval
    if not math.isfinite(high):
        return f"{probed.ratio:.2f}x (too few blocks for an interval)"
    return f"{probed.ratio:.2f}x ({low:.2f} to {high:.2f})"


def so_far(trials: Sequence[Trial]) -> str:
    """How many probes there are, while it is not decided which plan is kept."""
    every = probes(trials)
    return f"probing: {len(every)} so far, {math.fsum(t.spent_seconds for t in every):.0f} s"


def decision(trials: Sequence[Trial]) -> str:
    """Which plan is kept, and why, in one line; empty without any probe."""
    every = probes(trials)
    if not every:
        return ""
    spent = math.fsum(trial.spent_seconds for trial in every)
    after = f"after {len(every)} probe{'' if len(every) == 1 else 's'}, {spent:.0f} s"
    first = ended(trials)[:1]
    if not first:
        return f"the default is kept, as no probe has ended, {after}"
    if why := nothing_decided(first[0]):
        return f"none is fixed, and all is searched together: {why}, {after}"
    kept = chosen(trials)
    if kept is not None:
        faster = f"{times(kept)} the default's samples a second"
        return f"{plan_of(kept)} is kept, {faster}, {after}"
    return f"the default is kept, as nothing is faster beyond the noise, {after}"
