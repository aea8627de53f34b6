"""Inside a worker: tensors of which every rank holds a part, as `fully_shard` makes them.

A rank's file holds its parts as plain tensors, each in a dict that says where in the whole it
belongs (`apart`). So the ranks write without waiting for each other, and a file is read like any
other. From another number of ranks' files `torch.distributed.checkpoint` plans who reads what; its
own file format is not used, as its index is a pickle, and reading it could run code.
"""

from __future__ import annotations

import copy
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

_MARK = "autotune.shard"
_WHOLE = -1  # along this dimension of the mesh every rank has all of it
Path = tuple[Any, ...]
Load = Callable[[int, str], Any]
"""Reads the file of a rank, to a device; on `meta` tensors have shapes and no contents."""


def mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """The same nested dicts and lists (of whatever kind), with `change` made to what is in them."""
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


def apart(value: Any) -> Any:
    """The same nested dicts and lists with a plain dict for each tensor that is sharded.

    Raises:
        TypeError: a tensor is spread over ranks in a way that cannot be put together again.
    """
    kinds = sys.modules.get("torch.distributed.tensor")
    if kinds is None:  # nobody can have made one
        return value
    return _told(value, kinds) if isinstance(value, kinds.DTensor) else mapped(value, apart)


def together(state: Any, load: Load, files: int) -> Any:
    """What `apart` was made of: tensors sharded over the ranks that there are now, on the host.

    Args:
        state: of one of the ranks' files.
        load: reads the others, which is only done if there were not as many ranks as now.
        files: how many ranks' files there are.

    Raises:
        ValueError: the files are not those of one checkpoint, or the ranks were in a grid of more
            than one dimension, which another number of ranks has no way to fill.
    """
    parts = dict(_parts(state))
    if not parts:
        return state
    meshes = {tuple(part["mesh"]) for part in parts.values()}
    if any(math.prod(mesh) != files for mesh in meshes):
        raise ValueError(f"a checkpoint of {files} ranks holds tensors sharded over {meshes}")
    if files == _world() and dist.is_initialized():
        grids = {mesh: _grid(mesh) for mesh in sorted(meshes)}
        made = {path: _as_it_was(part, grids) for path, part in parts.items()}
    else:
        made = _resharded(parts, load, files)
    return _filled(state, made)


def wholes(states: Sequence[Any], load: Load) -> list[Any]:
    """All ranks' files, with every sharded tensor whole; for a process without a process group.

    The whole of a tensor is made once: the states share it.
    """
    parts = dict(_parts(states[0]))
    if not parts:
        return [*states]
    made = _resharded(parts, load, len(states))
    return [_filled(state, made) for state in states]


def _told(value: Any, kinds: Any) -> dict[str, Any]:
    """A sharded tensor as this rank's part of it and where that belongs."""
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
    """Where this rank's part begins, as `torch.distributed.checkpoint` plans to write it."""
    from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

    if not value.to_local().numel():
        return [0] * value.ndim
    planner = DefaultSavePlanner()
    planner.set_up_planner({"": value}, is_coordinator=False)
    (item,) = planner.create_local_plan().items
    assert item.tensor_data is not None
    return list(item.tensor_data.chunk.offsets)


def _parts(value: Any, path: Path = ()) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    if isinstance(value, Mapping):
        if _MARK in value:
            yield path, value
            return
        for key, inner in value.items():
            yield from _parts(inner, (*path, key))
    elif isinstance(value, list | tuple):
        for place, inner in enumerate(value):
            yield from _parts(inner, (*path, place))


def _filled(value: Any, made: Mapping[Path, Any], path: Path = ()) -> Any:
    if path in made:
        return made[path]
    if isinstance(value, dict):
        for key in value:
            value[key] = _filled(value[key], made, (*path, key))
        return value
    if type(value) in (list, tuple):
        return type(value)(_filled(v, made, (*path, i)) for i, v in enumerate(value))
    return value


def _world() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


# --- as many ranks as there were ------------------------------------------------------------------


def _grid(shape: Sequence[int]) -> Any:
    """All ranks in order, on the host; in one dimension it opens no process groups of its own."""
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", tuple(shape))


def _as_it_was(part: Mapping[str, Any], grids: Mapping[tuple[int, ...], Any]) -> Tensor:
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        part["local"],
        grids[tuple(part["mesh"])],
        _placements(part),
        run_check=False,
        shape=torch.Size(part["shape"]),
        stride=tuple(part["stride"]),
    )


def _placements(part: Mapping[str, Any]) -> list[Any]:
    from torch.distributed.tensor import Replicate, Shard

    return [Replicate() if dim == _WHOLE else Shard(dim) for dim in part["placements"]]


# --- another number of ranks ----------------------------------------------------------------------


def _resharded(
    parts: Mapping[Path, Mapping[str, Any]], load: Load, files: int
) -> dict[Path, Tensor]:
    from autotune.backends.worker.resharding import Shelf, fill

    grid = _grid([_world()]) if dist.is_initialized() else None
    wanted = {path: _empty(part, grid) for path, part in parts.items()}
    shelf = Shelf(lambda rank, device: dict(_parts(load(rank, device))), files)
    fill({str(path): tensor for path, tensor in wanted.items()}, shelf)
    return wanted


def _empty(part: Mapping[str, Any], grid: Any) -> Tensor:
    shape, dtype = part["shape"], part["local"].dtype
    if grid is None:
        return torch.empty(shape, dtype=dtype)
    if len(part["mesh"]) > 1:
        raise ValueError(
            f"a checkpoint sharded over {' x '.join(map(str, part['mesh']))} ranks can only be "
            f"read by as many, or without a process group, and here are {_world()}"
        )
    from torch.distributed.tensor import empty

    return empty(*shape, dtype=dtype, device_mesh=grid, placements=_placements(part))
