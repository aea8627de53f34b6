"""The values that a trial consists of: state, clock, reports, checkpoints."""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from autotune.errors import shown
from autotune.trial.checks import has_finite_float, real, whole
from autotune.trial.clock import Clock
from autotune.trial.hardware import Hardware

Config = Mapping[str, Any]
Params = Mapping[str, Any]
Metrics = Mapping[str, float]
INTERRUPTED_REASONS = ("budget", "interrupted")  # ends without a result for the configuration


class State(StrEnum):
    """The state of a trial. Only REACHED has a time to target.

    COMPLETED: the target has no value, and the trial ended by itself or at the limit.
    """

    RUNNING = "RUNNING"
    REACHED = "REACHED"
    COMPLETED = "COMPLETED"
    CENSORED = "CENSORED"
    FAILED = "FAILED"
    INFEASIBLE = "INFEASIBLE"


@dataclass(frozen=True)
class Milestone:
    """A point at which a trainer can be evaluated, stopped, changed or saved on every rank.

    Args:
        step: samples seen so far by all ranks together (so that the batch size may change).
        evaluate: metrics now; called on every rank with the training clock paused.
        state: gives a checkpoint of this rank, called only when one is saved. The same rank gets
            its result as `config["state"]` when the trial resumes. Tensors, numbers, strings, lists
            and dicts only (it is read with `torch.load(weights_only=True)`). The tensors may be
            those that are trained: they are copied before training goes on.
        data_seconds: seconds since the last milestone spent waiting for input data.
        eval_seconds: seconds since the last milestone spent evaluating, for trainers whose
            framework evaluates before the milestone; not training.

    A first milestone at the starting step (0, or the restored step) ends the set-up, which the
    clock leaves out. If a trainer trains before its first milestone, its set-up counts.

    Raises:
        ValueError: a step that is no whole number from 0 on of at most 63 bits, or a field of the
            wrong type.
    """

    step: int
    evaluate: Callable[[], Metrics]
    state: Callable[[], dict[str, Any]] | None = None
    data_seconds: float = 0.0
    eval_seconds: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "step", whole("Milestone step", self.step, 0))
        for name in ("evaluate", "state"):
            given = getattr(self, name)
            if not callable(given) and (name == "evaluate" or given is not None):
                raise ValueError(f"Milestone {name} must be a function but got {shown(given)}")
        for name in ("data_seconds", "eval_seconds"):
            given = getattr(self, name)
            if not has_finite_float(given):
                raise ValueError(f"Milestone {name} must be finite but got {shown(given)}")


@dataclass(frozen=True)
class Change:
    """A change of knobs by a controller at a milestone; `yield` returns it on every rank.

    Raises:
        ValueError: a knob that is no number, or below 0.
    """

    lr_factor: float = 1.0
    batch_size: int | None = None
    momentum: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "lr_factor", real("Change lr_factor", self.lr_factor, 0))
        if self.batch_size is not None:
            batch_size = whole("Change batch_size", self.batch_size, 0)
            object.__setattr__(self, "batch_size", batch_size)
        if self.momentum is not None:
            object.__setattr__(self, "momentum", real("Change momentum", self.momentum, 0))


KNOBS = ("lr", "batch_size", "momentum")
"""The knobs that a `Change` can turn, by the names under which trainers report them."""


@dataclass(frozen=True)
class Report:
    """A milestone in the journal: `seconds` are on the target's clock since the trial started.

    On a clock that counts steps they are the steps.
    """

    step: int
    seconds: float
    metrics: Metrics
    clock: Clock = Clock()


@dataclass(frozen=True)
class Checkpoint:
    """A trial's saved state: a folder or URL with one file a rank, at `step`, with the clock then.

    `sums` are the checksums of the ranks' files; older studies have none. `hardware` is that of the
    trial when the checkpoint was saved (`after` sets it).
    """

    step: int
    path: str
    clock: Clock = Clock()
    sums: tuple[str, ...] = ()
    hardware: Hardware | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Origin:
    """The origin of a forked trial: `checkpoint`, a copy of one of trial `parent`'s.

    The fork replaces trial `replaces`. `params` is its point. `reports` and `changes` are shared
    with its parent, and their time counts as its own.
    """

    parent: int
    replaces: int
    checkpoint: Checkpoint
    params: Params | None = None
    reports: tuple[Report, ...] = field(default=(), repr=False)
    changes: tuple[tuple[int, Change], ...] = ()


