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
    if target.timed:
        return f"{'steps' if target.clock == STEPS else 'time'} to {aim(target)}"
    return aim(target)


def aim(target: Target) -> str:
    """What a trial has to come to: `acc 0.97`, or `best acc within 60 s`."""
    if target.value is not None:
        return f"{target.metric} {target.value:g}"
    return metric_name(target) + _within(target)


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


def unit(target: Target) -> str:
    """The unit of results: `s`, `steps`, or nothing for a metric."""
    if not target.timed:
        return ""
    return STEPS if target.clock == STEPS else "s"


def quantity(value: float | None, unit: str) -> str:
    """A value with its unit in few digits; a dash for none.

    >>> quantity(12.3, "s"), quantity(9100.0, "steps"), quantity(0.96941, ""), quantity(None, "s")
    ('12.30 s', '9,100 steps', '0.9694', '-')
    """
    if value is None:
        return "-"
    return f"{value:.2f} s" if unit == "s" else f"{value:,.0f} {unit}" if unit else f"{value:.4g}"


def plain_result(target: Target, result: float | None) -> float | None:
    """A result (`Target.result`) as people know it: the time, or the metric without the sign."""
    return result if target.timed or result is None else metric_of(target, result)


def shown(target: Target, result: float | None) -> str:
    """A result (`Target.result`) with its unit; a dash for none.

    >>> shown(Target("acc", 0.97, limit=60), 12.3), shown(Target("acc", limit=60), -0.9694)
    ('12.30 s', '0.9694')
    """
    return quantity(plain_result(target, result), unit(target))


def so_far(trial: Trial, target: Target) -> str:
    """A trial's result or, before it has one, what is known of it.

    With a value that is the time that its own exceeds, without one the metric that it came to.
    """
    if not target.timed:
        return quantity(target.best(trial), "")
    if trial.succeeded:
        return amount(target, trial.seconds)
    measured = trial.state in (State.CENSORED, State.RUNNING)
    return f"> {amount(target, trial.seconds)}" if measured else "-"


def lead(target: Target, trial: Trial) -> str:
    """The best trial with its result: `trial 3 in 2.00 s`, or `trial 3 with 0.9694`."""
    how = "in" if target.timed else "with"
    return f"trial {trial.number} {how} {shown(target, target.result(trial))}"


def came_to(target: Target, trial: Trial | None) -> str:
    """Which trial came nearest to the target, in words; empty for none."""
    best = target.best(trial) if trial is not None else None
    if trial is None or best is None:
        return ""
    return f"nearest: trial {trial.number} came to {quantity(best, '')}"


def reached(target: Target) -> str:
    """What a trial that succeeded did, as the end of a sentence about none that did."""
    return f"reached {aim(target)}" if target.timed else f"completed with a {target.metric}"


def share_text(trial: Trial) -> str:
    """The share of its training in which a trial had its cores, as text; empty if not known."""
    share = trial.cpu_share
    return f"{share:.0%}" if share is not None else ""


def disturbed_note(trial: Trial) -> str:
    """A mark for a disturbed trial, with its share; empty for any other."""
    return f"disturbed ({share_text(trial)} of its cores)" if trial.disturbed else ""


def outcome(trial: Trial, target: Target) -> str:
    """How a trial ended, in words, and that it was disturbed."""
    return "; ".join(filter(None, (_end(trial, target), disturbed_note(trial))))


def _end(trial: Trial, target: Target) -> str:
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
