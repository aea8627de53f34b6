"""Sparse attention against its mask, and predicted memory against what is needed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gpu_stages.findings import Finding, Run, checked, measured, seconds_of
from trainers import image, language
from trainers.memory import measure
from trainers.models.attention import KINDS, Attention, Sparse, causal

_APART = 2e-2  # of the mean absolute value; kernels may multiply in TF32
_NEAR = 0.15  # of a prediction, as `study.driver.memory` allows


def attention(run: Run) -> Iterator[Finding]:
    """Outputs and gradients of sparse attention, and its seconds beside those of full attention.

    Heads of 8 are too narrow for a kernel: their scores are masked.
    """
    length, window = run.pick(4096, 32), run.pick(256, 8)
    places = torch.arange(length, device=run.device)
    for kind in KINDS[1:]:
        sparse = Sparse(kind, window)
        mask = sparse.sees(places[:, None], places)
        for width in (8, run.pick(64, 16)):
            yield _as_masked(run, kind, sparse, _given(run, length, width), mask)
        for dtype in (torch.float32, torch.bfloat16):
            given = _given(run, length, run.pick(64, 16), dtype)
            took, full = (_seconds(run, of, given) for of in (sparse, causal))
            yield measured(f"{kind} in {str(dtype)[6:]}: seconds of full attention's", took / full)


def _given(run: Run, length: int, width: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Queries, keys and values."""
    shape = run.pick(4, 1), run.pick(8, 2), length, width
    made = (torch.randn(shape, device=run.device, dtype=dtype) for _ in range(3))
    return [tensor.requires_grad_() for tensor in made]


def _seconds(run: Run, attention: Attention, given: list[Tensor]) -> float:
    return seconds_of(run, lambda: torch.autograd.grad(attention(*given).sum(), given), 5)


def _as_masked(run: Run, kind: str, sparse: Sparse, given: list[Tensor], mask: Tensor) -> Finding:
    wanted = F.scaled_dot_product_attention(*given, attn_mask=mask)
    found = sparse(*given)
    weights = torch.randn_like(found)
    gradients = [torch.autograd.grad((o * weights).sum(), given) for o in (found, wanted)]
    pairs = [(found, wanted), *zip(*gradients, strict=True)]
    worst = max(((a - b).abs().mean() / b.abs().mean()).item() for a, b in pairs)
    title = f"{kind} with heads of {given[0].shape[-1]} attends as its mask says"
    return checked(title, worst < _APART, f"{worst:.2g} apart")


def predicted(run: Run) -> Iterator[Finding]:
    """Bytes of a training at its peak: predicted over needed."""
    words: dict[str, Any] = {
        "text": "synthetic",
        "optimizer": "adamw",
        "lr": 1e-3,
        "layers": run.pick(8, 2),
        "width": run.pick(512, 32),
        "heads": run.pick(8, 2),
        "sequence_length": run.pick(512, 32),
        "batch_size": run.pick(32, 4),
        "milestone": run.pick(65_536, 256),
        "val_size": run.pick(4096, 64),
    }
    pictures: dict[str, Any] = {
        "data": "digits",
        "lr": 0.1,
        "model": "resnet18",
        "width": run.pick(64, 4),
        "batch_size": run.pick(512, 16),
        "milestone": run.pick(1024, 32),
    }
    cases = {
        "text": (language, words),
        "text, recomputed": (language, {**words, "activation_checkpoint_mode": "full"}),
        "text, bf16": (language, {**words, "precision": "bf16"}),
        "images": (image, pictures),
    }
    for name, (trainer, config) in cases.items():
        share = trainer.memory(config) / measure.peak(trainer.train, config)
        if not run.on_gpu or run.tiny:  # the data is NumPy's, which is not seen
            yield measured(f"{name}: predicted over needed", share)
            continue
        text = f"{share:.3f} of what is needed"
        yield checked(f"{name}: within {_NEAR:.0%}", abs(share - 1) <= _NEAR, text)
