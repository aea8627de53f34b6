"""Ranks that do not average their gradients in every step.

| key | value (default) |
|---|---|
| `synchronization` | every_step, local_sgd, hierarchical, diloco, geo_sgd or bounded_staleness |
| | (every_step) |
| `local_sgd_period` * | steps from one averaging of the weights to the next (8) |
| `local_sgd_start` | steps with averaged gradients before: post-local SGD (0) |
| `hierarchical_inner_period` * | steps from one averaging within groups to the next (4) |
| `hierarchical_outer_period` * | steps from one averaging over all ranks to the next (16) |
| `hierarchical_group_size` | neighbouring ranks of a group (those of a machine) |
| `diloco_period` * | steps of the ranks to one of the outer optimizer (32) |
| `diloco_outer_lr` | its learning rate (0.7) |
| `diloco_outer_momentum` | its Nesterov momentum (0.9) |
| `geo_sgd_period` * | steps from one push of what has changed to the next (8) |
| `geo_sgd_delay` | steps from a push to its merge (1) |
| `staleness_bound` | steps from a gradient to the step that it makes (1) |

Keys marked * take a number or a schedule of progress, rounded in each step. An exchange follows the
step in which as many have been made since the last one as the schedule says then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from trainers.communication import diloco, geo_sgd, hierarchical, local_sgd, staleness
from trainers.communication.averaged import Averaged
from trainers.communication.copies import Averaging, Copies
from trainers.parallel import zero1
from trainers.parallel.protocol import Forward
from trainers.parallel.ranks import Ranks
from trainers.plan import DEFAULTS as PLAN
from trainers.plan import MODEL_DEGREES, Plan
from trainers.readers import Key, one_of, shown
from trainers.technique import Knob, require_places

EVERY_STEP = "every_step"
KINDS = (EVERY_STEP, "local_sgd", "hierarchical", "diloco", "geo_sgd", "bounded_staleness")
KNOBS: Mapping[str, Knob] = {
    "synchronization": Knob(EVERY_STEP, one_of(KINDS), "both"),
    **local_sgd.KNOBS,
    **hierarchical.KNOBS,
    **diloco.KNOBS,
    **geo_sgd.KNOBS,
    **staleness.KNOBS,
}
"""All keys, from the techniques' files."""

KEYS: Mapping[str, Key] = {key: (knob.default, knob.reader) for key, knob in KNOBS.items()}
MEMORY_KEYS = tuple(key for key, knob in KNOBS.items() if knob.memory)
REFUSES = (
    *("data_parallel_shard_degree", *MODEL_DEGREES, "bucket_cap_mb", "static_graph"),
    *("all_reduce_topology", "shard_optimizer_state", "optimizer_state_bits"),
)
"""The keys of plans that must have their defaults."""


@dataclass(frozen=True)
class Synchronization:
    """When ranks exchange what.

    Args:
        kind: one of `KINDS`.
        values: of all keys.
    """

    kind: str
    values: Mapping[str, Any]

    @property
    def every_step(self) -> bool:
        """Whether gradients are averaged in every step."""
        return self.kind == EVERY_STEP

    @property
    def in_flight(self) -> int:
        """The most messages of the size of the model that travel while training goes on."""
        return self.values["staleness_bound"] if self.kind == "bounded_staleness" else 0


def read(values: Mapping[str, Any]) -> Synchronization:
    """The synchronization of a configuration's values, which their readers have checked.

    Raises:
        ValueError: keys that do not go together; one line that names them.
    """
    found = {key: values.get(key, knob.default) for key, knob in KNOBS.items()}
    require_places(KNOBS, found)
    geo_sgd.check(found["geo_sgd_period"], found["geo_sgd_delay"])
    return Synchronization(found["synchronization"], found)


def check(found: Synchronization, plan: Plan, optimizer: str, precision: str) -> None:
    """Raise a ValueError, one line, for what does not go with the rest of a training."""
    if found.every_step:
        return
    needs = f"needs synchronization {EVERY_STEP!r}, got {found.kind!r}"
    for key in REFUSES:
        if getattr(plan, key) != PLAN[key]:
            raise ValueError(f"{key} {shown(getattr(plan, key))} {needs}")
    if precision == "fp16":  # ranks would scale, and leave out, different steps
        raise ValueError(f"precision 'fp16' {needs}")
    zero1.check(optimizer, f"synchronization must be {EVERY_STEP!r}")


def check_ranks(found: Synchronization, ranks: int) -> None:
    """Raise a ValueError, one line, for groups that so many ranks cannot have."""
    hierarchical.check(found.values[hierarchical.GROUP_SIZE], ranks)


def of_one_machine(found: Synchronization) -> Synchronization:
    """What needs as much memory, without the groups of ranks that are not there."""
    if found.kind != "hierarchical":
        return found
    return read({"synchronization": "local_sgd"})


def averaged(found: Synchronization, model: nn.Module, ranks: Ranks, forward: Forward) -> Averaged:
    """Copies of the model on the ranks, of another kind than every_step.

    Raises:
        ValueError: no size of groups is given, and machines have different numbers of ranks.
    """
    copies = Copies(model, ranks, forward.waiting)
    averaging = _averaging(found, copies)
    return Averaged(model, ranks, forward, copies, averaging, found.kind)


def _averaging(found: Synchronization, copies: Copies) -> Averaging:
    of = found.values
    if found.kind == "hierarchical":
        neighbours = hierarchical.within(of[hierarchical.GROUP_SIZE], copies.ranks)
        periods = of["hierarchical_inner_period"], of["hierarchical_outer_period"]
        return hierarchical.Hierarchical(copies, neighbours, *periods)
    if found.kind == "diloco":
        outer = of["diloco_outer_lr"], of["diloco_outer_momentum"]
        return diloco.DiLoCo(copies, of["diloco_period"], *outer)
    if found.kind == "geo_sgd":
        return geo_sgd.GeoSGD(copies, of["geo_sgd_period"], of["geo_sgd_delay"])
    if found.kind == "bounded_staleness":
        return staleness.BoundedStaleness(copies, of["staleness_bound"])
    assert found.kind == "local_sgd"
    return local_sgd.LocalSGD(copies, of["local_sgd_period"], of["local_sgd_start"])
