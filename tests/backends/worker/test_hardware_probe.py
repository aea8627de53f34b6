"""What a worker finds of its machine, the fingerprint of groups, and who looks at the cluster."""

from __future__ import annotations

import os
import queue
import socket
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from sims import racing, simulate

import autotune as at
from autotune.backends.protocol import Signal, WorkerFailed
from autotune.backends.ray import health
from autotune.backends.ray.health import HeadLost, Node, Nodes, Watch, is_listening
from autotune.backends.simulator import SimCurve, SimPoint, SimPool
from autotune.backends.worker import hardware_probe
from autotune.backends.worker.hardware_probe import (
    INTERFACES,
    Machine,
    fingerprint,
    interface_of,
    interface_to,
    probe,
)
from autotune.study.driver.recovery import MOST_ATTEMPTS
from autotune.study.manifest import resolved
from autotune.study.options import StudyOptions
from autotune.trial import Hardware, Interrupted, State

TWO = at.Scaling(num_workers=2)


# --- fingerprints and interfaces ------------------------------------------------------------------


def test_this_machine_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOTUNE_HARDWARE", " lent ")
    found = probe("127.0.0.1")
    assert found.device
    assert (found.label, found.interface) == ("lent", "lo")
    assert 2**28 < found.memory <= psutil.virtual_memory().total


def test_a_container_has_less_than_its_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = [tmp_path / name for name in ("none", "unlimited", "limited")]
    limits[1].write_text("max\n")
    monkeypatch.setattr(hardware_probe, "_MEMORY_LIMITS", limits)
    whole = hardware_probe.host_memory()
    limits[2].write_text("1000000\n")
    assert hardware_probe.host_memory() == 1_000_000 < whole


@pytest.mark.parametrize(
    ("nodes", "memory", "gpus", "expected"),
    [
        ("aa", (8, 8), 0, 4),
        ("ab", (8, 6), 0, 6),
        ("aab", (8, 8, 3), 0, 3),
        ("aa", (8, 6), 1, 6),
        ("a", (0,), 0, None),
    ],
)
def test_ranks_share_the_memory_of_their_machine_or_have_that_of_a_gpu(
    nodes: str, memory: tuple[int, ...], gpus: float, expected: int | None
) -> None:
    machines = [Machine("any", memory=each) for each in memory]
    assert hardware_probe.rank_memory([*nodes], machines, gpus) == expected


@pytest.mark.parametrize(
    ("machines", "nodes", "expected"),
    [
        ([Machine("cpu", network="network")] * 2, 1, Hardware("cpu", 2)),
        (
            [Machine("cpu", network="25 Gb/s network")] * 2,
            2,
            Hardware("cpu", 2, nodes=2, interconnect="25 Gb/s network"),
        ),
        (
            [Machine("H100", "Xeon", "", "NVLink", "network")] * 2,
            1,
            Hardware("H100", 2, cpu="Xeon", interconnect="NVLink"),
        ),
        (
            [Machine("H100", "Xeon", "a"), Machine("A100", "Xeon")],
            1,
            Hardware("1 A100 + 1 H100", 2, cpu="Xeon", label="1 unknown + 1 a"),
        ),
    ],
)
def test_the_fingerprint_of_a_group_has_all_its_hardware(
    machines: list[Machine], nodes: int, expected: Hardware
) -> None:
    assert fingerprint(machines, nodes, TWO, False) == expected


def test_one_worker_has_no_interconnect() -> None:
    one = [Machine("H100", link="PCIe")]
    assert fingerprint(one, 1, at.Scaling(), False).interconnect == ""
    both = at.Scaling(gpus_per_worker=2)
    expected = Hardware("H100", gpus_per_worker=2, interconnect="PCIe")
    assert fingerprint(one, 1, both, False) == expected


def test_links_of_gpus_are_what_their_driver_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for the driver's program, where there is no GPU: only what it prints is read."""
    program = tmp_path / "nvidia-smi"
    program.write_text(
        f"#!{sys.executable}\nimport sys\n"
        "print('Link 0: 26.562 GB/s' if sys.argv[-1] == '--id=GPU-a' else 'Link 0: <inactive>')\n"
    )
    program.chmod(0o755)
    assert hardware_probe._has_links(str(program), "a")
    assert not hardware_probe._has_links(str(program), "GPU-b")


