"""A quick upper bound of the memory of a training: most trials need far less than there is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

_OF_WEIGHTS = 13  # copies: weights, gradients and buckets, three states, gathered or kept ones
_OF_OUTPUTS = 6  # copies: kept ones, casts, gradients, recomputed ones, those of the loss


class _Outputs(TorchFunctionMode):
    """Adds up the bytes of what all functions of tensors return."""

    nbytes = 0

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        self.nbytes += sum(t.nbytes for t in tree_leaves(found) if isinstance(t, Tensor))
        return found


def bound(make: Callable[[], nn.Module], batches: Sequence[Tensor], copies: int = 0) -> int:
    """Bytes that no plan of a training exceeds.

    Args:
        make: the model.
        batches: inputs of the largest forward passes in training and evaluation.
        copies: of the weights that are kept beside.

    >>> 468 < bound(lambda: nn.Linear(2, 3), [torch.zeros(4, 2)]) < 1500
    True
    """
    with torch.device("meta"), torch.no_grad():
        model = make()
        most = 0
        for batch in batches:
            with _Outputs() as seen:
                model(batch.to("meta"))
            most = max(most, seen.nbytes)
    weights = sum(p.nbytes for p in model.parameters())
    return (_OF_WEIGHTS + copies) * weights + _OF_OUTPUTS * most
