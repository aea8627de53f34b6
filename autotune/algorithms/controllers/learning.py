"""A linear policy learned from ended trials by advantage-weighted regression.

An episode is what a trial's policy saw and did at each of its decisions, and the trial's value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_LAMBDA = 0.95  # of generalised advantages: the horizon over which an action gets credit
_RIDGE_VALUE, _RIDGE_POLICY = 3.0, 3.0
_TEMPERATURE = 0.5  # of the regression's weights, in standard deviations of the advantage
_WIDEST = 3.0


@dataclass(frozen=True)
class Episode:
    """An ended trial: rows are decisions, columns are features or knobs."""

    features: Array
    actions: Array
    value: float = 0.0


def awr(start: Array, episodes: Sequence[Episode]) -> Array:
    """Weights after these episodes: a ridge regression around `start`, both (knobs, features).

    Actions of trials that were better count more (Peng et al. 2019, arXiv 1910.00177). A few
    milliseconds.
    """
    if len(episodes) < 2:
        return start
    seen = np.concatenate([e.features for e in episodes])
    done = np.concatenate([e.actions for e in episodes])
    weight = np.exp(np.clip(_advantages(episodes) / _TEMPERATURE, -_WIDEST, _WIDEST))
    weight = np.sqrt(weight / weight.mean())[:, None]
    missed = done - seen @ start.T
    return np.asarray(start + _ridge(seen * weight, missed * weight, _RIDGE_POLICY).T)


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
