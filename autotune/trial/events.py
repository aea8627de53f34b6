"""Events of trials, as the journal has them; `at` is seconds since the start of the study."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from autotune.trial.hardware import Hardware
from autotune.trial.milestone import Change
from autotune.trial.plain_text import plain_text, shortened
from autotune.trial.values import Checkpoint, Config, Origin, Params, Report, State, Trial

LONGEST_REASON = 2000
"""The most characters of a reason; of an error all are kept (`storage.long_text` shortens it)."""


def make_plain(event: object, **longest: int | None) -> None:
    """Clean texts of a new event, by name with the most characters, wherever they came from.

    They come from trainers, from what decides, and from journals; all that is made of an event may
    store and print them.

    Raises:
        TypeError: one is no text.
    """
    for name, most in longest.items():
        text = plain_text(getattr(event, name))
        text = text if most is None else shortened(text, most)
        object.__setattr__(event, name, text)


@dataclass(frozen=True)
class Suggested:
    """A trial was created. `params` is the sampler's point, None for a configuration outside.

    With an `origin` it begins from another trial's checkpoint. If that makes it a fork, the event
    also ends the trial that the fork replaces.
    `repeats` is the trial whose configuration it runs again, if it does. `ask` is the count of the
    sampler's asks from which its point came; journals of version 1 do not have it.
    """

    trial: int
    config: Config
    params: Params | None
    kind: str
    seed: int
    at: float = 0.0
    origin: Origin | None = None
    repeats: int | None = None
    ask: int | None = None


@dataclass(frozen=True)
class Started:
    """A worker group started an attempt at the trial, from its checkpoint if it has one."""

    trial: int
    queue_seconds: float
    hardware: Hardware
    at: float = 0.0
    microbatch: int | None = None


@dataclass(frozen=True)
class Reported:
    """All ranks reached a milestone and wait for the driver."""

    trial: int
    report: Report
    at: float = 0.0


@dataclass(frozen=True)
class Changed:
    """A controller turned knobs at the milestone at `step`; the change holds from there on."""

    trial: int
    step: int
    change: Change
    at: float = 0.0


@dataclass(frozen=True)
class Saved:
    """A complete checkpoint was written."""

    trial: int
    checkpoint: Checkpoint
    at: float = 0.0


@dataclass(frozen=True)
class Interrupted:
    """An attempt was interrupted (`lost` in journals); the trial resumes from its checkpoint.

    `broke`: a worker failed or hung, which counts as a retry. Otherwise the driver stopped, or a
    rank ran out of memory and the trial resumes with a smaller `microbatch`. `damaged`: the
    checkpoint could not be read, and the trial resumes from the one before it.
    """

    trial: int
    reason: str
    error: str = ""
    broke: bool = True
    at: float = 0.0
    microbatch: int | None = None
    damaged: bool = False

    def __post_init__(self) -> None:
        make_plain(self, reason=LONGEST_REASON, error=None)


@dataclass(frozen=True)
class Ended:
    """The trial ended. `reason` is never empty for a trial that did not reach the target."""

    trial: int
    state: State
    reason: str
    seconds: float
    detail: str = ""
    error: str = ""
    at: float = 0.0

    def __post_init__(self) -> None:
        make_plain(self, reason=LONGEST_REASON, detail=LONGEST_REASON, error=None)


Event = Suggested | Started | Reported | Changed | Saved | Interrupted | Ended
EVENTS: Mapping[str, type] = {
    "suggested": Suggested,
    "started": Started,
    "reported": Reported,
    "changed": Changed,
    "saved": Saved,
    "lost": Interrupted,
    "ended": Ended,
}
"""Each event by the name that the journal's lines give it."""


def check_order(entry: object, suggested: Collection[int]) -> None:
    """Check that an entry of a journal may follow where it is an event; `suggested` are the trials.

    Raises:
        ValueError: it may not.
    """
    if not isinstance(entry, Event):
        return
    if entry.trial < 0:  # it names a folder, and a run
        raise ValueError(f"a trial's number must be at least 0 but got {entry.trial}")
    if isinstance(entry, Suggested) == (entry.trial in suggested):
        raise ValueError(f"trial {entry.trial}: {type(entry).__name__} cannot follow")
    if not isinstance(entry, Suggested):
        return
    origin = entry.origin
    named = [entry.repeats] if origin is None else [entry.repeats, origin.parent, origin.replaces]
    for other in named:
        if other is not None and other not in suggested:
            raise ValueError(f"trial {entry.trial} comes from trial {other}, which is not there")


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
            saved = replace(checkpoint, hardware=trial.hardware)
            saves = (*trial.saves, saved)
            return replace(trial, checkpoint=saved, earlier=trial.checkpoint, saves=saves)
        case Interrupted(damaged=True):
            saves = tuple(s for s in trial.saves if s != trial.checkpoint)
            before = replace(trial, checkpoint=trial.earlier, earlier=None, saves=saves)
            return _back_at_checkpoint(before, event)
        case Interrupted():
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
    trial = Trial(
        event.trial,
        event.config,
        event.params,
        event.kind,
        event.seed,
        waiting_since=event.at,
        origin=origin,
        repeats=event.repeats,
        ask=event.ask,
    )
    if origin is None:
        return trial
    return replace(
        trial,
        reports=origin.reports,
        changes=origin.changes,
        checkpoint=origin.checkpoint,
        seconds=origin.reports[-1].seconds if origin.reports else 0.0,
    )


def _spent(trial: Trial, at: float) -> float:
    return trial.spent_seconds + (at - trial.placed_since if trial.placed else 0.0)


def _back_at_checkpoint(trial: Trial, event: Interrupted) -> Trial:
    """The trial, waiting for a group, with the reports up to its checkpoint.

    A change that was decided at the checkpoint's step is decided again: the state is older than it.
    Without a checkpoint, that of a shared beginning included, it begins from scratch.
    """
    step = trial.checkpoint.step if trial.checkpoint else -1
    kept = tuple(r for r in trial.reports if r.step <= step)
    from_scratch = trial.checkpoint is None and not trial.is_fork
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
        origin=None if from_scratch else trial.origin,
        saves=tuple(saved for saved in trial.saves if saved.step <= step),
        changes=tuple((at, change) for at, change in trial.changes if at < step),
        seconds=kept[-1].seconds if kept else 0.0,
        lost_seconds=trial.lost_seconds + before - now,
        spent_seconds=_spent(trial, event.at),
        retries=trial.retries + event.broke,
        waiting_since=event.at,
        microbatch=event.microbatch or trial.microbatch,
    )


def fold(events: Iterable[Event]) -> dict[int, Trial]:
    """All trials after the events of a journal."""
    trials: dict[int, Trial] = {}
    for event in events:
        trials[event.trial] = after(trials.get(event.trial), event)
    return trials
