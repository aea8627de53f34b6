"""What a trial is made of: where its seconds went, what it reported, how it stands."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any

from autotune.trial.hardware import Hardware

Config = Mapping[str, Any]
Params = Mapping[str, Any]
Metrics = Mapping[str, float]
INTERRUPTED_REASONS = ("budget", "interrupted")  # reasons that say nothing of the configuration


class State(StrEnum):
    """How a trial stands. Only REACHED carries a time to target."""

    RUNNING = "RUNNING"
    REACHED = "REACHED"
    CENSORED = "CENSORED"
    FAILED = "FAILED"
    INFEASIBLE = "INFEASIBLE"


@dataclass(frozen=True)
class Milestone:
    """What a trainer yields: a point at which every rank may be stopped, changed or saved.

    Args:
        step: samples seen so far by all ranks together (so that the batch size may change).
        evaluate: metrics now; called on every rank with the training clock paused.
        state: a checkpoint of this rank, called only when one is wanted; what it returns arrives
            as `config["state"]` on the same rank when the trial goes on. Tensors, numbers,
            strings, lists and dicts only (it is read back with `torch.load(weights_only=True)`).
        data_seconds: seconds since the last milestone spent waiting for input data.
        eval_seconds: seconds since the last milestone spent evaluating, for trainers whose
            framework evaluates before they come to the milestone; not training.

    A first milestone at the starting step (0, or the restored step) ends the set-up, which is
    off the clock. A trainer that trains before its first milestone is charged for its set-up.
    """

    step: int
    evaluate: Callable[[], Metrics]
    state: Callable[[], dict[str, Any]] | None = None
    data_seconds: float = 0.0
    eval_seconds: float = 0.0


@dataclass(frozen=True)
class Change:
    """Knobs that a controller turns at a milestone; `yield` returns it on every rank."""

    lr_factor: float = 1.0
    batch_size: int | None = None
    momentum: float | None = None


KNOBS = ("lr", "batch_size", "momentum")
"""What a `Change` turns, by the names under which trainers report them."""


@dataclass(frozen=True)
class Clock:
    """Where a trial's seconds went. The parts are disjoint; all are maxima over ranks.

    `queue`: suggested, waiting for workers. `setup`: before the first milestone. `data`: training
    stalled on input. `train`: the rest of training. `eval`, `checkpoint`, `restore`: as named.
    `decide`: ranks waiting at a milestone for the driver's decision.
    """

    queue: float = 0.0
    setup: float = 0.0
    data: float = 0.0
    train: float = 0.0
    eval: float = 0.0
    checkpoint: float = 0.0
    restore: float = 0.0
    decide: float = 0.0

    def __add__(self, other: Clock) -> Clock:
        return Clock(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def seconds(self, kind: str) -> float:
        """Seconds on the `train` clock (training and its data), or on `wall` (and evaluation)."""
        training = self.data + self.train
        return training if kind == "train" else training + self.eval

    @property
    def total(self) -> float:
        return math.fsum(getattr(self, f.name) for f in fields(self))


def slowest(clocks: Sequence[Clock]) -> Clock:
    """What a stretch cost its group, whose ranks started it together.

    Data and training are those of the rank that trained longest: a rank that had its data sooner
    waits for it in the next collective, and that wait is not training on top of it. Evaluation is
    what the last rank took beyond that. Other parts are maxima over ranks.
    """
    last = max(clocks, key=lambda clock: clock.data + clock.train)
    trained = last.data + last.train
    most = Clock(*(max(getattr(c, f.name) for c in clocks) for f in fields(Clock)))
    evaluated = max(c.data + c.train + c.eval for c in clocks) - trained
    return replace(most, data=last.data, train=last.train, eval=evaluated)


@dataclass(frozen=True)
class Report:
    """A milestone as the driver saw it: `seconds` on the target's clock since the trial began."""

    step: int
    seconds: float
    metrics: Metrics
    clock: Clock = Clock()


@dataclass(frozen=True)
class Checkpoint:
    """A trial's saved state: a folder or URL with one file a rank, at `step`, with the clock then.

    `sums` are the checksums of the ranks' files; older studies have none. `hardware` is the stamp
    of what it was trained on, which a trial's checkpoint gets from its trial (`after`).
    """

    step: int
    path: str
    clock: Clock = Clock()
    sums: tuple[str, ...] = ()
    hardware: Hardware | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Origin:
    """Where a forked trial comes from: from `checkpoint`, a copy of one of trial `parent`'s.

    It took the place of trial `replaces`. `params` is the point that it goes on with, `reports`
    and `changes` are what it shares with its parent: the time that they took counts as its own.
    """

    parent: int
    replaces: int
    checkpoint: Checkpoint
    params: Params | None = None
    reports: tuple[Report, ...] = field(default=(), repr=False)
    changes: tuple[tuple[int, Change], ...] = ()


@dataclass(frozen=True)
class Trial:
    """One configuration's run towards the target; a value, replaced by `after` at every event.

    `kind` is "trial", "baseline", "race" or "confirm". `placed` says that a worker group has it,
    and `spent_seconds` for how long groups have had it in all, lost attempts included.

    With `repeats` it runs that trial's configuration again on a fresh seed (`autotune.repeats`): as
    a "race" while the study searches, or alone and after it to "confirm" its time.

    `seconds` is the time to target of a REACHED trial and the time at which any other was last
    seen: for a CENSORED trial the time to target is known only to be greater. A trial with an
    `origin` is a fork: its reports, its clock and its seconds begin with those of its parent.
    `microbatch` is what a forward pass was limited to, so that it fits into memory; None: nothing.
    `earlier` is the checkpoint before `checkpoint`, for when that one turns out to be damaged.
    `ask` is the count of the sampler's asks from which its point came, if that was written down.
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

    @property
    def ask_number(self) -> int:
        """The number with which a sampler was asked for its point.

        In a journal of version 1 that was the trial's own number; trials with `params` have
        different ones.
        """
        return self.number if self.ask is None else self.ask

    @property
    def point(self) -> Params | None:
        """The point of the space that it has now: a fork's is no sampler's, so no `params`."""
        return self.origin.params if self.origin is not None else self.params

    @property
    def ended(self) -> bool:
        return self.state is not State.RUNNING

    def _repr_html_(self) -> str:
        """How it stands, and its configuration, as a small table for a notebook."""
        reached = self.state is State.REACHED
        stands = f"{'' if reached else 'more than '}{self.seconds:.4g} s"
        said = stands if reached or self.state is State.CENSORED else str(self.state)
        rows = {"state": self.state, "reason": self.reason, "seed": self.seed, **self.config}
        body = "".join(
            f"<tr><th style='text-align:left'>{html.escape(str(k))}</th>"
            f"<td style='text-align:left'>{html.escape(str(v))}</td></tr>"
            for k, v in rows.items()
        )
        return f"<b>{html.escape(self.kind)} {self.number}: {said}</b><table>{body}</table>"

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
        """Where the seconds went up to the checkpoint; all zero without one."""
        return self.checkpoint.clock if self.checkpoint else Clock()

    @property
    def clock(self) -> Clock:
        """Where the seconds went up to the last report."""
        spent = self.reports[-1].clock if self.reports else Clock()
        return replace(spent, queue=self.queue_seconds)
