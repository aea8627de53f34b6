"""The plan of a training: how its ranks divide the work, and what is kept in memory.

All keys may be searched. The words are those of torchtitan, where it has one.

| key | value (default) |
|---|---|
| `data_parallel_replicate_degree` | copies of the model; -1: as many as there are ranks left (-1) |
| `data_parallel_shard_degree` | ranks over which a copy is sharded; -1: all that are left (1) |
| `bucket_cap_mb` | 2^20 bytes of gradients in a message, where copies are not sharded (torch's) |
| `static_graph` | every step reaches the same parameters, where copies are not sharded (False) |
| `all_reduce_topology` | how copies sum: flat, hierarchical or two_dimensional (flat) |
| `all_reduce_group_size` | neighbouring ranks of its inner level (those of a machine) |
| `shard_optimizer_state` | the optimizer's state over the copies, ZeRO-1 (False) |
| `fsdp_reshard_after_forward` | default, always (ZeRO-3) or never (ZeRO-2) |
| `fsdp_prefetch_units` | layers whose parameters are gathered ahead (as torch does) |
| `enable_cpu_offload` | sharded parameters and the optimizer in the host's memory (False) |
| `tensor_parallel_degree` | ranks over which matrices are divided (1) |
| `enable_sequence_parallel` | norms and residuals divided along the sequence between them (False) |
| `enable_loss_parallel` | the loss of divided scores, which are not gathered (False) |
| `pipeline_parallel_degree` | ranks over which layers are dealt out (1) |
| `pipeline_parallel_schedule` | the order of a rank's passes (1F1B): `trainers.parallel.pipeline` |
| `context_parallel_degree` | ranks over which each sequence is divided (1) |
| `activation_checkpoint_mode` | none, full or selective (none) |
| `selective_ac_option` | op, or n: every n-th layer (op) |
| `gradient_accumulation_steps` | forward passes of a step, of the largest batch (1) |
| `optimizer_implementation` | auto, fused, foreach or for-loop (auto: fused where torch has it) |
| `optimizer_state_bits` | 32, or 8 (32) |

The product of the degrees is the number of ranks. Each technique's file has its keys, with their
kinds of effect (`trainers.technique.Effect`). Neighbouring ranks have parts of the same matrices or
sequences; the ranks of a pipeline are the furthest apart.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from trainers.memory import accumulate, compiled, fused, low_bit, recompute
from trainers.parallel import (
    context,
    pipeline,
    prefetch,
    replicate,
    shard,
    tensor,
    topology,
    zero1,
)
from trainers.readers import Key, shown
from trainers.technique import Knob, require_places

KNOBS: Mapping[str, Knob] = {
    **replicate.KNOBS,
    **topology.KNOBS,
    **zero1.KNOBS,
    **shard.KNOBS,
    **prefetch.KNOBS,
    **tensor.KNOBS,
    **pipeline.KNOBS,
    **context.KNOBS,
    **recompute.KNOBS,
    **accumulate.KNOBS,
    **fused.KNOBS,
    **low_bit.KNOBS,
}
"""All keys of plans, from the techniques' files."""

KEYS: Mapping[str, Key] = {key: (knob.default, knob.reader) for key, knob in KNOBS.items()}
DEFAULTS: Mapping[str, Any] = {key: knob.default for key, knob in KNOBS.items()}
MEMORY_KEYS = tuple(key for key, knob in KNOBS.items() if knob.memory)
DEGREES = ("data_parallel_replicate_degree", "data_parallel_shard_degree")
MODEL_DEGREES = ("tensor_parallel_degree", "pipeline_parallel_degree", "context_parallel_degree")
"""Of ranks that work on the same samples."""

_OF_COPIES = ("bucket_cap_mb", "static_graph", "all_reduce_topology", "shard_optimizer_state")
REFUSES: Mapping[str, tuple[str, ...]] = {
    "tensor_parallel_degree": (*MODEL_DEGREES[1:], *_OF_COPIES, "optimizer_state_bits"),
    "pipeline_parallel_degree": (
        *("context_parallel_degree", "data_parallel_shard_degree"),
        *(*_OF_COPIES, "optimizer_state_bits"),
    ),
}
"""The keys that must have their defaults where a degree is not 1."""


