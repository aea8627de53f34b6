"""autotune finds the configuration and the schedules that reach a target accuracy soonest.

Importing this package is light: Ray, Optuna, MLflow and torch are loaded when they are needed.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autotune.comparison import compare
    from autotune.errors import StudyError, UserError
    from autotune.experiment import Experiment, Scaling
    from autotune.reporting import StopTrial, evaluating, report
    from autotune.result import StudyResult
    from autotune.schedules import (
        WSD,
        Constant,
        Cosine,
        Effective,
        Exponential,
        Following,
        InverseSqrt,
        Linear,
        LinearCosine,
        Mirrored,
        OneCycle,
        Piecewise,
        Polynomial,
        Stages,
        Step,
        extremes,
        same_meaning,
        stages,
    )
    from autotune.space import (
        Choice,
        Constraint,
        Fixed,
        Float,
        Int,
        ScheduleSpace,
        SearchSpace,
    )
    from autotune.study import run
    from autotune.trial import (
        Change,
        FailurePolicy,
        Fork,
        Milestone,
        Report,
        State,
        Stop,
        Target,
        Trial,
    )

__version__: str
_WHERE = {
    "autotune.comparison": ("compare",),
    "autotune.errors": ("StudyError", "UserError"),
    "autotune.experiment": ("Experiment", "Scaling"),
    "autotune.reporting": ("StopTrial", "evaluating", "report"),
    "autotune.result": ("StudyResult",),
    "autotune.schedules": (
        "Constant", "Cosine", "Effective", "Exponential", "Following", "InverseSqrt", "Linear",
        "LinearCosine", "Mirrored", "OneCycle", "Piecewise", "Polynomial", "Stages", "Step", "WSD",
        "extremes", "same_meaning", "stages",
    ),
    "autotune.space": (
        "Choice", "Constraint", "Fixed", "Float", "Int", "ScheduleSpace", "SearchSpace",
    ),
    "autotune.study": ("run",),
    "autotune.trial": (
        "Change", "FailurePolicy", "Fork", "Milestone", "Report", "State", "Stop", "Target",
        "Trial",
    ),
}  # fmt: skip
_HOME = {name: module for module, names in _WHERE.items() for name in names}

__all__ = [
    "Change",
    "Choice",
    "Constant",
    "Constraint",
    "Cosine",
    "Effective",
    "Experiment",
    "Exponential",
    "FailurePolicy",
    "Fixed",
    "Float",
    "Following",
    "Fork",
    "Int",
    "InverseSqrt",
    "Linear",
    "LinearCosine",
    "Milestone",
    "Mirrored",
    "OneCycle",
    "Piecewise",
    "Polynomial",
    "Report",
    "Scaling",
    "ScheduleSpace",
    "SearchSpace",
    "Stages",
    "State",
    "Step",
    "Stop",
    "StopTrial",
    "StudyError",
    "StudyResult",
    "Target",
    "Trial",
    "UserError",
    "WSD",
    "compare",
    "evaluating",
    "extremes",
    "report",
    "run",
    "same_meaning",
    "stages",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _version()
    if name in ("controllers", "schedules"):
        return import_module(f"autotune.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'autotune' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__


def _version() -> str:
    """The installed distribution's version; "unknown" where the source is used uninstalled."""
    from importlib import metadata

    try:
        return metadata.version("time-to-target")
    except metadata.PackageNotFoundError:
        return "unknown"
