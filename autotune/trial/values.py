"""The values that a trial consists of: state, clock, reports, checkpoints."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from autotune.trial.clock import Clock
from autotune.trial.hardware import Hardware
from autotune.trial.milestone import Change, Metrics

Config = Mapping[str, Any]
Params = Mapping[str, Any]
# Reasons for which a trial ended or was interrupted, as other modules ask for them. Journals have
# these words, so none may change.
BUDGET, INTERRUPTED = "budget", "interrupted"
INTERRUPTED_REASONS = (BUDGET, INTERRUPTED)  # ends without a result for the configuration
DIVERGED, FINISHED, LIMIT = "diverged", "finished", "limit"
MISSED_REASONS = (DIVERGED, FINISHED, LIMIT)  # ends after which a trial cannot reach the target
EXPLOITED = "exploited"  # a fork has replaced it
DRIVER_RESTARTED = "driver restarted"  # an interruption that is no failure
DISTURBED_SHARE = 0.8  # a trial that trained for less of its time was disturbed
_LEAST_WAITED = 0.5  # seconds; shorter waits are measured too roughly to count
SPARE = {"spare": True}  # metadata of a field that JSON lacks where it has its default


def point_key(point: Params) -> str:
    """What makes two points the same one; 1, 1.0 and True are different values.

    >>> point_key({"b": 1, "a": True})
    "[('a', True), ('b', 1)]"
    """
    return repr(sorted(point.items()))


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
class Report:
    """A milestone in the journal: `seconds` are on the target's clock since the trial started.

    On a clock that counts steps they are the steps.

    `waited` are the seconds of training in which the slowest rank waited for a core or a GPU that
    other processes used, since the trial started; None where that is not known, or where the clock
    counts steps. `slowed_by` says what slowed its GPUs, if anything did.

    `ahead` is the step to which training had gone on when the metrics were there, where they were
    computed beside it: what is decided on this report holds from there on.
    """

    step: int
    seconds: float
    metrics: Metrics
    clock: Clock = Clock()
    waited: float | None = field(default=None, metadata=SPARE)
    slowed_by: str = field(default="", metadata=SPARE)
    ahead: int | None = field(default=None, metadata=SPARE)

    @property
    def decided_at(self) -> int:
        """The step at which the ranks wait for what is decided on this report."""
        return self.step if self.ahead is None else self.ahead

    @property
    def cpu_share(self) -> float | None:
        """See `Trial.cpu_share`."""
        trained = self.clock.seconds("train")
        if self.waited is None or trained <= 0:
            return None
        return min(max(1 - self.waited / trained, 0.0), 1.0)


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
    """The origin of a trial that continues from `checkpoint`, a copy of one of trial `parent`'s.

    A fork replaces trial `replaces`, and `params` is its point. Without `replaces` it is a shared
    beginning: up to the checkpoint both configurations are the same training. `reports` and
    `changes` are shared with its parent, and their time counts as its own.
    """

    parent: int
    replaces: int | None
    checkpoint: Checkpoint
    params: Params | None = None
    reports: tuple[Report, ...] = field(default=(), repr=False)
    changes: tuple[tuple[int, Change], ...] = ()

    @property
    def is_fork(self) -> bool:
        """Whether the configuration changed at the checkpoint, in place of another trial."""
        return self.replaces is not None


@dataclass(frozen=True)
class Trial:
    """One configuration's run towards the target; `after` replaces this value at every event.

    `kind` is "trial", "baseline", "probe", "race" or "confirm"; a probe only measures seconds per
    sample (`algorithms.plans`). `placed` says whether a worker group runs it, and `spent_seconds`
    how long groups have run it in all, interrupted attempts included.

    With `repeats` it runs that trial's configuration again with a new seed (`ranking.repeats`): as
    a "race" during the search, or after the search to "confirm" its time.

    `seconds` is the time to target of a REACHED trial, and the time of the last report of any
    other: a CENSORED trial's time to target is greater. A trial with an `origin` is a
    fork, or shares its parent's beginning: its reports, its clock and its seconds begin with those
    of its parent. `microbatch` is the limit of
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
        return self.origin.params if self.is_fork and self.origin is not None else self.params

    @property
    def inherited_seconds(self) -> float:
        """Those of its seconds that are its parent's, and not trained again; 0 without one."""
        shared = self.origin.reports if self.origin is not None else ()
        return shared[-1].seconds if shared else 0.0

    @property
    def is_fork(self) -> bool:
        """Whether it continued another trial's training with another configuration."""
        return self.origin is not None and self.origin.is_fork

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
        return not self.ended or self.reason == INTERRUPTED or measured

    @property
    def cpu_share(self) -> float | None:
        """The share of its training in which its slowest rank had the cores that it asked for.

        For a rank that computes on one core these are its CPU seconds per second of training. A
        rank that waits for its data asks for no core, so that the share does not depend on the
        configuration: alone on its machine it is 1. None where it was not measured.
        """
        return self.reports[-1].cpu_share if self.reports else None

    @property
    def disturbed(self) -> bool:
        """Whether other processes slowed it down so much that its times are not comparable.

        Never where the recipe has trials share a core or a GPU, and so wait for each other.
        """
        share, on = self.cpu_share, self.hardware
        meant = on.cpus_per_worker < 1 or 0 < on.gpus_per_worker < 1
        if share is None or share >= DISTURBED_SHARE or meant:
            return False
        return (self.reports[-1].waited or 0.0) >= _LEAST_WAITED

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
