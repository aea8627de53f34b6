"""Sparse attention against its mask, and predicted memory against what is needed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F

from gpu_stages.findings import Finding, Run, checked, measured, seconds_of
from trainers import image, language
from trainers.memory import measure
from trainers.models.attention import KINDS, Sparse, causal

_APART = 2e-2  # of the mean absolute value; kernels may multiply in TF32
_NEAR = 0.15  # of a prediction, as `study.driver.memory` allows


def attention(run: Run) -> Iterator[Finding]:
    """Outputs and gradients of sparse attention, and its seconds beside those of full attention."""
    length, window = run.pick(4096, 32), run.pick(256, 8)
    shape = run.pick(4, 1), run.pick(8, 2), length, run.pick(64, 16)
    given = [torch.randn(shape, device=run.device, requires_grad=True) for _ in range(3)]
    places = torch.arange(length, device=run.device)
    full = seconds_of(run, lambda: torch.autograd.grad(causal(*given).sum(), given), 5)
    for kind in KINDS[1:]:
        sparse = Sparse(kind, window)
        mask = sparse.sees(places[:, None], places)
        wanted = F.scaled_dot_product_attention(*given, attn_mask=mask)
        found = sparse(*given)
        weights = torch.randn_like(found)
        gradients = [torch.autograd.grad((o * weights).sum(), given) for o in (found, wanted)]
        pairs = [(found, wanted), *zip(*gradients, strict=True)]
        worst = max(((a - b).abs().mean() / b.abs().mean()).item() for a, b in pairs)
        yield checked(f"{kind} attends as its mask says", worst < _APART, f"{worst:.2g} apart")
        took = seconds_of(run, lambda of=sparse: torch.autograd.grad(of(*given).sum(), given), 5)
        yield measured(f"{kind}: seconds of full attention's", took / full)


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
