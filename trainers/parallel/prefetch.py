"""How many units of a sharded model are gathered before they are needed.

A unit that is gathered earlier travels while others compute, and is in memory for longer. Zhao et
al. 2023, arXiv 2304.11277.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trainers.readers import optional, whole
from trainers.technique import Knob, When

SHARDED = When(
    "data_parallel_shard_degree other than 1",
    lambda plan: plan["data_parallel_shard_degree"] != 1,
)
KNOBS: Mapping[str, Knob] = {
    "fsdp_prefetch_units": Knob(None, optional(whole(1)), "exact", SHARDED),
}


def ahead(units: Sequence[Any], count: int | None) -> None:
    """Gather so many units ahead, in the forward and in the backward pass; None: as torch does.

    Args:
        units: sharded ones (`FSDPModule`), in the order of the forward pass.
    """
    for index, unit in enumerate(units if count else ()):
        assert count is not None
        unit.set_modules_to_forward_prefetch([*units[index + 1 : index + 1 + count]])
        before = units[max(index - count, 0) : index]
        unit.set_modules_to_backward_prefetch([*reversed(before)])