def test_cores_near_a_gpu_are_what_the_system_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for the folders of the driver and the system, where there is no GPU."""
    monkeypatch.setattr(hardware_probe, "_GPUS", tmp_path / "gpus")
    monkeypatch.setattr(hardware_probe, "_PCI", tmp_path / "pci")
    for address, uuid, cores in (("0000:1b:00.0", "aa-1", "0-2,8"), ("0000:9c:00.0", "bb-2", "4")):
        for folder in ("gpus", "pci"):
            (tmp_path / folder / address).mkdir(parents=True)
        about = f"Model: \t\t NVIDIA H100\nGPU UUID: \t GPU-{uuid}\n"
        (tmp_path / "gpus" / address / "information").write_text(about)
        (tmp_path / "pci" / address / "local_cpulist").write_text(f"{cores}\n")
    assert hardware_probe.cores_near(["aa-1"]) == (0, 1, 2, 8)
    assert hardware_probe.cores_near(["GPU-bb-2"]) == (4,)
    assert hardware_probe.cores_near(["cc-3"]) == ()


def test_interfaces_are_found_by_their_address() -> None:
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("203.0.113.7") == ""
    assert interface_to("127.0.0.1") == "lo"


def test_an_interface_that_somebody_chose_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen, free = INTERFACES
    monkeypatch.setenv(chosen, "eth7")
    monkeypatch.setenv(free, "")
    hardware_probe.use_interface("lo")
    assert (os.environ[chosen], os.environ[free]) == ("eth7", "=lo"), "and not loopback7 or so"


# --- the experiment -------------------------------------------------------------------------------


def test_a_placement_is_one_of_rays() -> None:
    with pytest.raises(ValueError, match="one of PACK, SPREAD, STRICT_PACK, STRICT_SPREAD but got"):
        at.Scaling(placement_strategy="spread")


def test_records_without_a_placement_are_of_the_same_study() -> None:
    plain = resolved(racing([1.0]), StudyOptions()).scaling
    assert "placement_strategy" not in plain
    made = racing([1.0], scaling=at.Scaling(placement_strategy="SPREAD"))
    scaling = resolved(made, StudyOptions()).scaling
    assert at.Scaling(**scaling).placement_strategy == "SPREAD"


# --- a cluster that changes -----------------------------------------------------------------------


def test_nodes_that_come_and_a_head_that_goes_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "EVERY_SECONDS", 0.05)
    monkeypatch.setattr(health, "HEAD_SECONDS", 0.3)
    first, second = (Node(name, "127.0.0.1", 1, (("CPU", 1.0),)) for name in "ab")
    there, events = [first], queue.Queue[Any]()
    head = socket.create_server(("127.0.0.1", 0))
    address = f"127.0.0.1:{head.getsockname()[1]}"
    looking = Watch(lambda: tuple(there), address, events.put, (first,))
    try:
        time.sleep(0.5)
        assert events.empty(), "the same nodes, and a head that answers"
        there.append(second)
        assert events.get(timeout=600) == Nodes((first, second))
        head.close()
        lost = events.get(timeout=600)
        assert isinstance(lost, HeadLost)
        assert (lost.address, lost.seconds > 0.3) == (address, True)
    finally:
        looking.close()
    assert not is_listening("127.0.0.1", int(address.rpartition(":")[2]), 1.0)


class Fleeting(SimPool):
    """Its nodes are lost under every trial."""

    def wait(self, timeout: float | None) -> Signal | None:
        signal = super().wait(timeout)
        return (
            WorkerFailed(signal.trial, "node lost", node_lost=True)
            if isinstance(signal, WorkerFailed)
            else signal
        )


def test_a_lost_node_is_no_retry_until_the_trial_itself_is_suspected(fast_path: Path) -> None:
    def dying(config: Any, seed: int) -> SimCurve:
        return SimCurve([SimPoint(1, 1.0, {"val_accuracy": 0.1})], end="died")

    seen: list[Any] = []
    pool = Fleeting(dying, 1)
    with pytest.raises(at.StudyError, match="every trial failed"):
        simulate(racing([1.0]), fast_path, 1, pool=pool, watch=lambda event, _: seen.append(event))
    losses = [e for e in seen if isinstance(e, Interrupted)]
    assert [e.broke for e in losses] == [False] * (MOST_ATTEMPTS - 1) + [True, True]
    assert {e.reason for e in losses} == {"node lost"}
    assert seen[-1].state is State.FAILED


def test_the_name_of_an_interruption_says_its_kind() -> None:
    """A lost node was once taken for a store that gives no answer: both are a fourth argument."""
    with pytest.raises(TypeError, match="positional"):
        WorkerFailed(0, "node lost", "", True)  # type: ignore[misc]
