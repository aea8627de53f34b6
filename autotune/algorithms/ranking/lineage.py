"""Forks: where a trial that goes on from another's checkpoint comes from, and its line of descent.

A line of descent is what was really trained, from the first step to the last: `as_one` writes it as
one configuration, in which what changed at a fork is a schedule. Trained from scratch with the
line's seed (a fork keeps its parent's), it sees the same batches with the same settings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.schedules import Constant, Piecewise, Schedule, Spliced, as_schedule
from autotune.trial import Checkpoint, Config, Origin, Params, Trial

_PROGRESS = "progress"  # the metric by which a trainer says how far its schedules are
_HORIZON = "horizon"  # in whose units progress is


def origin(
    parent: Trial, checkpoint: Checkpoint, replaces: int, params: Params | None = None
) -> Origin:
    """The origin of a trial that goes on from `checkpoint`, a copy of one of its parent's."""
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
class Stretch:
    """What a trial contributed to a line of descent: its training from `step` on."""

    trial: Trial
    step: int


def descent(trial: Trial, trials: Sequence[Trial]) -> tuple[Stretch, ...]:
    """The stretches that led to the trial as it is, the first from scratch; its own is the last.

    An ancestor that was forked before it had trained on contributed nothing and is left out.
    """
    by_number = {t.number: t for t in trials}
    line: list[Stretch] = []
    while True:
        step = trial.origin.checkpoint.step if trial.origin is not None else 0
        if not line or step < line[0].step:
            line.insert(0, Stretch(trial, step))
        if trial.origin is None:
            return tuple(line)
        trial = by_number[trial.origin.parent]


def as_one(line: Sequence[Stretch]) -> dict[str, Any]:
    """The one configuration that trains from scratch what the stretches trained one by one.

    What is alike in all of them stays; numbers and schedules that differ become one schedule, so
    the trainer must take schedules there.

    Raises:
        ValueError: the line is no schedule, and why.
    """
    configs = [stretch.trial.config for stretch in line]
    edges = _edges(line)
    names = dict.fromkeys(name for config in configs for name in config)
    return {name: _joined(name, configs, edges) for name in names}


def _joined(name: str, configs: Sequence[Config], edges: Sequence[float]) -> Any:
    values: list[Any] = [config.get(name) for config in configs]
    if all(value == values[0] for value in values) and all(name in config for config in configs):
        return values[0]
    if name == _HORIZON or not all(map(_is_scheduled, values)):
        raise ValueError(f"{name} changed at a fork, and is no schedule")
    changes = [i for i in range(1, len(values)) if values[i] != values[i - 1]]
    parts = tuple(as_schedule(values[i]) for i in (0, *changes))
    at = tuple(edges[i - 1] for i in changes)
    if all(isinstance(part, Constant) for part in parts):
        return Piecewise(at, tuple(part(0.0) for part in parts), kind="constant")
    return Spliced(at, parts)


def _is_scheduled(value: object) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number or isinstance(value, Schedule)


def _edges(line: Sequence[Stretch]) -> list[float]:
    """The progress at each fork, to the last bit as the trainer itself had it."""
    last = line[-1].trial
    known: Mapping[int, float] = {
        r.step: r.metrics[_PROGRESS] for r in last.reports if _PROGRESS in r.metrics
    }
    for stretch in line[1:]:
        if stretch.step not in known:
            raise ValueError(
                f"the trainer does not report its {_PROGRESS}, so that what was trained up to step "
                f"{stretch.step} has no place in a schedule"
            )
    found = [known[stretch.step] for stretch in line[1:]]
    if found and not 0 < found[0] <= found[-1] < 1:
        raise ValueError(
            f"trial {line[-1].trial.number} was forked when its schedules had run their course"
        )
    return found
