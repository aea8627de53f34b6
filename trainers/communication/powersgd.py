"""PowerSGD: a gradient that is a matrix is sent as two thin ones (Vogels et al. 2019).

A matrix M (rows x columns) of gradient and error is multiplied by Q (columns x r), and the sum of
the products over the ranks is orthogonalized: P. Then M^T P is averaged to a new Q, and P Q^T is
the gradient on all ranks: one step of the power iteration, which begins at the Q of the step before
(warm start). What a rank's P P^T M lacks of its M is its error, and added to its next gradient.
arXiv 1905.13727. Ranks that compute alike get equal bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from autotune.schedules import Constant
from trainers.communication.exchange import Memory, Wire, gradients
from trainers.readers import Schedule, counted, flag, one_of, whole
from trainers.technique import Knob, when

__all__ = ["KNOBS", "PowerSGD", "compressible", "orthogonal", "sent"]

_CHOSEN = when("gradient_compression", "powersgd")
_DTYPES: Mapping[str, torch.dtype] = {"fp32": torch.float32, "fp16": torch.float16}
_LEAST = 2
"""Times as many numbers as are sent must a matrix have."""
KNOBS: Mapping[str, Knob] = {
    "powersgd_rank": Knob(Constant(2), counted(1), "both", _CHOSEN),
    "powersgd_start": Knob(10, whole(2), "both", _CHOSEN, memory=False),
    "powersgd_warm_start": Knob(True, flag, "statistical", _CHOSEN),
    "powersgd_wire": Knob("fp32", one_of(_DTYPES), "rounding", _CHOSEN, memory=False),
}


def compressible(shape: tuple[int, ...], rank: int) -> bool:
    """Whether so many columns of P and Q are less than half of a gradient of this shape.

    >>> compressible((64, 64), 4), compressible((64, 64), 16), compressible((64,), 1)
    (True, False, False)
    """
    if len(shape) < 2:
        return False
    rows, columns = shape[0], prod(shape[1:])
    return _LEAST * min(rows, columns, rank) * (rows + columns) < rows * columns


def sent(shapes: Iterable[tuple[int, ...]], rank: int, wire: str = "fp32") -> int:
    """The bytes that a rank gives to sums in a compressed step.

    >>> sent([(64, 64), (64,)], rank=2), sent([(64, 64), (64,)], rank=2, wire="fp16")
    (1280, 768)
    """
    total = 0
    for shape in shapes:
        rows, columns = (*shape, 1)[0], prod(shape[1:])
        if compressible(shape, rank):
            total += _DTYPES[wire].itemsize * min(rows, columns, rank) * (rows + columns)
        else:
            total += 4 * prod(shape)
    return total


def orthogonal(matrix: Tensor) -> Tensor:
    """An orthonormal basis of the columns, completed where they have no full rank."""
    found: Tensor = torch.linalg.qr(matrix).Q
    return found


class PowerSGD:
    """Exchanges gradients of low rank, after steps with whole ones.

    Args:
        rank: r, a schedule.
        start: the first compressed step, from 0.
        warm_start: whether a step begins at the Q of the one before, or at random.
        sends: the dtype of P and Q in messages; what it rounds off Q is kept too.
    """

    kind = "powersgd"
    update = None

    def __init__(
        self, model: nn.Module, wire: Wire, rank: Schedule, start: int, warm_start: bool, sends: str
    ) -> None:
        self._model, self._wire = model, wire
        self._schedule, self.begins, self._warm = rank, start, warm_start
        self._dtype = _DTYPES[sends]
        self.at(0.0)

    def start(self, optimizer: Optimizer) -> None:
        parameters = [p for p in self._model.parameters() if p.requires_grad]
        found = {
            i: torch.zeros_like(p) for i, p in enumerate(parameters) if compressible(p.shape, 1)
        }
        self.memory = Memory(
            self.kind,
            self._wire.ranks,
            shared={"factors": {}},
            own={"errors": found},
            late=("factors",),
        )

    def at(self, progress: float) -> None:
        self._rank = round(self._schedule(progress))

    def next(self) -> bool:
        self.memory.steps += 1
        return self.memory.steps > self.begins

    @torch.no_grad()
    def average(self) -> None:
        found, errors = gradients(self._model), self.memory.own["errors"]
        for index, error in errors.items():
            found[index].add_(error)
            error.zero_()
        matrices = {
            i: g.reshape(len(g), -1)
            for i, g in enumerate(found)
            if compressible(g.shape, self._rank)
        }
        self._wire.mean([g for i, g in enumerate(found) if i not in matrices])
        ps = [m @ orthogonal(self._factor(i, m)) for i, m in matrices.items()]
        self._wire.mean(ps, self._dtype)
        ps = [orthogonal(p) for p in ps]
        qs = [m.t() @ p for m, p in zip(matrices.values(), ps, strict=True)]
        own = self._wire.mean(qs, self._dtype)
        for (i, m), p, q, mine in zip(matrices.items(), ps, qs, own, strict=True):
            errors[i].copy_((m - p @ mine.t()).view_as(errors[i]))
            found[i].copy_((p @ q.t()).view_as(found[i]))
            self.memory.shared["factors"][i] = q

    def _factor(self, index: int, matrix: Tensor) -> Tensor:
        """Q: as the last step left it, as far as it has enough columns; random numbers else."""
        rows, columns = matrix.shape
        rank, kept = min(rows, columns, self._rank), self.memory.shared["factors"].get(index)
        known = matrix[:0, :].t() if kept is None or not self._warm else kept[:, :rank]
        seed = torch.Generator().manual_seed(2**20 * self.memory.steps + index)
        new = torch.randn(columns, rank - known.shape[1], generator=seed).to(matrix)
        return torch.cat([known, new], 1)
