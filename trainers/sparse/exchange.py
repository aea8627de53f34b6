"""Rows of a table that is sharded over the ranks: whose they are, and messages of some of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

import torch
import torch.distributed as dist
from torch import Tensor

from trainers.parallel.ranks import Ranks


@dataclass(frozen=True)
class Blocks:
    """The rows of a table in contiguous blocks, one for each rank, as `Shard(0)` divides them.

    Args:
        rows: of the whole table.
        ranks: the number of blocks; the last ones may be shorter, or empty.
    """

    rows: int
    ranks: int

    @property
    def length(self) -> int:
        return -(-self.rows // self.ranks)

    def span(self, rank: int) -> tuple[int, int]:
        """The rows [start, stop) of a rank.

        >>> [Blocks(5, 4).span(rank) for rank in range(4)]
        [(0, 2), (2, 4), (4, 5), (5, 5)]
        """
        return min(rank * self.length, self.rows), min((rank + 1) * self.length, self.rows)

    def counts(self, rows: Tensor) -> list[int]:
        """How many of some ascending rows each rank has."""
        edges = torch.tensor([self.span(rank)[1] for rank in range(self.ranks)])
        below = torch.searchsorted(rows, edges)
        found: list[int] = torch.diff(below, prepend=below.new_zeros(1)).tolist()
        return found


def spread(rows: int) -> int:
    """A factor that is coprime to `rows`: row r of the features is in place r * factor mod rows.

    Frequent rows are often neighbours, and a feature's rows are; so each rank gets its part of
    both. The places do not depend on the number of ranks.

    >>> sorted(r * spread(12) % 12 for r in range(12)) == list(range(12))
    True
    """
    factor = max(int(rows * 0.6180339887), 1)
    while gcd(factor, rows) > 1:
        factor += 1
    return factor


def merged(rows: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The distinct rows, ascending; the sum of the values of each; and how many there were."""
    distinct, index, counts = torch.unique(rows, return_inverse=True, return_counts=True)
    total = values.new_zeros((len(distinct), values.shape[1])).index_add_(0, index, values)
    return distinct, total, counts


def swapped(values: Tensor, counts: Sequence[int], taken: Sequence[int], ranks: Ranks) -> Tensor:
    """Send consecutive parts of `values` to the ranks, and get one from each.

    Args:
        counts: the lengths of the parts to send.
        taken: the lengths of those that come.
    """
    if ranks.size == 1:
        return values
    found = values.new_empty((sum(taken), *values.shape[1:]))
    dist.all_to_all_single(found, values.contiguous(), list(taken), list(counts), group=ranks.group)
    return found


def announced(counts: Sequence[int], ranks: Ranks) -> list[int]:
    """How much comes from each rank, where each says how much it sends to each."""
    if ranks.size == 1:
        return [*counts]
    ones = [1] * ranks.size
    found: list[int] = swapped(torch.tensor(counts), ones, ones, ranks).tolist()
    return found


def gathered(values: Tensor, ranks: Ranks) -> Tensor:
    """The values of all ranks, one after another; they may differ in length."""
    if ranks.size == 1:
        return values
    counts = torch.zeros(ranks.size, dtype=torch.int64)
    counts[ranks.rank] = len(values)
    lengths = ranks.sum(counts).tolist()
    longest = max(lengths)
    if not longest or 0 in values.shape[1:]:
        return values.new_empty((sum(lengths), *values.shape[1:]))
    padded = values.new_zeros((longest, *values.shape[1:]))
    padded[: len(values)] = values
    parts = [torch.empty_like(padded) for _ in lengths]
    dist.all_gather(parts, padded, group=ranks.group)
    return torch.cat([part[:n] for part, n in zip(parts, lengths, strict=True)])
