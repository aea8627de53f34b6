"""Optimizers that update some rows of a table, and keep what they need in columns beside them.

A row that is not touched keeps weight and state as they are, and each row counts its own steps. So
the state is sharded, exchanged and averaged like the weights. A dense vector is a table of rows of
one number, all of which are touched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

EPSILON = 1e-8


@dataclass(frozen=True)
class Rows:
    """Some rows of a table.

    Args:
        weight: (rows, width).
        state: (rows, columns), of the rule.
    """

    weight: Tensor
    state: Tensor

    def joined(self, index: Tensor | slice = slice(None)) -> Tensor:
        """Weight and state of some rows side by side, a copy."""
        return torch.cat([self.weight[index], self.state[index]], 1)

    def put(self, index: Tensor | slice, joined: Tensor) -> None:
        """The reverse of `joined`."""
        width = self.weight.shape[1]
        self.weight[index] = joined[:, :width]
        self.state[index] = joined[:, width:]

    def copied(self) -> Rows:
        return Rows(self.weight.clone(), self.state.clone())

    def part(self, start: int, stop: int) -> Rows:
        """The rows [start, stop), which are these and no copies."""
        return Rows(self.weight[start:stop], self.state[start:stop])


@dataclass(frozen=True)
class Rates:
    """The scheduled numbers of a step."""

    lr: float
    beta1: float = 0.9
    beta2: float = 0.999


@dataclass(frozen=True)
class Rule:
    """One optimizer.

    Args:
        columns: of the state, for rows of a given width.
        step: of weights, state, gradient (all of the touched rows) and rates the new weights and
            the new state.
    """

    columns: Callable[[int], int]
    step: Callable[[Tensor, Tensor, Tensor, Rates], tuple[Tensor, Tensor]]

    def begun(self, weight: Tensor) -> Rows:
        """A table before its first step."""
        rows, width = weight.shape
        return Rows(weight, weight.new_zeros((rows, self.columns(width))))

    def update(self, rows: Rows, index: Tensor | slice, gradient: Tensor, rates: Rates) -> None:
        """Make a step of the rows `index`, each of which is named once, in place.

        Other threads may do the same without a lock: then a step may be lost, or be made of a state
        that is a little older, but no row is torn out of its place.
        """
        weight, state = rows.weight.data, rows.state.data
        new, kept = self.step(weight[index], state[index], gradient, rates)
        weight[index] = new
        if kept.shape[1]:
            state[index] = kept


def sgd(weight: Tensor, state: Tensor, gradient: Tensor, rates: Rates) -> tuple[Tensor, Tensor]:
    """w - lr g, without momentum, which would move rows that are not touched."""
    return torch.sub(weight, gradient, alpha=rates.lr), state


def rowwise_adagrad(
    weight: Tensor, state: Tensor, gradient: Tensor, rates: Rates
) -> tuple[Tensor, Tensor]:
    """Adagrad with one number a row: s + mean(g^2), then w - lr g / (sqrt(s) + eps).

    Of rows of one number it is Adagrad. Duchi et al. 2011 (JMLR 12); one number a row: Mudigere et
    al. 2021, arXiv 2104.05158.

    >>> w, s = torch.ones(1, 2), torch.zeros(1, 1)
    >>> w, s = rowwise_adagrad(w, s, torch.tensor([[3.0, 4.0]]), Rates(lr=0.5))
    >>> round(s.item(), 3), [round(x, 3) for x in w[0].tolist()]
    (12.5, [0.576, 0.434])
    """
    total = state + gradient.square().mean(1, keepdim=True)
    return weight - rates.lr * gradient / (total.sqrt() + EPSILON), total


def adam(weight: Tensor, state: Tensor, gradient: Tensor, rates: Rates) -> tuple[Tensor, Tensor]:
    """Adam whose moments, and whose correction of them, count the steps of the row alone.

    `torch.optim.SparseAdam` corrects by the steps of the whole table instead, so that a rare row's
    first step is several times as long; where all rows are touched they are the same. Kingma and
    Ba 2015, arXiv 1412.6980.
    """
    width = weight.shape[1]
    first, second, count = torch.split(state, [width, width, 1], 1)
    first = torch.lerp(gradient, first, rates.beta1)
    second = torch.lerp(gradient.square(), second, rates.beta2)
    count = count + 1
    mean = first / (1 - rates.beta1**count)
    scale = (second / (1 - rates.beta2**count)).sqrt() + EPSILON
    return weight - rates.lr * mean / scale, torch.cat([first, second, count], 1)


_SGD = Rule(lambda _: 0, sgd)
_ADAGRAD = Rule(lambda _: 1, rowwise_adagrad)
_ADAM = Rule(lambda width: 2 * width + 1, adam)

SPARSE: Mapping[str, Rule] = {"sparse_adam": _ADAM, "rowwise_adagrad": _ADAGRAD, "sgd": _SGD}
"""The optimizers of the tables (`optimizer_sparse`)."""

DENSE: Mapping[str, Rule] = {"adam": _ADAM, "adagrad": _ADAGRAD, "sgd": _SGD}
"""The optimizers of the dense part (`optimizer`)."""
