"""What the trainer of clicks asks of each way to update its weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from trainers.models.clicks import Batch
from trainers.parallel.ranks import Ranks
from trainers.sparse.exchange import Blocks
from trainers.sparse.passes import Net
from trainers.sparse.rules import Rates, Rows, Rule


@dataclass(frozen=True)
class Step:
    """One step on this rank.

    Args:
        batch: this rank's share.
        samples: of the shares of all ranks.
        sparse: rates of the table.
        dense: rates of the dense part.
    """

    batch: Batch
    samples: int
    sparse: Rates
    dense: Rates


@dataclass(frozen=True)
class Parts:
    """What every way of updating is made of.

    Args:
        table: this rank's rows of the table.
        dense: all dense weights, one a row; the same on all ranks.
        blocks: of the table's rows.
        sparse_rule: the optimizer of the table.
        dense_rule: the optimizer of the dense part.
    """

    net: Net
    table: Rows
    dense: Rows
    blocks: Blocks
    sparse_rule: Rule
    dense_rule: Rule
    ranks: Ranks

    @property
    def start(self) -> int:
        """The first of this rank's rows."""
        return self.blocks.span(self.ranks.rank)[0]


@dataclass
class Seen:
    """Staleness and losses since the last milestone.

    Staleness is that of the weights a gradient is computed with, in steps; each way of updating
    says which steps are counted.
    """

    steps: int = 0
    total: int = 0
    most: int = 0
    loss: float = 0.0

    def add(self, staleness: int, loss: float) -> None:
        self.steps += 1
        self.total += staleness
        self.most = max(self.most, staleness)
        self.loss += loss

    def over(self, ranks: Ranks) -> Seen:
        """Of all ranks together."""
        sums = ranks.sum(torch.tensor([self.steps, self.total, self.loss], dtype=torch.float64))
        each = torch.zeros(ranks.size, dtype=torch.int64)
        each[ranks.rank] = self.most
        steps, total, loss = sums.tolist()
        return Seen(int(steps), int(total), int(ranks.sum(each).max()), loss)


class Update(Protocol):
    """One way of updating; its steps are between `begin` and `settle`."""

    seen: Seen

    def begin(self) -> None:
        """Training goes on, on all ranks, from weights that agree."""
        ...

    def step(self, step: Step) -> None: ...

    def settle(self) -> None:
        """Wait until every update is in the weights, on all ranks; no thread is at work then."""
        ...

    def weights(self, rows: Tensor) -> Tensor:
        """The weights of some ascending rows, once settled; all ranks ask together."""
        ...

    def own(self) -> Rows:
        """This rank's block of the table, once settled."""
        ...

    def close(self) -> None:
        """End threads."""
        ...
