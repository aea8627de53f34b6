"""The words of autotune: frozen values, and `after`, which folds an event into a trial.

Everything that decides (samplers, pruners, controllers, the study's rules) is a function of these
values; nothing here touches the disk, a process, or a library.
"""

from __future__ import annotations

import html
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from enum import StrEnum
from itertools import islice
from typing import Any

Config = Mapping[str, Any]
Params = Mapping[str, Any]
Metrics = Mapping[str, float]


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

    `sums` are the checksums of the ranks' files; older studies have none.
    """

    step: int
    path: str
    clock: Clock = Clock()
    sums: tuple[str, ...] = ()


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
class Hardware:
    """What a trial ran on. Times are ranked only between equal stamps.

    Args:
        device: the model of the workers' GPUs, or of their CPUs where they have none.
        num_workers, cpus_per_worker, gpus_per_worker: as in `Scaling`.
        shared: whether others may have used the same cores or GPU.
        cpu: the model of the CPUs beside GPUs.
        nodes: how many machines the workers were on.
        interconnect: what workers reach each other by: empty for memory and within one worker.
        label: how the nodes' owner calls their kind (`AUTOTUNE_HARDWARE` on a node).
        before: what a first part of the trial's time ran on, where that was something else.
        mixed: whether the user takes all hardware to be alike: then it equals every such stamp.
    """

    device: str = ""
    num_workers: int = 1
    cpus_per_worker: float = 1.0
    shared: bool = False
    gpus_per_worker: float = 0.0
    cpu: str = ""
    nodes: int = 1
    interconnect: str = ""
    label: str = ""
    before: str = ""
    mixed: bool = False

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Hardware):
            return NotImplemented
        return self._known == other._known

    def __hash__(self) -> int:
        return hash(self._known)

    @property
    def _known(self) -> tuple[object, ...]:
        """What stamps are compared by."""
        if self.mixed:
            return ("mixed",)
        return tuple(getattr(self, f.name) for f in fields(self))

    @property
    def model(self) -> str:
        """What one worker has, in words: the stamp without number and sharing."""
        if self.mixed:
            return "any hardware, taken to be alike"
        return f"{self.device} ({', '.join(self._parts(' a worker'))}){self._earlier}"

    def _parts(self, each: str = "") -> list[str]:
        """What is to be said beside the device: only what is not as usual."""
        gpus = f"{self.gpus_per_worker:g} GPU{each}" if self.gpus_per_worker not in (0, 1) else ""
        nodes = f"{self.nodes} nodes" if self.nodes > 1 else ""
        said = gpus, f"{self.cpus_per_worker:g} CPU{each}", self.cpu, nodes
        return [part for part in (*said, self.interconnect, self.label) if part]

    @property
    def _earlier(self) -> str:
        return f", before on {self.before}" if self.before else ""

    def __str__(self) -> str:
        shared = ["shared"] if self.shared else []
        parts = ", ".join([*self._parts(), *shared])
        return f"{self.num_workers} x {self.device} ({parts}){self._earlier}"


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
    def goes_on(self) -> bool:
        """Whether it runs, or was interrupted and will be taken up again."""
        return not self.ended or self.reason == "interrupted"

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


# --- events: what happened, in the order of the journal; `at` is seconds since the study began ---


@dataclass(frozen=True)
class Suggested:
    """A trial was created. `params` is the sampler's point, None for a configuration outside.

    With an `origin` it is a fork; that the trial which it replaces ends is part of this event.
    `repeats` is the trial whose configuration it runs again, if it does.
    """

    trial: int
    config: Config
    params: Params | None
    kind: str
    seed: int
    at: float = 0.0
    origin: Origin | None = None
    repeats: int | None = None


@dataclass(frozen=True)
class Started:
    """A worker group took the trial, at its checkpoint's step if it has one."""

    trial: int
    queue_seconds: float
    hardware: Hardware
    at: float = 0.0
    microbatch: int | None = None


