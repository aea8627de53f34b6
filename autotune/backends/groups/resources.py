"""How many trials the nodes of a cluster hold, and what a trial gets that does not say it.

Functions of the nodes' resources, by Ray's names for them; this machine alone is one node.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from autotune.errors import UserError, unknown
from autotune.trial.scaling import Scaling

KIND = "accelerator_type:"  # before the kind of a node's GPUs, of which Ray counts one a node
_KIND_SHARE = 0.001  # of it that a worker takes, as Ray does by itself
_ROUNDING = 1e-9

Resources = Mapping[str, float]
"""A node's resources in total, by Ray's names."""


def needs(scaling: Scaling) -> dict[str, float]:
    """The resources of one worker, by Ray's names."""
    need = {"CPU": scaling.cpus, "GPU": scaling.gpus}
    if scaling.accelerator is not None:
        need[f"{KIND}{scaling.accelerator}"] = _KIND_SHARE
    return {name: value for name, value in need.items() if value}


# --- what fits ------------------------------------------------------------------------------------


def fit(scaling: Scaling, nodes: Sequence[Resources]) -> tuple[int, str]:
    """How many trials fit on the nodes at once, and Ray's placement strategy for each.

    One trial's workers are packed on one node where they fit on one, else over several, unless
    `placement_strategy` says otherwise.

    Raises:
        UserError: not even one trial fits; names what is asked for and what there is.
    """
    need = needs(scaling)
    workers = [_workers(need, node) for node in nodes]
    strategy, size = scaling.placement_strategy, scaling.num_workers
    packed = sum(w // size for w in workers) if strategy in ("PACK", "STRICT_PACK") else 0
    if packed:
        return packed, "STRICT_PACK"
    most = _apart(workers, size) if strategy == "STRICT_SPREAD" else sum(workers) // size
    if most and strategy != "STRICT_PACK":
        return most, strategy
    kind, kinds = scaling.accelerator, _kinds(nodes)
    if kind is not None and kinds and kind not in kinds:
        raise UserError(unknown("accelerator", kind, kinds))
    where = {"STRICT_PACK": " on one node", "STRICT_SPREAD": " on different nodes"}
    asked = " and ".join(f"{v:g} {k}" for k, v in need.items() if not k.startswith(KIND))
    of_kind = f" of kind {kind}" if kind is not None else ""
    have = "; ".join(" and ".join(f"{n.get(k, 0.0):g} {k}" for k in ("CPU", "GPU")) for n in nodes)
    raise UserError(
        f"a trial of {size} workers with {asked}{of_kind} each can never fit"
        f"{where.get(strategy, '')}: the cluster has {len(nodes)} node{'s' * (len(nodes) != 1)} "
        f"({have})"
    )


def _workers(need: Resources, node: Resources) -> int:
    """How many workers fit on a node. No worker has parts of two GPUs."""
    counts = [int((node.get(k, 0.0) + _ROUNDING) // v) for k, v in need.items() if k != "GPU"]
    gpus = need.get("GPU", 0.0)
    if 0 < gpus < 1:
        each = int((1 + _ROUNDING) // gpus)
        counts.append(int(node.get("GPU", 0.0) + _ROUNDING) * each)
    elif gpus:
        counts.append(int((node.get("GPU", 0.0) + _ROUNDING) // gpus))
    return min(counts)


def _apart(workers: list[int], size: int) -> int:
    """How many trials of `size` workers fit, none of which has two workers on a node."""
    trials = 0
    while sum(min(w, trials + 1) for w in workers) >= (trials + 1) * size:
        trials += 1
    return trials


def _kinds(nodes: Iterable[Resources]) -> list[str]:
    """The kinds of the nodes' GPUs, as Ray names them."""
    return sorted({k.removeprefix(KIND) for n in nodes for k in n if k.startswith(KIND)})


# --- what a trial gets that does not say it -------------------------------------------------------


def resolve_scaling(scaling: Scaling, nodes: Sequence[Resources]) -> tuple[Scaling, str]:
    """The scaling with cores and GPUs that this cluster has, and what was decided, in one line.

    Each rank gets a GPU where the cluster has as many as a trial has ranks, else none; beside a
    whole GPU it gets its share of the cores. The line is empty where nothing was left open, or
    where there is no GPU.
    """
    there = round(sum(node.get("GPU", 0.0) for node in nodes))
    note = ""
    if scaling.gpus_per_worker is None:
        scaling, note = _with_gpus(scaling, nodes, there)
    if scaling.cpus_per_worker is None:
        scaling = replace(scaling, cpus_per_worker=_cores(scaling, nodes))
    return scaling, note


def _with_gpus(scaling: Scaling, nodes: Sequence[Resources], there: int) -> tuple[Scaling, str]:
    one = replace(scaling, gpus_per_worker=1)
    if scaling.accelerator is not None:
        return one, ""
    none = replace(scaling, gpus_per_worker=0)
    if not there:
        return none, ""
    has = f"the cluster has {there}"
    try:
        fit(one, nodes)
    except UserError:
        size = scaling.num_workers
        why = f"a trial of {size} workers does not fit on them with one each ({has})"
        return none, f"GPUs: none, as {why}: see --workers, --gpus-per-worker"
    return one, f"GPUs: 1 a worker, as {has} (--gpus-per-worker 0 for none)"


def _cores(scaling: Scaling, nodes: Sequence[Resources]) -> int:
    """A worker's cores: one; beside GPUs as many as belong to them on the node that has least."""
    if scaling.gpus == 0:
        return 1
    kind = "GPU" if scaling.accelerator is None else f"{KIND}{scaling.accelerator}"
    used = [node for node in nodes if node.get(kind, 0.0) and node.get("GPU", 0.0) >= 1]
    per_gpu = [node.get("CPU", 0.0) / node["GPU"] for node in used]
    return max(int(min(per_gpu, default=1.0) * scaling.gpus + _ROUNDING), 1)
