"""Asynchronous updates of sharded weights, with bounded staleness: a parameter server on each rank.

A rank owns a block of the table and a block of the dense weights. It asks the owners for what a
batch needs, computes, and sends its gradients without waiting; a thread of each rank serves such
requests while the rank computes. Nobody waits for a slower rank, unless it is behind by more than
the bound: before step t a rank waits until all updates of the steps before t - bound are made (Ho
et al. 2013, stale synchronous parallel; Li et al. 2014, parameter server).
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from trainers.sparse.exchange import Blocks, gathered
from trainers.sparse.passes import lookup
from trainers.sparse.rules import Rates, Rows
from trainers.sparse.seam import Parts, Seen, Step
from trainers.sparse.synchronous import Synchronous

_HEAD, _ROWS, _VALUES, _REPLY = 71, 72, 73, 74  # tags of messages
_PULL, _PUSH, _END = 0, 1, 2
_RATES = 6


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
        table, dense, rates = values.split((count, block, _RATES))
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
            self._sent[one.rank] = _sending(answer, one.rank, _REPLY, self._parts), answer

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
        source = dist.recv(head, group=group, tag=_HEAD)
        kind, step, count = head.tolist()
        if kind == _END:
            return True
        rows = torch.zeros(count, dtype=torch.int64)
        dist.recv(rows, source, group=group, tag=_ROWS)
        if kind == _PULL:
            with self._changed:
                self._asked.append(Asked(source, step, rows))
                self._send()
            return False
        width = self._parts.table.weight.shape[1]
        values = torch.zeros(count * width + len(self.dense.weight) + _RATES)
        dist.recv(values, source, group=group, tag=_VALUES)
        self.push(source, step, rows, values)
        return False


class Asynchronous:
    """`Update` by servers; ranks wait for each other at milestones.

    The staleness of a step is the number of steps by which the slowest rank's updates are missing
    in what it has read, at most `bound`.
    """

    def __init__(self, parts: Parts, bound: int) -> None:
        self._parts = parts
        self._bound = bound
        self._settled = Synchronous(parts)
        self._dense = Blocks(len(parts.dense.weight), parts.ranks.size)
        self._server: Server | None = None
        self._sent: list[tuple[dist.Work, Tensor]] = []
        self._step = 0
        self.seen = Seen()

    def begin(self) -> None:
        self.seen = Seen()
        self._step = 0
        self._server = Server(self._parts, self._bound)

    def step(self, step: Step) -> None:
        parts, known = self._parts, lookup(step.batch)
        shares = known.rows.split(parts.blocks.counts(known.rows))
        values, dense, behind = self._pulled(shares)
        found = parts.net.gradient(values, dense, step.batch, known.index, step.samples)
        rates = [getattr(r, k) for r in (step.sparse, step.dense) for k in ("lr", "beta1", "beta2")]
        gradients = found.rows.split([len(rows) for rows in shares])
        blocks = found.dense.split([high - low for low, high in self._spans()])
        for rank, rows in enumerate(shares):
            sent = torch.cat(
                [gradients[rank].flatten(), blocks[rank].flatten(), torch.tensor(rates)]
            )
            if rank == parts.ranks.rank:
                self._at.push(rank, self._step, rows, sent)
            else:
                self._send(rank, _PUSH, rows, sent)
        self.seen.add(behind, found.loss)
        self._step += 1

    @property
    def _at(self) -> Server:
        assert self._server is not None, "between begin and settle"
        return self._server

    def _spans(self) -> list[tuple[int, int]]:
        return [self._dense.span(rank) for rank in range(self._dense.ranks)]

    def _pulled(self, shares: tuple[Tensor, ...]) -> tuple[Tensor, Tensor, int]:
        """The weights of a batch's rows, all dense weights, and how many steps they are behind."""
        parts, width = self._parts, self._parts.table.weight.shape[1]
        others = [rank for rank in range(parts.ranks.size) if rank != parts.ranks.rank]
        earlier, self._sent = self._sent, []
        for rank in others:
            self._send(rank, _PULL, shares[rank])
        own, most = self._at.pull(self._step, shares[parts.ranks.rank])
        answers = {parts.ranks.rank: own}
        for rank in others:
            low, high = self._dense.span(rank)
            answer = torch.zeros(shares[rank].numel() * width + high - low + 1)
            dist.recv(answer, rank, group=parts.ranks.group, tag=_REPLY)
            answers[rank], most = answer[:-1], max(most, int(answer[-1]))
        for work, _ in earlier:  # who answered has had all that was sent before
            work.wait()
        rows, dense = [], []
        for rank, share in enumerate(shares):
            rows.append(answers[rank][: len(share) * width].view(-1, width))
            dense.append(answers[rank][len(share) * width :])
        return torch.cat(rows), torch.cat(dense).unsqueeze(1), most

    def _send(self, rank: int, kind: int, rows: Tensor, values: Tensor | None = None) -> None:
        messages = [(torch.tensor([kind, self._step, len(rows)]), _HEAD)]
        if kind != _END:
            messages.append((rows.contiguous(), _ROWS))
        if values is not None:
            messages.append((values, _VALUES))
        for message, tag in messages:
            self._sent.append((_sending(message, rank, tag, self._parts), message))

    def settle(self) -> None:
        ranks = self._parts.ranks
        for rank in range(ranks.size):
            if rank != ranks.rank:
                self._send(rank, _END, torch.zeros(0, dtype=torch.int64))
        for work, _ in self._sent:
            work.wait()
        self._sent.clear()
        self._at.join()
        dense = self._at.dense
        self._parts.dense.weight.copy_(gathered(dense.weight, ranks))
        self._parts.dense.state.copy_(gathered(dense.state, ranks))
        self._server = None

    def weights(self, rows: Tensor) -> Tensor:
        return self._settled.weights(rows)

    def own(self) -> Rows:
        return self._parts.table

    def close(self) -> None:
        """Do nothing: the thread ends with each milestone, or with the other ranks."""


def _sending(values: Tensor, rank: int, tag: int, parts: Parts) -> dist.Work:
    work = dist.isend(values, rank, group=parts.ranks.group, tag=tag)
    assert work is not None, "this rank is in the group"
    return work
