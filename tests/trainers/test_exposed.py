"""Exposed communication: what is waited for once the gradients are computed, and only that."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trainers.parallel.exposed import Exposed

CPU = torch.device("cpu")


@pytest.fixture
def group_of_one() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Watched(Exposed):
    """Its clock goes on only as the test says; `asked` is set once it has been read."""

    def __init__(self) -> None:
        super().__init__(CPU)
        self.now = 0.0
        self.asked = threading.Event()

    def _now(self) -> float:
        self.asked.set()
        return self.now


@pytest.mark.parametrize("static_graph", [False, True])
def test_the_wait_for_messages_is_measured_and_the_computation_is_not(
    static_graph: bool, group_of_one: None
) -> None:
    """Messages arrive 5 s after the clock was first read, which is when all is computed."""
    watched = Watched()
    threads = []

    def slow(state: None, bucket):
        later = torch.futures.Future()

        def send() -> None:
            assert watched.asked.wait(60), "the clock was not read before the messages had arrived"
            watched.now += 5.0
            later.set_result(bucket.buffer())

        threads.append(threading.Thread(target=send))
        threads[-1].start()
        return later

    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    network = DistributedDataParallel(model, static_graph=static_graph)
    network.register_comm_hook(None, slow)

    def computing(gradient: Any) -> None:
        watched.now += 3.0

    for parameter in model.parameters():
        parameter.register_hook(computing)
    for step in (1, 2):
        watched.asked.clear()
        watched.backward(network(torch.ones(3, 2)).square().sum())
        assert watched.seconds() == 5.0 * step
    assert watched.now == 2 * (5.0 + 4 * 3.0)
    for thread in threads:
        thread.join()
    watched.clear()
    with watched.waiting():
        watched.now += 2.0
    assert watched.seconds() == 2.0


def test_passes_without_messages_expose_nothing(group_of_one: None) -> None:
    watched = Watched()
    network = DistributedDataParallel(nn.Linear(2, 2))
    with network.no_sync():
        watched.backward(network(torch.ones(3, 2)).sum())
    assert watched.seconds() == 0.0
