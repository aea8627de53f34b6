"""Frozen values that describe a study, and `after`, which folds an event into a trial.

All decisions (samplers, pruners, controllers, rules of the study) are functions of these values.
Nothing here uses the disk, a process or a library.
"""

from __future__ import annotations

from autotune.trial.disturbance import undisturbed
from autotune.trial.events import (
    EVENTS,
    Changed,
    Ended,
    Event,
    Interrupted,
    Reported,
    Saved,
    Started,
    Suggested,
    after,
    fold,
)
from autotune.trial.failure import FailurePolicy
from autotune.trial.hardware import Hardware
from autotune.trial.milestone import KNOBS, Change, Metrics, Milestone
from autotune.trial.target import Fork, Stop, Target, diverged, incumbent, usual_hardware
from autotune.trial.values import (
    DISTURBED_SHARE,
    INTERRUPTED_REASONS,
    Checkpoint,
    Clock,
    Config,
    Origin,
    Params,
    Report,
    State,
    Trial,
    slowest,
)

__all__ = [
    "INTERRUPTED_REASONS",
    "Change",
    "Changed",
    "Checkpoint",
    "Clock",
    "Config",
    "DISTURBED_SHARE",
    "EVENTS",
    "Ended",
    "Event",
    "FailurePolicy",
    "Fork",
    "Hardware",
    "KNOBS",
    "Interrupted",
    "Metrics",
    "Milestone",
    "Origin",
    "Params",
    "Report",
    "Reported",
    "Saved",
    "Started",
    "State",
    "Stop",
    "Suggested",
    "Target",
    "Trial",
    "after",
    "diverged",
    "fold",
    "incumbent",
    "slowest",
    "undisturbed",
    "usual_hardware",
]
