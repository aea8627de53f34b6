"""The weights of a click model on the ranks: made, saved, restored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from trainers.data.stream import generator
from trainers.parallel import mesh
from trainers.parallel.ranks import Ranks
from trainers.sparse.exchange import Blocks
from trainers.sparse.rules import Rows

_CHUNK = 4096  # rows that are drawn at once
_DEVIATION = 0.1


def begun(blocks: Blocks, columns: int, seed: int, rank: int) -> Tensor:
    """The weights of a rank's rows before training; those of a row depend on the seed alone.

    Embeddings are normal with deviation 0.1; the last column, a weight of the row alone, is 0.
    """
    start, stop = blocks.span(rank)
    found = torch.zeros((stop - start, columns))
    for chunk in range(start // _CHUNK, -(-stop // _CHUNK)):
        low, high = max(chunk * _CHUNK, start), min((chunk + 1) * _CHUNK, stop)
        drawn = torch.randn((_CHUNK, columns - 1), generator=generator(seed, chunk))
        part = drawn[low - chunk * _CHUNK : high - chunk * _CHUNK]
        found[low - start : high - start, :-1] = _DEVIATION * part
    return found


def saved(table: Rows, dense: Rows, blocks: Blocks, ranks: Ranks) -> dict[str, Any]:
    """A checkpoint of this rank: its part of the table, as a sharded tensor, and the dense part."""
    return {
        "table": {
            "weight": _sharded(table.weight, blocks, ranks),
            "state": _sharded(table.state, blocks, ranks),
        },
        "dense": {"weight": dense.weight, "state": dense.state},
    }


def restore(state: Mapping[str, Any], table: Rows, dense: Rows, blocks: Blocks, rank: int) -> None:
    """Take over a checkpoint, of any number of ranks.

    Raises:
        ValueError: it is one of another table, model or optimizer; one line.
    """
    own = {"table": table, "dense": dense}
    for part, rows in own.items():
        for name in ("weight", "state"):
            kept, target = state[part][name], getattr(rows, name)
            if part == "table":
                kept = _own(kept, blocks, rank)
            if kept.shape != target.shape:
                wanted, got = tuple(target.shape), tuple(kept.shape)
                rule = f"have {name} of the {part} in the shape {wanted} of this configuration"
                raise ValueError(f"state must {rule}, got {got}")
            target.copy_(kept)


def _sharded(own: Tensor, blocks: Blocks, ranks: Ranks) -> Tensor:
    if ranks.size == 1:
        return own
    from torch.distributed.tensor import DTensor, Shard

    shape = torch.Size((blocks.rows, own.shape[1]))
    return DTensor.from_local(
        own,
        mesh.opened("cpu", {"rows": ranks.size}),
        [Shard(0)],
        run_check=False,
        shape=shape,
        stride=(shape[1], 1),
    )


def _own(value: Any, blocks: Blocks, rank: int) -> Tensor:
    """This rank's rows of a tensor that is whole, or sharded over the present ranks."""
    local: Tensor = value.to_local() if hasattr(value, "placements") else value
    if hasattr(value, "placements") or len(value) != blocks.rows:
        return local
    start, stop = blocks.span(rank)
    return local[start:stop]
