"""Which of the studies that are known a new one begins with."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from autotune.algorithms.experience.canonical import CanonicalSpace
from autotune.algorithms.experience.names import is_neural
from autotune.study.experience import store
from autotune.study.experience.document import Summary
from autotune.study.experience.summary import Identity, public, with_texts

if TYPE_CHECKING:
    from autotune.study.options import StudyOptions

_MOST_STUDIES = 64  # those that are most like the new one
_MOST_RUNS = 8  # earlier runs of the study itself, the newest


def ranked(
    candidates: Iterable[Summary],
    space: CanonicalSpace,
    own: Identity,
    times: Mapping[str, float],
) -> list[Summary]:
    """The studies from which something can be learned, the one most like the new one first.

    Studies of other trainers whose settings do not explain their results are left out, unless they
    are to start from. Of the study's earlier runs these are the newest; of studies that are as like
    it, the user's own come before shipped ones, and those with more trials before others.

    Args:
        own: whose study it is.
        times: when the user's own studies were written, by their id; infinite of those to start
            from.
    """
    found: list[tuple[tuple[Any, ...], Summary]] = []
    runs = [one for one in candidates if one.fingerprint == own.fingerprint]
    runs.sort(key=lambda one: (-times.get(one.study_id, 0.0), one.study_id))
    older = {one.study_id for one in runs[_MOST_RUNS:]}
    searched = {name for one in space.searched for name in space.same(one)}
    for one in candidates:
        names = {name for point in one.points for name in point}
        same = one.fingerprint == own.fingerprint, one.trainer == own.trainer
        if not names & searched or one.study_id in older:
            continue
        if not any(same) and is_neural(names) != space.neural:
            continue
        from autotune.algorithms.experience.model import explained, similarity, useful

        task = one.task()
        points = [with_texts(point, space.texts) for point in task.points]
        taken = useful(replace(task, points=points), space)
        trusted = any(same) or times.get(one.study_id) == math.inf
        if taken is None or not (trusted or explained(taken, space)):
            continue
        like = similarity(taken, space)
        alike = *same, round(like), one.study_id in times, round(like, 2), len(taken.points)
        key = *(-each for each in alike), one.name, one.study_id
        found.append((key, one.with_rows_of(taken, [public(p) for p in taken.points])))
    return [one for _, one in sorted(found, key=lambda pair: pair[0])][:_MOST_STUDIES]


def written(
    options: StudyOptions, candidates: Iterable[Summary], sources: Iterable[Summary]
) -> dict[str, float]:
    """When each of the user's own studies was written; those to start from are the newest."""
    folder = store.folder_of(options.experience)
    found: dict[str, float] = {}
    for one in candidates:
        with contextlib.suppress(OSError):
            if folder is not None:
                found[one.study_id] = (folder / one.file_name).stat().st_mtime
    return {**found, **{one.study_id: math.inf for one in sources}}
