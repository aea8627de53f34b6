"""A model evaluated on batches: correct predictions and summed losses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from trainers.criterion import Criterion, CrossEntropy
from trainers.data.stream import Batch
from trainers.parallel.parts import in_step, split
from trainers.parallel.protocol import Forward, Parallel

EVALUATED_MICROBATCHES = 4  # the most in a forward pass of an evaluation


@torch.no_grad()
def sums(
    parallel: Parallel,
    batches: Iterable[Batch],
    microbatch: int | None,
    forward: Forward,
    criterion: Criterion | None = None,
) -> Tensor:
    """Of this rank's batches: correct predictions, summed loss, and samples, in float64.

    The model is in evaluation mode. The label `NO_LABEL` marks padding.

    Args:
        criterion: of outputs and labels; None: `CrossEntropy`.
    """
    criterion = criterion or CrossEntropy()
    found = torch.zeros(3, dtype=torch.float64, device=forward.device)
    with forward.autocast():
        for x, y in _fitting(parallel, batches, microbatch):
            out = parallel.evaluate(x)
            if out is None or not parallel.counts:
                continue
            out, y = out.flatten(0, -2), parallel.labels(y).flatten()
            found += criterion.judged(out, y)
    return found


def outputs(
    parallel: Parallel, batches: Iterable[Batch], microbatch: int | None
) -> tuple[Tensor, Tensor]:
    """Of this rank's batches, of which there are some: outputs, and labels."""
    found = [(parallel.evaluate(x), y) for batch in batches for x, y in split(batch, microbatch)]
    scores, labels = zip(*found, strict=True)
    return torch.cat(scores), torch.cat(labels)


def _fitting(
    parallel: Parallel, batches: Iterable[Batch], microbatch: int | None
) -> Iterator[Batch]:
    """The batches in parts of a few microbatches: no gradients need less memory."""
    most = microbatch and microbatch * EVALUATED_MICROBATCHES
    parts = (part for batch in batches for part in split(batch, most))
    return in_step(parts, parallel.data) if parallel.collective else parts
