"""Tensors that are sharded over the ranks, as `fully_shard` makes them, in checkpoint files.

A rank's file holds its shards as plain tensors, each in a dict that says where in the whole tensor
it belongs (`encode_shards`). So the ranks write without waiting for each other, and the file is
read like any other. To read the files of another number of ranks, `torch.distributed.checkpoint`
plans who reads what; its own file format is not used, as its index is a pickle, which could run
code when it is read.
"""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._pytree import keystr, tree_flatten_with_path

_MARK = "autotune.shard"
_WHOLE = -1  # along this dimension of the mesh every rank has all of it
Shard = Mapping[str, Any]
Shards = dict[str, Shard]
"""Encoded shards by their paths in a state, as `['model']['weight']`."""
Load = Callable[[int, str], Any]
"""Reads the file of a rank to a device; on `meta` tensors have shapes and no contents."""


def map_children(value: Any, change: Callable[[Any], Any]) -> Any:
    """Copy a dict, list or tuple, with `change` applied to its items; other values are returned.

    `torch.utils._pytree` would lose what modules attach to their states (`_metadata`), and does not
    look into subclasses of dict and list.
    """
    if isinstance(value, dict):
        made = copy.copy(value)
        made.update({k: change(v) for k, v in value.items()})
        return made
    if isinstance(value, tuple):
        parts = [change(v) for v in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if isinstance(value, list):
        return [change(v) for v in value]
    return value


def encode_shards(value: Any) -> Any:
    """Copy a nested state with a plain dict for each tensor that is sharded.

    Raises:
        TypeError: a tensor is spread over ranks in a way that could not be read back.
    """
    kinds = sys.modules.get("torch.distributed.tensor")
    if kinds is None:  # without it nobody can have made one
        return value
    if isinstance(value, kinds.DTensor):
        return _encoded(value, kinds)
    return map_children(value, encode_shards)


def assemble(state: Any, load: Load, files: int) -> Any:
    """Undo `encode_shards`, with tensors sharded over the present ranks, on the host.

    Args:
        state: the content of one of the ranks' files.
        load: reads the others, which is only done if their number is not that of the ranks now.
        files: the number of the ranks' files.

    Raises:
        ValueError: the files are not those of one checkpoint, or the ranks were in a mesh of more
            than one dimension, which another number of ranks cannot fill.
    """
    shards = _shards(state)
    if not shards:
        return state
    meshes = {tuple(shard["mesh"]) for shard in shards.values()}
    if any(math.prod(mesh) != files for mesh in meshes):
        raise ValueError(f"a checkpoint of {files} ranks holds tensors sharded over {meshes}")
    if files == _world() and dist.is_initialized():
        present = {mesh: _mesh(mesh) for mesh in sorted(meshes)}
        made = {path: _same_shard(shard, present) for path, shard in shards.items()}
    else:
        made = _resharded(shards, load, files)
    return _filled(state, made)


def assemble_all(states: Sequence[Any], load: Load) -> list[Any]:
    """Undo `encode_shards` on all ranks' states, with whole tensors, without a process group.

    Each whole tensor is made once: the states share it.
    """
    shards = _shards(states[0])
    if not shards:
        return [*states]
    made = _resharded(shards, load, len(states))
    return [_filled(state, made) for state in states]


def _encoded(value: Any, kinds: Any) -> dict[str, Any]:
    """A sharded tensor as this rank's shard and the place where it belongs."""
    odd = [p for p in value.placements if type(p) not in (kinds.Shard, kinds.Replicate)]
    ranks = value.device_mesh.mesh.flatten().tolist()
    if odd or ranks != list(range(_world())):
        raise TypeError(
            "Milestone state must hold tensors that are sharded or whole along each dimension of a "
            f"mesh of all {_world()} ranks in order: {value.placements} over ranks {ranks} could "
            "not be read back"
        )
    return {
        _MARK: 1,
        "local": value.to_local().detach(),
        "offsets": _offsets(value),
        "shape": list(value.shape),
        "stride": list(value.stride()),
        "placements": [p.dim if type(p) is kinds.Shard else _WHOLE for p in value.placements],
        "mesh": list(value.device_mesh.shape),
    }


def _offsets(value: Any) -> list[int]:
    """Where this rank's shard begins, as `torch.distributed.checkpoint` plans to write it."""
    from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

    if not value.to_local().numel():
        return [0] * value.ndim
    planner = DefaultSavePlanner()
    planner.set_up_planner({"": value}, is_coordinator=False)
    (item,) = planner.create_local_plan().items
    assert item.tensor_data is not None
    return list(item.tensor_data.chunk.offsets)


def _shards(state: Any) -> Shards:
    """The encoded shards in a state that was read, by their paths."""
    leaves, _ = tree_flatten_with_path(state, is_leaf=_is_shard)
    return {keystr(path): leaf for path, leaf in leaves if _is_shard(leaf)}


def _is_shard(value: Any) -> bool:
    return isinstance(value, dict) and _MARK in value


def _filled(state: Any, tensors: Mapping[str, Tensor]) -> Any:
    """A copy of a state with a tensor in place of each encoded shard."""
    shards = _shards(state).items()
    by_identity = {id(shard): tensors[path] for path, shard in shards if path in tensors}

    def fill(value: Any) -> Any:
        made = by_identity.get(id(value))
        return made if made is not None else map_children(value, fill)

    return fill(state)


def _world() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


# --- read by as many ranks as wrote it ------------------------------------------------------------


def _mesh(shape: Sequence[int]) -> Any:
    """All ranks in order, on the host; in one dimension it opens no process groups of its own."""
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", tuple(shape))


def _same_shard(shard: Shard, meshes: Mapping[tuple[int, ...], Any]) -> Tensor:
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        shard["local"],
        meshes[tuple(shard["mesh"])],
        _placements(shard),
        run_check=False,
        shape=torch.Size(shard["shape"]),
        stride=tuple(shard["stride"]),
    )


def _placements(shard: Shard) -> list[Any]:
    from torch.distributed.tensor import Replicate, Shard

    return [Replicate() if dim == _WHOLE else Shard(dim) for dim in shard["placements"]]


# --- read by another number of ranks --------------------------------------------------------------


def _resharded(shards: Shards, load: Load, files: int) -> dict[str, Tensor]:
    from autotune.backends.worker.resharding import RankFiles, fill

    mesh = _mesh([_world()]) if dist.is_initialized() else None
    wanted = {path: _empty(shard, mesh) for path, shard in shards.items()}
    rank_files = RankFiles(lambda rank, device: _shards(load(rank, device)), files)
    fill(wanted, rank_files)
    return wanted


def _empty(shard: Shard, mesh: Any) -> Tensor:
    shape, dtype = shard["shape"], shard["local"].dtype
    if mesh is None:
        return torch.empty(shape, dtype=dtype)
    if len(shard["mesh"]) > 1:
        raise ValueError(
            f"a checkpoint sharded over {' x '.join(map(str, shard['mesh']))} ranks can only be "
            f"read by as many, or without a process group, and here are {_world()}"
        )
    from torch.distributed.tensor import empty

    return empty(*shape, dtype=dtype, device_mesh=mesh, placements=_placements(shard))
