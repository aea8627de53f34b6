"""1-bit Adam and 1-bit LAMB: after a warm-up the momentum is sent as signs.

The warm-up averages whole gradients. Then the variance stays as it is, and each rank's momentum
m = beta1 m + (1 - beta1) g, with the error of its last message, is sent as one bit a number and a
scale for every row of a parameter: the mean of the row's amounts. The mean over the ranks is the
momentum of all. Tang et al. 2021, arXiv 2102.02888; Li et al. 2021, arXiv 2104.06069.

In the papers the ranks compress the mean a second time, each a part of it: this sends less where
they are many. Here every rank gets all messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from autotune.schedules import Constant, Schedule
from trainers.communication import frozen
from trainers.communication.exchange import Memory, Wire, gradients
from trainers.optimizers.make import variant_settings
from trainers.parallel.update import Everywhere
from trainers.readers import shown, whole
from trainers.technique import Knob, when

_CHOSEN = when("gradient_compression", "one_bit")
KNOBS: Mapping[str, Knob] = {"one_bit_warmup_steps": Knob(100, whole(1), "both", _CHOSEN, False)}
OPTIMIZERS = ("adamw", "lamb")
_NEEDED: Mapping[str, Any] = {"max_grad_norm": None, "decoupled": True, "grad_averaging": True}
_CONSTANT = ("beta2", "trust_coefficient")  # of the variance and the ratio that stay as they are


def check(optimizer: str, options: Mapping[str, Any]) -> None:
    """Raise a ValueError, one line, for an optimizer without this momentum and variance."""
    chosen = "with gradient_compression 'one_bit'"
    if optimizer not in OPTIMIZERS:
        raise ValueError(
            f"optimizer must be one of {', '.join(OPTIMIZERS)} {chosen}, got {optimizer!r}"
        )
    variant = options.get("variant")
    named = {} if variant is None else variant_settings(optimizer, variant)
    given = {**named, **options}
    for key, needed in _NEEDED.items():
        if given.get(key, needed) != needed:
            raise ValueError(f"{key} must be {needed} {chosen}, got {given[key]!r}")
    for key in _CONSTANT:
        found = options.get(key)
        if isinstance(found, Schedule) and not isinstance(found, Constant):
            raise ValueError(f"{key} must be a number {chosen}, no schedule, got {shown(found)}")


def rows_of(shape: tuple[int, ...]) -> int:
    """The scales of a parameter: one for each row of a matrix or kernel, one for a vector."""
    return shape[0] if len(shape) > 1 else 1


def sent(shapes: Iterable[tuple[int, ...]]) -> int:
    """The bytes that a rank gives to the others in a compressed step.

    >>> sent([(4, 10), (4,)])
    26
    """
    sizes = [(prod(shape), rows_of(shape)) for shape in shapes]
    return -(-sum(n for n, _ in sizes) // 8) + 4 * sum(rows for _, rows in sizes)


def _places(device: torch.device) -> Tensor:
    """1, 2, 4, ..., 128; made on the device, which does not wait for that."""
    ones = torch.ones(8, dtype=torch.uint8, device=device)
    return ones << torch.arange(8, dtype=torch.uint8, device=device)


def packed(values: Sequence[Tensor]) -> Tensor:
    """The signs of all numbers, eight a byte, and then the scales of all rows.

    >>> packed([torch.tensor([[1.0, -3.0]])])
    tensor([ 1,  0,  0,  0, 64], dtype=torch.uint8)
    """
    bits = torch.cat([value.flatten() >= 0 for value in values])
    bits = nn.functional.pad(bits, (0, -len(bits) % 8)).view(-1, 8)
    signs = (bits * _places(bits.device)).sum(1, dtype=torch.uint8)
    scales = torch.cat([v.reshape(rows_of(v.shape), -1).abs().mean(1) for v in values])
    return torch.cat([signs, scales.float().view(torch.uint8)])


def unpacked(message: Tensor, shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
    """What a message says of parameters of these shapes."""
    sizes, rows = [prod(shape) for shape in shapes], [rows_of(shape) for shape in shapes]
    length = len(message) - 4 * sum(rows)
    bits = (message[:length, None] & _places(message.device)).ne(0).flatten()[: sum(sizes)]
    scales = torch.split(message[length:].clone().view(torch.float32), rows)  # aligned
    signs = torch.split(bits.float().mul_(2).sub_(1), sizes)
    every = zip(signs, scales, shapes, strict=True)
    return [(s.view(len(scale), -1) * scale[:, None]).view(shape) for s, scale, shape in every]


class OneBit:
    """Exchanges momenta in the optimizer's step, and makes it; before, gradients as ever.

    Args:
        warmup: steps with whole gradients.
    """

    kind = "one_bit"

    def __init__(self, model: nn.Module, wire: Wire, warmup: int) -> None:
        self._model, self._wire, self.begins = model, wire, warmup
        self._inner = Everywhere()
        self.state, self.own, self.alone = self._inner.state, self._inner.own, self._inner.step
        self.update = self

    def start(self, optimizer: Optimizer) -> None:
        self._parameters = [p for p in self._model.parameters() if p.requires_grad]
        errors = {i: torch.zeros_like(p) for i, p in enumerate(self._parameters)}
        shared = frozen.kept(optimizer, self._parameters)
        self.memory = Memory(self.kind, self._wire.ranks, shared=shared, own={"errors": errors})

    def at(self, progress: float) -> None: ...

    def next(self) -> bool:
        self.memory.steps += 1
        return self.memory.steps > self.begins

    def average(self) -> None:
        """The gradients stay this rank's."""

    @torch.no_grad()
    def step(self, optimizer: Optimizer, scaler: GradScaler | None) -> None:
        after = self.memory.steps - self.begins
        if after <= 0:
            self._inner.step(optimizer, scaler)
        made = frozen.steps(optimizer, self._parameters, self.memory.shared)
        if after <= 0:
            for one in made:
                one.warm()
            return
        errors, every = self.memory.own["errors"], zip(made, gradients(self._model), strict=True)
        momenta = [frozen.momentum(one.state, one.group, g) for one, g in every]
        torch._foreach_add_(momenta, [*errors.values()])
        message, shapes = packed(momenta), [m.shape for m in momenta]
        for i, said in enumerate(unpacked(message, shapes)):
            errors[i].copy_(momenta[i] - said)
        means = [torch.zeros_like(m) for m in momenta]
        for row in self._wire.gathered(message):
            torch._foreach_add_(means, unpacked(row, shapes))
        torch._foreach_div_(means, self._wire.ranks.size)
        for one, mean in zip(made, means, strict=True):
            one.make(mean, after)
