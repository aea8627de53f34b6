"""A trial that fails: the trainer's own traceback, and after it one line that says what follows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from autotune.algorithms.ranking.repeats import PROBE
from autotune.algorithms.ranking.trial_index import failed_in_a_row
from autotune.errors import UserError
from autotune.trial import (
    DRIVER_RESTARTED,
    Ended,
    Event,
    FailurePolicy,
    Interrupted,
    State,
    Trial,
)

_RANKS = re.compile(r"^ranks? (\d[\d, ]*):\n", re.MULTILINE)  # above the ranks' tracebacks
_ONE_RANK = "rank 0:\n"
_OTHERS = ": raised nothing"


@dataclass
class Failures:
    """Puts failures into words, the traceback of each error once."""

    policy: FailurePolicy
    _shown: dict[str, int] = field(default_factory=dict)

    def of(self, event: Event, trials: Mapping[int, Trial]) -> tuple[str, str] | None:
        """The trainer's traceback and one line without the trial's number; None for no failure.

        The traceback is empty for a `UserError` and where another trial's was the same; the line
        where the study ends with that `UserError`.
        """
        if isinstance(event, Interrupted) and event.reason != DRIVER_RESTARTED:
            what, follows = "broke off", then(trials[event.trial])
        elif isinstance(event, Ended) and (event.state is State.FAILED or event.error):
            what = f"{event.state.lower()}{_where(event.error)}"
            follows = self._follows(event, trials)
        else:
            return None
        if event.reason.startswith(f"{UserError.__name__}: "):
            alone = not any(trial.reports for trial in trials.values())
            return "", "" if alone else f"{what}: {_reason(event)}; {follows}"
        first = self._shown.setdefault(event.error, event.trial) if event.error else event.trial
        if first != event.trial:
            return "", f"{what}: {_reason(event)} (the traceback of trial {first}); {follows}"
        why = "" if event.reason in event.error else f": {_reason(event)}"  # else it was said
        return _plain(event.error), f"{what}{why}; {follows}"

    def _follows(self, event: Ended, trials: Mapping[int, Trial]) -> str:
        """Whether the study ends with this failure."""
        most = self.policy.max_consecutive_failed_trials
        if event.state is not State.FAILED or trials[event.trial].kind == PROBE:
            return "the study goes on"
        if failed_in_a_row(list(trials.values()), most):
            return "the study ends"
        return f"the study goes on ({most} failures in a row end it)"


def _reason(event: Ended | Interrupted) -> str:
    """The reason with what belongs to it, on one line."""
    more = event.detail if isinstance(event, Ended) else ""
    if isinstance(event, Interrupted) and event.microbatch:
        more = f"microbatch {event.microbatch} from here on"
    return " ".join(f"{event.reason}{f' ({more})' if more else ''}".split())


def _plain(error: str) -> str:
    """The error without the name of the rank, where a trial has no other."""
    one = len(_RANKS.findall(error)) == 1 and _OTHERS not in error
    return error.removeprefix(_ONE_RANK) if one else error


def _where(error: str) -> str:
    """The ranks that raised, where a trial has several."""
    ranks = ", ".join(_RANKS.findall(error))
    if not ranks or (ranks == "0" and _OTHERS not in error):
        return ""
    return f" on rank{'s' * (',' in ranks)} {ranks}"


def then(trial: Trial) -> str:
    """Where a trial goes on that broke off, or that a driver left."""
    at = f"from step {trial.checkpoint.step}" if trial.checkpoint else "from the beginning"
    return f"it starts again {at}"
