"""Where two states of a trainer differ, bit for bit."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import Any


def differences(one: Any, other: Any, path: str = "state") -> list[str]:
    """Where two states differ in any bit, as paths like `state['model']['weight']`."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        if one.keys() != other.keys():
            return [f"the keys of {path}"]
        return [d for key in one for d in differences(one[key], other[key], f"{path}[{key!r}]")]
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        if len(one) != len(other):
            return [f"the length of {path}"]
        pairs = enumerate(zip(one, other, strict=True))
        return [d for i, (a, b) in pairs for d in differences(a, b, f"{path}[{i}]")]
    return [] if _same(one, other) else [path]


def _same(one: Any, other: Any) -> bool:
    torch = sys.modules["torch"]  # the states were read with it
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        if one.dtype != other.dtype or one.shape != other.shape:
            return False
        bits = [t.detach().contiguous().reshape(-1).view(torch.uint8) for t in (one, other)]
        return bool(torch.equal(*bits))
    nan = isinstance(one, float) and isinstance(other, float) and math.isnan(one)
    return type(one) is type(other) and (one == other or (nan and math.isnan(other)))
