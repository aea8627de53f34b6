"""A worker's machine (processors, links, interfaces) and the hardware fingerprint of a group.

`fingerprint` runs in the driver, all else in workers. It knows neither Ray nor the study.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import socket
import subprocess
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from autotune.backends.worker import gpu_memory
from autotune.trial import Hardware
from autotune.trial.scaling import Scaling

LABEL = "AUTOTUNE_HARDWARE"  # set on a node: its owner's name for this kind of hardware
INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")  # read by the libraries
_NETWORKS = Path("/sys/class/net")
_FABRICS = Path("/sys/class/infiniband")
_GPUS = Path("/proc/driver/nvidia/gpus")  # a folder for each, of its PCI address
_PCI = Path("/sys/bus/pci/devices")
_MEMORY_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
_DRIVER_SECONDS = 10.0  # for the driver of the GPUs to answer


@dataclass(frozen=True)
class Machine:
    """A worker's hardware: the model of its GPUs (else CPUs), the CPUs beside GPUs, and its links.

    `link` connects its GPUs on this node, `network` leads to other nodes, and `interface` has the
    node's address; each is empty where it is not known. `memory` is how many bytes its GPU gives
    it, or those of the whole machine without one; 0 where it is not known.
    """

    device: str
    cpu: str = ""
    label: str = ""
    link: str = ""
    network: str = ""
    interface: str = ""
    memory: int = 0


def probe(address: str, gpus: float = 0) -> Machine:
    """Find out what this process runs on, on a node that others reach at `address`.

    Torch is imported only for a rank with GPUs.
    """
    interface = interface_of(address)
    label, network = os.environ.get(LABEL, "").strip(), network_of(interface)
    if not gpus or not _cuda().is_available():
        return Machine(cpu_name(), "", label, "", network, interface, host_memory())
    names = [_cuda().get_device_name(i) for i in range(_cuda().device_count())]
    memory = gpu_memory.least(gpus)
    return Machine(counted(names), cpu_name(), label, gpu_link(), network, interface, memory)


def host_memory() -> int:
    """The bytes of memory that processes of this machine, or container, may have together."""
    limits = (_read(file) for file in _MEMORY_LIMITS)
    found: list[int] = [psutil.virtual_memory().total]
    return min([*found, *(int(x) for x in limits if x.isdigit())])


def rank_memory(nodes: Sequence[str], machines: Sequence[Machine], gpus: float) -> int | None:
    """The bytes that each rank of a group may have; None where that is not known.

    Ranks of one node without GPUs share its memory evenly, as their work is even.

    Args:
        nodes, machines: of each rank.
        gpus: of each rank.

    >>> rank_memory(["a", "a", "b"], [Machine("cpu", memory=8)] * 3, 0)
    4
    """
    each = [
        m.memory // (1 if gpus else nodes.count(n)) for n, m in zip(nodes, machines, strict=True)
    ]
    return min(each, default=0) or None


def fingerprint(
    machines: Sequence[Machine], nodes: int, scaling: Scaling, shared: bool
) -> Hardware:
    """The hardware fingerprint of a group of workers on so many nodes."""
    several = scaling.num_workers > 1 or scaling.gpus > 1
    links = [m.network if nodes > 1 else m.link for m in machines]
    return Hardware(
        counted([m.device for m in machines]),
        scaling.num_workers,
        scaling.cpus,
        shared,
        gpus_per_worker=scaling.gpus,
        cpu=counted([m.cpu for m in machines]),
        nodes=nodes,
        interconnect=counted(links) if several else "",
        label=counted([m.label for m in machines]),
    )


def counted(names: Sequence[str]) -> str:
    """One name if all are equal, else the names with their counts.

    >>> counted(["A", "A"]), counted(["B", "A", "B"])
    ('A', '1 A + 2 B')
    """
    counts = Counter(names)
    if len(counts) == 1:
        return names[0]
    return " + ".join(f"{counts[name]} {name or 'unknown'}" for name in sorted(counts))


def cpu_name() -> str:
    """The model of this machine's CPUs."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        return platform.processor() or "CPU"
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "CPU")


def gpu_link() -> str:
    """`NVLink` if all GPUs of this process have links that are up, else `PCIe`."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    ids = _gpu_ids()
    try:
        linked = all(_has_links(program, uuid) for uuid in ids)
    except (OSError, subprocess.SubprocessError):
        return ""
    return "NVLink" if linked else "PCIe"


def _has_links(program: str, uuid: str) -> bool:
    """Whether a link of the GPU is up: only then is it listed with a speed."""
    name = uuid if uuid.startswith("GPU-") else f"GPU-{uuid}"
    command = [program, "nvlink", "--status", f"--id={name}"]
    done = subprocess.run(  # noqa: S603 (the driver's own program, found on the path)
        command, capture_output=True, text=True, timeout=_DRIVER_SECONDS, check=False
    )
    return "GB/s" in done.stdout


def cores_near_gpus() -> tuple[int, ...]:
    """The cores of the memory nodes to which this process's GPUs belong; none where not known."""
    return cores_near(_gpu_ids()) if _cuda().is_available() else ()


def _gpu_ids() -> list[str]:
    cuda = _cuda()
    return [str(cuda.get_device_properties(i).uuid) for i in range(cuda.device_count())]


def _cuda() -> Any:
    import torch

    return torch.cuda


def cores_near(uuids: Sequence[str]) -> tuple[int, ...]:
    """The cores near the GPUs with these ids, as the driver and the system say."""
    near: set[int] = set()
    for gpu in sorted(_GPUS.glob("*/information")):
        if any(uuid.removeprefix("GPU-") in _read(gpu) for uuid in uuids):
            near |= set(core_numbers(_read(_PCI / gpu.parent.name / "local_cpulist")))
    return tuple(sorted(near))


def core_numbers(text: str) -> list[int]:
    """The numbers of a list of cores as the system writes it.

    >>> core_numbers("0-2,8,10-11"), core_numbers("")
    ([0, 1, 2, 8, 10, 11], [])
    """
    ends = [part.partition("-") for part in text.split(",") if part]
    return [n for low, _, high in ends for n in range(int(low), int(high or low) + 1)]


def interface_of(address: str) -> str:
    """The interface of this machine that has the address, or an empty string."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(a.address.partition("%")[0] == address for a in addresses):
            return str(name)
    return ""


def interface_to(host: str) -> str:
    """The interface from which this machine reaches a host; nothing is sent to find it."""
    with contextlib.suppress(OSError):
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as unused:
            unused.connect((host, 9))
            return interface_of(str(unused.getsockname()[0]))
    return ""


def use_interface(name: str) -> None:
    """Have collectives use an interface, unless the node's environment names one already.

    NCCL takes all interfaces whose names begin so, unless `=` says that the name is whole.
    """
    for variable in INTERFACES:
        if name and not os.environ.get(variable):
            os.environ[variable] = f"={name}" if variable.startswith("NCCL") else name


def network_of(interface: str) -> str:
    """The kind and speed of this node's connection to others, as far as the system says."""
    rates = [_read(f) for f in sorted(_FABRICS.glob("*/ports/*/rate"))]
    up = ["ACTIVE" in _read(f) for f in sorted(_FABRICS.glob("*/ports/*/state"))]
    fabric = [r for r, active in zip(rates, up, strict=False) if active]
    if fabric:
        return f"InfiniBand {fabric[0]}"
    speed = _read(_NETWORKS / interface / "speed") if interface else ""
    known = speed.isdigit() and int(speed) > 0
    return f"{int(speed) / 1000:g} Gb/s network" if known else "network"


def _read(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""
