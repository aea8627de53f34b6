"""What happened to trials, in the order of the journal; `at` is seconds since the study began."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from autotune.trial.hardware import Hardware
from autotune.trial.values import Change, Checkpoint, Config, Origin, Params, Report, State, Trial


@dataclass(frozen=True)
class Suggested:
    """A trial was created. `params` is the sampler's point, None for a configuration outside.

    With an `origin` it is a fork; that the trial which it replaces ends is part of this event.
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
class Interrupted:
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
            stamped = replace(checkpoint, hardware=trial.hardware)
            return replace(trial, checkpoint=stamped, earlier=trial.checkpoint)
        case Interrupted(damaged=True):
            before = replace(trial, checkpoint=trial.earlier, earlier=None)
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
    made = Trial(
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


def _back_at_checkpoint(trial: Trial, event: Interrupted) -> Trial:
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


def fold(events: Iterable[Event]) -> dict[int, Trial]:
    """All trials after all events: what a journal says."""
    trials: dict[int, Trial] = {}
    for event in events:
        trials[event.trial] = after(trials.get(event.trial), event)
    return trials
