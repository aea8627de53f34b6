"""A worker group as its pool keeps it: its processes, its trial, and the answers of this turn."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from autotune.backends.protocol import Launch
from autotune.backends.worker.messages import Place, Stretch
from autotune.trial import Clock, Hardware


@dataclass
class Saving:
    """A checkpoint that is being written: its ranks' checksums, as they come in."""

    folder: str
    step: int
    clock: Clock
    sums: dict[int, str] = field(default_factory=dict)


@dataclass
class Group:
    """One worker group. `state` is `starting`, `idle`, `running` or `closing`."""

    number: int
    placement: Any
    strategy: str
    actors: list[Any] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    hardware: Hardware = Hardware()
    state: str = "starting"
    launch: Launch | None = None
    clock: Clock = Clock()
    saving: Saving | None = None
    step: int = 0
    turn: int = 0
    failed_starts: int = 0
    answers: dict[int, Stretch | Place | BaseException | None] = field(default_factory=dict)
    deadline: float = float("inf")
