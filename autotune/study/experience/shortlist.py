"""The studies of a large store that are looked at closely, chosen by what is cheap to see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from autotune.algorithms.experience.canonical import OPTIMIZER, CanonicalSpace
from autotune.study.experience.document import Summary
from autotune.study.experience.summary import Identity, with_texts

_MOST = 256


def shortlist(
    candidates: Sequence[Summary],
    space: CanonicalSpace,
    own: Identity,
    times: Mapping[str, float],
) -> list[Summary]:
    """The studies that are most like a new one by trainer and names; all where they are few.

    First those with trials of an optimizer that the space can have or takes settings of, then by as
    many searched parameters that vary among these, by the number of trials, and the newest.

    Args:
        candidates: the studies.
        space: the new study's.
        own: whose study it is.
        times: when the user's own studies were written, by their id.
    """
    from autotune.algorithms.experience.model import LEAST_TRIALS

    if len(candidates) <= _MOST:
        return list(candidates)

    @cache
    def fits(optimizer: object) -> bool:
        named = with_texts({OPTIMIZER: optimizer}, space.texts)
        return space.adopted(named) is not None

    def key(one: Summary) -> tuple[object, ...]:
        rows = [p for p in one.points if OPTIMIZER not in p or fits(p[OPTIMIZER])]
        shared = sum(any(_vary(rows, other) for other in space.same(n)) for n in space.searched)
        same = one.fingerprint == own.fingerprint, one.trainer == own.trainer
        alike = len(rows) >= LEAST_TRIALS and shared > 0, *same, shared, len(rows)
        newest = -times.get(one.study_id, 0.0)
        return *(-int(each) for each in alike), newest, one.name, one.study_id

    return sorted(candidates, key=key)[:_MOST]


def _vary(rows: Sequence[Mapping[str, Any]], name: str) -> bool:
    return len({repr(point.get(name)) for point in rows}) > 1
