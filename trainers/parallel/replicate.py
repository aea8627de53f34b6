"""The whole model on every rank, with averaged gradients (torch's `DistributedDataParallel`).

Gradients are averaged in buckets while the backward pass computes the next ones. Li et al. 2020,
arXiv 2006.15704.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from inspect import signature
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from trainers.communication.exchange import Exchange
from trainers.communication.wire import HOOKS
from trainers.data.stream import Batch
from trainers.parallel import topology
from trainers.parallel.protocol import Forward, Loss
from trainers.parallel.ranks import Ranks
from trainers.parallel.states import load
from trainers.parallel.update import Update
from trainers.readers import Number, flag, optional
from trainers.technique import Knob, degree

_NAMES = ("forward_sync_buffers", "broadcast_buffers")  # the second up to torch 2.12
OWN_BUFFERS: dict[str, Any] = {
    next(n for n in _NAMES if n in signature(DistributedDataParallel).parameters): False
}
"""Every rank has its own buffers during training; see `averaged_buffers`."""

_MEGABYTES = Number(0.0, 1e6, open_low=True)
KNOBS: Mapping[str, Knob] = {
    "data_parallel_replicate_degree": Knob(-1, degree, "exact"),
    "bucket_cap_mb": Knob(None, optional(_MEGABYTES), "exact", topology.COPIES),
    "static_graph": Knob(False, flag, "exact", topology.COPIES),
}


class Replicated:
    """A model of which every rank has a copy.

    Args:
        bucket_cap_mb: size of a bucket, in 2^20 bytes; None: 1 for the first, 25 for the others.
        static_graph: every backward pass reaches the same parameters; DDP then looks once. Its
            first pass must be one of all ranks, so it is made after the passes that are not.
        averaging: of the gradients; None: over all ranks at once.
        bits: of `trainers.communication.wire`, with which they are averaged; else none.
        exchange: of the gradients, in the steps that it compresses.
    """

    collective = False
    counts = True
    owned = None

    def __init__(
        self,
        model: nn.Module,
        data: Ranks,
        forward: Forward,
        bucket_cap_mb: float | None = None,
        static_graph: bool = False,
        averaging: topology.InLevels | None = None,
        bits: str = "none",
        exchange: Exchange | None = None,
    ) -> None:
        self.data = data
        self._model = model
        self._forward = forward
        self._bucket_cap_mb = bucket_cap_mb
        self._static_graph = static_graph
        self._averaging = averaging
        self._hook = HOOKS.get(bits)
        self.exchange = exchange
        self.update: Update | None = None if exchange is None else exchange.update
        self.network: nn.Module = model
        if not static_graph and exchange is None:
            self._wrap()

    def _wrap(self) -> None:
        device = self.data.device
        network = DistributedDataParallel(
            self._model,
            device_ids=[device] if device.type == "cuda" else None,
            gradient_as_bucket_view=True,
            bucket_cap_mb=self._bucket_cap_mb,
            static_graph=self._static_graph,
            **OWN_BUFFERS,
        )
        if self._averaging is not None:
            network.register_comm_hook(self._averaging, topology.hook)
        elif self._hook is not None:
            network.register_comm_hook(self.data.group or dist.group.WORLD, self._hook)
        self.network = network

    def at(self, progress: float) -> None:
        if self.exchange is not None:
            self.exchange.at(progress)

    def gradients(self, parts: Sequence[Batch], loss: Loss) -> None:
        if self.exchange is not None and self.exchange.next():
            self.alone(parts, loss)
            self.exchange.average()
            return
        if self.network is self._model:
            self._wrap()
        if len(parts) > 1:
            self.alone(parts[:-1], loss)
        self._forward.backward(self.network, parts[-1], loss)

    def alone(self, parts: Sequence[Batch], loss: Loss) -> None:
        network = self.network
        with network.no_sync() if isinstance(network, DistributedDataParallel) else nullcontext():
            for part in parts:
                self._forward.backward(network, part, loss)

    def evaluate(self, x: Tensor) -> Tensor | None:
        return self._forward.scores(self._model, x)

    def labels(self, y: Tensor) -> Tensor:
        return y

    def changed(self) -> None: ...

    def state(self) -> dict[str, Any]:
        return dict(self._model.state_dict())

    def restore(self, state: dict[str, Any], optimizer: Optimizer) -> dict[str, Any]:
        return load(state, self._model, optimizer)

    def close(self) -> None:
        """Free DDP's hooks, and end what averages gradients."""
        if self._averaging is not None:
            self._averaging.close()
        del self.network, self._model
