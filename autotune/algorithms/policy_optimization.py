"""Adam and PPO's clipped objective, for policies that are trained by gradients."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

PPO_EPOCHS, PPO_CLIP = 8, 0.2
_BETAS, _EPSILON = (0.9, 0.999), 1e-8


@dataclass(frozen=True)
class Moments:
    """Adam's running averages of the gradient and of its square, after so many steps."""

    first: tuple[float, ...] = ()
    second: tuple[float, ...] = ()
    steps: int = 0


def adam_step(
    theta: Array, gradient: Array, moments: Moments, rate: float
) -> tuple[Array, Moments]:
    """One step of Adam (Kingma and Ba 2015) up the gradient of a vector of parameters."""
    steps = moments.steps + 1
    zero = np.zeros_like(theta)
    first = _BETAS[0] * (np.array(moments.first) if moments.first else zero)
    second = _BETAS[1] * (np.array(moments.second) if moments.second else zero)
    first = first + (1 - _BETAS[0]) * gradient
    second = second + (1 - _BETAS[1]) * gradient**2
    size = np.sqrt(second / (1 - _BETAS[1] ** steps)) + _EPSILON
    moved: Array = theta + rate * first / (1 - _BETAS[0] ** steps) / size
    return moved, Moments(tuple(map(float, first)), tuple(map(float, second)), steps)


def clipped_weights(ratios: Array, advantages: Array) -> Array:
    """The weights of the samples' slopes in the gradient of PPO's clipped objective.

    Schulman et al. 2017, arXiv 1707.06347. A sample whose probability ratio has already moved 20 %
    in the direction of its advantage has weight 0, any other its ratio times its advantage.
    """
    gains = (advantages > 0) & (ratios > 1 + PPO_CLIP)
    losses = (advantages < 0) & (ratios < 1 - PPO_CLIP)
    weights: Array = np.where(gains | losses, 0.0, ratios * advantages)
    return weights
