"""Couplings between entries of a search space: mirroring, following, effective learning rates.

Each entry is drawn and built by itself. Then the couplings are applied in a fixed order, in which
none depends on the effect of another on the schedule that it refers to.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune import schedules
from autotune.errors import unknown
from autotune.space.parameters import Choice, Fixed, Float, Int, Parameter, When, is_real
from autotune.space.schedule_space import RULES, ScheduleSpace

SpaceEntry = Parameter | ScheduleSpace | Fixed
SpaceEntries = Mapping[str, SpaceEntry]
_COUPLINGS = ("mirrors", "follows", "effective")


# --- validation -----------------------------------------------------------------------------------


def check(entries: SpaceEntries) -> None:
    """Raise a ValueError for a coupling to a missing or unsuitable entry."""
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
    """Raise a ValueError unless `other` is a schedule or a number in the range of the coupling."""
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
    """Whether an entry is a searched or fixed number without a coupling."""
    if isinstance(entry, Fixed):
        return is_real(entry.value)
    return isinstance(entry, Int) or (isinstance(entry, Float) and entry.effective is None)


def _is_number(value: Any) -> bool:
    return is_real(value) or isinstance(value, schedules.Schedule)


def _span(entry: Any) -> tuple[float, float]:
    """The range of values of an entry."""
    if isinstance(entry, ScheduleSpace):
        return entry.span
    if isinstance(entry, Fixed):
        return schedules.extremes(schedules.as_schedule(entry.value))
    return float(entry.low), float(entry.high)


def changes(entries: SpaceEntries, followed: str | None) -> When | None:
    """The condition under which the followed schedule is not constant; None for never."""
    entry = entries.get(followed or "")
    if isinstance(entry, Fixed) and isinstance(entry.value, schedules.Schedule):
        low, high = schedules.extremes(entry.value)
        return dict(entry.when or {}) if low < high else None
    if not isinstance(entry, ScheduleSpace):
        return None
    changing = tuple(f for f in entry.families if f != "constant")
    return {f"{followed}.family": changing} if changing else None


def effective(entries: SpaceEntries) -> dict[str, str]:
    """The numbers whose effective value is searched, each with its momentum."""
    floats = {n: e for n, e in entries.items() if isinstance(e, Float)}
    return {n: e.effective for n, e in floats.items() if e.effective is not None}


# --- building -------------------------------------------------------------------------------------


def build(entries: SpaceEntries, values: Mapping[str, Any]) -> dict[str, Any]:
    """Build the schedules of drawn values, first each by itself, then with their couplings."""
    spaces = {
        name: (entry, _fields_of(name, values))
        for name, entry in entries.items()
        if isinstance(entry, ScheduleSpace) and f"{name}.family" in values
    }
    built: dict[str, Any] = {
        name: space.build(own) for name, (space, own) in spaces.items() if own["family"] != "mirror"
    }
    alone = {**values, **built}
    for name, (space, own) in spaces.items():
        if own["family"] == "mirror":
            built[name] = _mirrored(own, alone.get(str(space.mirrors)))
    known = {**values, **built}
    for name, (space, own) in spaces.items():
        if space.effective in known:
            built[name] = _with_momentum(built[name], known[space.effective])
        if space.follows in known:
            rule = own.get("rule", space.steady_rule)
            built[name] = _following(built[name], known[space.follows], rule, space.reference)
    return built


def _fields_of(name: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The drawn values of one schedule's fields, by field name."""
    start = f"{name}."
    return {k.removeprefix(start): v for k, v in values.items() if k.startswith(start)}


def _mirrored(
    values: Mapping[str, Any], of: schedules.Schedule | float | None
) -> schedules.Schedule:
    """The schedule of the family `mirror`, from its fields and the mirrored schedule, if any."""
    peak = values["peak"]
    if of is None:
        return schedules.Constant(peak)
    return schedules.Mirrored(schedules.as_schedule(of), peak * values["final"], peak)


def _with_momentum(
    effective: schedules.Schedule, momentum: schedules.Schedule | float
) -> schedules.Schedule:
    """The learning rate for an effective one: multiplied by 1 - momentum at every progress."""
    momentum = schedules.as_schedule(momentum)
    if isinstance(momentum, schedules.Constant):
        return schedules.scaled(effective, 1.0 - momentum.value)
    return schedules.Effective(effective, momentum)


def _following(
    base: schedules.Schedule,
    other: schedules.Schedule | float,
    rule: str,
    reference: float | None,
) -> schedules.Schedule:
    """`base`, scaled by `rule` with the growth of `other` from the reference, or since the start.

    A constant `other` is followed too, as a controller may change it.
    """
    other = schedules.as_schedule(other)
    if RULES[rule] == 0.0:
        return base
    return schedules.Following(base, other, RULES[rule], reference or other(0.0))
