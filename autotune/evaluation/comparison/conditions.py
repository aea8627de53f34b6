"""Whether times may stand in one table: the same hardware, world size, sharing, clock, target."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from autotune.errors import UserError, unknown
from autotune.evaluation.comparison.model import CONDITIONS, Candidate, Conditions


def check(
    candidates: Sequence[Candidate], baseline: Candidate, allow: Collection[str] = ()
) -> tuple[str, ...]:
    """The conditions in which some candidate differs from the baseline, all of them allowed.

    Raises:
        UserError: a condition differs that is not allowed: which, for whom, and how to allow it; or
            `allow` names no condition.
    """
    for condition in allow:
        if condition not in CONDITIONS:
            raise UserError(unknown("condition to allow", condition, CONDITIONS))
    found: dict[str, Candidate] = {}
    for candidate in candidates:
        for condition in differing(candidate.conditions, baseline.conditions):
            found.setdefault(condition, candidate)
    refused = [
        condition for condition in CONDITIONS if condition in found and condition not in allow
    ]
    if refused:
        why = "; ".join(described(condition, found[condition], baseline) for condition in refused)
        flags = " ".join(f"--allow {condition}" for condition in refused)
        raise UserError(f"these times cannot be compared: {why} (compare all the same: {flags})")
    return tuple(condition for condition in CONDITIONS if condition in found)


def differing(own: Conditions, other: Conditions) -> list[str]:
    """The names of the conditions that differ.

    A condition that one source lacks differs from any value. World size and sharing do not: a
    published run states them in its hardware sentence, if at all.
    """
    found = []
    for condition in CONDITIONS:
        a, b = getattr(own, condition), getattr(other, condition)
        silent = condition in ("workers", "sharing") and None in (a, b)
        if a != b and not silent:
            found.append(condition)
    return found


def described(condition: str, candidate: Candidate, baseline: Candidate) -> str:
    """One difference in words."""
    own, other = (_value(condition, c.conditions) for c in (candidate, baseline))
    return f"{condition} is {own} for {candidate.name} and {other} for {baseline.name}"


def _value(condition: str, conditions: Conditions) -> str:
    value = getattr(conditions, condition)
    if value is None:
        return "not known"
    if condition == "sharing":
        return "shared" if value else "not shared"
    return " ".join(str(value).split())
