"""What the machine can do at most: the ceilings against which other stages are read."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator

import torch

from autotune.backends.worker.hardware_probe import core_numbers, cores_near_gpus
from gpu_stages.findings import Finding, Run, copy_bandwidth, measured, not_run, seconds_of


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
    yield _cores(run)


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


def _cores(run: Run) -> Finding:
    """The cores that ranks take first, beside what the driver says of them."""
    name = "cores near the GPUs"
    if not run.on_gpu:
        return not_run(name, "no GPU is used")
    found, listed = cores_near_gpus(), near_by_table(_topology())
    theirs = {n for text in listed for n in core_numbers(text)}
    ours = "the same" if found and {*found} == theirs else f"found: {found}"
    said = "; ".join(listed) or "not known"
    return measured(name, len(found), text=f"nvidia-smi: {said}, {ours}")


def near_by_table(table: str) -> list[str]:
    """The cores near each GPU, as they are written in the output of `nvidia-smi topo -m`."""
    rows = [re.sub(r"\x1b\[[\d;]*m", "", line).split("\t") for line in table.splitlines()]
    titles = [cell.strip() for cell in rows[0]] if rows else []
    if "CPU Affinity" not in titles:
        return []
    column = titles.index("CPU Affinity")
    cells = [row[column] for row in rows if row[0].startswith("GPU") and len(row) > column]
    return [cell.strip() for cell in cells if re.fullmatch(r"\s*\d[\d,-]*\s*", cell)]


def _topology() -> str:
    command = ["nvidia-smi", "topo", "-m"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout
