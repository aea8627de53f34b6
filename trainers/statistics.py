"""Statistics of gradients and steps for controllers, sampled at few steps.

Sampling does not wait for the device and is not collective: averaged gradients are equal on all
ranks (norms of sharded ones are gathered at the milestone). One step in 8, and the last one before
a milestone, computes the norm of the gradient; the last one also copies the weights, for the size
of the update.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from itertools import islice

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler

from trainers.parallel.protocol import Owned
from trainers.parallel.ranks import Ranks
from trainers.parallel.states import whole

EVERY = 8  # every n-th step is sampled


class Statistics:
    """Sampled norms since the last `clear`, on the device until `metrics` reads them.

    Args:
        owned: this rank's parameters, where ranks have different ones; `metrics` is then one of all
            ranks, at the same steps.
    """

    def __init__(self, model: nn.Module, owned: Owned | None = None) -> None:
        weights = model.parameters() if owned is None else owned.parameters
        self._weights: list[Tensor] = [p for p in weights if p.requires_grad]
        self._ranks = None if owned is None else owned.ranks
        self.clear()

    def clear(self) -> None:
        """Drop all samples; the next step is the first."""
        self._step = 0
        self._sampled = self._last = False
        self._norms: list[tuple[Sequence[Tensor], Tensor | None]] = []
        self._before: list[Tensor] = []
        self._own: list[Sequence[Tensor]] = []

    def next(self, last: bool) -> None:
        """Count the next step; `last` before a milestone."""
        self._step += 1
        self._last = last
        self._sampled = last or self._step % EVERY == 0

    def before(self, scaler: GradScaler | None) -> None:
        """Sample before the optimizer's step, with the complete (and, in fp16, scaled) gradient."""
        if self._sampled:
            self._sampled = False
            self._sample(scaler)

    @torch.no_grad()  # not on `before`, whose cost it would be at most steps
    def _sample(self, scaler: GradScaler | None) -> None:
        gradients = [p.grad for p in self._weights if p.grad is not None]
        if not gradients:
            return
        norms = torch._foreach_norm(gradients)  # combined when it is read
        scale = None if scaler is None else scaler.scale(torch.ones_like(norms[0]))
        self._norms.append((norms, scale))
        if self._last:
            self._before = [p.detach().clone() for p in self._weights]

    @torch.no_grad()
    def settle(self) -> None:
        """Measure the weights and the size of the last step now, as the weights will change."""
        if self._before and not self._own:  # a second call would see other weights
            self._own = self._measured()

    def _measured(self) -> list[Sequence[Tensor]]:
        """The norms of the weights and of their last change."""
        moved_by = torch._foreach_sub(self._before, self._weights)
        return [torch._foreach_norm(self._weights), torch._foreach_norm(moved_by)]

    @torch.no_grad()
    def metrics(self) -> dict[str, float]:
        """The measured statistics, without those that are not finite or have too few samples.

        Call it at the milestone, before the weights change again, or after `settle`.

        `grad_norm`: mean norm of the gradient; `grad_norm_spread`: its standard deviation over its
        mean; `weight_norm`: now; `update_ratio`: |change of the weights| / |weights| in the last
        step.
        """
        if not self._before:
            return {}
        own = self._own or self._measured()
        sampled = [norms for norms, _ in self._norms]
        weight, moved, *read = _totals([*own, *sampled], self._ranks)
        scales = [s for _, s in self._norms if s is not None]
        if scales:
            by = torch.stack(scales).tolist()  # 0 after some 165 overflows
            read = [norm / s if s else math.nan for norm, s in zip(read, by, strict=True)]
        norms = [norm for norm in read if math.isfinite(norm)]
        found = {"weight_norm": weight}
        if norms:
            found["grad_norm"] = mean = statistics.fmean(norms)
            if len(norms) > 1 and mean > 0:
                found["grad_norm_spread"] = statistics.stdev(norms) / mean
        if weight > 0:
            found["update_ratio"] = moved / weight
        return {name: value for name, value in found.items() if math.isfinite(value)}


def _totals(groups: Sequence[Sequence[Tensor]], ranks: Ranks | None) -> list[float]:
    """The Euclidean norm of each group of tensors, from those of the tensors; all read at once."""
    read = iter(torch.stack([whole(norm) for norms in groups for norm in norms]).tolist())
    found = [math.hypot(*islice(read, len(norms))) for norms in groups]
    if ranks is None:
        return found
    squares = torch.tensor(found, dtype=torch.float64, device=ranks.device).square()
    return ranks.sum(squares).sqrt().tolist()
