"""Asynchronous updates of sharded weights, with bounded staleness: a parameter server on each rank.

A rank owns a block of the table and a block of the dense weights. It asks the owners for what a
batch needs, computes, and sends its gradients without waiting; a thread of each rank serves such
requests while the rank computes. Nobody waits for a slower rank, unless it is behind by more than
the bound: before step t a rank waits until all updates of the steps before t - bound are made (Ho
et al. 2013, stale synchronous parallel; Li et al. 2014, parameter server).
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from trainers.sparse.exchange import Blocks, gathered
from trainers.sparse.passes import lookup
from trainers.sparse.protocol import Parts, Seen, Step
from trainers.sparse.rules import Rows
from trainers.sparse.server import END, HEAD, PULL, PUSH, REPLY, ROWS, VALUES, Server, sending
from trainers.sparse.synchronous import Synchronous


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
        shares = torch.split(known.rows, parts.blocks.counts(known.rows))
        values, dense, behind = self._pulled(shares)
        found = parts.net.gradient(values, dense, step.batch, known.index, step.samples)
        rates = [getattr(r, k) for r in (step.sparse, step.dense) for k in ("lr", "beta1", "beta2")]
        gradients = torch.split(found.rows, [len(rows) for rows in shares])
        blocks = torch.split(found.dense, [high - low for low, high in self._spans()])
        for rank, rows in enumerate(shares):
            sent = torch.cat(
                [gradients[rank].flatten(), blocks[rank].flatten(), torch.tensor(rates)]
            )
            if rank == parts.ranks.rank:
                self._at.push(rank, self._step, rows, sent)
            else:
                self._send(rank, PUSH, rows, sent)
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
            self._send(rank, PULL, shares[rank])
        own, most = self._at.pull(self._step, shares[parts.ranks.rank])
        answers = {parts.ranks.rank: own}
        for rank in others:
            low, high = self._dense.span(rank)
            answer = torch.zeros(shares[rank].numel() * width + high - low + 1)
            dist.recv(answer, rank, group=parts.ranks.group, tag=REPLY)
            answers[rank], most = answer[:-1], max(most, int(answer[-1]))
        for work, _ in earlier:  # who answered has had all that was sent before
            work.wait()
        rows, dense = [], []
        for rank, share in enumerate(shares):
            rows.append(answers[rank][: len(share) * width].view(-1, width))
            dense.append(answers[rank][len(share) * width :])
        return torch.cat(rows), torch.cat(dense).unsqueeze(1), most

    def _send(self, rank: int, kind: int, rows: Tensor, values: Tensor | None = None) -> None:
        messages = [(torch.tensor([kind, self._step, len(rows)]), HEAD)]
        if kind != END:
            messages.append((rows.contiguous(), ROWS))
        if values is not None:
            messages.append((values, VALUES))
        for message, tag in messages:
            self._sent.append((sending(message, rank, tag, self._parts), message))

    def settle(self) -> None:
        ranks = self._parts.ranks
        for rank in range(ranks.size):
            if rank != ranks.rank:
                self._send(rank, END, torch.zeros(0, dtype=torch.int64))
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
