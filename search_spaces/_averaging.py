"""How often two ranks of a trial exchange what, as part of a search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from autotune.space.coupling import SpaceEntry
from autotune.space.search_space import Choice, Float, Int, ScheduleSpace
from autotune.study.experiment import Experiment

_KIND = "synchronization"
_IN_STEP = ("every_step", "local_sgd", "diloco", "geo_sgd")
_LATE = "bounded_staleness"
_SMALLER = 3.0  # the rates of late gradients, which many steps may have passed
_DILOCO = {_KIND: "diloco"}
ENTRIES: Mapping[str, SpaceEntry] = {
    _KIND: Choice((*_IN_STEP, _LATE)),
    "local_sgd_period": Int(2, 32, power_of_two=True, when={_KIND: "local_sgd"}),
    "local_sgd_start": Choice((0, 50, 200), when={_KIND: "local_sgd"}),
    "diloco_period": Int(8, 128, power_of_two=True, when=_DILOCO),
    "diloco_outer_lr": Float(0.4, 1.0, when=_DILOCO),
    "diloco_outer_momentum": Float(0.0, 0.95, when=_DILOCO),
    "geo_sgd_period": Int(4, 32, power_of_two=True, when={_KIND: "geo_sgd"}),
    "geo_sgd_delay": Int(1, 4, when={_KIND: "geo_sgd"}),
    "staleness_bound": Int(1, 4, when={_KIND: _LATE}),
}
"""What two ranks can do; averages in two levels need several groups."""

BASELINE: Mapping[str, Any] = {_KIND: "every_step"}
FAMILIES: tuple[Mapping[str, Any], ...] = (
    {_KIND: "local_sgd", "local_sgd_period": 8, "local_sgd_start": 50},
    {
        _KIND: "diloco",
        "diloco_period": 32,
        "diloco_outer_lr": 0.7,
        "diloco_outer_momentum": 0.9,
    },
    {_KIND: "geo_sgd", "geo_sgd_period": 8, "geo_sgd_delay": 2},
    {_KIND: _LATE, "staleness_bound": 1},
)
"""One of each other kind."""


def searched(made: Experiment) -> Experiment:
    """A recipe with these entries, a learning rate for late gradients, and points of each kind.

    Args:
        made: a recipe whose baseline averages gradients in every step.
    """
    entries, usual = {**made.space.entries}, made.baseline or {}
    lr = entries.pop("lr")
    assert isinstance(lr, ScheduleSpace)
    assert isinstance(lr.peak, Float)
    smaller = replace(lr.peak, low=lr.peak.low / _SMALLER, high=lr.peak.high / _SMALLER)
    rates = {
        f"lr:{_IN_STEP[0]}": replace(lr, when={_KIND: _IN_STEP}),
        f"lr:{_LATE}": replace(lr, peak=smaller, when={_KIND: _LATE}),
    }
    return replace(
        made,
        name=f"{made.name.rpartition('-')[0]}-averaging",
        space=replace(made.space, entries={**entries, **ENTRIES, **rates}),
        baseline=_point(BASELINE, usual),
        configs=[_point(kind, usual) for kind in FAMILIES],
    )


def _point(kind: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    """A point of the space with this kind, and otherwise the usual values."""
    late = kind[_KIND] == _LATE
    found: dict[str, Any] = dict(kind)
    for name, value in usual.items():
        key, dot, rest = name.partition(".")
        if key == "lr":
            own = f"lr:{_LATE if late else _IN_STEP[0]}"
            found[f"{own}{dot}{rest}"] = value / _SMALLER if late and rest == "peak" else value
        else:
            found[name] = value
    return found