@dataclass(frozen=True)
class Reported:
    """All ranks are waiting at a milestone."""

    trial: int
    report: Report
    at: float = 0.0


@dataclass(frozen=True)
class Changed:
    """A controller turned knobs at the milestone at `step`; all ranks act on it from there on."""

    trial: int
    step: int
    change: Change
    at: float = 0.0


@dataclass(frozen=True)
class Saved:
    """A complete checkpoint is on disk."""

    trial: int
    checkpoint: Checkpoint
    at: float = 0.0


@dataclass(frozen=True)
class Lost:
    """An attempt broke off and the trial goes on from its checkpoint.

    `broke`: a worker died or hung, which counts as a retry; otherwise the driver itself went away,
    or a rank ran out of memory: then all ranks go on with a smaller `microbatch`. `damaged`: its
    checkpoint could not be read, so that it goes on from the one before.
    """

    trial: int
    reason: str
    error: str = ""
    broke: bool = True
    at: float = 0.0
    microbatch: int | None = None
    damaged: bool = False


@dataclass(frozen=True)
class Ended:
    """The trial's end. `reason` is never empty for a trial that did not reach the target."""

    trial: int
    state: State
    reason: str
    seconds: float
    detail: str = ""
    error: str = ""
    at: float = 0.0


CUT = ("budget", "interrupted")  # reasons that say nothing of the configuration
Event = Suggested | Started | Reported | Changed | Saved | Lost | Ended
EVENTS: Mapping[str, type] = {
    kind.__name__.lower(): kind
    for kind in (Suggested, Started, Reported, Changed, Saved, Lost, Ended)
}


def after(trial: Trial | None, event: Event) -> Trial:
    """The trial after `event`; the only way in which a trial changes.

    Raises:
        ValueError: the event cannot follow (a second `Suggested`, an event before it).
    """
    if isinstance(event, Suggested):
        if trial is not None:
            raise ValueError(f"trial {event.trial} is suggested twice")
        return _created(event)
    if trial is None:
        raise ValueError(f"trial {event.trial}: {type(event).__name__} before it was suggested")
    match event:
        case Started():
            return replace(
                trial,
                state=State.RUNNING,
                placed=True,
                placed_since=event.at,
                attempts=trial.attempts + 1,
                queue_seconds=trial.queue_seconds + event.queue_seconds,
                hardware=event.hardware,
                microbatch=event.microbatch,
            )
        case Reported(report=report):
            return replace(
                trial,
                reports=(*trial.reports, report),
                seconds=report.seconds,
                spent_seconds=_spent(trial, event.at),
                placed_since=event.at,
            )
        case Changed(step=step, change=change):
            return replace(trial, changes=(*trial.changes, (step, change)))
        case Saved(checkpoint=checkpoint):
            return replace(trial, checkpoint=checkpoint, earlier=trial.checkpoint)
        case Lost(damaged=True):
            before = replace(trial, checkpoint=trial.earlier, earlier=None)
            return _back_at_checkpoint(before, event)
        case Lost():
            return _back_at_checkpoint(trial, event)
        case Ended():
            return replace(
                trial,
                state=event.state,
                placed=False,
                spent_seconds=_spent(trial, event.at),
                reason=event.reason,
                seconds=event.seconds,
                detail=event.detail,
                error=event.error,
                ended_at=event.at,
            )


def _created(event: Suggested) -> Trial:
    origin = event.origin
    made = Trial(
        event.trial,
        event.config,
        event.params,
        event.kind,
        event.seed,
        waiting_since=event.at,
        origin=origin,
        repeats=event.repeats,
    )
    if origin is None:
        return made
    return replace(
        made,
        reports=origin.reports,
        changes=origin.changes,
        checkpoint=origin.checkpoint,
        seconds=origin.reports[-1].seconds if origin.reports else 0.0,
    )


def _spent(trial: Trial, at: float) -> float:
    return trial.spent_seconds + (at - trial.placed_since if trial.placed else 0.0)


