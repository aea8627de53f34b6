"""Synchronous updates of a table that is sharded by rows: the same steps as on one rank.

Each rank asks the owners for the rows of its batch, and sends them its gradient of each row, summed
over its samples. An owner adds up what the ranks send for a row, and makes one step of it. The
dense gradients are summed over all ranks.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from trainers.sparse.exchange import announced, merged, swapped
from trainers.sparse.passes import lookup
from trainers.sparse.protocol import Parts, Seen, Step
from trainers.sparse.rules import Rows


@dataclass(frozen=True)
class Route:
    """What a lookup asked of the others, and they of this rank.

    Args:
        sent: how many rows of each rank this one has asked for.
        taken: how many each rank has asked of this one.
        rows: the latter.
    """

    sent: list[int]
    taken: list[int]
    rows: Tensor


class Synchronous:
    """`Update` with exact steps; all ranks make each together."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.seen = Seen()

    def begin(self) -> None:
        self.seen = Seen()

    def step(self, step: Step) -> None:
        parts, known = self._parts, lookup(step.batch)
        values, route = self._pulled(known.rows)
        dense = parts.dense
        found = parts.net.gradient(values, dense.weight, step.batch, known.index, step.samples)
        come = swapped(found.rows, route.sent, route.taken, parts.ranks)
        rows, gradient, _ = merged(route.rows, come)
        parts.sparse_rule.update(parts.table, rows - parts.start, gradient, step.sparse)
        parts.dense_rule.update(dense, slice(None), parts.ranks.sum(found.dense), step.dense)
        self.seen.add(0, found.loss)

    def _pulled(self, rows: Tensor) -> tuple[Tensor, Route]:
        parts = self._parts
        sent = parts.blocks.counts(rows)
        taken = announced(sent, parts.ranks)
        asked = swapped(rows, sent, taken, parts.ranks)
        values = parts.table.weight[asked - parts.start]
        return swapped(values, taken, sent, parts.ranks), Route(sent, taken, asked)

    def settle(self) -> None:
        """Do nothing: each step is complete."""

    def weights(self, rows: Tensor) -> Tensor:
        return self._pulled(rows)[0]

    def own(self) -> Rows:
        return self._parts.table

    def close(self) -> None:
        """Do nothing: there are no threads."""
