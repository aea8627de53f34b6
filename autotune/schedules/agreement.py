"""How far two schedules are the same: up to which progress they give the same values, bit for bit.

Two formulas that happen to agree at some points prove nothing about the points between them. So
what is compared is the computation: between two neighbouring edges a schedule is replaced by the
part of it that acts there, and parts are equal if they compute the same from the same numbers. A
plateau of a trapezoid is then equal to a constant, and two trapezoids agree up to the first decay.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from autotune.schedules.compose import (
    Effective,
    Following,
    Mirrored,
    Schedule,
    Spliced,
    Stages,
    Until,
)
from autotune.schedules.families import WSD, Constant, Piecewise, Step
from autotune.schedules.formulas import between, local

_Part = Constant | tuple[object, ...]


def agrees_until(a: Schedule, b: Schedule) -> float:
    """The progress up to which two schedules have the same values: 0 for none, 1 for all.

    At every progress below the answer the values are the same bits. It may be less than the true
    one: equal functions that are computed differently do not agree.

    >>> agrees_until(WSD(0.0, 1.0, 0.0, decay=0.2), WSD(0.0, 1.0, 0.1, decay=0.5))
    0.5
    >>> agrees_until(Constant(1.0), WSD(1.0, 1.0, 0.0, warmup=0.0, decay=0.25))
    0.75
    """
    if _same(a, b):
        return 1.0
    edges = sorted({0.0, *a._edge_list, *b._edge_list})
    for low, high in pairwise((*edges, 1.0)):
        last = math.nextafter(high, 0.0)
        if not _same(_part(a, low, last), _part(b, low, last)):
            return low
    return 1.0


def configs_agree_until(a: Mapping[str, Any], b: Mapping[str, Any]) -> float:
    """The progress up to which two configurations are the same training: 0 for none, 1 for all.

    Entries that are no schedules must be equal in value and type. Schedules must also have the same
    greatest value: by it a trainer may choose from the start how much memory it needs.

    >>> wsd = WSD(1.0, 1.0, 0.0, warmup=0.0, decay=0.25)
    >>> configs_agree_until({"lr": Constant(1.0), "width": 8}, {"lr": wsd, "width": 8})
    0.75
    >>> configs_agree_until({"lr": Constant(1.0), "width": 8}, {"lr": wsd, "width": 8.0})
    0.0
    """
    if a.keys() != b.keys():
        return 0.0
    scheduled = []
    for name, own in a.items():
        other = b[name]
        if isinstance(own, Schedule) and isinstance(other, Schedule):
            scheduled.append((own, other))
        elif not _same(own, other):
            return 0.0
    if any(own._bounds[1] != other._bounds[1] for own, other in scheduled):
        return 0.0
    return min((agrees_until(own, other) for own, other in scheduled), default=1.0)


def _same(a: object, b: object) -> bool:
    """Whether two values are the same; 0.0 and -0.0 are not, nor are 1 and 1.0."""
    return type(a) is type(b) and repr(a) == repr(b)


def _part(schedule: Schedule, low: float, last: float) -> _Part:
    """What a schedule computes at all progresses from `low` to `last`, both included.

    Where it is not sure that one and the same formula acts at all of them, it is the schedule.
    """
    match schedule:
        case Constant():
            return schedule
        case WSD():
            return _of_trapezoid(schedule, low, last)
        case Following(base=base, other=other, power=power, reference=reference):
            parts = _part(base, low, last), _part(other, low, last)
            return _composed(schedule, low, parts, power, reference)
        case Effective(base=base, momentum=momentum):
            return _composed(schedule, low, (_part(base, low, last), _part(momentum, low, last)))
        case Mirrored(of=of):
            own = (*of._bounds, schedule.low, schedule.high)
            return _composed(schedule, low, (_part(of, low, last),), *own)
        case Step() | Piecewise() | Stages() | Spliced() | Until():
            piece = bisect_right(schedule.edges, low)
            if bisect_right(schedule.edges, last) == piece:
                return _of_piece(schedule, piece, low, last)
    return (schedule,)


def _of_trapezoid(schedule: WSD, low: float, last: float) -> _Part:
    if last < schedule.warmup:
        return "rise", schedule.start, schedule.peak, schedule.warmup
    if low >= schedule.warmup and last <= 1.0 - schedule.decay and last < 1.0:
        return Constant(between(schedule.peak, schedule.end, 0.0))
    return (schedule,)


def _composed(schedule: Schedule, low: float, parts: tuple[_Part, ...], *numbers: float) -> _Part:
    """What a function of the values of other schedules computes."""
    if all(isinstance(part, Constant) for part in parts):
        return Constant(schedule._at(low))
    return type(schedule).__name__, parts, numbers


def _of_piece(
    schedule: Step | Piecewise | Stages | Spliced | Until, piece: int, low: float, last: float
) -> _Part:
    """What a schedule with edges computes in one piece."""
    ends = (0.0, *schedule.edges, 1.0)[piece : piece + 2]
    match schedule:
        case Stages(edges=edges, parts=parts):
            own = _part(parts[piece], local(edges, piece, low), local(edges, piece, last))
            return own if isinstance(own, Constant) else ("stage", ends, own)
        case Spliced(parts=parts):
            return _part(parts[piece], low, last)
        case Until(base=base) if piece == 0:
            return _part(base, low, last)
        case Piecewise(kind="linear", values=values):
            return "line", ends, values[piece : piece + 2]
    return Constant(schedule._at(low))
