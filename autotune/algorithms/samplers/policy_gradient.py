"""REINFORCE and PPO: gradient steps of a policy on trials drawn from it or from earlier versions.

Rewards are the normal scores of the trials' ranks: only the order counts, and the mean is the
baseline. A trial has the importance weight of its draw: its density now over its density when it
was drawn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autotune.algorithms.policy_optimization import (
    PPO_EPOCHS,
    Array,
    Moments,
    adam_step,
    clipped_weights,
)
from autotune.algorithms.samplers.distribution import (
    FARTHEST,
    FLOOR,
    LEAST_SPREAD,
    MOST_SPREAD,
    Draw,
    Policy,
)

_RATE, _PPO_RATE = 0.15, 0.05  # of Adam
_ENTROPY = 0.02
_MOST_WEIGHT = 2.0  # truncates the importance weights of REINFORCE, to bound their variance


@dataclass(frozen=True)
class Sample:
    """A draw, its log density when it was drawn, and its reward."""

    draw: Draw
    log_behaviour: float
    reward: float


def reinforce(policy: Policy, moments: Moments, batch: Sequence[Sample]) -> tuple[Policy, Moments]:
    """One step of REINFORCE (Williams 1992) with an entropy bonus, by Adam.

    The gradient is the mean of weight * reward * slope of the log density, where the weight is the
    density now over the density when it was drawn, at most 2.
    """
    arrays = _Batch(policy, batch)
    theta = _vector(policy)
    log_density, slopes = arrays.densities(theta)
    weights = np.minimum(np.exp(log_density - arrays.log_behaviour), _MOST_WEIGHT)
    gradient = (weights * arrays.rewards) @ slopes / len(batch)
    theta, moments = adam_step(
        theta, gradient + _ENTROPY * arrays.entropy_slope(theta), moments, _RATE
    )
    return arrays.policy(theta), moments


def ppo(policy: Policy, moments: Moments, batch: Sequence[Sample]) -> tuple[Policy, Moments]:
    """Eight epochs of PPO's clipped objective (Schulman et al. 2017, arXiv 1707.06347), by Adam."""
    arrays = _Batch(policy, batch)
    theta = _vector(policy)
    for _ in range(PPO_EPOCHS):
        log_density, slopes = arrays.densities(theta)
        ratios = np.exp(np.minimum(log_density - arrays.log_behaviour, 20.0))
        gradient = clipped_weights(ratios, arrays.rewards) @ slopes / len(batch)
        gradient = gradient + _ENTROPY * arrays.entropy_slope(theta)
        theta, moments = adam_step(theta, gradient, moments, _PPO_RATE)
        theta = _vector(arrays.policy(theta))
    return arrays.policy(theta), moments


def log_density(policy: Policy, draw: Draw) -> tuple[float, Array]:
    """The log density of one draw, and its slope by means, log spreads and logits."""
    values, slopes = _Batch(policy, [Sample(draw, 0.0, 0.0)]).densities(_vector(policy))
    return float(values[0]), slopes[0]


def _vector(policy: Policy) -> Array:
    logits = [logit for own in policy.logits.values() for logit in own]
    spreads = [math.log(spread) for spread in policy.spreads.values()]
    return np.array([*policy.means.values(), *spreads, *logits])


class _Batch:
    """A batch as arrays in the order of a policy's vector: means, log spreads, logits."""

    def __init__(self, template: Policy, batch: Sequence[Sample]) -> None:
        self._template = template
        self._count = len(template.means)
        self.rewards = np.array([s.reward for s in batch])
        self.log_behaviour = np.array([s.log_behaviour for s in batch])
        drawn = [[s.draw.get(name, math.nan) for name in template.means] for s in batch]
        scores = np.array(drawn).reshape(len(batch), self._count)
        self._present = ~np.isnan(scores)
        self._scores = np.nan_to_num(scores)
        at = 2 * self._count
        self._groups: list[tuple[slice, Array]] = []
        for name, own in template.logits.items():
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
        total = (each * self._present).sum(axis=1)
        slopes[:, :count] = self._present * away / spreads
        slopes[:, count : 2 * count] = self._present * (away**2 - 1.0)
        for group, hits in self._groups:
            shares = _softmax(theta[group])
            odds = (1.0 - FLOOR) * shares + FLOOR / len(shares)
            present = hits.sum(axis=1) > 0
            own = np.where(present, hits @ odds, 1.0)
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
        template, count = self._template, self._count
        means = np.clip(theta[:count], -FARTHEST, FARTHEST)
        logs = np.clip(theta[count : 2 * count], math.log(LEAST_SPREAD), math.log(MOST_SPREAD))
        spreads = np.clip(np.exp(logs), LEAST_SPREAD, MOST_SPREAD)
        groups = [tuple(float(x) for x in theta[group]) for group, _ in self._groups]
        return Policy(
            template.parameters,
            dict(zip(template.means, map(float, means), strict=True)),
            dict(zip(template.spreads, map(float, spreads), strict=True)),
            dict(zip(template.logits, groups, strict=True)),
        )


def _softmax(logits: Array) -> Array:
    powers = np.exp(logits - logits.max())
    shares: Array = powers / powers.sum()
    return shares