@dataclass(frozen=True)
class Trial:
    """One configuration's run towards the target; `after` replaces this value at every event.

    `kind` is "trial", "baseline", "race" or "confirm". `placed` says whether a worker group runs
    it, and `spent_seconds` how long groups have run it in all, interrupted attempts included.

    With `repeats` it runs that trial's configuration again with a new seed (`ranking.repeats`): as
    a "race" during the search, or after the search to "confirm" its time.

    `seconds` is the time to target of a REACHED trial, and the time of the last report of any
    other: a CENSORED trial's time to target is greater. A trial with an `origin` is a fork: its
    reports, its clock and its seconds begin with those of its parent. `microbatch` is the limit of
    a forward pass that fits into memory; None for no limit. `earlier` is the checkpoint before
    `checkpoint`, used when that one is damaged. `saves` are all checkpoints that were written, also
    those that have been removed since. `ask` is the count of the sampler's asks from which its
    point came, if the journal has it. `mean_result` is the mean result of its runs, where a study
    shows it so (`ranking.repeats`); no journal has it.
    """

    number: int
    config: Config
    params: Params | None = None
    kind: str = "trial"
    seed: int = 0
    state: State = State.RUNNING
    reason: str = ""
    seconds: float = 0.0
    reports: tuple[Report, ...] = field(default=(), repr=False)
    changes: tuple[tuple[int, Change], ...] = ()
    checkpoint: Checkpoint | None = None
    placed: bool = False
    attempts: int = 0
    retries: int = 0
    waiting_since: float = 0.0
    placed_since: float = 0.0
    ended_at: float | None = None
    queue_seconds: float = 0.0
    lost_seconds: float = 0.0
    spent_seconds: float = 0.0
    detail: str = ""
    error: str = ""
    hardware: Hardware = Hardware()
    origin: Origin | None = None
    repeats: int | None = None
    microbatch: int | None = None
    earlier: Checkpoint | None = None
    ask: int | None = None
    saves: tuple[Checkpoint, ...] = field(default=(), repr=False)
    mean_result: float | None = None

    @property
    def ask_number(self) -> int:
        """The number with which a sampler was asked for its point.

        In a journal of version 1 that was the trial's own number; trials with `params` have
        different ones.
        """
        return self.number if self.ask is None else self.ask

    @property
    def point(self) -> Params | None:
        """Its point in the space: `params`, or that of its origin for a fork."""
        return self.origin.params if self.origin is not None else self.params

    @property
    def ended(self) -> bool:
        return self.state is not State.RUNNING

    @property
    def succeeded(self) -> bool:
        """Whether it came to what was asked for: to the target or, without a value, to its end."""
        return self.state in (State.REACHED, State.COMPLETED)

    def _repr_html_(self) -> str:
        """Its state and configuration as a table for notebooks."""
        reached = self.state is State.REACHED
        time = f"{'' if reached else 'more than '}{self.seconds:.4g} s"
        result = time if reached or self.state is State.CENSORED else str(self.state)
        rows = {"state": self.state, "reason": self.reason, "seed": self.seed, **self.config}
        body = "".join(
            f"<tr><th style='text-align:left'>{html.escape(str(k))}</th>"
            f"<td style='text-align:left'>{html.escape(str(v))}</td></tr>"
            for k, v in rows.items()
        )
        return f"<b>{html.escape(self.kind)} {self.number}: {result}</b><table>{body}</table>"

    @property
    def resumable(self) -> bool:
        """Whether it runs, or was interrupted and a later driver resumes it.

        Of the trials that a time limit ended only the baseline is resumed: without it a study has
        nothing to compare with.
        """
        measured = self.kind == "baseline" and self.reason in INTERRUPTED_REASONS
        return not self.ended or self.reason == "interrupted" or measured

    @property
    def time_to_target(self) -> float | None:
        """Seconds until the target was met, or None if it was not."""
        return self.seconds if self.state is State.REACHED else None

    @property
    def saved_clock(self) -> Clock:
        """The clock at the checkpoint; all zero without one."""
        return self.checkpoint.clock if self.checkpoint else Clock()

    @property
    def clock(self) -> Clock:
        """The clock at the last report."""
        spent = self.reports[-1].clock if self.reports else Clock()
        return replace(spent, queue=self.queue_seconds)
