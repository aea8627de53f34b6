"""The memory that a training has needed, for comparison with what is predicted."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from itertools import accumulate
from typing import Any

import torch
from torch.autograd import profiler
from torch.autograd.profiler_util import MEMORY_EVENT_NAME

Train = Callable[[dict[str, Any]], Generator[Any, Any, None]]


def peak(train: Train, config: Mapping[str, Any], milestones: int = 1) -> int:
    """The bytes of tensors that this rank had at the peak, from the warm-up to its last evaluation.

    On a GPU that is its allocator's peak, else the sum over what torch's profiler saw allocated and
    freed. What others allocate, as NumPy does, is not seen.

    Args:
        train: a trainer of this package.
        milestones: after the first.
    """
    if torch.cuda.is_available():
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        train_for(train, config, milestones)
        return torch.cuda.max_memory_allocated() - before
    with profiler.profile(profile_memory=True) as seen:
        train_for(train, config, milestones)
    events = (e for e in seen.kineto_results.events() if e.name() == MEMORY_EVENT_NAME)
    changes = sorted(((e.start_ns(), e.nbytes()) for e in events), key=lambda change: change[0])
    return max(accumulate(nbytes for _, nbytes in changes), default=0)


def train_for(train: Train, config: Mapping[str, Any], milestones: int) -> None:
    """Train for so many milestones after the first, each with its evaluation."""
    with closing(train(dict(config))) as trainer:
        next(trainer).evaluate()
        for _ in range(milestones):
            next(trainer).evaluate()
