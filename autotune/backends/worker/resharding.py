"""A storage reader for `torch.distributed.checkpoint` over the files of the ranks.

torch plans which pieces of which shards make up the wanted tensors; the pieces are read from files
in our own format (`sharded_tensors`), with `torch.load(weights_only=True)`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

Shards = Mapping[str, Mapping[str, Any]]
Key = tuple[str, tuple[int, ...]]
"""Which tensor, and where in it a shard begins."""


class RankFiles(StorageReader):
    """The files of a number of ranks; `load` reads the shards in one of them to a device."""

    def __init__(self, load: Callable[[int, str], Shards], files: int) -> None:
        self._load = load
        self._rank_of: dict[Key, int] = {}
        self._metadata = self._read_metadata(files)

    def _read_metadata(self, files: int) -> Metadata:
        """Which rank has which shard; all files are read, and so checked, before the planning."""
        found: dict[str, TensorStorageMetadata] = {}
        for rank in range(files):
            for name, shard in self._load(rank, "meta").items():
                local, shape = shard["local"], torch.Size(shard["shape"])
                made = TensorStorageMetadata(TensorProperties(local.dtype), shape, [])
                tensor = found.setdefault(name, made)
                if (tensor.size, tensor.properties.dtype) != (shape, local.dtype):
                    raise ValueError(f"rank {rank} has another {name} than those before")
                key = name, tuple(shard["offsets"])
                if local.numel() and key not in self._rank_of:
                    self._rank_of[key] = rank
                    tensor.chunks.append(ChunkStorageMetadata(torch.Size(key[1]), local.shape))
        return Metadata(found)  # type: ignore[arg-type]

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        return self._metadata

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        by_rank: dict[int, list[Any]] = {}
        for item in plan.items:
            by_rank.setdefault(self._rank_of[_key(item.storage_index)], []).append(item)
        for rank, items in by_rank.items():  # one file at a time in memory
            shards = {
                (name, tuple(shard["offsets"])): shard["local"]
                for name, shard in self._load(rank, "cpu").items()
            }
            for item in items:
                piece = shards[_key(item.storage_index)]
                for dim, (start, length) in enumerate(
                    zip(item.storage_offsets, item.lengths, strict=True)
                ):
                    piece = piece.narrow(dim, start, length)
                target = planner.resolve_tensor(item).detach()
                target.copy_(piece)
                planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def reset(self, checkpoint_id: Any = None) -> None:
        """Do nothing: the files are read once."""

    def set_up_storage_reader(self, metadata: Metadata, *_: Any, **__: Any) -> None:
        """Do nothing: which rank has which shard is known."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return checkpoint_id is None


def fill(wanted: dict[str, Tensor], files: RankFiles) -> None:
    """Read into the wanted tensors, which are whole or sharded over the present ranks.

    Raises:
        Exception: what `load` raised.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        try:
            load(wanted, storage_reader=files, no_dist=True)
        except CheckpointException as error:  # torch's, for one rank or many
            raise next(iter(error.failures.values()))[0] from None


def _key(index: MetadataIndex) -> Key:
    return index.fqn, tuple(index.offset or ())