@dataclass(frozen=True)
class Plan:
    """A checked plan; its fields are the keys of the configuration.

    >>> print(Plan(data_parallel_shard_degree=2, data_parallel_replicate_degree=1))
    data_parallel_replicate_degree 1, data_parallel_shard_degree 2
    >>> print(Plan())
    default
    """

    data_parallel_replicate_degree: int = -1
    data_parallel_shard_degree: int = 1
    bucket_cap_mb: float | None = None
    static_graph: bool = False
    all_reduce_topology: str = "flat"
    all_reduce_group_size: int | None = None
    shard_optimizer_state: bool = False
    fsdp_reshard_after_forward: str = "default"
    fsdp_prefetch_units: int | None = None
    enable_cpu_offload: bool = False
    tensor_parallel_degree: int = 1
    enable_sequence_parallel: bool = False
    enable_loss_parallel: bool = False
    pipeline_parallel_degree: int = 1
    pipeline_parallel_schedule: str = "1F1B"
    context_parallel_degree: int = 1
    activation_checkpoint_mode: str = "none"
    selective_ac_option: str | int = "op"
    gradient_accumulation_steps: int = 1
    optimizer_implementation: str = "auto"
    optimizer_state_bits: int = 32

    def __str__(self) -> str:
        """What differs from the defaults."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        changed = [f"{k} {v}" for k, v in values.items() if v != KNOBS[k].default]
        return ", ".join(changed) or "default"

    @property
    def shards(self) -> bool:
        """Whether parameters are sharded wherever there is more than one rank."""
        return self.data_parallel_shard_degree != 1

    @property
    def divides(self) -> bool:
        """Whether several ranks work on the same samples."""
        return any(getattr(self, name) != 1 for name in MODEL_DEGREES)

    def shares(self, ranks: int) -> int:
        """Into how many parts a batch is divided on so many ranks.

        Raises:
            ValueError: the product of the degrees is not the number of ranks; one line.

        >>> Plan(tensor_parallel_degree=2).shares(8)
        4
        """
        degrees = self.degrees(ranks)
        return math.prod(degrees[name] for name in DEGREES)

    def degrees(self, ranks: int) -> dict[str, int]:
        """The degrees on so many ranks, without -1.

        Raises:
            ValueError: their product is not the number of ranks; one line.

        >>> plan = Plan(data_parallel_shard_degree=2, tensor_parallel_degree=2)
        >>> [*plan.degrees(8).values()]  # copies, shards, tensor, pipeline, context
        [2, 2, 2, 1, 1]
        """
        given: dict[str, int] = {n: getattr(self, n) for n in (*DEGREES, *MODEL_DEGREES)}
        known = math.prod(value for value in given.values() if value != -1)
        left = ranks // known if ranks % known == 0 else 0
        found = {name: left if value == -1 else value for name, value in given.items()}
        if math.prod(found.values()) != ranks:
            said = {k: v for k, v in given.items() if k in DEGREES or v != 1}
            named = " x ".join(f"{name} {value}" for name, value in said.items())
            raise ValueError(f"{named} must be the number of ranks, {ranks}")
        return found


def read_plan(values: Mapping[str, Any]) -> Plan:
    """The plan of a configuration's values, which their readers have checked; others are defaults.

    Raises:
        ValueError: keys that do not go together; one line that names them.
    """
    plan = {key: values.get(key, knob.default) for key, knob in KNOBS.items()}
    if plan["data_parallel_shard_degree"] == -1 and plan["data_parallel_replicate_degree"] == -1:
        if "data_parallel_replicate_degree" in values:
            raise ValueError(f"only one of {' and '.join(DEGREES)} may be -1, what is left")
        plan["data_parallel_replicate_degree"] = 1
    require_places(KNOBS, plan)
    for key, refused in REFUSES.items():
        for other in refused if plan[key] != 1 else ():
            if plan[other] != KNOBS[other].default:
                raise ValueError(f"{other} {shown(plan[other])} needs {key} 1, got {plan[key]}")
    by_operation = plan["selective_ac_option"] == "op"
    if plan["activation_checkpoint_mode"] == "selective" and by_operation:
        pipeline.check_recomputed(plan["pipeline_parallel_schedule"])
    return Plan(**plan)


def check(
    plan: Plan, optimizer: str, precision: str, compile: bool | str, smoothed: bool = False
) -> None:
    """Raise a ValueError, one line, for a plan that does not go with the rest of a training.

    Args:
        smoothed: labels are, at some time.
    """
    for key in ("data_parallel_shard_degree", *MODEL_DEGREES):
        if getattr(plan, key) != 1:
            units = key not in MODEL_DEGREES
            shard.check(precision, compile, f"{key} {getattr(plan, key)}", units)
    if plan.shards and optimizer == "adafactor":
        name = f"data_parallel_shard_degree {plan.data_parallel_shard_degree}"
        raise ValueError(f"optimizer 'adafactor' takes whole parameters, not {name}")
    parts = plan.shards or plan.tensor_parallel_degree != 1
    compiled.check(compile, plan.activation_checkpoint_mode, plan.selective_ac_option)
    fused.check(plan.optimizer_implementation, optimizer, parts)
    low_bit.check(plan.optimizer_state_bits, optimizer)
    if plan.shard_optimizer_state:
        zero1.check(optimizer, "shard_optimizer_state must be False")
    if plan.pipeline_parallel_degree != 1:
        zero1.check(optimizer, "pipeline_parallel_degree must be 1")
    tensor.check(plan.tensor_parallel_degree, plan.enable_loss_parallel, optimizer, smoothed)


def check_layers(plan: Plan, layers: int, width: int, heads: int) -> None:
    """Raise a ValueError, one line, for a language model that cannot be divided so."""
    shards = plan.data_parallel_shard_degree
    tensor.check_model(plan.tensor_parallel_degree, shards, heads, width)
    degree, schedule = plan.pipeline_parallel_degree, plan.pipeline_parallel_schedule
    pipeline.check_model(degree, schedule, layers)


def check_undivided(plan: Plan, where: str) -> None:
    """Raise a ValueError, one line, for a plan that divides a model which cannot be divided.

    Args:
        where: which models these are, as in "in trainers.image".
    """
    for key in MODEL_DEGREES:
        if getattr(plan, key) != 1:
            rule = f"must be 1 {where}, only the model 'gpt' of trainers.language can be divided"
            raise ValueError(f"{key} {rule}, got {getattr(plan, key)}")
