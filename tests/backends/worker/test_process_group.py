"""Which backend reduces which tensors, and how long NCCL's watchdog lets a group be silent."""

from __future__ import annotations

import os

import pytest

from autotune.backends.worker.process_group import ProcessGroup, backend, set_environment

HEARTBEAT = "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"


@pytest.mark.parametrize(
    ("cuda", "gpus", "expected"),
    [
        (False, 0, "gloo"),
        (False, 1, "gloo"),  # a GPU that torch does not see
        (True, 0, "cpu:gloo,cuda:gloo"),
        (True, 0.5, "cpu:gloo,cuda:gloo"),
        (True, 1, "cpu:gloo,cuda:nccl"),
        (True, 4, "cpu:gloo,cuda:nccl"),
    ],
)
def test_ranks_that_share_a_gpu_reduce_with_gloo(cuda: bool, gpus: float, expected: str) -> None:
    assert backend(cuda, gpus) == expected


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """What is set in a test is as before after it."""
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.delenv(HEARTBEAT, raising=False)
    return monkeypatch


def test_nccl_s_watchdog_outlasts_the_study_s(environment: pytest.MonkeyPatch) -> None:
    set_environment(1, 2, "host", 29, 1800.5)
    said = {name: os.environ[name] for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")}
    assert said == {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "host", "MASTER_PORT": "29"}
    assert int(os.environ[HEARTBEAT]) > 1800.5
    environment.setenv(HEARTBEAT, "7")
    set_environment(1, 2, "host", 29, 1800.5)
    assert os.environ[HEARTBEAT] == "7", "somebody chose it"


def test_a_hung_rank_is_found_by_the_pool_before_the_others_give_it_up(
    environment: pytest.MonkeyPatch,
) -> None:
    """Else the trial would fail with a time-out of the ranks that wait, and not say who hangs."""
    import torch
    import torch.distributed as dist

    group = ProcessGroup(0, 1)
    group.meet("127.0.0.1", group.serve("127.0.0.1"), gpus=0.0, seconds=8.0)
    group.open()
    try:
        gloo = dist.group.WORLD._get_backend(torch.device("cpu"))  # type: ignore[union-attr]
        waits = gloo.options._timeout.total_seconds()
    finally:
        dist.destroy_process_group()
    assert 8.0 + 30 < waits < int(os.environ[HEARTBEAT])
