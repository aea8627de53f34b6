"""How a linear policy learns from trials that have ended: advantage-weighted regression, and PPO.

Both see episodes: the features and actions at each of a trial's decisions, the noise that was in
the actions, and what the trial was worth. Both are functions of their arguments, a few milliseconds
long, and start from given weights, towards which they are held while there is little to go by.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

_LAMBDA = 0.95  # of generalised advantages: how far ahead an action is held responsible
_RIDGE_VALUE, _RIDGE_POLICY = 3.0, 3.0
_TEMPERATURE = 0.5  # of the regression's weights, in standard deviations of the advantage
_WIDEST = 3.0
_EPOCHS, _CLIP, _RATE = 8, 0.2, 0.03
_DECAYS = (0.9, 0.999)


@dataclass(frozen=True)
class Episode:
    """A trial as a learner sees it: rows are decisions, columns features, or knobs."""

    features: Array
    actions: Array
    noise: Array
    worth: float = 0.0


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
    """Advantage-weighted regression (Peng et al. 2019, arXiv 1910.00177), held at the start."""
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

    What the policy meant when it acted is known from the noise, so that old episodes are weighed by
    their true ratio.
    """
    seen = np.concatenate([e.features for e in episodes])
    done = np.concatenate([e.actions for e in episodes])
    noise = np.concatenate([e.noise for e in episodes])
    advantage = _advantages(episodes)
    first, second = np.zeros_like(weights), np.zeros_like(weights)
    for step in range(1, _EPOCHS + 1):
        off = (done - seen @ weights.T) / spread
        ratio = np.exp(np.clip((noise**2 - off**2).sum(axis=1) / 2, -20.0, 20.0))
        clipped = np.where(advantage > 0, ratio > 1 + _CLIP, ratio < 1 - _CLIP)
        pull = np.where(clipped, 0.0, ratio * advantage)[:, None] * off / spread
        slope = pull.T @ seen / len(seen)
        first = _DECAYS[0] * first + (1 - _DECAYS[0]) * slope
        second = _DECAYS[1] * second + (1 - _DECAYS[1]) * slope**2
        unbiased = second / (1 - _DECAYS[1] ** step)
        weights = weights + _RATE * first / (1 - _DECAYS[0] ** step) / (np.sqrt(unbiased) + 1e-8)
    return weights


def _advantages(episodes: Sequence[Episode]) -> Array:
    """Generalised advantages (Schulman et al. 2015, arXiv 1506.02438), undiscounted, normalised.

    The value of a moment is a linear function of its features, so that what a trial's own
    configuration brought is not put down to the policy.
    """
    seen = np.concatenate([e.features for e in episodes])
    worth = np.concatenate([np.full(len(e.features), e.worth) for e in episodes])
    value = seen @ _ridge(seen, worth[:, None], _RIDGE_VALUE)[:, 0]
    found, place = [], 0
    for episode in episodes:
        own = value[place : place + len(episode.features)]
        place += len(own)
        ahead, backwards = 0.0, list[float]()
        for gain in np.diff(own, append=episode.worth)[::-1]:
            ahead = float(gain) + _LAMBDA * ahead
            backwards.append(ahead)
        found.append(np.array(backwards[::-1]))
    advantage = np.concatenate(found)
    spread = advantage.std()
    return np.asarray((advantage - advantage.mean()) / (spread if spread > 0 else 1.0))


def _ridge(x: Array, y: Array, ridge: float) -> Array:
    """Least squares, held towards 0."""
    found: Any = np.linalg.solve(x.T @ x + ridge * np.eye(x.shape[1]), x.T @ y)
    return np.asarray(found, dtype=np.float64)


LEARNERS = {
    "awr": Learner(awr, every=1, window=96, incremental=False),
    "ppo": Learner(ppo, every=8, window=32, incremental=True),
}
