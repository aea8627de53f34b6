"""The gradient noise scale: the batch size at which noise and signal of a gradient are equal.

With G the gradient of the whole data, and Sigma the covariance of one sample's gradient, it is
tr(Sigma) / |G|^2, in samples (images, sequences): McCandlish et al. 2018, arXiv 1812.06162. Far
below it twice the batch halves the steps, far above it changes nothing.

A measured step makes its passes one by one, about `LEAST` or more on all ranks. From n passes
of b_i samples with the gradients g_i, and the gradient g of all B samples, both numbers have
unbiased estimates (their appendix A.1, here for passes of any sizes):

    tr(Sigma) = (sum b_i |g_i|^2 - B |g|^2) / (n - 1),    |G|^2 = |g|^2 - tr(Sigma) / B

Each is smoothed on its own; then they are divided. A model with batch normalisation normalises
over the passes of a measured step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler

from trainers.parallel import one_by_one
from trainers.parallel.ranks import Ranks
from trainers.plan import DEFAULTS, Plan
from trainers.readers import Key, optional, whole

LEAST = 4
"""The least passes of a measured step, of all ranks together."""
KEPT = 0.9
"""The share of a smoothed number that is kept at each measurement."""
_UNUSED = ("bucket_cap_mb", "static_graph", "all_reduce_topology")
"""Keys of how copies sum gradients, which a measured step does by itself."""
KEYS: Mapping[str, Key] = {"noise_scale_every": (None, optional(whole(1)))}


def check(given: Mapping[str, int | None], plan: Plan, compression: str, every_step: bool) -> None:
    """Raise a ValueError, one line, where ranks have no whole gradients of samples of their own.

    Args:
        given: the keys for which the noise is measured; None: it is not.
        compression: of gradients between copies.
        every_step: whether copies exchange in every step.
    """
    for key in (key for key, value in given.items() if value is not None):
        if plan.shards or plan.divides:
            raise ValueError(f"{key} needs a whole model on each rank, got {plan}")
        if compression != "none":
            raise ValueError(f"{key} needs gradient_compression 'none', got {compression!r}")
        if not every_step:
            raise ValueError(f"{key} needs synchronization 'every_step'")
        if key == "noise_scale_every" and given[key] != 1:
            continue
        for unused in _UNUSED:
            if (value := getattr(plan, unused)) != DEFAULTS[unused]:
                rule = "has no effect where every step is measured"
                raise ValueError(f"{unused} {value!r} {rule} ({key} {given[key]})")


class NoiseScale:
    """The noise scale of a training, equal on all ranks.

    Args:
        ranks: among which batches are divided.
        every: each n-th step is measured, beginning with the first; None: none is.
    """

    def __init__(self, ranks: Ranks, every: int | None) -> None:
        self._ranks = ranks
        self._every = every
        self.clear()

    def clear(self) -> bool:
        """Forget all measurements; whether the next step is measured."""
        self._steps = 0
        self._items = torch.zeros((), device=self._ranks.device)
        self._smoothed = torch.zeros(3, dtype=torch.float64, device=self._ranks.device)
        return self._every is not None

    def next(self, items: int, most: int | None) -> tuple[bool, int | None]:
        """Count a step of so many items of a rank; whether it is measured, and the most of a pass.

        Args:
            most: items of a pass otherwise; None: all.

        >>> scale = NoiseScale(Ranks(0, 1, torch.device("cpu")), every=2)
        >>> [scale.next(64, None) for _ in range(3)]
        [(True, 16), (False, None), (True, 16)]
        """
        self._steps += 1
        if self._every is None or (self._steps - 1) % self._every:
            return False, most
        passes = -(-LEAST // self._ranks.size)
        return True, min(-(-items // passes), most or items)

    @torch.no_grad()
    def take(self, squares: one_by_one.Squares, scaler: GradScaler | None) -> None:
        """Take in a measurement, if it is finite; without waiting for the device.

        Args:
            scaler: with whose scale gradients are multiplied.
        """
        parts, whole_batch, items, passes = squares
        self._items = items
        trace = (parts - items * whole_batch) / (passes - 1)
        found = torch.stack([trace, whole_batch - trace / items, torch.ones_like(trace)])
        if scaler is not None:
            scale = scaler.scale(torch.ones_like(trace, dtype=torch.float32)).double()
            found[:2] /= scale**2
        smoothed = KEPT * self._smoothed + (1 - KEPT) * found
        self._smoothed = torch.where(found.isfinite().all(), smoothed, self._smoothed)

    @property
    def items(self) -> float:
        """The batch size of the last measured step; 0 before one."""
        return self._items.item()

    def numbers(self) -> tuple[float, float]:
        """The smoothed tr(Sigma) and |G|^2; NaN before a measurement."""
        trace, square, weight = self._smoothed.tolist()
        return (trace / weight, square / weight) if weight else (math.nan, math.nan)

    def metrics(self) -> dict[str, float]:
        """`gradient_variance`: tr(Sigma); `gradient_noise_scale`: it over |G|^2, if both are > 0.

        An estimate of |G|^2 below 0 says that noise hides the signal.
        """
        trace, square = self.numbers()
        if math.isnan(trace):
            return {}
        known = trace > 0 and square > 0
        scale = {"gradient_noise_scale": trace / square} if known else {}
        return {"gradient_variance": trace, **scale}

    def state(self) -> dict[str, Any]:
        """For `restore`; equal on all ranks."""
        return {"steps": self._steps, "smoothed": self._smoothed} if self._every else {}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state; from an empty one at the beginning."""
        self.clear()
        if state:
            self._steps = state["steps"]
            self._smoothed = state["smoothed"].to(self._ranks.device, copy=True)
