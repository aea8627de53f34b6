"""A line an event, for a file, a log, and a terminal that the trainer itself uses."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping

from autotune.algorithms.ranking.best import best as best_trial
from autotune.study.display.failures import Failures, then
from autotune.study.display.trial_text import configuration, name_of
from autotune.study.options import Watch
from autotune.trial import Ended, Event, Interrupted, Started, Target, Trial
from autotune.trial.plain_text import plain_text
from autotune.trial.wording import lead, outcome


def lines(target: Target, failures: Failures) -> Watch:
    """A watch that prints a line when a trial starts, breaks off or ends, on stderr."""

    def watch(event: Event, trials: Mapping[int, Trial]) -> None:
        trial = trials[event.trial]
        at = f"{event.at:8.1f} s  {name_of(trial, trials.values()):<12}"
        if failed := failures.of(event, trials):
            traceback, line = failed
            say(traceback)
            say(f"{at} {line}" if line else "")
            return
        match event:
            case Started():
                what = configuration(trial, trials.values())
                say(f"{at} started{_again(trial)}{': ' if what else ''}{what}")
            case Interrupted():  # no failure: its driver was
                say(f"{at} was running when the study stopped; {then(trial)}")
            case Ended():
                detail = f" ({event.detail})" if event.detail else ""
                say(f"{at} {outcome(trial, target)}{detail}{_best(trial, trials, target)}")

    return watch


def say(text: str) -> None:
    """Print a text on stderr, if there is one; a closed terminal is no reason to stop."""
    if text:
        with contextlib.suppress(OSError):
            print(plain_text(text), file=sys.stderr, flush=True)


def _again(trial: Trial) -> str:
    """From where a trial goes on that does not begin."""
    if trial.origin is not None and trial.attempts == 1:
        return f" at step {trial.origin.checkpoint.step}"
    return f" again from step {trial.checkpoint.step}" if trial.checkpoint else ""


def _best(trial: Trial, trials: Mapping[int, Trial], target: Target) -> str:
    """Which trial is the best so far, at the end of a line about this one."""
    best = best_trial(tuple(trials.values()), target)
    if best is None:
        return ""
    return ", the best so far" if best.number == trial.number else f"; best: {lead(target, best)}"
