"""One rank's part of a parameter server: a block of table and dense weights, and its thread."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from trainers.sparse.exchange import Blocks
from trainers.sparse.protocol import Parts
from trainers.sparse.rules import Rates

HEAD, ROWS, VALUES, REPLY = 71, 72, 73, 74
"""The tags of messages; all but a reply begin with a head: its kind, the step, rows."""

PULL, PUSH, END = 0, 1, 2
"""The kinds: a request for rows, the update of a step, and that no more will come."""

RATES = 6
"""The rates of a step: those of the table, those of the dense part."""


@dataclass(frozen=True)
class Asked:
    """A request for rows that cannot be answered yet."""

    rank: int
    step: int
    rows: Tensor


class Server:
    """One rank's block of table and dense weights between two milestones, and who reads it.

    Args:
        bound: steps by which the weights that a step reads may be behind.
    """

    def __init__(self, parts: Parts, bound: int) -> None:
        self._parts = parts
        self._bound = bound
        low, high = Blocks(len(parts.dense.weight), parts.ranks.size).span(parts.ranks.rank)
        self.dense = parts.dense.part(low, high).copied()
        self._steps = [0] * parts.ranks.size  # of each rank, whose updates are made here
        self._asked: list[Asked] = []
        self._sent: dict[int, tuple[dist.Work, Tensor]] = {}
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._serve, name="clicks-server", daemon=True)
        self._thread.start()

    def pull(self, step: int, rows: Tensor) -> tuple[Tensor, int]:
        """This rank's own request: as of `_answer`, and how many steps it is behind."""
        with self._changed:
            self._changed.wait_for(lambda: self._error is not None or self._ready(step))
            if self._error is not None:
                raise RuntimeError("the thread that serves a block has failed") from self._error
            answer = self._answer(step, rows)
        return answer[:-1], int(answer[-1])

    def push(self, rank: int, step: int, rows: Tensor, values: Tensor) -> None:
        """Make the update of one rank's step: gradients of rows, of the dense block, and rates."""
        parts, width = self._parts, self._parts.table.weight.shape[1]
        count, block = len(rows) * width, len(self.dense.weight)
        table, dense, rates = torch.split(values, [count, block, RATES])
        numbers = rates.tolist()
        with self._changed:
            index, gradient = rows - parts.start, table.view(-1, width)
            parts.sparse_rule.update(parts.table, index, gradient, Rates(*numbers[:3]))
            every, gradient = slice(None), dense.unsqueeze(1)
            parts.dense_rule.update(self.dense, every, gradient, Rates(*numbers[3:]))
            self._steps[rank] = step + 1
            self._changed.notify_all()
            self._send()

    def join(self) -> None:
        """Wait until all ranks have said that they have sent all."""
        self._thread.join()
        if self._error is not None:
            raise RuntimeError("the thread that serves a block has failed") from self._error
        for work, _ in self._sent.values():
            work.wait()

    def _ready(self, step: int) -> bool:
        return min(self._steps) >= step - self._bound

    def _answer(self, step: int, rows: Tensor) -> Tensor:
        """The weights of some rows and of the dense block, and the staleness, in one vector."""
        behind = torch.tensor([max(step - min(self._steps), 0)], dtype=torch.float32)
        table = self._parts.table.weight[rows - self._parts.start]
        return torch.cat([table.flatten(), self.dense.weight.flatten(), behind])

    def _send(self) -> None:
        """Answer those that have waited long enough."""
        ready = [one for one in self._asked if self._ready(one.step)]
        self._asked = [one for one in self._asked if not self._ready(one.step)]
        for one in ready:
            if one.rank in self._sent:  # it has come, or the rank would not ask again
                self._sent[one.rank][0].wait()
            answer = self._answer(one.step, one.rows)
            self._sent[one.rank] = sending(answer, one.rank, REPLY, self._parts), answer

    def _serve(self) -> None:
        try:
            left = self._parts.ranks.size - 1
            while left:
                left -= self._served()
        except BaseException as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _served(self) -> bool:
        """Serve the next message; whether it was the last one of a rank."""
        group, head = self._parts.ranks.group, torch.zeros(3, dtype=torch.int64)
        source = dist.recv(head, group=group, tag=HEAD)
        kind, step, count = head.tolist()
        if kind == END:
            return True
        rows = torch.zeros(count, dtype=torch.int64)
        dist.recv(rows, source, group=group, tag=ROWS)
        if kind == PULL:
            with self._changed:
                self._asked.append(Asked(source, step, rows))
                self._send()
            return False
        width = self._parts.table.weight.shape[1]
        values = torch.zeros(count * width + len(self.dense.weight) + RATES)
        dist.recv(values, source, group=group, tag=VALUES)
        self.push(source, step, rows, values)
        return False


def sending(values: Tensor, rank: int, tag: int, parts: Parts) -> dist.Work:
    work = dist.isend(values, rank, group=parts.ranks.group, tag=tag)
    assert work is not None, "this rank is in the group"
    return work
