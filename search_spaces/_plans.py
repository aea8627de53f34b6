"""How two ranks of a trial divide their work, and what a step keeps, as part of a search."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.space.coupling import SpaceEntry
from autotune.space.search_space import Choice

When = Mapping[str, tuple[Any, ...]]


def _of_copies(when: When) -> dict[str, SpaceEntry]:
    return {
        "bucket_cap_mb": Choice((None, 1, 5, 25, 100), when=when),
        "static_graph": Choice((False, True), when=when),
        "shard_optimizer_state": Choice((False, True), when=when),
    }


_SHARD, _TENSOR = "data_parallel_shard_degree", "tensor_parallel_degree"
_PIPELINE, _CONTEXT = "pipeline_parallel_degree", "context_parallel_degree"
_SHARDED: Mapping[str, SpaceEntry] = {
    "fsdp_reshard_after_forward": Choice(("always", "never"), when={_SHARD: (2,)}),
    "fsdp_prefetch_units": Choice((1, 2), when={_SHARD: (2,)}),
}
_RECOMPUTED: Mapping[str, SpaceEntry] = {
    "activation_checkpoint_mode": Choice(("none", "full", "selective")),
    "selective_ac_option": Choice(("op", 2), when={"activation_checkpoint_mode": ("selective",)}),
    "optimizer_implementation": Choice(("auto", "foreach", "for-loop")),
    "precision": Choice(("fp32", "bf16")),
}
_KEPT: Mapping[str, Any] = {
    "activation_checkpoint_mode": "none",
    "optimizer_implementation": "auto",
    "precision": "fp32",
}
_COPIES: Mapping[str, Any] = {
    "bucket_cap_mb": None,
    "static_graph": False,
    "shard_optimizer_state": False,
    **_KEPT,
}
ENTRIES: Mapping[str, SpaceEntry] = {
    _SHARD: Choice((1, 2)),
    **_of_copies({_SHARD: (1,)}),
    **_SHARDED,
    **_RECOMPUTED,
}
BASELINE: Mapping[str, Any] = {_SHARD: 1, **_COPIES}
"""Copies of the model, as without a plan."""

LANGUAGE_ENTRIES: Mapping[str, SpaceEntry] = {
    _SHARD: Choice((1, 2)),
    **_SHARDED,
    _TENSOR: Choice((1, 2), when={_SHARD: (1,)}),
    "enable_sequence_parallel": Choice((False, True), when={_TENSOR: (2,)}),
    "enable_loss_parallel": Choice((False, True), when={_TENSOR: (2,)}),
    _PIPELINE: Choice((1, 2), when={_TENSOR: (1,)}),
    "pipeline_parallel_schedule": Choice(("1F1B", "GPipe"), when={_PIPELINE: (2,)}),
    _CONTEXT: Choice((1, 2), when={_PIPELINE: (1,)}),
    **_of_copies({_CONTEXT: (1,)}),
    **_RECOMPUTED,
}
"""Of a language model: its matrices, layers or sequences may be divided too."""

_UNDIVIDED: Mapping[str, Any] = {_SHARD: 1, _TENSOR: 1, _PIPELINE: 1}
LANGUAGE_BASELINE: Mapping[str, Any] = {**_UNDIVIDED, _CONTEXT: 1, **_COPIES}
_IN_PARTS = {"enable_sequence_parallel": True, "enable_loss_parallel": True}
LANGUAGE_FAMILIES: tuple[Mapping[str, Any], ...] = (
    {_SHARD: 2, "fsdp_reshard_after_forward": "always", "fsdp_prefetch_units": 1, **_KEPT},
    {_SHARD: 1, _TENSOR: 2, **_IN_PARTS, **_KEPT},
    {_SHARD: 1, _TENSOR: 1, _PIPELINE: 2, "pipeline_parallel_schedule": "1F1B", **_KEPT},
    {**_UNDIVIDED, _CONTEXT: 2, **_KEPT},
)
"""One plan of each other family: sharded, divided by matrices, by layers, by sequences."""

ON_A_GPU: Mapping[str, SpaceEntry] = {
    "compile": Choice((False, "units", True)),
    "activation_checkpoint_mode": Choice(("none", "full", "selective")),
    "selective_ac_option": Choice((2, 3), when={"activation_checkpoint_mode": ("selective",)}),
    "optimizer_implementation": Choice(("auto", "foreach", "for-loop")),
    "precision": Choice(("tf32", "bf16")),
}
"""What a step keeps, and how it computes, where there is one rank."""
BASELINE_ON_A_GPU: Mapping[str, Any] = {
    "compile": False,
    "activation_checkpoint_mode": "none",
    "optimizer_implementation": "auto",
    "precision": "bf16",
}


def of_texts(length: int) -> dict[str, SpaceEntry]:
    """What is searched of a language model beside.

    Args:
        length: of its sequences.
    """
    sparse: Mapping[str, tuple[Any, ...]] = {"attention": ("sliding_window", "block_sparse")}
    return {
        "gradient_accumulation_steps": Choice((1, 2, 4)),
        "attention": Choice(("full", "sliding_window", "block_sparse")),
        "attention_window": Choice((length // 4, length // 2), when=sparse),
    }


BASELINE_OF_TEXTS: Mapping[str, Any] = {"gradient_accumulation_steps": 1, "attention": "full"}
