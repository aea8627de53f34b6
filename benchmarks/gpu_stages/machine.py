"""What the machine can do at most: the ceilings against which other stages are read."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from gpu_stages.findings import Finding, Run, copy_bandwidth, measured, seconds_of


def ceilings(run: Run) -> Iterator[Finding]:
    """Copies on the device, matrix products, transfers from and to the host, and launches."""
    name = torch.cuda.get_device_name(run.device) if run.on_gpu else "CPU"
    yield measured("copy on the device", copy_bandwidth(run) / 1e12, "TB/s", name)
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        yield measured(f"product in {str(dtype)[6:]}", _tflops(run, dtype), "TFLOP/s")
    if run.on_gpu:
        yield from _transfers(run)
        free, total = torch.cuda.mem_get_info(run.device)
        yield measured("free memory", free / 2**30, "GiB", f"of {total / 2**30:.1f} GiB")
    yield measured("launch", _launch(run) * 1e6, "us")


def _tflops(run: Run, dtype: torch.dtype) -> float:
    side = run.pick(8192 if dtype != torch.float32 else 4096, 64)
    a, b = (torch.randn(side, side, device=run.device).to(dtype) for _ in range(2))
    out = torch.empty_like(a)
    seconds = seconds_of(run, lambda: torch.mm(a, b, out=out), run.pick(10, 2))
    return 2 * side**3 / seconds / 1e12


def _transfers(run: Run) -> Iterator[Finding]:
    there = torch.empty(2**26, device=run.device)
    for pinned in (True, False):
        host = torch.ones(there.numel(), pin_memory=pinned)
        kind = "pinned" if pinned else "pageable"
        ways = (("host to device", there, host), ("device to host", host, there))
        for name, to, source in ways:
            seconds = seconds_of(run, lambda t=to, s=source: t.copy_(s, non_blocking=True), 5)
            yield measured(f"{name}, {kind}", host.nbytes / seconds / 1e9, "GB/s")


def _launch(run: Run) -> float:
    """Seconds that the host needs for a small kernel, when many are queued."""
    x, count = torch.zeros(16, device=run.device), run.pick(1000, 50)

    def many() -> None:
        for _ in range(count):
            x.add_(1.0)

    return seconds_of(run, many, 5) / count
