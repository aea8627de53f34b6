"""The floating-point operations of a model, counted without computing them."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode


def unallocated(model: nn.Module) -> nn.Module:
    """A copy of the model on the device meta: its shapes, and none of its numbers."""
    copied: dict[int, Any] = {id(p): _parameter(p) for p in model.parameters()}
    copied |= {id(b): torch.empty_like(b, device="meta") for b in model.buffers()}
    return copy.deepcopy(model, copied)


def _parameter(given: nn.Parameter) -> nn.Parameter:
    shape: Tensor = torch.empty_like(given, device="meta", requires_grad=False)
    return nn.Parameter(shape, given.requires_grad)


def per_image(model: nn.Module, size: int) -> float:
    """Of training on one image of so many pixels a side: three times the forward pass.

    Products and convolutions are counted (`torch.utils.flop_counter`).

    >>> per_image(nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(16, 2)), 4)
    1056.0
    """
    first = next(m for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear))
    convolves = isinstance(first, nn.Conv2d)
    shape = (first.in_channels, size, size) if convolves else (first.in_features,)
    counted = unallocated(model).eval().requires_grad_(False)  # torch's counter follows gradients
    with FlopCounterMode(display=False) as counter:
        counted(torch.empty(1, *shape, device="meta"))
    return float(3 * counter.get_total_flops())
