"""How copies of a model sum their gradients: over all ranks at once, or in two levels.

Ranks are in groups of neighbours, as those of one machine. `hierarchical` sums within each group on
its first rank, then over the first ranks, which send the sum to their groups (Jia et al. 2018,
arXiv 1807.11205). `two_dimensional` gives each rank of a group a part of the sum, sums the parts
over the groups, and gathers them within (Mikami et al. 2018, arXiv 1811.05233).
"""
# No annotations as text: DDP looks at those of a communication hook.

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from trainers.parallel import mesh
from trainers.parallel.ranks import Ranks, all_gather, ranks_of_a_machine
from trainers.readers import one_of, optional, whole
from trainers.technique import Knob, When, when

# The second name up to torch 2.12.
_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

COPIES = When(
    "data_parallel_shard_degree 1 and more than one rank",
    lambda plan: (
        plan["data_parallel_shard_degree"] == 1 and plan["data_parallel_replicate_degree"] != 1
    ),
)
KNOBS: Mapping[str, Knob] = {
    "all_reduce_topology": Knob(
        "flat", one_of(("flat", "hierarchical", "two_dimensional")), "exact", COPIES
    ),
    "all_reduce_group_size": Knob(
        None,
        optional(whole(2)),
        "exact",
        when("all_reduce_topology", "hierarchical", "two_dimensional"),
    ),
}


def check(group_size: int | None, ranks: int) -> None:
    """Raise a ValueError, one line, for groups that are not all of this size."""
    if group_size is not None and ranks % group_size:
        raise ValueError(f"all_reduce_group_size {group_size} must divide the {ranks} ranks")


@dataclass(frozen=True)
class Groups:
    """This rank's group, and the ranks at the same place in all groups."""

    within: dist.ProcessGroup
    across: dist.ProcessGroup


def hierarchical(gradients: Tensor, groups: Groups) -> None:
    """Sum over all ranks, in place."""
    dist.reduce(gradients, group_dst=0, group=groups.within)
    if dist.get_rank(groups.within) == 0:
        dist.all_reduce(gradients, group=groups.across)
    dist.broadcast(gradients, group_src=0, group=groups.within)


def two_dimensional(gradients: Tensor, groups: Groups) -> None:
    """Sum over all ranks, in place."""
    size = groups.within.size()
    missing = -gradients.numel() % size
    whole_parts = torch.nn.functional.pad(gradients, (0, missing)) if missing else gradients
    part = whole_parts.new_empty(whole_parts.numel() // size)
    _scatter(part, whole_parts, group=groups.within)
    dist.all_reduce(part, group=groups.across)
    all_gather(whole_parts, part, group=groups.within)
    if missing:
        gradients.copy_(whole_parts[: gradients.numel()])


_SUMS: Mapping[str, Callable[[Tensor, Groups], None]] = {
    "hierarchical": hierarchical,
    "two_dimensional": two_dimensional,
}


class InLevels:
    """Averages DDP's buckets in two levels, beside the backward pass.

    On a CPU a thread of its own makes the messages, one bucket after another: so all ranks send
    them in the same order.

    Raises:
        ValueError: no group size is given, and machines have different numbers of ranks.
    """

    def __init__(self, topology: str, group_size: int | None, data: Ranks) -> None:
        inner = group_size or ranks_of_a_machine(data)
        degrees = {"across": data.size // inner, "within": inner}
        opened = mesh.opened(data.device.type, degrees)
        self._groups = Groups(opened.get_group("within"), opened.get_group("across"))
        self._sum = _SUMS[topology]
        self._size = data.size
        on_gpu = data.device.type == "cuda"
        self._devices: list[int | str | torch.device] | None = [data.device] if on_gpu else None
        self._thread = None if self._devices else ThreadPoolExecutor(1)

    def start(self, gradients: Tensor) -> torch.futures.Future[Tensor]:
        """Begin to average gradients over all ranks."""
        begun = torch.futures.Future[None](devices=self._devices)
        averaged = begun.then(lambda _: self._averaged(gradients))
        if self._thread is None:
            begun.set_result(None)  # on a stream of its own, as futures do
        else:
            self._thread.submit(begun.set_result, None)
        return averaged

    def _averaged(self, gradients: Tensor) -> Tensor:
        gradients.div_(self._size)
        self._sum(gradients, self._groups)
        return gradients

    def close(self) -> None:
        """End the thread."""
        if self._thread is not None:
            self._thread.shutdown()


def hook(
    state: InLevels,
    bucket: dist.GradBucket,  # type: ignore[name-defined]
) -> torch.futures.Future[Tensor]:
    """DDP's communication hook."""
    return state.start(bucket.buffer())
