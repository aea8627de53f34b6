"""AdaScale SGD: a learning rate for any batch size, from one that was chosen for a smaller batch.

Johnson et al. 2020, arXiv 2007.05105. A step of S times the base batch size makes as much progress
as r steps of it, with the gain

    r = (sigma^2 + mu^2) / (sigma^2 / S + mu^2),    1 <= r <= S,

of sigma^2, the variance of a gradient of the base batch, and mu^2, the squared norm of its mean.
Both are the smoothed numbers of `trainers.noise_scale`, measured in every step. The learning rate
is multiplied by the gain, and schedules count scale-invariant steps: each step counts for r.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from autotune.schedules import Constant
from trainers.parallel.update import Update
from trainers.readers import Key, Schedule, optional, shown, whole

KEYS: Mapping[str, Key] = {"adascale_batch_size": (None, optional(whole(1)))}
OPTIMIZERS = ("sgd",)


class Noise(Protocol):
    """What is measured of gradients: `trainers.noise_scale.NoiseScale`."""

    @property
    def items(self) -> float:
        """The batch size of the last measured step."""
        ...

    def numbers(self) -> tuple[float, float]:
        """tr(Sigma) and |G|^2."""
        ...


def check(
    optimizer: str,
    batch_size: Schedule,
    adascale_batch_size: int | None,
    noise_scale_every: int | None,
) -> None:
    """Raise a ValueError, one line, for settings with which no gain is defined."""
    base, every = adascale_batch_size, noise_scale_every
    if base is None:
        return
    name = f"adascale_batch_size {base}"
    if optimizer not in OPTIMIZERS:
        raise ValueError(f"{name} needs optimizer {' or '.join(OPTIMIZERS)}, got {optimizer!r}")
    if not isinstance(batch_size, Constant):
        raise ValueError(f"{name} needs a batch_size without a schedule, got {shown(batch_size)}")
    if batch_size.value < base:
        raise ValueError(f"{name} needs a batch_size at least as large, got {batch_size.value:g}")
    if every not in (None, 1):
        raise ValueError(f"{name} needs noise_scale_every 1, as it measures each step, got {every}")


def gain(trace: float, square: float, base: float, batch: float) -> float:
    """The gain of a batch over the base batch; 1 where nothing is known.

    Args:
        trace: tr(Sigma) of one sample's gradient; estimates below 0 count as 0.
        square: |G|^2, likewise.

    >>> gain(8.0, 0.0, 2, 16), gain(0.0, 1.0, 2, 16), gain(16.0, 1.0, 2, 16), gain(3.0, 1.0, 4, 4)
    (8.0, 1.0, 4.5, 1.0)
    """
    trace, square = max(trace, 0.0), max(square, 0.0)
    below = trace / batch + square
    return (trace / base + square) / below if below > 0 else 1.0


class AdaScale:
    """The optimizer's step with the learning rate times the gain.

    Args:
        inner: makes the step.
        noise: has taken in the gradient of each step before it is made.
        base: the base batch size.
    """

    def __init__(self, inner: Update, noise: Noise, base: int) -> None:
        self._inner = inner
        self._noise = noise
        self._base = base
        self.alone, self.state, self.own = inner.alone, inner.state, inner.own
        self.restart(0.0)

    def restart(self, steps: float) -> None:
        """Go on after so many scale-invariant steps."""
        self.gain = 1.0
        self.steps = steps

    def samples(self, each: int) -> float:
        """Of the scale-invariant steps, with so many samples for each of the batch's items."""
        return self.steps * self._base * each

    def step(self, optimizer: Optimizer, scaler: GradScaler | None) -> None:
        """One step, which waits for the device to tell the gain."""
        trace, square = self._noise.numbers()
        self.gain = gain(trace, square, self._base, self._noise.items) if trace == trace else 1.0
        self.steps += self.gain
        kept = [group["lr"] for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["lr"] *= self.gain
        self._inner.step(optimizer, scaler)
        for group, lr in zip(optimizer.param_groups, kept, strict=True):
            group["lr"] = lr


def scaled(update: Update, noise: Noise, base: int | None) -> Update:
    """The update with the gain, if there is a base batch size."""
    return update if base is None else AdaScale(update, noise, base)


def of(update: Update) -> AdaScale | None:
    """The AdaScale that makes the step, if it does."""
    return update if isinstance(update, AdaScale) else None


def metrics(found: AdaScale | None) -> dict[str, float]:
    """`adascale_gain` of the last step."""
    return {} if found is None else {"adascale_gain": found.gain}
