"""The passes of a pipeline's ranks: microbatches, and torch's schedules of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from trainers.parallel.protocol import Forward, Loss
from trainers.parallel.ranks import Ranks
from trainers.parallel.stages import STAGES


def microbatches(items: int, least: int, ranks: int) -> tuple[int, int]:
    """How many microbatches, a multiple of the ranks, and how many items each has.

    Args:
        items: in all of them; they may have room for more.
        least: as many at least; with fewer than two times the ranks, these many are made if there
            are items for them.
        ranks: of the pipeline.

    >>> microbatches(8, 1, 2), microbatches(7, 4, 2), microbatches(3, 1, 2)
    ((4, 2), (4, 2), (4, 1))
    """
    rounds = max(-(-least // ranks), min(2, -(-items // ranks)))
    return rounds * ranks, -(-items // (rounds * ranks))


class Passed(nn.Module):
    """A stage under autocast."""

    def __init__(self, stage: nn.Module, forward: Forward) -> None:
        super().__init__()
        self.stage = stage
        self._forward = forward

    def forward(self, x: Tensor) -> Tensor:
        with self._forward.autocast():
            found: Tensor = self.stage(x)
        return found


class Shapes(NamedTuple):
    """Of a step: microbatches, sequences of each, tokens of each, width of what stages pass on."""

    microbatches: int
    sequences: int
    length: int
    width: int

    def before(self, stage: int) -> Tensor:
        """What a stage gets, without memory."""
        if stage == 0:
            return torch.empty(self.sequences, self.length, dtype=torch.int64, device="meta")
        shape = self.sequences, self.length, self.width
        return torch.empty(shape, device="meta", requires_grad=True)


def scheduled(
    kind: str,
    own: Mapping[int, nn.Module],
    stages: int,
    shapes: Shapes,
    place: Ranks,
    loss: Loss,
) -> Any:
    """Torch's schedule for a step of these shapes.

    It gets the shapes: else it would find them out in a first pass, whose loss would count.

    Args:
        kind: one of `STAGES`.
        own: this rank's stages by their places in the pipeline.
        stages: in all.
    """
    from torch.distributed.pipelining import PipelineStage
    from torch.distributed.pipelining.schedules import get_schedule_class

    made = [
        PipelineStage(
            stage,
            index,
            stages,
            place.device,
            input_args=shapes.before(index),
            output_args=shapes.before(index + 1),  # of the last stage it is not used
            group=place.group,
        )
        for index, stage in own.items()
    ]
    schedule: Any = get_schedule_class(kind)
    what = made[0] if STAGES[kind] == 1 else made
    return schedule(what, shapes.microbatches, loss_fn=loss, scale_grads=False)
