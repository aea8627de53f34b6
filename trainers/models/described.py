"""What a model says of itself, for plans that divide it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from torch import nn

from trainers.models.blocks import blocks


@runtime_checkable
class Described(Protocol):
    """A model that says what it is made of.

    Models that can be divided further have methods of their own for it: `trainers.models.gpt`.
    """

    def units(self) -> Sequence[nn.Module]:
        """The layers, or blocks, that come one after another and have most of the parameters."""
        ...

    def flops(self, size: int) -> float:
        """Floating-point operations of training on one sample, of an item of this size."""
        ...


def units_of(model: nn.Module) -> Sequence[nn.Module]:
    """The model's units; of a model that does not say, its blocks."""
    return model.units() if isinstance(model, Described) else blocks(model)
