"""Who may take how much of a GPU; no GPU is needed to say it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from autotune.backends.worker import reporting
from autotune.backends.worker.gpu_memory import await_free, crowded, share_of

GIB = 2**30


@pytest.mark.parametrize("gpus", [0.5, 0.4, 0.25, 0.1])
@pytest.mark.parametrize("total", [8 * GIB, 80 * GIB])
def test_the_shares_of_all_ranks_fit_on_a_gpu(gpus: float, total: int) -> None:
    """Each of them needs some memory beside its allocator, which the share leaves."""
    ranks = int(1 / gpus + 1e-9)
    share = share_of(gpus, total)
    assert gpus / 2 <= share < gpus
    assert ranks * share * total < total


def test_a_whole_gpu_is_not_capped() -> None:
    assert share_of(1, 8 * GIB) == share_of(2, 8 * GIB) == 1.0


@pytest.mark.parametrize(
    ("free", "own", "gpus", "expected"),
    [
        (40, 39, 0.5, False),  # alone, and at its own share
        (1, 39, 0.5, False),  # a neighbour at its share, too
        (0, 20, 0.5, True),  # a stranger has 60
        (10, 20, 0.25, False),  # three neighbours have 50, of the 60 that are theirs
        (0, 20, 1, False),  # with a whole GPU it is the trial's own
    ],
)
def test_others_crowd_a_gpu_where_they_hold_more_than_is_theirs(
    free: int, own: int, gpus: float, expected: bool
) -> None:
    assert crowded(free * GIB, 80 * GIB, own * GIB, gpus) is expected


def test_memory_of_a_process_that_ended_just_now_is_waited_for() -> None:
    freed: Iterator[int] = iter([10, 10, 79])
    assert await_free(lambda: (next(freed) * GIB, 80 * GIB), 1.0, pause=0.0) == 0
    assert next(freed, None) is None, "it looked until it was free, and no longer"


def test_memory_that_somebody_keeps_is_named() -> None:
    assert await_free(lambda: (50 * GIB, 80 * GIB), 1.0, seconds=0.0) == 28 * GIB
    assert await_free(lambda: (50 * GIB, 80 * GIB), 0.5, seconds=0.0) == 0


def test_all_gpus_of_a_rank_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the order of calls; `make gpu` has the kernels."""
    waited: list[int] = []
    for name, value in (("is_available", True), ("is_initialized", True), ("device_count", 2)):
        monkeypatch.setattr(torch.cuda, name, lambda value=value: value)
    monkeypatch.setattr(torch.cuda, "synchronize", waited.append)
    reporting.synchronize()
    assert waited == [0, 1]
