"""A plan applied to a model and the ranks of a training.

The order is: matrices and sequences divided, units computed again, layers dealt out over a
pipeline or the model sharded or copied over the ranks of the data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from torch import nn

from trainers.communication import compression as compressed
from trainers.communication.exchange import Exchange
from trainers.communication.synchronization import Synchronization, averaged
from trainers.memory import recompute
from trainers.models.described import units_of
from trainers.models.recognition import Recognition
from trainers.parallel import context, mesh, tensor, topology
from trainers.parallel.exposed import Exposed
from trainers.parallel.matrices import beside
from trainers.parallel.pipeline import Pipelined
from trainers.parallel.protocol import Forward, Parallel
from trainers.parallel.ranks import Ranks, along
from trainers.parallel.replicate import Replicated
from trainers.parallel.rows import WithClasses
from trainers.parallel.shard import RESHARD, Sharded
from trainers.parallel.single import Single
from trainers.parallel.update import Everywhere, Update
from trainers.parallel.zero1 import Dealt
from trainers.plan import Plan

Copied = Callable[[nn.Module, Ranks, Forward, Exchange | None], Parallel]
NO_COMPRESSION: Mapping[str, Any] = {"gradient_compression": "none"}


def data_ranks(plan: Plan, ranks: Ranks) -> Ranks:
    """The ranks among which batches are divided, of all.

    Raises:
        ValueError: the degrees, or groups, are not those of so many ranks; one line.
    """
    degrees = plan.degrees(ranks.size)
    topology.check(plan.all_reduce_group_size, ranks.size)
    if not plan.divides:
        return ranks
    return along(mesh.of_samples(ranks.device.type, degrees), "data", ranks)


def _place(degrees: Mapping[str, int], ranks: Ranks) -> Ranks:
    """This rank among those that work on the same samples."""
    return along(mesh.of_samples(ranks.device.type, degrees), "samples", ranks)


def prepared(plan: Plan, model: nn.Module, ranks: Ranks) -> list[nn.Module]:
    """Change the model in place before it is compiled; its units, for those that shard it.

    Raises:
        ValueError: the model cannot be divided among the ranks; one line.
    """
    device, degrees = ranks.device.type, plan.degrees(ranks.size)
    divided = plan.tensor_parallel_degree != 1
    if divided:
        tensor.divide(model, mesh.of_weights(device, degrees), plan.enable_sequence_parallel)
    if plan.context_parallel_degree != 1:
        context.divide(model, _place(degrees, ranks))
    mode, option = plan.activation_checkpoint_mode, plan.selective_ac_option
    if mode == "none" and not plan.shards and not divided:
        return []
    return recompute.recomputed(model, units_of(model), mode, option)


def parallel(
    plan: Plan,
    model: nn.Module,
    units: list[nn.Module],
    ranks: Ranks,
    forward: Forward,
    accumulates: bool = False,
    copied: Copied | None = None,
    compression: Mapping[str, Any] = NO_COMPRESSION,
    synchronization: Synchronization | None = None,
) -> Parallel:
    """The model on the ranks.

    Args:
        units: of `prepared`.
        accumulates: a step may have several passes, of which DDP's static graph allows one only.
        copied: makes copies of the model on several ranks; None: as the plan says.
        compression: the keys of `trainers.communication.compression`.
        synchronization: of copies that differ between exchanges; None: gradients are averaged.
    """
    if synchronization is not None and not synchronization.every_step:
        return averaged(synchronization, model, ranks, forward)
    bits = compression["gradient_compression"]
    copied = copied or partial(_replicated, plan, accumulates, bits)
    if isinstance(model, Recognition):
        if ranks.size == 1:
            return WithClasses(model, Single(model.backbone, ranks, forward))
        return WithClasses(model, copied(model.backbone, ranks, forward, None))
    degrees, divided = plan.degrees(ranks.size), plan.tensor_parallel_degree != 1

    def among(others: Ranks) -> Parallel:
        """On ranks that have other samples, or other parts of them."""
        if others.size == 1:
            return Single(model, others, forward)
        if not plan.shards and not divided:
            exchange = compressed.exchange(compression, model, others, forward.waiting)
            return copied(model, others, forward, exchange)
        copies = ("dp_replicate",) if degrees["data_parallel_replicate_degree"] > 1 else ()
        spread = mesh.part(mesh.of_weights(ranks.device.type, degrees), *copies, "dp_shard")
        return Sharded(
            model,
            units,
            others,
            forward,
            spread,
            RESHARD[plan.fsdp_reshard_after_forward],
            plan.fsdp_prefetch_units,
            plan.enable_cpu_offload,
            beside if divided else None,
        )

    if not plan.divides:
        return among(ranks)
    data, place = data_ranks(plan, ranks), _place(degrees, ranks)
    if plan.pipeline_parallel_degree != 1:
        return Pipelined(model, data, place, forward, plan.pipeline_parallel_schedule)
    if plan.context_parallel_degree != 1:
        return context.in_context(among(ranks), data, place)
    in_parts, by_class = plan.enable_sequence_parallel, plan.enable_loss_parallel
    return tensor.divided(among(data), data, place, in_parts, by_class)


def _replicated(
    plan: Plan,
    accumulates: bool,
    bits: str,
    model: nn.Module,
    ranks: Ranks,
    forward: Forward,
    exchange: Exchange | None,
) -> Replicated:
    static = plan.static_graph and not accumulates
    kind, size = plan.all_reduce_topology, plan.all_reduce_group_size
    averaging = None if kind == "flat" else topology.InLevels(kind, size, ranks)
    return Replicated(model, ranks, forward, plan.bucket_cap_mb, static, averaging, bits, exchange)


def update(plan: Plan, ranks: Ranks, model: Parallel, exposed: Exposed | None) -> Update:
    """Who makes the optimizer's step of which parameters."""
    if model.update is not None:
        return model.update
    deals = plan.shard_optimizer_state and ranks.size > 1
    return Dealt(ranks, exposed) if deals else Everywhere()
