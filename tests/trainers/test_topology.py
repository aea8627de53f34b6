"""Sums in two levels: their groups, and errors in the thread that makes them.

That they are those of all ranks is in `test_conformance.py`.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from trainers.communication import hierarchical
from trainers.parallel import mesh, topology
from trainers.parallel.protocol import Forward
from trainers.parallel.ranks import Ranks, ranks_of_a_machine
from trainers.parallel.replicate import Replicated

CPU = torch.device("cpu")
ALONE = Ranks(0, 1, CPU)


@pytest.fixture
def group_of_one() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    mesh.forget()
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["a", "a", "b", "b"], 2),
        (["b", "a"], 1),
        (["a", "a", "a"], 3),
        (["a", "a", "b"], None),
        (["a", "b", "a", "b"], None),
    ],
)
def test_without_a_size_the_ranks_of_a_machine_are_a_group(
    names: list[str], found: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gathered(into: list[str], own: str, group: Any) -> None:
        assert own == socket.gethostname()
        into[:] = names

    monkeypatch.setattr(dist, "all_gather_object", gathered)
    ranks = Ranks(0, len(names), CPU)
    if found is not None:
        assert ranks_of_a_machine(ranks) == found
        return
    rule = "must be given where machines do not have equally many ranks, one after another"
    for key, make in {
        "all_reduce_group_size": lambda: topology.InLevels("hierarchical", None, ranks),
        "hierarchical_group_size": lambda: hierarchical.within(None, ranks),
    }.items():
        with pytest.raises(ValueError) as refused:
            make()
        assert str(refused.value) == f"{key} {rule}: {', '.join(names)}"


@pytest.mark.parametrize("kind", ["hierarchical", "two_dimensional"])
def test_an_error_of_a_sum_ends_the_backward_pass_and_the_thread_ends_with_the_model(
    kind: str, group_of_one: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {*threading.enumerate()}
    averaging = topology.InLevels(kind, 1, ALONE)
    part = torch.ones(3, 2), torch.zeros(3)
    model = Replicated(nn.Linear(2, 2), ALONE, Forward(CPU), averaging=averaging)
    model.gradients([part], lambda out, y: out.sum())
    assert len({*threading.enumerate()} - before) == 1

    def broken(*given: Any, **named: Any) -> None:
        raise ConnectionError("the other rank is gone")

    monkeypatch.setattr(dist, "all_reduce", broken)
    with pytest.raises(RuntimeError, match="the other rank is gone"):
        model.gradients([part], lambda out, y: out.sum())
    model.close()
    assert {*threading.enumerate()} <= before
