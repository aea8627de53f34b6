"""A trial that fails: the trainer's own traceback, and after it one line that says what follows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from autotune.errors import UserError
from autotune.trial import Ended, Event, FailurePolicy, Interrupted, State, Trial

_RANKS = re.compile(r"^ranks? (\d[\d, ]*):\n", re.MULTILINE)  # above the ranks' tracebacks
_ONE_RANK = "rank 0:\n"
_OF_DRIVER = "driver restarted"  # an interruption that is no failure


@dataclass
class Failures:
    """Puts failures into words, the traceback of each error once."""

    policy: FailurePolicy
    _shown: dict[str, int] = field(default_factory=dict)

    def of(self, event: Event, trials: Mapping[int, Trial]) -> tuple[str, str] | None:
        """The trainer's traceback and one line without the trial's number; None for no failure.

        Either is empty where there is nothing to say: a `UserError` needs no traceback, and where
        the study ends with it, no line.
        """
        if isinstance(event, Interrupted) and event.reason != _OF_DRIVER:
            line = f"broke off: {_reason(event)}; {_then(trials[event.trial])}"
        elif isinstance(event, Ended) and (event.state is State.FAILED or event.error):
            if event.reason.startswith(f"{UserError.__name__}: "):
                alone = not any(trial.reports for trial in trials.values())
                return "", "" if alone else f"failed: {_reason(event)}; the study goes on"
            line = f"{event.state.lower()}{_where(event.error)}: {_reason(event)}; "
            line += self._goes_on(event, trials)
        else:
            return None
        known = self._shown.setdefault(event.error, event.trial) if event.error else event.trial
        if known != event.trial:
            return "", f"{line} (with the traceback of trial {known})"
        alone = len(_RANKS.findall(event.error)) == 1 and event.error.startswith(_ONE_RANK)
        return event.error.removeprefix(_ONE_RANK) if alone else event.error, line

    def _goes_on(self, event: Ended, trials: Mapping[int, Trial]) -> str:
        """Whether the study ends with this failure."""
        most = self.policy.max_consecutive_failed_trials
        if event.state is not State.FAILED:
            return "the study goes on"
        ended = sorted((t for t in trials.values() if t.ended), key=lambda t: t.ended_at or 0.0)
        failed = 0
        for trial in reversed(ended):
            if trial.state is not State.FAILED:
                break
            failed += 1
        if failed >= most:
            return "the study ends"
        return f"the study goes on (failure {failed} of {most} in a row that would end it)"


def _reason(event: Ended | Interrupted) -> str:
    """The reason with what belongs to it, on one line."""
    more = event.detail if isinstance(event, Ended) else ""
    if isinstance(event, Interrupted) and event.microbatch:
        more = f"microbatch {event.microbatch} from here on"
    return " ".join(f"{event.reason}{f' ({more})' if more else ''}".split())


def _where(error: str) -> str:
    """The ranks that raised, where a trial has several."""
    ranks = ", ".join(_RANKS.findall(error))
    if not ranks or (ranks == "0" and ": raised nothing" not in error):
        return ""
    return f" on rank{'s' * (',' in ranks)} {ranks}"


def _then(trial: Trial) -> str:
    """Where a trial goes on that broke off."""
    at = f"from step {trial.checkpoint.step}" if trial.checkpoint else "from the beginning"
    return f"it starts again {at}"
