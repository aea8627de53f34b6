"""One exchange of random gradients by each compression, and what was sent and kept of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainers.communication import compression
from trainers.communication import exchange as exchanges
from trainers.communication.exchange import Exchange
from trainers.optimizers import make_optimizer
from trainers.parallel.ranks import Ranks

USUAL = {key: knob.default for key, knob in compression.KNOBS.items()}
SETTINGS: dict[str, dict[str, Any]] = {
    "powersgd": {"powersgd_start": 2},
    "powersgd, fp16": {"powersgd_start": 2, "powersgd_wire": "fp16"},
    "powersgd, cold": {"powersgd_start": 2, "powersgd_warm_start": False},
    "dgc": {"dgc_ratio": 0.1, "dgc_dense_below": 20, "dgc_warmup_steps": 3},
    "dgc, without momentum": {"dgc_ratio": 0.1, "dgc_dense_below": 20, "dgc_momentum": False},
    "one_bit": {"one_bit_warmup_steps": 2},
    "one_bit, lamb": {"one_bit_warmup_steps": 2},
}
"""Of every compression that keeps something back."""


class Network(nn.Module):
    """A matrix, a kernel and a vector."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        for name, shape in (("matrix", (30, 20)), ("kernel", (8, 4, 3, 3)), ("vector", (9,))):
            setattr(self, name, nn.Parameter(torch.randn(shape, generator=generator)))


def made(name: str, ranks: Ranks, **more: Any) -> tuple[Network, Exchange, torch.optim.Optimizer]:
    """A network with its exchange, which has `more` keys, and optimizer."""
    kind, _, rest = name.partition(", ")
    readers = compression.KEYS
    read = {key: readers[key][1](value) for key, value in {**SETTINGS[name], **more}.items()}
    network = Network()
    keys = {**USUAL, "gradient_compression": kind, **read}
    found = compression.exchange(keys, network, ranks, nullcontext)
    optimizer = {"dgc": "sgd", "powersgd": "sgd"}.get(kind, "lamb" if rest == "lamb" else "adamw")
    momentum = {"momentum": 0.9} if optimizer == "sgd" else {}
    steps = make_optimizer(optimizer, network, lr=0.01, **momentum)
    assert found is not None
    found.start(steps)
    return network, found, steps


def differences(name: str, ranks: Ranks, steps: int = 6) -> list[float]:
    """For each compressed step by how much what all sent and keep differs from what they had.

    Means over the ranks, relative to the largest number.
    """
    network, exchange, optimizer = made(name, ranks)
    generator = torch.Generator().manual_seed(ranks.rank)
    update = exchange.update
    found = []
    for _ in range(steps):
        for parameter in network.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        compressed = exchange.next()
        had = [had_of(exchange, optimizer, i, p) for i, p in enumerate(network.parameters())]
        exchange.average() if compressed else _average(network, ranks)
        given = [p.grad.clone() for p in network.parameters() if p.grad is not None]
        optimizer.step() if update is None else update.step(optimizer, None)
        for i, parameter in enumerate(network.parameters()) if compressed else ():
            sent = optimizer.state[parameter].get("exp_avg", given[i])
            kept = kept_of(exchange, i, parameter)
            both, all_had = (mean(tensor, ranks) for tensor in (sent + kept, had[i]))
            found.append(((both - all_had).abs().max() / all_had.abs().max()).item())
    return found


def had_of(exchange: Any, optimizer: Any, index: int, parameter: Tensor) -> Tensor:
    """What a rank has of a parameter before a message: its gradient or momentum, and the error."""
    own, shared, gradient = exchange.memory.own, exchange.memory.shared, parameter.grad
    if exchange.memory.kind == "one_bit":
        kept = optimizer.state[parameter].get("exp_avg", torch.zeros_like(parameter))
        return 0.9 * kept + 0.1 * gradient + own["errors"][index]
    if exchange.memory.kind == "powersgd":
        return gradient + own["errors"].get(index, torch.zeros_like(parameter))
    if index not in own["velocity"]:
        kept = shared.get("momentum", {}).get(index)
        return gradient if kept is None else 0.9 * kept + gradient
    momenta = own.get("momentum")
    corrected = gradient if momenta is None else 0.9 * momenta[index] + gradient
    return own["velocity"][index] + corrected


def kept_of(exchange: Exchange, index: int, parameter: Tensor) -> Tensor:
    """What a rank has kept back of a parameter."""
    name = "velocity" if exchange.memory.kind == "dgc" else "errors"
    return exchange.memory.own[name].get(index, torch.zeros_like(parameter))


def mean(tensor: Tensor, ranks: Ranks) -> Tensor:
    return ranks.sum(tensor.clone()) / ranks.size


def _average(network: nn.Module, ranks: Ranks) -> None:
    for parameter in network.parameters():
        assert parameter.grad is not None
        parameter.grad = mean(parameter.grad, ranks)


@contextmanager
def counted() -> Iterator[list[int]]:
    """The bytes of what is given to collectives in the body."""
    found: list[int] = []
    reduce, gather = dist.all_reduce, exchanges.all_gather

    def reduced(tensor: Tensor, *rest: Any, **named: Any) -> Any:
        found.append(tensor.nbytes)
        return reduce(tensor, *rest, **named)

    def gathered(into: Tensor, own: Tensor, *rest: Any, **named: Any) -> Any:
        found.append(own.nbytes)
        return gather(into, own, *rest, **named)

    with patch.object(dist, "all_reduce", reduced), patch.object(exchanges, "all_gather", gathered):
        yield found
