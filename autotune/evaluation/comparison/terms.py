"""Whether times may stand in one table: the same hardware, world size, sharing, clock, target."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from autotune.errors import UserError, unknown
from autotune.evaluation.comparison.model import TERMS, Candidate, Terms


def check(
    candidates: Sequence[Candidate], baseline: Candidate, allow: Collection[str] = ()
) -> tuple[str, ...]:
    """The terms in which some candidate differs from the baseline, all of them allowed.

    Raises:
        UserError: a term differs that is not allowed: which, for whom, and how to allow it; or
            `allow` names no term.
    """
    for term in allow:
        if term not in TERMS:
            raise UserError(unknown("term to allow", term, TERMS))
    found: dict[str, Candidate] = {}
    for candidate in candidates:
        for term in differing(candidate.terms, baseline.terms):
            found.setdefault(term, candidate)
    refused = [term for term in TERMS if term in found and term not in allow]
    if refused:
        why = "; ".join(described(term, found[term], baseline) for term in refused)
        flags = " ".join(f"--allow {term}" for term in refused)
        raise UserError(f"these times cannot be compared: {why} (compare all the same: {flags})")
    return tuple(term for term in TERMS if term in found)


def differing(own: Terms, other: Terms) -> list[str]:
    """The names of the terms that differ.

    A term that one source lacks differs from any value. World size and sharing do not: a published
    run states them in its hardware sentence, if at all.
    """
    found = []
    for term in TERMS:
        a, b = getattr(own, term), getattr(other, term)
        silent = term in ("workers", "sharing") and None in (a, b)
        if a != b and not silent:
            found.append(term)
    return found


def described(term: str, candidate: Candidate, baseline: Candidate) -> str:
    """One difference in words."""
    own, other = (_value(term, c.terms) for c in (candidate, baseline))
    return f"{term} is {own} for {candidate.name} and {other} for {baseline.name}"


def _value(term: str, terms: Terms) -> str:
    value = getattr(terms, term)
    if value is None:
        return "not known"
    if term == "sharing":
        return "shared" if value else "not shared"
    return " ".join(str(value).split())