def _back_at_checkpoint(trial: Trial, event: Lost) -> Trial:
    """Waiting for a group again; what came after the checkpoint will be done, and reported, again.

    A change decided at the checkpoint's own step is decided anew: the state was saved before it.
    """
    step = trial.checkpoint.step if trial.checkpoint else -1
    kept = tuple(r for r in trial.reports if r.step <= step)
    before = trial.reports[-1].clock.total if trial.reports else 0.0
    now = kept[-1].clock.total if kept else 0.0
    return replace(
        trial,
        state=State.RUNNING,
        reason="",
        detail="",
        placed=False,
        ended_at=None,
        reports=kept,
        changes=tuple((at, change) for at, change in trial.changes if at < step),
        seconds=kept[-1].seconds if kept else 0.0,
        lost_seconds=trial.lost_seconds + before - now,
        spent_seconds=_spent(trial, event.at),
        retries=trial.retries + event.broke,
        waiting_since=event.at,
        microbatch=event.microbatch or trial.microbatch,
    )


def fold(events: Sequence[Event]) -> dict[int, Trial]:
    """All trials after all events: what a journal says."""
    trials: dict[int, Trial] = {}
    for event in events:
        trials[event.trial] = after(trials.get(event.trial), event)
    return trials


# --- decisions --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stop:
    """End the trial on all ranks: a reason in one word (never empty), and the numbers behind it."""

    reason: str
    detail: str = ""

    def __post_init__(self) -> None:
        if not self.reason:
            raise ValueError("a stop needs a non-empty reason")


@dataclass(frozen=True)
class Fork:
    """End the trial, and let its workers go on from the last checkpoint of trial `parent`.

    What goes on is a new trial with the point `params`. Without a trial left to make, the old one
    goes on instead.
    """

    parent: int
    params: Params


@dataclass(frozen=True)
class Target:
    """What "soonest" means: the metric, the value to reach, and the clock.

    Args:
        metric: a key of the metrics that the trainer's `evaluate` returns.
        value: reached when the metric is at least (`mode="max"`) or at most (`"min"`) this.
        mode: "max" or "min".
        clock: "train" pauses for evaluation, "wall" counts it.
        limit: seconds on that clock after which a trial is censored.
        confirm: consecutive evaluations that must meet the value; the time is the last one's.

    Raises:
        ValueError: an argument outside its range, named with its value.
    """

    metric: str
    value: float
    _: KW_ONLY
    limit: float
    mode: str = "max"
    clock: str = "train"
    confirm: int = 1

    def __post_init__(self) -> None:
        if not self.metric or not isinstance(self.metric, str):
            raise ValueError(f"Target metric must be a metric's name but got {self.metric!r}")
        _finite("Target value", self.value)
        _finite("Target limit", self.limit)
        if self.limit <= 0:
            raise ValueError(f"Target limit must be more than 0 seconds but got {self.limit!r}")
        if self.mode not in ("max", "min"):
            raise ValueError(f"Target mode must be 'max' or 'min' but got {self.mode!r}")
        if self.clock not in ("train", "wall"):
            raise ValueError(f"Target clock must be 'train' or 'wall' but got {self.clock!r}")
        if not isinstance(self.confirm, int) or self.confirm < 1:
            raise ValueError(f"Target confirm must be an integer >= 1 but got {self.confirm!r}")

    def met(self, reports: Sequence[Report]) -> bool:
        """Whether the last `confirm` evaluations all meet the value."""
        evaluated = (r.metrics[self.metric] for r in reversed(reports) if self.metric in r.metrics)
        last = list(islice(evaluated, self.confirm))
        return len(last) == self.confirm and all(self.shortfall(value) <= 0 for value in last)

    def shortfall(self, value: float) -> float:
        """How far `value` is from the target; 0 or less when it is met, inf when not finite."""
        if not math.isfinite(value):
            return math.inf
        return self.value - value if self.mode == "max" else value - self.value

    def best(self, trial: Trial) -> float | None:
        """The best value that the trial reported, or None."""
        values = [r.metrics[self.metric] for r in trial.reports if self.metric in r.metrics]
        return min(values, key=self.shortfall, default=None)

    def score(self, trial: Trial) -> float | None:
        """The trial as one number, in seconds, lower is better; the only place that makes one.

        A reached trial scores its time to target. A censored one scores between one and two
        limits, in the order of its best metric: after every reached trial, and never the time at
        which it was stopped, because that is a bound and not a result. Its order by best metric
        is a heuristic (samplers that use ranks only see the order). Running, failed and
        infeasible trials have no score, nor have those that were cut off for no fault of theirs
        (`budget`, `interrupted`): None.
        """
        if trial.state is State.REACHED:
            return trial.seconds
        if trial.state is not State.CENSORED or trial.reason in CUT:
            return None
        best = self.best(trial)
        if best is None or not math.isfinite(best):
            return 2 * self.limit
        gap = max(self.shortfall(best), 0.0) / max(abs(self.value), 1e-12)
        return self.limit * (1 + (gap / (1 + gap) if math.isfinite(gap) else 1.0))


