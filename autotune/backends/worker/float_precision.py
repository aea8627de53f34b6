"""How exactly float32 products are computed (TF32): torch's newer settings and its older switches.

Both set the same thing. Where a trial used the newer ones, torch refuses to *read* the older ones,
so they are read once, in a clean process, and put back without a look.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

# Settings of torch 2.9 and later, from the general to the particular, which inherit from it. Torch
# has properties for them too, of which some set another one than they read.
_SETTINGS = (
    *(("generic", "all"), ("cuda", "all"), ("cuda", "matmul"), ("cuda", "conv"), ("cuda", "rnn")),
    *(("mkldnn", "all"), ("mkldnn", "matmul"), ("mkldnn", "conv"), ("mkldnn", "rnn")),
)
_GET: Callable[[str, str], str] | None = getattr(torch._C, "_get_fp32_precision_getter", None)
_SET: Callable[..., object] | None = getattr(torch._C, "_set_fp32_precision_setter", None)


@dataclass(frozen=True)
class Precision:
    """All settings of a clean process; `settings` is empty where torch has only the switches."""

    settings: tuple[str, ...]
    products: str
    cublas: bool
    cudnn: bool


def read() -> Precision:
    """The settings of this process.

    Raises:
        RuntimeError: somebody has used torch's newer settings, so that it cannot be said.
    """
    backends: Any = torch.backends
    return Precision(
        tuple(_GET(*key) for key in _SETTINGS) if _GET is not None else (),
        torch.get_float32_matmul_precision(),
        backends.cuda.matmul.allow_tf32,
        backends.cudnn.allow_tf32,
    )


def put_back(clean: Precision) -> None:
    """Put all settings back, whichever a trial has used.

    The older switches set the newer settings, too, to values that differ from the untouched ones:
    these come last. They also come first, as a switch may refuse a mixture.
    """
    _put_back_settings(clean)
    torch.backends.cuda.matmul.allow_tf32 = clean.cublas
    torch.backends.cudnn.allow_tf32 = clean.cudnn
    torch.set_float32_matmul_precision(clean.products)
    _put_back_settings(clean)


def _put_back_settings(clean: Precision) -> None:
    if _SET is not None:
        for key, value in zip(_SETTINGS, clean.settings, strict=True):
            _SET(*key, value)
