"""What couples the entries of a search space: one mirrors another, follows it, or makes up for it.

Each is drawn and built by itself; then the couplings are applied, in an order in which none sees
what another has done to the schedule that it refers to.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune import schedules
from autotune.errors import unknown
from autotune.space.parameters import Choice, Fixed, Float, Int, Parameter, When, is_real
from autotune.space.schedule_space import RULES, ScheduleSpace

Entry = Parameter | ScheduleSpace | Fixed
Entries = Mapping[str, Entry]
_COUPLINGS = ("mirrors", "follows", "effective")


# --- what may be coupled --------------------------------------------------------------------------


def check(entries: Entries) -> None:
    """Raise a ValueError for a coupling to no entry, or to one that it cannot be coupled to."""
    for name, entry in entries.items():
        for coupling in _COUPLINGS:
            other = getattr(entry, coupling, None)
            if other is None:
                continue
            if other not in entries or other == name:
                others = set(entries) - {name}
                raise ValueError(f"{name}: {coupling}: {unknown('entry', other, others)}")
            where, coupled = f"{name}: {coupling}: {other}", entries[other]
            _check(where, coupling, coupled)
            if isinstance(entry, Float) and not _is_plain(coupled):
                raise ValueError(f"{where} must be a plain number but got {coupled!r}")


def _check(where: str, coupling: str, other: Any) -> None:
    """What a schedule is coupled to must be a schedule or a number, in the range that it needs."""
    if isinstance(other, Choice) or (isinstance(other, Fixed) and not _is_number(other.value)):
        raise ValueError(f"{where} must be a schedule or a number but got {other!r}")
    if isinstance(other, ScheduleSpace) and coupling == "mirrors" and "mirror" in other.families:
        raise ValueError(f"{where} is itself a mirror")
    low, high = _span(other)
    if coupling == "effective" and not 0 <= low <= high < 1:
        raise ValueError(f"{where} must lie in [0, 1) but goes from {low:g} to {high:g}")
    if coupling == "follows" and not low > 0:
        raise ValueError(f"{where} must be greater than 0 but goes down to {low:g}")


def _is_plain(entry: Any) -> bool:
    """Whether an entry is a number, searched as it is or fixed."""
    if isinstance(entry, Fixed):
        return is_real(entry.value)
    return isinstance(entry, Int) or (isinstance(entry, Float) and entry.effective is None)


def _is_number(value: Any) -> bool:
    return is_real(value) or isinstance(value, schedules.Schedule)


def _span(entry: Any) -> tuple[float, float]:
    """The least and the greatest value that an entry can take."""
    if isinstance(entry, ScheduleSpace):
        return entry.span
    if isinstance(entry, Fixed):
        return schedules.extremes(schedules.as_schedule(entry.value))
    return float(entry.low), float(entry.high)


def changes(entries: Entries, followed: str | None) -> When | None:
    """When the schedule that another follows is not constant; None: never."""
    entry = entries.get(followed or "")
    if isinstance(entry, Fixed) and isinstance(entry.value, schedules.Schedule):
        low, high = schedules.extremes(entry.value)
        return dict(entry.when or {}) if low < high else None
    if not isinstance(entry, ScheduleSpace):
        return None
    changing = tuple(f for f in entry.families if f != "constant")
    return {f"{followed}.family": changing} if changing else None


def effective(entries: Entries) -> dict[str, str]:
    """The numbers of which the effective value is searched, each with its momentum."""
    floats = {n: e for n, e in entries.items() if isinstance(e, Float)}
    return {n: e.effective for n, e in floats.items() if e.effective is not None}


# --- what coupled entries stand for ---------------------------------------------------------------


def built(entries: Entries, values: Mapping[str, Any]) -> dict[str, Any]:
    """The schedules that drawn values stand for: each by itself, then what couples them."""
    spaces = {
        name: (entry, _fields_of(name, values))
        for name, entry in entries.items()
        if isinstance(entry, ScheduleSpace) and f"{name}.family" in values
    }
    made: dict[str, Any] = {
        name: space.build(own) for name, (space, own) in spaces.items() if own["family"] != "mirror"
    }
    alone = {**values, **made}
    for name, (space, own) in spaces.items():
        if own["family"] == "mirror":
            made[name] = _mirrored(own, alone.get(str(space.mirrors)))
    known = {**values, **made}
    for name, (space, own) in spaces.items():
        if space.effective in known:
            made[name] = _with_momentum(made[name], known[space.effective])
        if space.follows in known:
            rule = own.get("rule", space.steady_rule)
            made[name] = _following(made[name], known[space.follows], rule)
    return made


def _fields_of(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The drawn fields of one schedule, by field name."""
    start = f"{name}."
    return {k.removeprefix(start): v for k, v in values.items() if k.startswith(start)}


def _mirrored(
    values: Mapping[str, Any], of: schedules.Schedule | float | None
) -> schedules.Schedule:
    """The schedule of the family `mirror`, from its fields and what it mirrors, if it is there."""
    peak = values["peak"]
    if of is None:
        return schedules.Constant(peak)
    return schedules.Mirrored(schedules.as_schedule(of), peak * values["final"], peak)


def _with_momentum(
    effective: schedules.Schedule, momentum: schedules.Schedule | float
) -> schedules.Schedule:
    """The learning rate of an effective one: times 1 - momentum, at every progress."""
    momentum = schedules.as_schedule(momentum)
    if isinstance(momentum, schedules.Constant):
        return schedules.scaled(effective, 1.0 - momentum.value)
    return schedules.Effective(effective, momentum)


def _following(
    base: schedules.Schedule, other: schedules.Schedule | float, rule: str
) -> schedules.Schedule:
    """`base`, scaled by `rule` with the growth of `other` since the start.

    Also where `other` is constant: a controller may change it.
    """
    other = schedules.as_schedule(other)
    if RULES[rule] == 0.0:
        return base
    return schedules.Following(base, other, RULES[rule], other(0.0))
