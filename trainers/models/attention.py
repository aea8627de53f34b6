"""Attention to part of what came before, so that long sequences cost less.

| `attention` | a token sees, of itself and all before it |
|---|---|
| full | everything |
| sliding_window | the last `attention_window` tokens, itself among them (Longformer) |
| block_sparse | its own block of `attention_window` tokens, and the last eighth of each before it |

Beltagy et al. 2020, arXiv 2004.05150; Child et al. 2019, arXiv 1904.10509 (its fixed pattern).

On a GPU these are kernels of FlexAttention (Dong et al. 2024, arXiv 2412.05496), which leave out
what no token of a block sees. Elsewhere, and for heads narrower than 16, for which there is no such
kernel, the scores of all pairs are computed and masked: the same function, without the saving.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

KINDS = ("full", "sliding_window", "block_sparse")
_SUMMARY = 8  # of a block its last part, 1 / 8, is seen from later blocks
_KEPT = 8  # masks of different lengths
_LEAST_WIDTH = 16  # of a head, for FlexAttention's kernels

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Of queries, keys and values (batch, heads, length, width)."""
Sees = Callable[[Tensor, Tensor], Tensor]
"""Whether the tokens at places of queries see those at places of keys."""


def has_kernel(device: str, width: int) -> bool:
    """Whether sparse attention is a kernel on this type of device, for heads of this width."""
    return device == "cuda" and width >= _LEAST_WIDTH


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention to all that is not later."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class Sparse:
    """Attention of one of the kinds other than full; it keeps the masks of a model's lengths.

    Args:
        kind: of `KINDS`.
        window: tokens.
    """

    def __init__(self, kind: str, window: int) -> None:
        self._kind = kind
        self._window = window
        self._masks: dict[tuple[int, torch.device, bool], Any] = {}

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        kernel = has_kernel(q.device.type, q.shape[-1])
        mask = self._mask(q.shape[-2], q.device, kernel)
        if kernel:
            found: Tensor = _flex()(q, k, v, block_mask=mask)
            return found
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    def sees(self, query: Tensor, key: Tensor) -> Tensor:
        """Whether the tokens at the places `query` see those at the places `key`."""
        before, window = query >= key, self._window
        if self._kind == "sliding_window":
            return before & (query - key < window)
        summary = key % window >= window - max(1, window // _SUMMARY)
        return before & ((query // window == key // window) | summary)

    def seen(self, length: int) -> float:
        """How many tokens a token of a sequence sees on average.

        >>> Sparse("sliding_window", 2).seen(4), Sparse("block_sparse", 2).seen(4)
        (1.75, 2.0)
        """
        window, summary = self._window, max(1, self._window // _SUMMARY)
        if self._kind == "sliding_window":
            counts = (min(place + 1, window) for place in range(length))
        else:
            counts = (place % window + 1 + place // window * summary for place in range(length))
        return sum(counts) / length

    def _mask(self, length: int, device: torch.device, kernel: bool) -> Any:
        if torch.compiler.is_compiling():
            return self._made(length, device, kernel)
        key = length, device, kernel
        if key not in self._masks:
            if len(self._masks) >= _KEPT:
                self._masks.clear()
            self._masks[key] = self._made(length, device, kernel)
        return self._masks[key]

    def _made(self, length: int, device: torch.device, kernel: bool) -> Any:
        if kernel:
            return self.blocks(length, device)
        places = torch.arange(length, device=device)
        return self.sees(places[:, None], places)

    def blocks(self, length: int, device: torch.device) -> Any:
        """FlexAttention's `BlockMask` for sequences of so many tokens."""
        from torch.nn.attention.flex_attention import create_block_mask

        def sees(batch: Any, head: Any, query: Tensor, key: Tensor) -> Tensor:
            return self.sees(query, key)  # a method is not taken for a function of four

        return create_block_mask(sees, None, None, length, length, device=str(device))


def sees_of(attention: Attention) -> Sees:
    """Which keys an attention of `made` lets a query see."""
    return attention.sees if isinstance(attention, Sparse) else torch.ge


def made(kind: str, window: int | None) -> Attention:
    """The attention of a configuration that `check` accepts."""
    return causal if kind == "full" or window is None else Sparse(kind, window)


def check(kind: str, window: int | None) -> None:
    """Raise a ValueError, one line, where kind and window do not go together."""
    if kind == "full" and window is not None:
        raise ValueError(
            f"attention_window {window} needs attention sliding_window or block_sparse, got 'full'"
        )
    if kind != "full" and window is None:
        raise ValueError(f"attention {kind!r} needs attention_window, a number of tokens")


@lru_cache(maxsize=1)
def _flex() -> Callable[..., Tensor]:
    """FlexAttention for a GPU; a compiled model compiles it within itself.

    Raises:
        ValueError: this torch has no kernels for it.
    """
    from torch.nn.attention.flex_attention import flex_attention
    from torch.utils._triton import has_triton

    if not has_triton():
        kinds = " and ".join(KINDS[1:])
        raise ValueError(f"attention {kinds} need Triton on a GPU, which is not installed here")
    return torch.compile(flex_attention, dynamic=False)
