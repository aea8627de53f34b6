"""Updates of a copy of the table on each rank: Geo-SGD, and Hogwild inside a rank.

Each rank trains on a copy of its own. Every `push_every` steps, and before a milestone, the ranks
exchange the rows that they have touched since: a row becomes the mean of those of the ranks that
touched it, the dense weights the mean of all ranks', with the optimizers' states. That is each
rank's difference from the last exchange, averaged and added. Geo-SGD: Paddle Fleet's parameter
server (github.com/PaddlePaddle/PaddleFleetX); local steps: Stich 2018, arXiv 1805.09767.

With several workers, threads of a rank train on its copy without locks: Niu et al. 2011, arXiv
1106.5730. Their order is up to the machine, so that no two runs are equal to the bit.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import torch
from torch import Tensor

from trainers.parallel.ranks import average
from trainers.sparse.exchange import gathered, merged
from trainers.sparse.passes import Net, lookup
from trainers.sparse.protocol import Parts, Seen, Step
from trainers.sparse.rules import Rows


class Local:
    """`Update` of a copy.

    The staleness is the number of updates that were made to the weights (by this rank's workers),
    or that are still to be exchanged (by each other rank), since a step has read them. It is below
    `push_every`.

    Args:
        push_every: steps between two exchanges; workers wait for each other there.
        workers: threads of this rank.
    """

    def __init__(self, parts: Parts, push_every: int, workers: int) -> None:
        own = parts.table
        self._table = Rows(gathered(own.weight, parts.ranks), gathered(own.state, parts.ranks))
        self._parts = parts
        self._every = push_every
        self._nets = [parts.net, *(parts.net.twin() for _ in range(workers - 1))]
        self._threads = ThreadPoolExecutor(workers, "clicks-hogwild") if workers > 1 else None
        self._waiting: list[Step] = []
        self._touched: list[Tensor] = []
        self._since = 0
        self._updates = count()
        self._made = 0
        self.seen = Seen()

    def begin(self) -> None:
        self.seen = Seen()

    def step(self, step: Step) -> None:
        self._since += 1
        if self._threads is None:
            self.seen.add(*self._made_by(self._nets[0], step, self._since - 1))
        else:
            self._waiting.append(step)
        if self._since == self._every:
            self.settle()

    def _made_by(self, net: Net, step: Step, before: int) -> tuple[int, float]:
        """Make one step of the shared weights; its staleness and loss.

        Args:
            before: steps since the last exchange, which no other rank has seen.
        """
        parts, table, dense = self._parts, self._table, self._parts.dense
        known, read = lookup(step.batch), self._made
        samples = max(len(step.batch), 1)
        values = table.weight[known.rows]
        found = net.gradient(values, dense.weight, step.batch, known.index, samples)
        parts.sparse_rule.update(table, known.rows, found.rows, step.sparse)
        parts.dense_rule.update(dense, slice(None), found.dense, step.dense)
        self._touched.append(known.rows)
        number = next(self._updates)
        self._made = number + 1
        others = before if parts.ranks.size > 1 else 0
        return max(number - read, others), found.loss

    def settle(self) -> None:
        if self._threads is not None:
            self._race(self._threads)
        if self._parts.ranks.size > 1:
            self._exchange()
        self._touched.clear()
        self._since = self._made = 0
        self._updates = count()

    def _race(self, threads: ThreadPoolExecutor) -> None:
        """Make the waiting steps, in order of arrival, with all workers at once."""
        left = deque(enumerate(self._waiting))
        self._waiting = []
        work = [threads.submit(self._worked, net, left) for net in self._nets]
        errors = [error for one in work if (error := one.exception()) is not None]
        if errors:
            raise errors[0]
        for one in work:
            for staleness, loss in one.result():
                self.seen.add(staleness, loss)

    def _worked(self, net: Net, left: deque[tuple[int, Step]]) -> list[tuple[int, float]]:
        found = []
        while left:
            try:
                before, step = left.popleft()
            except IndexError:  # another worker took the last one
                break
            found.append(self._made_by(net, step, before))
        return found

    def _exchange(self) -> None:
        parts, none = self._parts, torch.zeros(0, dtype=torch.int64)
        own = torch.unique(torch.cat([none, *self._touched]))
        rows, total, counts = merged(
            gathered(own, parts.ranks), gathered(self._table.joined(own), parts.ranks)
        )
        self._table.put(rows, total / counts.unsqueeze(1))
        average([parts.dense.weight, parts.dense.state], parts.ranks)

    def weights(self, rows: Tensor) -> Tensor:
        return self._table.weight[rows]

    def own(self) -> Rows:
        return self._table.part(*self._parts.blocks.span(self._parts.ranks.rank))

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown()
