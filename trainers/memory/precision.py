"""The precision of a training, and whether its kernels are deterministic.

| `precision` | products and convolutions |
|---|---|
| fp32 | IEEE single precision, also where a GPU would use TF32 by default |
| tf32 | on a GPU: of the factors' 23 bits after the point only 10 are used |
| bf16, fp16 | autocast: bfloat16, or half precision with loss scaling; weights in fp32 |
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from trainers.parallel.matrices import Heads

PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""The precisions that autocast."""
CAST = (nn.Linear, nn.modules.conv._ConvNd, Heads)

_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"


def cast_in(unit: nn.Module) -> list[nn.Module] | None:
    """The layers of a unit whose weights autocast casts; None if they cannot be known.

    Code of other libraries may read the weights of a layer that it never calls.
    """
    known = {type(module).__module__.partition(".")[0] for module in unit.modules()}
    if not known <= {"torch", "trainers"}:
        return None
    return [module for module in unit.modules() if isinstance(module, CAST)]


@contextmanager
def numerics(precision: str, deterministic: bool, device: torch.device) -> Iterator[None]:
    """Inside the context, the process computes in `precision`; then as before.

    With `deterministic`, torch raises where an operation has no deterministic kernel, cuDNN does
    not choose kernels by trial, and cuBLAS keeps to one workspace. Torch asks for the latter's
    setting at a process's first product on a GPU: one that also trains otherwise before needs
    CUBLAS_WORKSPACE_CONFIG=:4096:8 in its environment, as the workers of a study have.

    Raises:
        ValueError: a precision that the device does not have.
    """
    if precision == "tf32" and device.type != "cuda":
        raise ValueError(f"precision 'tf32' needs a GPU with CUDA, this rank trains on {device}")
    with _products(precision, deterministic, device), _determinism(deterministic):
        yield


@contextmanager
def _products(precision: str, deterministic: bool, device: torch.device) -> Iterator[None]:
    """The kernels of a GPU; a CPU has no choice."""
    if device.type != "cuda":
        yield
        return
    cudnn = torch.backends.cudnn
    before = torch.get_float32_matmul_precision(), cudnn.allow_tf32, cudnn.benchmark
    tf32 = precision == "tf32"
    _choose("high" if tf32 else "highest", tf32, not deterministic)
    try:
        yield
    finally:
        _choose(*before)


def _choose(products: str, convolutions: bool, by_trial: bool) -> None:
    """Set TF32 by the setters that all versions of torch have; they keep the newer ones in step."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.set_float32_matmul_precision(products)
        torch.backends.cudnn.allow_tf32 = convolutions
    torch.backends.cudnn.benchmark = by_trial  # done in the warm-up, off the clock


@contextmanager
def _determinism(wanted: bool) -> Iterator[None]:
    if not wanted:
        yield
        return
    cudnn, mode = torch.backends.cudnn, torch.get_deterministic_debug_mode()
    before, workspace = cudnn.deterministic, os.environ.get(_WORKSPACE)
    os.environ.setdefault(_WORKSPACE, ":4096:8")
    cudnn.deterministic = True
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(mode)
        cudnn.deterministic = before
        if workspace is None:
            os.environ.pop(_WORKSPACE, None)
