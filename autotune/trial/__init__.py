"""Frozen values that describe a study, and `after`, which folds an event into a trial.

All decisions (samplers, pruners, controllers, rules of the study) are functions of these values.
Nothing here uses the disk, a process or a library.
"""

from __future__ import annotations

from autotune.trial.clock import CLOCKS, STEPS, Clock, measured, slowest
from autotune.trial.decision import Fork, Stop
from autotune.trial.disturbance import is_spoilt, undisturbed
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
from autotune.trial.leading import incumbent, usual_hardware
from autotune.trial.limit import Limit
from autotune.trial.milestone import KNOBS, SHOWN_KNOBS, Change, Metrics, Milestone
from autotune.trial.target import Target, diverged
from autotune.trial.values import (
    BUDGET,
    DISTURBED_SHARE,
    DIVERGED,
    DRIVER_RESTARTED,
    EXPLOITED,
    FINISHED,
    INTERRUPTED,
    INTERRUPTED_REASONS,
    LIMIT,
    MISSED_REASONS,
    Checkpoint,
    Config,
    Origin,
    Params,
    Report,
    State,
    Trial,
)

__all__ = [
    "BUDGET",
    "INTERRUPTED",
    "INTERRUPTED_REASONS",
    "CLOCKS",
    "Change",
    "Changed",
    "Checkpoint",
    "Clock",
    "Config",
    "DISTURBED_SHARE",
    "DIVERGED",
    "DRIVER_RESTARTED",
    "EVENTS",
    "EXPLOITED",
    "Ended",
    "Event",
    "FINISHED",
    "FailurePolicy",
    "Fork",
    "Hardware",
    "KNOBS",
    "SHOWN_KNOBS",
    "LIMIT",
    "MISSED_REASONS",
    "Limit",
    "Interrupted",
    "Metrics",
    "Milestone",
    "Origin",
    "Params",
    "Report",
    "Reported",
    "Saved",
    "Started",
    "STEPS",
    "State",
    "Stop",
    "Suggested",
    "Target",
    "Trial",
    "after",
    "diverged",
    "fold",
    "incumbent",
    "is_spoilt",
    "measured",
    "slowest",
    "undisturbed",
    "usual_hardware",
]
