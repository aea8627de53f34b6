"""The language model: kernels compiled for scheduled lengths, and its speed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch

from autotune.schedules import stages
from gpu_stages.findings import Finding, Run, checked, measured, seconds_of
from trainers.language import train
from trainers.models.gpt import flops_per_token

TOKENS = 58_000  # about as many are in the synthetic text's training part


def _config(run: Run, **more: Any) -> dict[str, Any]:
    lengths = (256, 512, 1024) if not run.tiny else (8, 12, 16)
    milestone, count = run.pick(600_000, 1000), run.pick(6, 4)
    return {
        "text": "synthetic",
        "tokens": "words",
        "layers": run.pick(8, 1),
        "width": run.pick(512, 16),
        "heads": run.pick(8, 2),
        "sequence_length": stages(*((1, length) for length in lengths)),
        "val_sequence_length": lengths[-1],
        "val_size": run.pick(4096, 64),
        "batch_size": run.pick(64, 4),
        "optimizer": "adamw",
        "lr": 1e-3,
        "precision": "bf16",
        "horizon": milestone * count / TOKENS,
        "milestone": milestone,
        "seed": 0,
        **more,
    }


def recompiles(run: Run) -> Iterator[Finding]:
    """Compiled and not: what is compiled after the set-up, tokens a second, model FLOP/s."""
    for compiled in (False, True):
        label = "compiled" if compiled else "as it is"
        begin = time.perf_counter()
        trainer = train(_config(run, compile=compiled))
        try:
            model = next(trainer).evaluate.__self__._learner.model  # type: ignore[attr-defined]
            yield measured(f"set-up, {label}", time.perf_counter() - begin, "s")
            before = _graphs()
            best: dict[str, float] = {}
            for _ in range(run.pick(6, 4)):
                metrics = next(trainer).evaluate()
                if metrics["samples_per_second"] > best.get("samples_per_second", 0.0):
                    best = metrics
            if compiled:
                after = _graphs() - before
                yield checked("no graph is compiled after the set-up", after == 0, f"{after} are")
            yield measured(f"tokens a second, {label}", best["samples_per_second"])
            length = int(best["sequence_length"])
            flops = flops_per_token(model, length) * best["samples_per_second"]
            yield measured(f"share of the device's products, {label}", flops / _peak(run))
        finally:
            trainer.close()


def _graphs() -> int:
    """The graphs that this process has compiled."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


def _peak(run: Run) -> float:
    """FLOP/s of a bf16 product of 4096 a side."""
    side = run.pick(4096, 64)
    a = torch.randn(side, side, device=run.device, dtype=torch.bfloat16)
    return 2 * side**3 / seconds_of(run, lambda: a @ a, 5)
