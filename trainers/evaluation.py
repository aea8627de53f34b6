"""A model evaluated on batches: correct predictions and summed losses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from trainers.data.stream import NO_LABEL, Batch
from trainers.parallel.parts import in_step, split
from trainers.parallel.seam import Forward, Parallel

EVALUATED_MICROBATCHES = 4  # the most in a forward pass of an evaluation


@torch.no_grad()
def sums(
    parallel: Parallel, batches: Iterable[Batch], microbatch: int | None, forward: Forward
) -> Tensor:
    """Of this rank's batches: correct predictions, summed loss, and samples, in float64.

    The model is in evaluation mode. The label `NO_LABEL` marks padding.
    """
    found = torch.zeros(3, dtype=torch.float64, device=forward.device)
    with forward.autocast():
        for x, y in _fitting(parallel, batches, microbatch):
            out = parallel.evaluate(x)
            if out is None or not parallel.counts:
                continue
            out, y = out.flatten(0, -2), parallel.labels(y).flatten()
            found[0] += (out.argmax(1) == y).sum()
            found[1] += F.cross_entropy(out.float(), y, ignore_index=NO_LABEL, reduction="sum")
            found[2] += (y != NO_LABEL).sum()
    return found


def _fitting(
    parallel: Parallel, batches: Iterable[Batch], microbatch: int | None
) -> Iterator[Batch]:
    """The batches in parts of a few microbatches: no gradients need less memory."""
    most = microbatch and microbatch * EVALUATED_MICROBATCHES
    parts = (part for batch in batches for part in split(batch, most))
    return in_step(parts, parallel.data) if parallel.collective else parts
