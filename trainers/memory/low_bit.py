"""AdamW's two states of a parameter in 8 bits each, of the library `torchao` (the extra `lowbit`).

Blocks of 256 values share a scale, and a value is one of 256 numbers between -1 and 1, denser near
0 (Dettmers et al. 2021, arXiv 2110.02861). Parameters of fewer than 4,096 values, or of a number
that 256 does not divide, keep states of 32 bits. A checkpoint has states of 32 bits, so that any
plan can go on from it; one of 8 bits rounds once more.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT
from torch.utils._pytree import tree_map_only

from autotune.schedules import Constant
from trainers.readers import NotAllowedError
from trainers.technique import Knob, When

BITS = (32, 8)
BLOCK, _LEAST = 256, 4096  # values
_COMPILED = ("beta1", "beta2", "weight_decay")  # parts of the compiled update, but for the rate
_SIGNED = {"exp_avg": True, "exp_avg_sq": False}


def _bits(value: Any) -> Any:
    if not isinstance(value, int) or isinstance(value, bool) or value not in BITS:
        raise NotAllowedError(" or ".join(map(str, BITS)))
    return value


KNOBS: Mapping[str, Knob] = {
    "optimizer_state_bits": Knob(
        32,
        _bits,
        "rounding",
        When(
            "data_parallel_shard_degree 1 and shard_optimizer_state False",
            lambda plan: (
                plan["data_parallel_shard_degree"] == 1 and not plan["shard_optimizer_state"]
            ),
        ),
    ),
}


def check(bits: int, optimizer: str) -> None:
    """Raise a ValueError for an optimizer without such states, or where the library is missing."""
    if bits == 32:
        return
    if optimizer != "adamw":
        raise ValueError(f"optimizer_state_bits {bits} needs optimizer 'adamw', got {optimizer!r}")
    _library(bits)


def check_options(bits: int, options: Mapping[str, Any]) -> None:
    """Raise a ValueError for a schedule of what is compiled into the update."""
    for key in _COMPILED if bits != 32 else ():
        if key in options and not isinstance(options[key], Constant):
            raise ValueError(
                f"{key} must be a number with optimizer_state_bits {bits}, no schedule: its update "
                "is compiled for each value"
            )


def kind_of(bits: int) -> Callable[..., Optimizer] | None:
    """The constructor in place of AdamW's; None for states of 32 bits."""
    return None if bits == 32 else adamw


def adamw(
    params: ParamsT,
    lr: float,
    *,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-6,
    weight_decay: float = 0.0,
) -> Optimizer:
    """The library's AdamW with states of 8 bits; its arguments are those of torch's.

    Args:
        eps: bounds the step of a weight whose second moment is so much smaller than the largest of
            its block that it is kept as 0. With torch's 1e-8 single weights moved by a thousand
            times the learning rate.
    """
    made: Optimizer = _library(8).AdamW8bit(params, lr, betas, eps, weight_decay, block_size=BLOCK)
    made.register_step_pre_hook(_with_tensors)
    return made


def _with_tensors(optimizer: Optimizer, *_: Any) -> None:
    """The library's compiled update takes the learning rate as a tensor only."""
    for group in optimizer.param_groups:
        if not isinstance(group["lr"], Tensor):
            group["lr"] = torch.tensor(float(group["lr"]), dtype=torch.float32)


def whole(state: dict[str, Any]) -> dict[str, Any]:
    """An optimizer's state with all tensors in 32 bits; others are unchanged."""

    def of(value: Tensor) -> Tensor:
        return value.dequantize() if _is_low(value) else value

    found: dict[str, Any] = tree_map_only(Tensor, of, state)
    return found


def shrink(optimizer: Optimizer) -> None:
    """After a state was loaded: in as few bits as the optimizer keeps."""
    make: Callable[..., Tensor] | None = getattr(optimizer, "_new_buffer", None)
    if make is None:
        return
    with torch.no_grad():
        for parameter, state in optimizer.state.items():
            for name, signed in _SIGNED.items():
                if name in state and not _is_low(state[name]):
                    state[name] = make(parameter, signed).copy_(state[name])


def saved_bytes(bits: int, model: nn.Module) -> int:
    """By how much AdamW's states of a model are smaller than in 32 bits.

    >>> saved_bytes(8, nn.Linear(64, 64)), saved_bytes(32, nn.Linear(64, 64))
    (24448, 0)
    """
    sizes = (p.numel() for p in model.parameters() if bits != 32)
    low = sum(size for size in sizes if size >= _LEAST and size % BLOCK == 0)
    return len(_SIGNED) * (3 * low - 4 * low // BLOCK)


def _is_low(value: Tensor) -> bool:
    return type(value).__module__.startswith("torchao.")


def _library(bits: int) -> Any:
    try:
        return importlib.import_module("torchao.optim")
    except ImportError:
        needs = "needs the library torchao: pip install 'time-to-target[lowbit]'"
        raise ValueError(f"optimizer_state_bits {bits} {needs}") from None
