"""REINFORCE and PPO: gradient steps of a policy on trials that it, or an older one, has drawn.

Rewards are the normal scores of the trials' ranks, so that only the order counts and the mean is a
baseline. A trial was drawn under the policy of its time, and counts with the ratio of how likely
its draw is now to how likely it was then.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.algorithms.samplers.distribution import (
    FARTHEST,
    FLOOR,
    LEAST_SPREAD,
    MOST_SPREAD,
    Draw,
    Policy,
)

_RATE, _BETAS, _TINY = 0.15, (0.9, 0.999), 1e-8  # of Adam
_ENTROPY = 0.02
_HEAVIEST = 2.0  # truncates the weights of REINFORCE, whose variance else has no bound
_EPOCHS, _CLIP, _PPO_RATE = 8, 0.2, 0.05
Array = NDArray[Any]


@dataclass(frozen=True)
class Sample:
    """A draw, the log density with which it was drawn, and its reward."""

    draw: Draw
    log_behaviour: float
    reward: float


@dataclass(frozen=True)
class Moments:
    """Adam's running averages of the gradient and its square."""

    first: tuple[float, ...] = ()
    second: tuple[float, ...] = ()
    steps: int = 0


def reinforce(policy: Policy, moments: Moments, batch: Sequence[Sample]) -> tuple[Policy, Moments]:
    """One step of REINFORCE (Williams 1992) with an entropy bonus, by Adam.

    The gradient is the mean of weight * reward * slope of the log density, where the weight is the
    density now over the density when it was drawn, at most 2.
    """
    frame = _Frame(policy, batch)
    theta = _vector(policy)
    log_density, slopes = frame.densities(theta)
    weights = np.minimum(np.exp(log_density - frame.log_behaviour), _HEAVIEST)
    gradient = (weights * frame.rewards) @ slopes / len(batch)
    theta, moments = _adam(theta, gradient + _ENTROPY * frame.entropy_slope(theta), moments, _RATE)
    return frame.policy(theta), moments


def ppo(policy: Policy, moments: Moments, batch: Sequence[Sample]) -> tuple[Policy, Moments]:
    """Eight epochs of PPO's clipped objective (Schulman et al. 2017, arXiv 1707.06347), by Adam.

    A sample whose density has already moved 20 % in the direction of its reward has no gradient.
    """
    frame = _Frame(policy, batch)
    theta = _vector(policy)
    for _ in range(_EPOCHS):
        log_density, slopes = frame.densities(theta)
        ratios = np.exp(np.minimum(log_density - frame.log_behaviour, 20.0))
        gone = (frame.rewards > 0) & (ratios > 1 + _CLIP)
        gone |= (frame.rewards < 0) & (ratios < 1 - _CLIP)
        gradient = (np.where(gone, 0.0, ratios) * frame.rewards) @ slopes / len(batch)
        gradient = gradient + _ENTROPY * frame.entropy_slope(theta)
        theta, moments = _adam(theta, gradient, moments, _PPO_RATE)
        theta = _vector(frame.policy(theta))
    return frame.policy(theta), moments


def log_density(policy: Policy, draw: Draw) -> tuple[float, Array]:
    """The log density of one draw, and its slope by means, log spreads and logits."""
    values, slopes = _Frame(policy, [Sample(draw, 0.0, 0.0)]).densities(_vector(policy))
    return float(values[0]), slopes[0]


def _vector(policy: Policy) -> Array:
    logits = [logit for own in policy.logits.values() for logit in own]
    spreads = [math.log(spread) for spread in policy.spreads.values()]
    return np.array([*policy.means.values(), *spreads, *logits])


class _Frame:
    """A batch as arrays, in the order of a policy's vector: means, log spreads, logits."""

    def __init__(self, like: Policy, batch: Sequence[Sample]) -> None:
        self._like = like
        self._count = len(like.means)
        self.rewards = np.array([s.reward for s in batch])
        self.log_behaviour = np.array([s.log_behaviour for s in batch])
        drawn = [[s.draw.get(name, math.nan) for name in like.means] for s in batch]
        scores = np.array(drawn).reshape(len(batch), self._count)
        self._there = ~np.isnan(scores)
        self._scores = np.nan_to_num(scores)
        at = 2 * self._count
        self._groups: list[tuple[slice, Array]] = []
        for name, own in like.logits.items():
            hits = [[s.draw.get(name) == i for i in range(len(own))] for s in batch]
            self._groups.append((slice(at, at + len(own)), np.array(hits, dtype=float)))
            at += len(own)
        self._size = at

    def densities(self, theta: Array) -> tuple[Array, Array]:
        """Log densities (samples) and their slopes (samples, vector)."""
        count = self._count
        slopes = np.zeros((len(self.rewards), self._size))
        spreads = np.exp(theta[count : 2 * count])
        away = (self._scores - theta[:count]) / spreads
        each = -0.5 * away**2 - np.log(spreads * math.sqrt(2 * math.pi))
        total = (each * self._there).sum(axis=1)
        slopes[:, :count] = self._there * away / spreads
        slopes[:, count : 2 * count] = self._there * (away**2 - 1.0)
        for group, hits in self._groups:
            shares = _softmax(theta[group])
            odds = (1.0 - FLOOR) * shares + FLOOR / len(shares)
            there = hits.sum(axis=1) > 0
            own = np.where(there, hits @ odds, 1.0)
            total += np.log(own)
            pull = (1.0 - FLOOR) * (hits @ shares) / own
            slopes[:, group] = pull[:, None] * (hits - shares)
        return total, slopes

    def entropy_slope(self, theta: Array) -> Array:
        """The slope of the policy's entropy; that of choices without their floor."""
        slope = np.zeros(self._size)
        slope[self._count : 2 * self._count] = 1.0
        for group, _ in self._groups:
            shares = _softmax(theta[group])
            logs = np.log(np.maximum(shares, 1e-12))
            slope[group] = -shares * (logs - (shares * logs).sum())
        return slope

    def policy(self, theta: Array) -> Policy:
        """The policy of a vector, its means and spreads within their bounds."""
        like, count = self._like, self._count
        means = np.clip(theta[:count], -FARTHEST, FARTHEST)
        logs = np.clip(theta[count : 2 * count], math.log(LEAST_SPREAD), math.log(MOST_SPREAD))
        spreads = np.clip(np.exp(logs), LEAST_SPREAD, MOST_SPREAD)
        groups = [tuple(float(x) for x in theta[group]) for group, _ in self._groups]
        return Policy(
            like.parameters,
            dict(zip(like.means, map(float, means), strict=True)),
            dict(zip(like.spreads, map(float, spreads), strict=True)),
            dict(zip(like.logits, groups, strict=True)),
        )


def _softmax(logits: Array) -> Array:
    powers = np.exp(logits - logits.max())
    shares: Array = powers / powers.sum()
    return shares


def _adam(theta: Array, gradient: Array, moments: Moments, rate: float) -> tuple[Array, Moments]:
    """One step up the gradient (Kingma and Ba 2015)."""
    steps = moments.steps + 1
    zero = np.zeros_like(theta)
    first = _BETAS[0] * (np.array(moments.first) if moments.first else zero)
    second = _BETAS[1] * (np.array(moments.second) if moments.second else zero)
    first = first + (1 - _BETAS[0]) * gradient
    second = second + (1 - _BETAS[1]) * gradient**2
    size = np.sqrt(second / (1 - _BETAS[1] ** steps)) + _TINY
    moved: Array = theta + rate * first / (1 - _BETAS[0] ** steps) / size
    return moved, Moments(tuple(map(float, first)), tuple(map(float, second)), steps)
