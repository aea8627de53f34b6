"""The model that a training exports: its weights in few bytes, its size, its latency."""

from __future__ import annotations

import io
import statistics
import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from trainers.compression.applied import Masks, Smaller
from trainers.compression.packed import Packed, packed
from trainers.compression.structure import without_masked

MEASURES = ("model_megabytes", "latency_ms")
"""The metrics of a trained model: 10^6 bytes of its file, and milliseconds for one sample."""

_WARM, _REPEATS = 10, 50  # forward passes


def small(
    weights: Mapping[str, Tensor], smaller: Smaller | None, masks: Masks
) -> dict[str, Packed]:
    """The exported weights, packed (`trainers.compression.packed`).

    Args:
        weights: the whole model's, as they are trained.
        masks: of the training.
    """
    if smaller is None:
        return packed(weights, quantize=False)
    final, found = smaller.exported(weights, masks)
    if smaller.prunable is not None and smaller.prunable.groups:
        found = without_masked(found, smaller.prunable.groups, final)
    return packed(found, quantize=smaller.quantization != "none")


def megabytes(content: Mapping[str, Any]) -> float:
    """10^6 bytes of a file of this content, as `torch.save` writes it."""
    file = io.BytesIO()
    torch.save(dict(content), file)
    return file.getbuffer().nbytes / 1e6


@torch.no_grad()
def latency_ms(model: nn.Module, sample: Tensor) -> float:
    """Milliseconds of a forward pass of one sample: the median of many, after some to warm up.

    Args:
        model: in evaluation mode, on the sample's device.
        sample: a batch of one.
    """
    seconds = []
    for _ in range(_WARM + _REPEATS):
        begin = time.perf_counter()
        model(sample)
        if sample.is_cuda:
            torch.cuda.synchronize(sample.device)
        seconds.append(time.perf_counter() - begin)
    return 1000 * statistics.median(seconds[_WARM:])
