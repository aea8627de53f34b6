"""Activations that are computed again in the backward pass instead of kept (checkpointing).

| `activation_checkpoint_mode` | what is kept of a unit (a layer, a residual block) |
|---|---|
| none | everything that the backward pass needs |
| full | its input |
| selective | as `selective_ac_option` says |

With the option n it is the input of every n-th unit, and everything of the others; with "op" the
outputs of matrix products, convolutions and attention, of every unit.

Chen et al. 2016, arXiv 1604.06174; by operations as in Korthikanti et al. 2022, arXiv 2205.05198.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import create_selective_checkpoint_contexts

from trainers.readers import NotAllowedError, one_of
from trainers.technique import Knob, when

MODES = ("none", "full", "selective")


def _option(value: Any) -> Any:
    whole = isinstance(value, int) and not isinstance(value, bool) and value >= 1
    if value != "op" and not whole:
        raise NotAllowedError("'op', or a whole number at least 1")
    return value


KNOBS: Mapping[str, Knob] = {
    "activation_checkpoint_mode": Knob("none", one_of(MODES), "exact"),
    "selective_ac_option": Knob(
        "op",
        _option,
        "exact",
        when("activation_checkpoint_mode", "selective"),
    ),
}

_NAMES = (
    *("mm", "addmm", "bmm", "convolution"),
    *("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention"),
    *("_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention"),
)
Contexts = tuple[AbstractContextManager[Any], AbstractContextManager[Any]]


def recomputed(
    model: nn.Module, units: Sequence[nn.Module], mode: str, option: str | int
) -> list[nn.Module]:
    """Wrap units of the model in place; their parameters keep their names in states.

    Returns:
        the units, wrapped or not.
    """
    if mode == "none":
        return [*units]
    every = option if mode == "selective" and isinstance(option, int) else 1
    by_operation = mode == "selective" and option == "op"
    chosen = {id(unit) for unit in units[::every]}
    made: dict[int, nn.Module] = {}
    for parent in [*model.modules()]:
        for name, child in parent.named_children():
            if id(child) in chosen and id(child) not in made:
                made[id(child)] = _wrapped(child, by_operation)
                setattr(parent, name, made[id(child)])
    return [made.get(id(unit), unit) for unit in units]


def _wrapped(unit: nn.Module, by_operation: bool) -> nn.Module:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    norms = [m for m in unit.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    if not by_operation and not norms:
        return checkpoint_wrapper(unit)
    return checkpoint_wrapper(unit, context_fn=partial(_contexts, norms, by_operation))


def _contexts(norms: Sequence[nn.Module], by_operation: bool) -> Contexts:
    """Of the forward pass and of its repetition."""
    first, again = _selective() if by_operation else (nullcontext(), nullcontext())
    return first, _both(again, _without_statistics(norms))


def _selective() -> Contexts:
    found = (getattr(torch.ops.aten, name, None) for name in _NAMES)
    operations = [packet.default for packet in found if packet is not None]
    make: Callable[[Any], Contexts] = create_selective_checkpoint_contexts
    return make(operations)


@contextmanager
def _both(first: AbstractContextManager[Any], other: AbstractContextManager[Any]) -> Iterator[None]:
    with ExitStack() as entered:
        entered.enter_context(other)
        entered.enter_context(first)
        yield


@contextmanager
def _without_statistics(norms: Sequence[nn.Module]) -> Iterator[None]:
    """Batch normalisation has counted this batch already: copies of its statistics count it."""
    kept = [(norm, dict(norm.named_buffers(recurse=False))) for norm in norms]
    for norm, buffers in kept:
        for name, buffer in buffers.items():
            setattr(norm, name, buffer.clone())
    try:
        yield
    finally:
        for norm, buffers in kept:
            for name, buffer in buffers.items():
                setattr(norm, name, buffer)
