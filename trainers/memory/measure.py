"""The memory that a training has needed, for comparison with what is predicted."""

from __future__ import annotations

from bisect import bisect, bisect_left, insort
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from typing import Any

import torch
from torch._C._profiler import _ExtraFields_Allocation
from torch.autograd import profiler

Train = Callable[[dict[str, Any]], Generator[Any, Any, None]]


def peak(train: Train, config: Mapping[str, Any], milestones: int = 1) -> int:
    """The bytes of tensors that this rank had at the peak, from the warm-up to its last evaluation.

    On a GPU that is its allocator's peak, else the sum over what torch's profiler saw allocated and
    freed (`most`). What others allocate, as NumPy does, is not seen.

    Args:
        train: a trainer of this package.
        milestones: after the first.
    """
    if torch.cuda.is_available():
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        # The trainer forgets the peak at each milestone, to report its own of the next steps.
        peaks = [torch.cuda.max_memory_allocated() for _ in train_for(train, config, milestones)]
        return max(peaks) - before
    with profiler.profile(profile_memory=True) as seen:
        for _ in train_for(train, config, milestones):
            pass
    found = [*_allocations(seen.kineto_results.experimental_event_tree())]
    found.sort(key=lambda event: event.start_time_ns)
    return most((e.extra_fields.ptr, e.extra_fields.alloc_size) for e in found)


def _allocations(events: Iterable[Any]) -> Iterator[Any]:
    """The events of the profiler's tree in which memory is allocated or freed."""
    for event in events:
        if isinstance(event.extra_fields, _ExtraFields_Allocation):
            yield event
        yield from _allocations(event.children)


def most(changes: Iterable[tuple[int, int]]) -> int:
    """The most bytes that were allocated at once.

    What another thread frees, as gloo's threads do with messages, the profiler does not see: memory
    that overlaps a new allocation has been freed.

    Args:
        changes: the address and the bytes of each allocation, negative where it is freed, in order.

    >>> most([(0, 8), (8, 4), (0, -8), (0, 2)]), most([(0, 8), (4, 2)])
    (12, 8)
    """
    starts: list[int] = []  # of what is allocated, in order
    sizes: dict[int, int] = {}
    now = highest = 0
    for start, size in changes:
        if size < 0:
            gone = [start] if start in sizes else []
        else:
            first = max(bisect(starts, start) - 1, 0)
            near = starts[first : bisect_left(starts, start + size)]
            gone = [at for at in near if at + sizes[at] > start]
        for at in gone:
            now -= sizes.pop(at)
            del starts[bisect_left(starts, at)]
        if size > 0:
            insort(starts, start)
            sizes[start] = size
            now += size
            highest = max(highest, now)
    return highest


def train_for(train: Train, config: Mapping[str, Any], milestones: int) -> Iterator[None]:
    """Train for so many milestones after the first; yields after the evaluation of each."""
    with closing(train(dict(config))) as trainer:
        for _ in range(1 + milestones):
            next(trainer).evaluate()
            yield
