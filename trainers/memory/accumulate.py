"""Gradient accumulation: a step's samples go through the model in several passes.

The gradients of the passes are added up, so that the batch stays and the activations of one pass
are kept at a time (Huang et al. 2018, arXiv 1811.06965). `microbatch`, which autotune sets where
memory has run out, may ask for more passes.
"""

from __future__ import annotations

from collections.abc import Mapping

from trainers.readers import whole
from trainers.technique import Knob

KNOBS: Mapping[str, Knob] = {"gradient_accumulation_steps": Knob(1, whole(1), "exact")}


def microbatch(steps: int, most: int | None, batch_size: int, ranks: int) -> int | None:
    """The most samples of a rank in one pass; None: all.

    Args:
        steps: passes of a step.
        most: of the configuration; None: no limit.
        batch_size: the largest of the training, of all ranks.

    >>> microbatch(4, None, 64, 2), microbatch(3, None, 16, 2), microbatch(2, 4, 64, 2)
    (8, 3, 4)
    """
    if steps == 1:
        return most
    found = -(-batch_size // (ranks * steps))
    return found if most is None else min(found, most)
