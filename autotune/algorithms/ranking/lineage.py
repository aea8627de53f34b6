"""Trials that continue from another trial's checkpoint, and the line of descent of forks.

A line of descent is the training from the first step to the last: `as_one` writes it as one
configuration, in which a setting that changed at a fork is a schedule. Trained from scratch with
the seed of the line (a fork keeps its parent's), it sees the same batches with the same settings.

A trial that shares the beginning of its parent (`algorithms.beginnings`) has one configuration from
the first step on: its line of descent is itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.schedules import Constant, Piecewise, Schedule, Spliced, as_schedule
from autotune.trial import Checkpoint, Config, Origin, Params, Trial

PROGRESS = "progress"  # the metric by which a trainer says how far its schedules are
_HORIZON = "horizon"  # in whose units progress is


def origin(
    parent: Trial, checkpoint: Checkpoint, replaces: int | None, params: Params | None = None
) -> Origin:
    """The origin of a trial that continues from `checkpoint`, a copy of one of its parent's.

    Without `replaces`, a trial that it would end, it is that of a shared beginning.
    """
    return Origin(
        parent.number,
        replaces,
        checkpoint,
        params,
        tuple(r for r in parent.reports if r.step <= checkpoint.step),
        tuple((step, change) for step, change in parent.changes if step < checkpoint.step),
    )


# --- descent --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Segment:
    """A trial's part of a line of descent: its training from `step` on."""

    trial: Trial
    step: int


def descent(trial: Trial, trials: Sequence[Trial]) -> tuple[Segment, ...]:
    """The segments that led to the trial, the first from scratch and the last its own.

    An ancestor that was forked before it trained on has no segment.
    """
    by_number = {t.number: t for t in trials}
    line: list[Segment] = []
    while True:
        fork = trial.origin if trial.is_fork else None
        step = fork.checkpoint.step if fork is not None else 0
        if not line or step < line[0].step:
            line.insert(0, Segment(trial, step))
        if fork is None:
            return tuple(line)
        trial = by_number[fork.parent]


def as_one(line: Sequence[Segment]) -> dict[str, Any]:
    """The one configuration that trains from scratch what the segments trained in turn.

    Values that are equal in all segments stay; numbers and schedules that differ become one
    schedule, so the trainer must accept schedules there.

    Raises:
        ValueError: the line cannot be written as schedules, and why.
    """
    configs = [segment.trial.config for segment in line]
    edges = _edges(line)
    names = dict.fromkeys(name for config in configs for name in config)
    return {name: _joined(name, configs, edges) for name in names}


def _joined(name: str, configs: Sequence[Config], edges: Sequence[float]) -> Any:
    values: list[Any] = [config.get(name) for config in configs]
    if all(value == values[0] for value in values) and all(name in config for config in configs):
        return values[0]
    if name == _HORIZON or not all(map(_is_scheduled, values)):
        raise ValueError(f"{name} changed at a fork and is not a schedule")
    changes = [i for i in range(1, len(values)) if values[i] != values[i - 1]]
    parts = tuple(as_schedule(values[i]) for i in (0, *changes))
    at = tuple(edges[i - 1] for i in changes)
    if all(isinstance(part, Constant) for part in parts):
        return Piecewise(at, tuple(part(0.0) for part in parts), kind="constant")
    return Spliced(at, parts)


def _is_scheduled(value: object) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number or isinstance(value, Schedule)


def _edges(line: Sequence[Segment]) -> list[float]:
    """The progress at each fork, bit for bit as the trainer reported it."""
    last = line[-1].trial
    known: Mapping[int, float] = {
        r.step: r.metrics[PROGRESS] for r in last.reports if PROGRESS in r.metrics
    }
    for segment in line[1:]:
        if segment.step not in known:
            raise ValueError(
                f"the trainer does not report {PROGRESS}, so that the fork at step {segment.step} "
                "has no place in a schedule"
            )
    edges = [known[segment.step] for segment in line[1:]]
    if edges and not 0 < edges[0] <= edges[-1] < 1:
        raise ValueError(f"trial {line[-1].trial.number} was forked after its schedules had ended")
    return edges
