"""What slows a rank's GPUs: other processes that compute on them, and clocks that are lowered.

It needs NVIDIA's management library (`pip install nvidia-ml-py`); without it nothing is known.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

SLOWED = {  # bits of the reasons for a clock; idle clocks and power caps at work are no fault
    0x8: "slowed down by its hardware",
    0x20: "too hot (slowed by the driver)",
    0x40: "too hot (slowed by its hardware)",
    0x80: "its power supply limits it",
}


@dataclass(frozen=True)
class Slowed:
    """The share of a GPU's work that was lost, 0 to 1, and what took it."""

    share: float = 0.0
    by: str = ""


def slowed_gpus() -> Slowed:
    """What has slowed the GPUs that this process uses, since it was last asked."""
    torch = sys.modules.get("torch")
    if torch is None or not (torch.cuda.is_available() and torch.cuda.is_initialized()):
        return Slowed()
    devices = range(torch.cuda.device_count())
    own = _meter(tuple(str(torch.cuda.get_device_properties(d).uuid) for d in devices))
    return own() if own is not None else Slowed()


def meter(uuids: Sequence[str], library: Any = None) -> Callable[[], Slowed] | None:
    """A function that says what has slowed these GPUs since it was last called.

    None without GPUs, or without a library or a driver that answers.
    """
    if not uuids:
        return None
    try:
        nvml = library if library is not None else importlib.import_module("pynvml")
        nvml.nvmlInit()
        devices = [nvml.nvmlDeviceGetHandleByUUID(_whole(uuid)) for uuid in uuids]
    except Exception:  # its errors have no class without it
        return None
    since = [0] * len(devices)

    def slowed() -> Slowed:
        found = []
        for place, device in enumerate(devices):
            with contextlib.suppress(Exception):  # a driver that does not know the question
                share, since[place] = _others(nvml, device, since[place])
                found.append(Slowed(share, "another process on its GPU" if share else ""))
            with contextlib.suppress(Exception):
                found.append(_lowered(nvml, device))
        return max(found, key=lambda one: one.share, default=Slowed())

    return slowed


_meter = functools.cache(meter)


def _whole(uuid: str) -> str:
    return uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"


def _others(nvml: Any, device: Any, since: int) -> tuple[float, int]:
    """The share of a GPU's time that other processes computed, and the time of the last sample.

    None is known in a container whose processes the driver knows by other numbers.
    """
    own = os.getpid()
    if own not in {p.pid for p in nvml.nvmlDeviceGetComputeRunningProcesses(device)}:
        return 0.0, since
    samples = nvml.nvmlDeviceGetProcessUtilization(device, since)
    newest = max((s.timeStamp for s in samples), default=since)
    used: dict[int, list[int]] = {}
    for sample in samples:
        if sample.pid != own and sample.timeStamp > since:
            used.setdefault(sample.pid, []).append(sample.smUtil)
    shares = [sum(one) / len(one) / 100 for one in used.values()]
    return min(sum(shares), 1.0), newest


def _lowered(nvml: Any, device: Any) -> Slowed:
    """How far a GPU's clock is below its highest, where heat or power lowers it."""
    active = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(device)
    reasons = [text for bit, text in SLOWED.items() if active & bit]
    if not reasons:
        return Slowed()
    now = nvml.nvmlDeviceGetClockInfo(device, nvml.NVML_CLOCK_SM)
    highest = nvml.nvmlDeviceGetMaxClockInfo(device, nvml.NVML_CLOCK_SM)
    return Slowed(max(1 - now / highest, 0.0), f"its GPU: {', '.join(reasons)}")