def _finite(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{name} must be a finite number but got {value!r}")


def incumbent(trials: Sequence[Trial], like: Hardware | None = None) -> Trial | None:
    """The fastest trial that reached the target, among those that ran on hardware `like` this.

    Trials that know it are asked (`ledger.Others`); any others are gone through.
    """
    known: Callable[[Hardware | None], Trial | None] | None = getattr(trials, "fastest", None)
    if known is not None:
        return known(like)
    reached = [t for t in trials if t.state is State.REACHED and like in (None, t.hardware)]
    return min(reached, key=lambda t: (t.seconds, t.number), default=None)


def leader(trials: Sequence[Trial]) -> Trial | None:
    """The fastest trial of a study: among those on the hardware that most of its trials ran on."""
    return incumbent(trials, like=usual_hardware(trials))


def usual_hardware(trials: Sequence[Trial]) -> Hardware | None:
    """The hardware that most trials ran on, the first one's if there are several; None for none."""
    ran = Counter(t.hardware for t in trials if t.attempts)
    return max(ran, key=lambda hardware: ran[hardware], default=None)


def diverged(metrics: Metrics) -> str:
    """The name of the first loss that is NaN or infinite, or an empty string."""
    bad = (k for k, v in metrics.items() if "loss" in k.lower() and not math.isfinite(v))
    return next(bad, "")


@dataclass(frozen=True)
class FailurePolicy:
    """What the study does about workers that die, hang or fail.

    Args:
        hang_timeout: seconds without a milestone from every rank after which a trial is broken off.
        max_retries: times a trial is started again from its last checkpoint after its workers
            died or hung; an exception of the trainer itself is not retried.
        max_consecutive_failed_trials: the study ends (exit code 4) after so many FAILED in a row.
        checkpoint_interval: seconds of training between the checkpoints of a running trial.
        keep_checkpoints: of so many of the fastest trials the last checkpoint is kept.
        checkpoint_folder: where checkpoints lie, a folder that all workers see or a URL that
            fsspec knows (`s3://bucket/folder`); by default in the study folder.
    """

    hang_timeout: float = 600.0
    max_retries: int = 2
    max_consecutive_failed_trials: int = 5
    checkpoint_interval: float = 60.0
    keep_checkpoints: int = 1
    checkpoint_folder: str | None = None

    def __post_init__(self) -> None:
        for name, lowest in (("hang_timeout", 0.1), ("checkpoint_interval", 0.0)):
            value = getattr(self, name)
            _finite(name, value)
            if value < lowest:
                raise ValueError(f"{name} must be at least {lowest} seconds but got {value!r}")
        counts = {"max_retries": 0, "max_consecutive_failed_trials": 1, "keep_checkpoints": 1}
        for name, least in counts.items():
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise ValueError(f"{name} must be an integer >= {least} but got {value!r}")
        place = self.checkpoint_folder
        if place is not None and (not isinstance(place, str) or not place):
            raise ValueError(f"checkpoint_folder must be a folder or a URL but got {place!r}")
