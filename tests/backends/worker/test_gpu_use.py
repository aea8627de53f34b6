"""What slows a GPU, as a management library says that is made here."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from autotune.backends.worker.gpu_use import Slowed, meter, slowed_gpus


@dataclass
class Library:
    """NVIDIA's management library, with one GPU and what happens on it."""

    reasons: int = 0
    clock: int = 1980
    processes: tuple[int, ...] = ()
    samples: list[Any] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    NVML_CLOCK_SM = 1

    def nvmlInit(self) -> None:
        pass

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        self.asked.append(uuid)
        return uuid

    def nvmlDeviceGetComputeRunningProcesses(self, device: str) -> list[Any]:
        return [SimpleNamespace(pid=pid) for pid in self.processes]

    def nvmlDeviceGetProcessUtilization(self, device: str, since: int) -> list[Any]:
        return [s for s in self.samples if s.timeStamp > since]

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, device: str) -> int:
        return self.reasons

    def nvmlDeviceGetClockInfo(self, device: str, kind: int) -> int:
        return self.clock

    def nvmlDeviceGetMaxClockInfo(self, device: str, kind: int) -> int:
        return 1980


def sample(pid: int, at: int, use: int) -> Any:
    return SimpleNamespace(pid=pid, timeStamp=at, smUtil=use)


ME = os.getpid()


@pytest.mark.parametrize(
    ("library", "found"),
    [
        (Library(), Slowed()),
        (Library(reasons=0x4, clock=990), Slowed()),  # its own power cap at work
        (Library(reasons=0x20, clock=990), Slowed(0.5, "its GPU: too hot (slowed by the driver)")),
        (
            Library(processes=(ME, 7), samples=[sample(ME, 1, 60), sample(7, 1, 30)]),
            Slowed(0.3, "another process on its GPU"),
        ),
        (Library(processes=(7,), samples=[sample(7, 1, 90)]), Slowed()),  # it may be this one
    ],
)
def test_what_slows_a_gpu(library: Library, found: Slowed) -> None:
    look = meter(["abc"], library)
    assert look is not None
    assert look() == found
    assert library.asked == ["GPU-abc"]


def test_a_sample_counts_once() -> None:
    library = Library(processes=(ME, 7), samples=[sample(7, 5, 80)])
    look = meter(["GPU-abc"], library)
    assert look is not None
    assert look().share == pytest.approx(0.8)
    assert look().share == 0.0
    library.samples.append(sample(7, 9, 20))
    assert look().share == pytest.approx(0.2)


def test_without_a_gpu_a_library_or_an_answer_nothing_is_known() -> None:
    assert meter([]) is None
    assert meter(["abc"], object()) is None
    assert slowed_gpus() == Slowed()

    class Silent(Library):
        def nvmlDeviceGetCurrentClocksThrottleReasons(self, device: str) -> int:
            raise RuntimeError("Not Supported")

    look = meter(["abc"], Silent(processes=(ME,)))
    assert look is not None
    assert look() == Slowed()
