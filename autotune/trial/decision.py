"""What a pruner or a controller decides about a trial."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autotune.errors import shown
from autotune.trial.checks import whole
from autotune.trial.values import Params


@dataclass(frozen=True)
class Stop:
    """End the trial on all ranks, with a reason of one word (never empty) and details.

    Raises:
        ValueError: no reason, or one that is no text.
    """

    reason: str
    detail: str = ""

    def __post_init__(self) -> None:
        if not self.reason:
            raise ValueError("a stop needs a non-empty reason")
        for name in ("reason", "detail"):
            if not isinstance(getattr(self, name), str):
                raise ValueError(f"Stop {name} must be text but got {shown(getattr(self, name))}")


@dataclass(frozen=True)
class Fork:
    """End the trial, and start a new one on its workers from the last checkpoint of `parent`.

    The new trial has the point `params`. If the study has no trial left to start, the old trial
    continues. With `restart` the parent is a fork, and the new trial starts from the checkpoint
    with which the parent began; a controller that returns such forks has an attribute `restarts`.

    Raises:
        ValueError: the parent is no trial number, or the point no dict.
    """

    parent: int
    params: Params
    restart: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "parent", whole("Fork parent", self.parent, 0))
        if not isinstance(self.params, Mapping):
            raise ValueError(f"Fork params must be a dict but got {shown(self.params)}")
