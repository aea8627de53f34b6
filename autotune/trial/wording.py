"""A target and its results in words: the one place that knows seconds, steps and metrics apart."""

from __future__ import annotations

from autotune.trial.clock import STEPS
from autotune.trial.target import Target
from autotune.trial.values import State, Trial


def goal(target: Target) -> str:
    """What the target asks for.

    >>> goal(Target("acc", 0.97, limit=60)), goal(Target("acc", limit=60))
    ('time to acc 0.97', 'best acc within 60 s')
    >>> goal(Target("loss", mode="min", scope="last", limit_steps=20000))
    'last loss within 20,000 steps'
    """
    if target.value is not None:
        return f"{'steps' if target.clock == STEPS else 'time'} to {target.metric} {target.value:g}"
    return result_name(target) + _within(target)


def _within(target: Target) -> str:
    limits = [f"{target.limit:g} s"] if target.limit is not None else []
    limits += [f"{target.limit_steps:,} steps"] if target.limit_steps is not None else []
    return f" within {' and '.join(limits)}" if limits else ""


def result_name(target: Target) -> str:
    """The name of what trials are ranked by, as the head of a column."""
    if target.timed:
        return f"{'steps' if target.clock == STEPS else 'time'} to target"
    return metric_name(target)


def metric_name(target: Target) -> str:
    """The name of a trial's metric that counts: `best acc`, or `last acc`."""
    return f"{target.scope} {target.metric}"


def amount(target: Target, seconds: float) -> str:
    """What the target's clock shows: seconds, or steps."""
    return f"{seconds:,.0f} steps" if target.clock == STEPS else f"{seconds:.2f} s"


def metric_of(target: Target, result: float) -> float:
    """The metric of a result (`Target.result`), whose sign it has only where lower is better."""
    return result if target.mode == "min" else 0.0 - result


def shown(target: Target, result: float | None) -> str:
    """A result (`Target.result`) with its unit; a dash for none.

    >>> shown(Target("acc", 0.97, limit=60), 12.3), shown(Target("acc", limit=60), -0.9694)
    ('12.30 s', '0.9694')
    """
    if result is None:
        return "-"
    return amount(target, result) if target.timed else f"{metric_of(target, result):.4g}"


def reached(target: Target) -> str:
    """What a trial that succeeded did, as the end of a sentence about none that did."""
    if target.value is None:
        return f"completed with a {target.metric}"
    return f"reached {target.metric} {target.value:g}"


def outcome(trial: Trial, target: Target) -> str:
    """How a trial ended, in words."""
    best = target.best(trial)
    came = "-" if best is None else f"{best:.4g}"
    match trial.state:
        case State.REACHED:
            return f"{reached(target)} in {amount(target, trial.seconds)}"
        case State.COMPLETED:
            return f"completed: {metric_name(target)} {came} in {amount(target, trial.seconds)}"
        case State.CENSORED:
            after = amount(target, trial.seconds)
            return f"censored after {after}, {trial.reason}; {metric_name(target)} {came}"
        case State.FAILED | State.INFEASIBLE:
            return f"{trial.state.lower()}: {trial.reason}"
    return "running"
