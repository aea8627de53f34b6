"""Ranks in a mesh of several dimensions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

_OPEN: dict[tuple[str, tuple[tuple[str, int], ...]], DeviceMesh] = {}


def opened(device: str, degrees: Mapping[str, int]) -> DeviceMesh:
    """All ranks in order; the last dimension has neighbouring ranks.

    A process keeps its meshes, and their groups, as long as its process group: torch takes meshes
    of one shape for the same, and would go on with the groups of the first, closed or not: it
    raises, or sums over the wrong ranks.

    Args:
        device: kind of device.
        degrees: the length of each dimension by its name; their product is the number of ranks.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.utils._python_dispatch import _disable_current_modes

    key = device, tuple(degrees.items())
    found = _OPEN.get(key)
    if found is None or not _lives(found):
        names = tuple(degrees)
        with _disable_current_modes():  # a prediction of memory has tensors without numbers
            found = init_device_mesh(device, tuple(degrees.values()), mesh_dim_names=names)
        _OPEN[key] = found
    return found


def of_samples(device: str, degrees: Mapping[str, int]) -> DeviceMesh:
    """Ranks that have other samples ("data"), and ranks that have the same ("samples").

    Args:
        degrees: of a plan, without -1.
    """
    copies, shards, tensor, pipeline, context = degrees.values()
    spread = {"data": copies * shards, "samples": tensor * context}
    if pipeline > 1:  # the last ranks of a pipeline are far from the first
        spread = {"samples": pipeline, "data": copies * shards}
    return opened(device, spread)


def of_weights(device: str, degrees: Mapping[str, int]) -> DeviceMesh:
    """Ranks with copies, with parts of a copy ("dp_shard"), and with parts of its matrices ("tp").

    Args:
        degrees: of a plan, without -1.
    """
    copies, shards, tensor, _, context = degrees.values()
    spread = {"dp_shard": shards * context}
    if copies > 1 or tensor > 1:
        spread = {"dp_replicate": copies, **spread}
    return opened(device, spread if tensor == 1 else {**spread, "tp": tensor})


def part(mesh: DeviceMesh, *names: str) -> DeviceMesh:
    """This rank's mesh of some of the dimensions."""
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes():
        return mesh[names]


def forget() -> None:
    """The process group is closed, and with it the meshes."""
    _OPEN.clear()


def _lives(mesh: DeviceMesh) -> bool:
    """Whether the mesh's groups have not been closed with the process group."""
    try:
        return all(group.size() for group in mesh.get_all_groups())
    except (RuntimeError, ValueError):
        return False
