"""The shapes of a training's steps, as far as they are prepared before it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from autotune import schedules
from autotune.schedules import edges_of
from trainers.data.stream import passes
from trainers.knobs import is_constant
from trainers.readers import Schedule

MOST_WARMED = 16
GRID = tuple(i / 1000 for i in range(1001))


def sampled(scheduled: Sequence[Schedule], now: float, end: float) -> list[float]:
    """Progresses that cover every shape from now to the end: a regular grid and all edges.

    Args:
        scheduled: batch size, and size of an item.
    """
    if all(map(is_constant, scheduled)):
        return [now]
    ours = (s for s in scheduled if isinstance(s, schedules.Schedule))
    edges = (edge for schedule in ours for edge in edges_of(schedule))
    return [now, *sorted(x for x in (*edges, *GRID) if now < x <= end)]


def warmed_up(
    steps: Sequence[tuple[int, int]], ranks: int, microbatch: int | None
) -> list[tuple[int, int]]:
    """One step (batch size, size) of each kind in `steps`, the largest first.

    With more than 16 kinds, those of the first, the last and the most frequent step. The largest
    has the most pixels or tokens in a forward pass.

    >>> warmed_up([(32, 8), (33, 8), (32, 4), (32, 8)], 2, None)
    [(33, 8), (32, 8), (32, 4)]
    >>> warmed_up([(32, 8), (48, 8), (80, 8), (40, 8)], 1, 16)
    [(40, 8), (32, 8)]
    """
    kinds = [_kind(step, ranks, microbatch) for step in steps]
    found = dict(zip(reversed(kinds), reversed(steps), strict=True))  # the first of each kind
    if len(found) > MOST_WARMED:
        often = Counter(kinds).most_common(1)[0][0]
        found = {kind: found[kind] for kind in (kinds[0], often, kinds[-1])}
    largest = sorted(found, key=lambda kind: (kind.size * kind.most[0], found[kind]), reverse=True)
    return [found[kind] for kind in largest]


class Kind(NamedTuple):
    """Steps of one kind: forward passes of the same shapes, on ranks of the least and most items.

    It has the shapes of all ranks, so that all choose the same steps for the warm-up.
    """

    size: int
    least: tuple[int, ...]
    most: tuple[int, ...]


def _kind(step: tuple[int, int], ranks: int, microbatch: int | None) -> Kind:
    batch_size, size = step
    least, most = (passes(n, microbatch) for n in (batch_size // ranks, -(-batch_size // ranks)))
    return Kind(size, least, most)
