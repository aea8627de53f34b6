"""Learners of a linear policy from ended trials: advantage-weighted regression and PPO.

Both learn from episodes: the features and actions at each of a trial's decisions, the noise in the
actions, and the trial's value. Both are functions of their arguments that take a few milliseconds,
and regularise towards initial weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_LAMBDA = 0.95  # of generalised advantages: the horizon over which an action gets credit
_RIDGE_VALUE, _RIDGE_POLICY = 3.0, 3.0
_TEMPERATURE = 0.5  # of the regression's weights, in standard deviations of the advantage
_WIDEST = 3.0
_PPO_EPOCHS, _PPO_CLIP = 8, 0.2
_RATE, _BETAS, _EPSILON = 0.03, (0.9, 0.999), 1e-8  # of Adam


@dataclass(frozen=True)
class Episode:
    """A trial for a learner: rows are decisions, columns are features or knobs."""

    features: Array
    actions: Array
    noise: Array
    value: float = 0.0


@dataclass(frozen=True)
class Learner:
    """A learning rule: an update of the weights every `every` episodes, over the last `window`.

    `update` takes weights of knobs (rows) and features (columns), the episodes in the order in
    which they ended, and the standard deviation of the noise. An `incremental` rule continues from
    the last update, any other starts from the initial weights each time.
    """

    update: Callable[[Array, Sequence[Episode], float], Array]
    every: int
    window: int
    incremental: bool


def awr(start: Array, episodes: Sequence[Episode], spread: float) -> Array:
    """Advantage-weighted regression (Peng et al. 2019, arXiv 1910.00177), ridged to `start`."""
    if len(episodes) < 2:
        return start
    seen = np.concatenate([e.features for e in episodes])
    done = np.concatenate([e.actions for e in episodes])
    weight = np.exp(np.clip(_advantages(episodes) / _TEMPERATURE, -_WIDEST, _WIDEST))
    weight = np.sqrt(weight / weight.mean())[:, None]
    missed = done - seen @ start.T
    return np.asarray(start + _ridge(seen * weight, missed * weight, _RIDGE_POLICY).T)


def ppo(weights: Array, episodes: Sequence[Episode], spread: float) -> Array:
    """Proximal policy optimisation (Schulman et al. 2017, arXiv 1707.06347): eight clipped passes.

    The noise gives the mean of the policy when it acted, so old episodes have exact ratios.
    """
    seen = np.concatenate([e.features for e in episodes])
    done = np.concatenate([e.actions for e in episodes])
    noise = np.concatenate([e.noise for e in episodes])
    advantage = _advantages(episodes)
    theta = weights.ravel()
    moments = np.zeros_like(theta), np.zeros_like(theta)
    for steps in range(1, _PPO_EPOCHS + 1):
        off = (done - seen @ weights.T) / spread
        ratio = np.exp(np.clip((noise**2 - off**2).sum(axis=1) / 2, -20.0, 20.0))
        pull = _clipped(ratio, advantage)[:, None] * off / spread
        slope = pull.T @ seen / len(seen)
        theta, moments = _adam(theta, slope.ravel(), moments, steps)
        weights = theta.reshape(weights.shape)
    return weights


def _clipped(ratios: Array, advantages: Array) -> Array:
    """The weights of the samples' slopes in the gradient of PPO's clipped objective.

    A sample whose probability ratio has already moved 20 % in the direction of its advantage has
    weight 0, any other its ratio times its advantage.
    """
    gains = (advantages > 0) & (ratios > 1 + _PPO_CLIP)
    losses = (advantages < 0) & (ratios < 1 - _PPO_CLIP)
    weights: Array = np.where(gains | losses, 0.0, ratios * advantages)
    return weights


def _adam(
    theta: Array, gradient: Array, moments: tuple[Array, Array], steps: int
) -> tuple[Array, tuple[Array, Array]]:
    """Step number `steps` of Adam (Kingma and Ba 2015) up the gradient."""
    first = _BETAS[0] * moments[0] + (1 - _BETAS[0]) * gradient
    second = _BETAS[1] * moments[1] + (1 - _BETAS[1]) * gradient**2
    size = np.sqrt(second / (1 - _BETAS[1] ** steps)) + _EPSILON
    moved: Array = theta + _RATE * first / (1 - _BETAS[0] ** steps) / size
    return moved, (first, second)


def _advantages(episodes: Sequence[Episode]) -> Array:
    """Generalised advantages (Schulman et al. 2015, arXiv 1506.02438), undiscounted, normalised.

    The value function is linear in the features, so that the effect of a trial's configuration is
    not attributed to the policy.
    """
    seen = np.concatenate([e.features for e in episodes])
    outcomes = np.concatenate([np.full(len(e.features), e.value) for e in episodes])
    values = seen @ _ridge(seen, outcomes[:, None], _RIDGE_VALUE)[:, 0]
    parts, place = [], 0
    for episode in episodes:
        own = values[place : place + len(episode.features)]
        place += len(own)
        ahead, backwards = 0.0, list[float]()
        for gain in np.diff(own, append=episode.value)[::-1]:
            ahead = float(gain) + _LAMBDA * ahead
            backwards.append(ahead)
        parts.append(np.array(backwards[::-1]))
    advantage = np.concatenate(parts)
    spread = advantage.std()
    return np.asarray((advantage - advantage.mean()) / (spread if spread > 0 else 1.0))


def _ridge(x: Array, y: Array, ridge: float) -> Array:
    """Ridge regression."""
    solution: Any = np.linalg.solve(x.T @ x + ridge * np.eye(x.shape[1]), x.T @ y)
    return np.asarray(solution, dtype=np.float64)


LEARNERS = {
    "awr": Learner(awr, every=1, window=96, incremental=False),
    "ppo": Learner(ppo, every=8, window=32, incremental=True),
}
