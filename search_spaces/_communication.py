"""What copies of a model send of their gradients, as part of a search."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.space.coupling import SpaceEntry
from autotune.space.search_space import Choice, Float, Int

_KIND = "gradient_compression"
_LOW_RANK: Mapping[str, tuple[Any, ...]] = {_KIND: ("powersgd",)}
_LARGEST: Mapping[str, tuple[Any, ...]] = {_KIND: ("dgc",)}
_SIGNS: Mapping[str, tuple[Any, ...]] = {_KIND: ("one_bit",)}
_POWERSGD: Mapping[str, SpaceEntry] = {
    "powersgd_rank": Choice((1, 2, 4, 8), when=_LOW_RANK),
    "powersgd_start": Int(2, 200, log=True, when=_LOW_RANK),
    "powersgd_wire": Choice(("fp32", "fp16"), when=_LOW_RANK),
}
OF_SGD: Mapping[str, SpaceEntry] = {
    _KIND: Choice(("none", "fp16", "bf16", "powersgd", "dgc")),
    **_POWERSGD,
    "dgc_ratio": Float(1e-3, 0.1, log=True, when=_LARGEST),
    "dgc_warmup_steps": Int(0, 400, when=_LARGEST),
    "dgc_momentum": Choice((True, False), when=_LARGEST),
}
OF_ADAMW: Mapping[str, SpaceEntry] = {
    _KIND: Choice(("none", "fp16", "bf16", "powersgd", "one_bit")),
    **_POWERSGD,
    "one_bit_warmup_steps": Int(50, 400, log=True, when=_SIGNS),
}
BASELINE: Mapping[str, Any] = {_KIND: "none"}
"""Whole gradients, as ever."""
