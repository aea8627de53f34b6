"""Models made by torch.compile: sizes that change, and the limit to how often it compiles."""

from __future__ import annotations

import logging
import warnings

import torch
from torch import Tensor

_LIMITS = ("recompile_limit", "cache_size_limit")  # the second up to torch 2.6


def mark_varying(x: Tensor, dims: tuple[int, ...]) -> Tensor:
    """`x`, whose `dims` are of different sizes at different steps: one graph for all of them."""
    if dims:
        torch._dynamo.maybe_mark_dynamic(x, dims)
    return x


class RecompileLimit(logging.Handler):
    """Notes that torch.compile has met its limit, from when on new shapes run uncompiled.

    torch only logs it, where nobody looks; a trial that meets it is slow for a reason that its
    configuration does not show.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.met = False
        self._logger = logging.getLogger("torch._dynamo")
        self._logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        if not self.met and any(f"config.{name}" in record.getMessage() for name in _LIMITS):
            self.met = True
            limit = torch._dynamo.config.cache_size_limit
            warnings.warn(
                f"compile=True: this training needs more than torch's limit of {limit} graphs; "
                "shapes beyond it run uncompiled. Use fewer batch and item sizes",
                stacklevel=2,
            )

    def close(self) -> None:
        """Stop listening."""
        self._logger.removeHandler(self)
        super().close()
