"""Decisions on a trial at its last report, and its end.

`decide` says whether the trial ends: it has diverged, reached the target or its limit, or the
pruner stops it. If it does not end, `ask_controller` says what the controller changes. `end` and
`interrupt` write an end down. A pruner or a controller that raises, or returns something else than
it may, ends the study with one line (`calls`).
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from dataclasses import replace

from autotune.algorithms.plans.measured import PROBED, enough, probe_text, usable
from autotune.algorithms.pruners.rules import Pruner, never
from autotune.algorithms.ranking.racing import given_up
from autotune.algorithms.ranking.repeats import PROBE
from autotune.algorithms.ranking.trial_index import failed_in_a_row
from autotune.backends.protocol import Finished
from autotune.errors import StudyError, UserError, unknown
from autotune.study.driver.calls import called
from autotune.study.driver.checkpoints import sweep
from autotune.study.driver.limits import check_limits, within
from autotune.study.driver.state import StudyState
from autotune.trial import (
    DIVERGED,
    FINISHED,
    INTERRUPTED,
    INTERRUPTED_REASONS,
    LIMIT,
    Change,
    Ended,
    Fork,
    Limit,
    Report,
    Reported,
    State,
    Stop,
    Target,
    Trial,
    diverged,
    undisturbed,
)
from autotune.trial.wording import aim

# Ends of trials of which `end` does not ask whether they reported the metric.
_UNCHECKED = (*INTERRUPTED_REASONS, DIVERGED, FINISHED)


def decide(
    trial: Trial,
    others: Sequence[Trial],
    target: Target,
    pruner: Pruner,
    repeated: Trial | None = None,
    limits: Sequence[Limit] = (),
) -> tuple[State, Stop] | None:
    """The end of a trial after its last report, or None if it continues.

    The pruner comes last, and not for a baseline or a repeat: only the target's limit censors
    these, and a race also what `racing.given_up` says of the trial that is `repeated`. The pruner
    sees a trial that is disturbed without the seconds in which it waited. A result that breaks one
    of the `limits` is none: the trial is INFEASIBLE.

    Raises:
        UserError: the pruner raised, or returned something else; or a result comes without a metric
            that is limited.
    """
    if not trial.reports:
        return None
    if trial.kind == PROBE:
        return end_of_probe(trial)
    bad = diverged(trial.reports[-1].metrics)
    if bad:
        value = trial.reports[-1].metrics[bad]
        return State.CENSORED, Stop(DIVERGED, f"{bad} is {value}")
    if target.in_time(trial.reports[-1]) and target.met(trial.reports):
        stop = Stop("target", f"{target.metric} {target.best(trial):.6g}")
        return within(trial, target, limits, State.REACHED, stop)
    if spent := target.spent(trial):
        return within(trial, target, limits, target.end_of(trial), Stop(LIMIT, spent))
    if repeated is not None and (late := given_up(undisturbed(trial), repeated, target)):
        return State.CENSORED, late
    if never_pruned(trial) or (not target.timed and len(trial.reports) < 2):
        return None  # without a value a trial's only report may be its result
    stop = called("pruner", (Stop,), pruner, undisturbed(trial), others, target)
    return (State.CENSORED, stop) if stop is not None else None


def end_of_probe(trial: Trial) -> tuple[State, Stop] | None:
    """The end of a probe after its last report, or None while it has not measured enough.

    It is never REACHED: it is no result of its configuration.
    """
    bad = diverged(trial.reports[-1].metrics)
    if bad:
        return State.CENSORED, Stop(DIVERGED, f"{bad} is {trial.reports[-1].metrics[bad]}")
    if not enough(trial):
        return None
    return State.CENSORED, Stop(PROBED, probe_text(trial))


def said_late(stop: Stop, report: Report) -> Stop:
    """The decision on a report that came after its milestone; it says where the ranks were."""
    if report.ahead is None:
        return stop
    late = f"decided at step {report.ahead:,}, on the report of step {report.step:,}"
    return replace(stop, detail=f"{stop.detail}; {late}" if stop.detail else late)


def verdict(state: StudyState, trial: Trial) -> tuple[State, Stop] | None:
    """As `decide`, of a trial of the study."""
    others = () if never_pruned(trial) else state.others(trial)
    first, limits = _repeated(state, trial), state.settings.experiment.limits
    return decide(trial, others, state.target, state.settings.pruner, first, limits)


def _repeated(state: StudyState, trial: Trial) -> Trial | None:
    """The trial that a repeat runs again, without the seconds in which it waited."""
    first = state.trials.get(trial.repeats) if trial.repeats is not None else None
    return undisturbed(first) if first is not None else None


def never_pruned(trial: Trial) -> bool:
    """Whether no pruner may stop the trial, because it measures a configuration."""
    return trial.kind in ("baseline", PROBE) or trial.repeats is not None


def ask_controller(state: StudyState, trial: Trial) -> Change | Fork | None:
    """What the controller decides; a trial that repeats a baseline is shown to it as one.

    Raises:
        UserError: the controller raised, or returned something else.
    """
    controller = state.settings.controller
    if controller is None or trial.kind == PROBE:
        return None
    first = _repeated(state, trial)
    if first is not None and first.kind == "baseline":
        trial = replace(trial, kind="baseline")
    kinds, given = (Change, Fork), (undisturbed(trial), state.others(trial), state.target)
    decision: Change | Fork | None = called("controller", kinds, controller, *given)
    return decision


def check_metric(trial: Trial, target: Target, ended: bool) -> None:
    """Refuse a target metric that is never reported: at once if a similar name is, else at the end.

    Raises:
        UserError: names the metric and those that are reported.
    """
    reported = any(target.metric in report.metrics for report in reversed(trial.reports))
    if trial.kind == PROBE or reported or len(trial.reports) < 2:
        return
    names = {name for report in trial.reports for name in report.metrics}
    if ended or difflib.get_close_matches(target.metric, names, n=1, cutoff=0.87):
        if not names:
            raise UserError(f"the trainer never reported any metric, so not {target.metric!r}")
        raise UserError(unknown("target metric", target.metric, names))


def finish(state: StudyState, trial: Trial, signal: Finished) -> None:
    """End a trial whose trainer came to its own end, after what it returned as its last report.

    A returned metric that is no finite number is a divergence: the configuration is to blame, not
    the trainer. It is the trainer if no trial has another one.

    Raises:
        UserError: the trainer never reported the target's metric, and did not return it.
    """
    number, metric, verdict = trial.number, state.target.metric, None
    limits = state.settings.experiment.limits
    if signal.report is not None:
        state.append(Reported(number, signal.report, state.elapsed()))
        trial = state.trials[number]
        verdict = _diverged_at_end(trial, metric)
        verdict = verdict or decide(trial, (), state.target, never, limits=limits)
    stop = Stop(FINISHED, "the trainer came to its end")
    if trial.kind == PROBE:
        measures = usable(trial) and not diverged(trial.reports[-1].metrics)
        end(state, number, State.CENSORED, Stop(PROBED, probe_text(trial)) if measures else stop)
        return
    own = trial, state.target, limits, state.target.end_of(trial), stop
    end(state, number, *(verdict or within(*own)))
    if not any(metric in report.metrics for report in trial.reports):
        raise UserError(unreported(trial.reports, metric, signal.returned))
    if _has_no_number(state.trials[number], metric):
        most = state.settings.experiment.failure.max_consecutive_failed_trials
        first = state.trial_index.last_ended(most + 1)
        if len(first) == most:  # later ones are the fault of their configurations
            check_numbers(first, metric)


def check_numbers(ended: Sequence[Trial], metric: str) -> None:
    """Refuse trials of which none came to a metric that is a finite number.

    Raises:
        UserError: says what they returned.
    """
    if ended and all(_has_no_number(t, metric) for t in ended):
        value = ended[-1].reports[-1].metrics[metric]
        raise UserError(
            f"the trainer returned {metric!r} as {value} in all of {len(ended)} trials: return a "
            "finite number, or raise an error if a configuration cannot be trained"
        )


def _diverged_at_end(trial: Trial, metric: str) -> tuple[State, Stop] | None:
    value = trial.reports[-1].metrics.get(metric, 0.0)
    if math.isfinite(value) or diverged(trial.reports[-1].metrics):
        return None
    return State.CENSORED, Stop(DIVERGED, f"{metric} is {value}")


def _has_no_number(trial: Trial, metric: str) -> bool:
    """Whether the trial ended as it returned a metric that is no finite number, and is no loss."""
    last = trial.reports[-1].metrics if trial.reports else {}
    bad = not math.isfinite(last.get(metric, 0.0))
    return trial.reason == DIVERGED and bad and not diverged(last)


def unreported(reports: Sequence[Report], metric: str, returned: str) -> str:
    """What to do about a trainer that has ended without the target's metric.

    `returned` is what it returned, in words, if that was no report.
    """
    if names := {name for report in reports for name in report.metrics}:
        return f"{unknown('target metric', metric, names)}: return it, or report it"
    call = f"autotune.report(step, {{{metric!r}: value}})"
    return (
        f"the trainer {returned or 'ended'} and never reported the target's metric {metric!r}: "
        f"return it (a number, or a dict with it), or call {call}"
    )


def end(state: StudyState, number: int, ended: State, stop: Stop, error: str = "") -> None:
    """End a trial, running or interrupted.

    Raises:
        UserError: nothing that it reported is the target's metric.
        StudyError: too many trials in a row have failed.
    """
    trial = state.trials[number]
    seconds, at = trial.seconds, state.elapsed()
    state.append(Ended(number, ended, stop.reason, seconds, stop.detail, error, at))
    if trial.kind == PROBE:
        return  # what it shows of the study, the other trials show too
    _warn_if_too_late(state, trial)
    if ended is State.CENSORED and stop.reason not in _UNCHECKED:
        check_metric(trial, state.target, ended=True)
        check_limits(trial, state.settings.experiment.limits, state.settings.experiment.train)
    sweep(state)
    limit = state.settings.experiment.failure.max_consecutive_failed_trials
    if failed_in_a_row(state.trial_index.last_ended(limit), limit):
        raise StudyError(f"{limit} trials failed in a row; the last: {stop.reason}")


def _warn_if_too_late(state: StudyState, trial: Trial) -> None:
    """Warn where the first metric came after the limit: what it is worth does not count."""
    target = state.target
    first = next((r for r in trial.reports if target.metric in r.metrics), None)
    if first is None or target.in_time(first) or (target.timed and not target.met(trial.reports)):
        return
    late = target.limit is not None and first.seconds >= target.limit
    came = f"after {first.seconds:.2f} s" if late else f"at step {first.step:,}"
    what = aim(target) if target.timed else f"its first {target.metric}"
    advice = "" if target.timed else ", or none if the trainer ends by itself"
    state.warn_once(
        f"trial {trial.number} came to {what} {came}, beyond the limit: such a trial has no "
        f"result; give a longer limit{advice}",
        "beyond the limit",
    )


def warn_of_setup(state: StudyState, trial: Trial) -> None:
    """Warn, once a study, where a trainer did not say when its set-up was done.

    What a function only returns at its end says nothing about that, and is no report.
    """
    first, target = trial.reports[0], state.target
    on_clock = target.limit is not None and state.pool.realtime  # else no seconds count
    said = len(trial.reports) > 1 or not first.metrics or first.clock.setup
    if said or not on_clock or trial.origin is not None or first.clock.seconds("train") <= 0:
        return
    state.warn_once(
        f"the set-up is on the clock: trial {trial.number}'s first report is one with metrics (at "
        f"step {first.step:,}), so that all before it, such as imports and data, counts as "
        "training; report step 0 when the set-up is done: autotune.report(0, {})",
        "set-up",
    )


def interrupt(state: StudyState, trial: Trial) -> None:
    """Leave a running trial to a later driver, which resumes it from its last checkpoint."""
    if not trial.ended:
        seconds, at = trial.seconds, state.elapsed()
        state.append(Ended(trial.number, State.CENSORED, INTERRUPTED, seconds, at=at))


def interrupt_all(state: StudyState) -> None:
    """Leave all running trials to a later driver."""
    for trial in state.all_trials():
        interrupt(state, trial)
