"""Models made by torch.compile: what is compiled, sizes that change, the limit to recompilation.

| `compile` | what is compiled |
|---|---|
| True | the whole model, at once |
| units | each unit (a layer, a residual block) on its own: equal ones once, and sharded ones too |
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from trainers.models.described import units_of
from trainers.readers import NotAllowedError

UNITS = "units"

_LIMITS = ("recompile_limit", "cache_size_limit")  # the second up to torch 2.6


def read(value: Any) -> Any:
    """Reads what is compiled."""
    if value != UNITS and not isinstance(value, bool):
        raise NotAllowedError(f"True, False or {UNITS!r}")
    return value


def check(what: bool | str, mode: str, option: str | int) -> None:
    """Raise a ValueError where a plan chooses operations within what is compiled."""
    if what == UNITS and mode == "selective" and option == "op":
        raise ValueError(
            "selective_ac_option 'op' does not see the operations of compiled units: give a number "
            "of units, or compile False"
        )


def compile_model(model: nn.Module, units: Sequence[nn.Module], what: bool | str) -> None:
    """Compile in place; parameters keep their names.

    Of a unit it is its forward function, within what wraps it: sharding and recomputation stay
    outside, as they were.

    Args:
        units: of the plan; empty: the model's own.
        what: True, `UNITS`, or False: nothing.
    """
    if what is True:
        model.compile()
    for unit in (units or units_of(model)) if what == UNITS else ():
        inner: Any = getattr(unit, "_checkpoint_wrapped_module", unit)
        inner.forward = torch.compile(inner.forward)


def is_compiled(unit: nn.Module) -> bool:
    """Whether `compile_model` has compiled the unit on its own."""
    return bool(_kinds(unit))


def _kinds(model: nn.Module) -> int:
    """How many different modules of the model are compiled on their own."""
    compiled = (m for m in model.modules() if "forward" in vars(m))
    return len({(type(m), *(p.shape for p in m.parameters())) for m in compiled})


def mark_varying(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    """`x`, whose `dims` are of different sizes at different steps: one graph for all of them."""
    if dims:
        torch._dynamo.maybe_mark_dynamic(x, dims)
    return x


class RecompileLimit(logging.Handler):
    """Notes that torch.compile has met its limit, from when on new shapes run uncompiled.

    torch only logs it, where nobody looks; a trial that meets it is slow for a reason that its
    configuration does not show. The limit is one of a function, which equal and other units share:
    while this listens it is as many times higher as there are kinds of units.

    Args:
        what: is compiled.
        model: after `compile_model`.
    """

    def __init__(self, what: bool | str, model: nn.Module) -> None:
        super().__init__(logging.WARNING)
        self._what = what
        self.met = False
        self._before = torch._dynamo.config.cache_size_limit
        torch._dynamo.config.cache_size_limit = self._before * max(1, _kinds(model))
        self._logger = logging.getLogger("torch._dynamo")
        self._logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        if not self.met and any(f"config.{name}" in record.getMessage() for name in _LIMITS):
            self.met = True
            limit = torch._dynamo.config.cache_size_limit
            warnings.warn(
                f"compile={self._what}: this training needs more than torch's limit of {limit} "
                "graphs; shapes beyond it run uncompiled. Use fewer batch and item sizes",
                stacklevel=2,
            )

    def close(self) -> None:
        """Stop listening; the limit is again what it was."""
        torch._dynamo.config.cache_size_limit = self._before
        self._logger.removeHandler(self)
        super().close()
