"""Weights in few bytes: int8 with the scales of channels, and without the zeros of pruned ones.

A packed tensor is a dict of tensors: `shape`; `values`, int8 or as they were; `scale`, of int8; and
`mask`, a bit for each value of the whole tensor, where only the others are in `values`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trainers.compression.quantize import dequantized, is_quantized, quantized

Packed = Tensor | dict[str, Tensor]
_OVERHEAD = 1024  # bytes that two further tensors take in a file


def packed(weights: Mapping[str, Tensor], quantize: bool) -> dict[str, Packed]:
    """The weights of a model, those of layers as int8 where `quantize` says so.

    Zeros are left out where that is smaller; `unpacked` gives the weights again.
    """
    return {
        name: _pack(value.contiguous(), quantize and is_quantized(name, value))
        for name, value in weights.items()
    }


def _pack(value: Tensor, quantize: bool) -> Packed:
    values, found = value, dict[str, Tensor]()
    if quantize:
        values, found["scale"] = quantized(value)
    nonzero = values.flatten() != 0
    saved = int((~nonzero).sum()) * values.element_size()
    if saved > -(-values.numel() // 8) + _OVERHEAD:
        bits = np.packbits(nonzero.cpu().numpy())
        found |= {"mask": torch.from_numpy(bits)}
        values = values.flatten()[nonzero]
    if not found:
        return value
    shape = torch.tensor(value.shape, dtype=torch.int32)
    return {**found, "values": values.clone(), "shape": shape}


def is_packed(value: object) -> bool:
    """Whether it is a tensor that `packed` has packed."""
    if not isinstance(value, Mapping) or not {"shape", "values"} <= value.keys():
        return False
    return all(isinstance(part, Tensor) for part in value.values())


def unpacked(weights: Mapping[str, Any]) -> dict[str, Tensor]:
    """The weights as they were packed, those of int8 as float32.

    Raises:
        KeyError, RuntimeError, ValueError: they were not.
    """
    return {
        name: value if isinstance(value, Tensor) else unpack(value, value["shape"].tolist())
        for name, value in weights.items()
    }


def unpack(found: Mapping[str, Tensor], shape: Sequence[int]) -> Tensor:
    """One tensor as it was packed; that of int8 as float32.

    Args:
        shape: that of `found`, as numbers: `torch.export` makes a graph of the rest.
    """
    values = found["values"]
    if "mask" in found:
        weights = 2 ** torch.arange(7, -1, -1, dtype=torch.uint8, device=values.device)
        kept = (found["mask"][:, None] & weights).flatten()[: math.prod(shape)] != 0
        values = torch.zeros_like(kept, dtype=values.dtype).masked_scatter(kept, values)
    values = values.view(*shape)
    return dequantized(values, found["scale"]) if "scale" in found else values
