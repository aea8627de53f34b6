"""The stages in order of worth, each with its deadline; imported without torch."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Stage:
    """One stage.

    Args:
        name: by which it is asked for; `function` of `module` in this package has it.
        limit: its deadline in seconds, several times what it needs on a GPU of 2022. Past it the
            stage is wrong if it `may_hang`, and slow otherwise.
        least: with fewer seconds left it is not begun.
    """

    name: str
    module: str
    function: str
    limit: float
    least: float

    @property
    def may_hang(self) -> bool:
        """Whether ranks wait for each other in it."""
        return self.module in ("groups", "pool")

    def load(self) -> Callable[..., Any]:
        found: Callable[..., Any] = getattr(
            importlib.import_module(f"gpu_stages.{self.module}"), self.function
        )
        return found


STAGES = (
    Stage("machine", "machine", "ceilings", limit=60, least=15),
    Stage("optimizers", "optimizers", "against_float64", limit=90, least=15),
    Stage("scaler", "optimizers", "scaled_gradients", limit=90, least=10),
    Stage("precision", "correctness", "precisions", limit=60, least=10),
    Stage("resume", "correctness", "resumed", limit=140, least=20),
    Stage("microbatch", "correctness", "microbatches", limit=90, least=10),
    Stage("synchronous", "correctness", "never_waits", limit=180, least=25),
    Stage("trainer", "training", "against_a_loop", limit=90, least=30),
    Stage("target", "targets", "times_to_target", limit=240, least=40),
    Stage("ranks", "ranks", "warm_starts", limit=120, least=30),
    Stage("settings", "ranks", "settings_put_back", limit=60, least=20),
    Stage("pool", "pool", "on_ray", limit=120, least=45),
    Stage("memory", "ranks", "out_of_memory", limit=120, least=30),
    Stage("bandwidth", "speed", "optimizer_bandwidth", limit=90, least=15),
    Stage("clock", "ranks", "queued_kernels", limit=90, least=15),
    Stage("nccl", "groups", "one_rank", limit=60, least=15),
    Stage("shared", "groups", "shared", limit=90, least=30),
    Stage("checkpoints", "ranks", "checkpoint_stall", limit=60, least=20),
    Stage("language", "language", "recompiles", limit=150, least=40),
    Stage("attention", "memory", "attention", limit=150, least=30),
    Stage("prediction", "memory", "predicted", limit=120, least=30),
    Stage("export", "commands", "exported", limit=120, least=30),
    Stage("doctor", "commands", "doctor", limit=90, least=20),
    Stage("two", "groups", "two_ranks", limit=300, least=75),
)


def chosen(names: list[str]) -> list[Stage]:
    """The stages of these names, in their order; all without names.

    Raises:
        ValueError: there is no such stage; one line.
    """
    known = {stage.name for stage in STAGES}
    for name in names:
        if name not in known:
            raise ValueError(
                f"unknown stage {name!r}; allowed: {', '.join(s.name for s in STAGES)}"
            )
    return [stage for stage in STAGES if not names or stage.name in names]
