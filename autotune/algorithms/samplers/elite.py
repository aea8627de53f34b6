"""The elite archive: a policy's versions, learned from the best of the ended trials."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from autotune.algorithms.ranking.equal_time import equal_time_ranks
from autotune.algorithms.samplers.distribution import (
    STEP,
    Draw,
    Policy,
    draw_of_point,
    even,
    towards,
    value_of,
)
from autotune.space.parameters import Parameter
from autotune.space.search_space import SearchSpace
from autotune.trial import INTERRUPTED_REASONS, Params, State, Target, Trial

VERSION_INTERVAL = 4  # ended trials from one version to the next
_ARCHIVE, _LEAST_ELITE, _ELITE = 24, 6, 0.2
LEAST_UNIFORM = 0.1  # the least share of even draws


@dataclass(frozen=True)
class Version:
    """What one version of a policy draws from: itself, and evenly a share of the time.

    `archive` holds the best trials so far, the best first; `memory` is the optimiser's.
    """

    policy: Policy
    even_share: float
    archive: tuple[Trial, ...] = ()
    memory: Any = None


def log_behaviour(version: Version, anywhere: Policy, draw: Draw) -> float:
    """The log density of a draw: of the policy and the even share together.

    It is never far below that of even draws, so that no weight by it is without bound.
    """
    own = version.policy.log_density(draw) + math.log1p(-version.even_share)
    other = anywhere.log_density(draw) + math.log(version.even_share)
    most = max(own, other)
    return most + math.log(math.exp(own - most) + math.exp(other - most))


def remembered(told: Sequence[Trial], version: Version, count: int) -> list[Trial]:
    """Of the trials told the fastest, the elite and the newest, `count` each, in their order.

    So whoever learns from them never takes longer and longer.
    """
    reached = sorted((t for t in told if t.state is State.REACHED), key=lambda t: t.seconds)
    kept = {t.number for t in (*reached[:count], *version.archive)}
    rest = [t.number for t in told if t.number not in kept]
    kept.update(rest[-count:])
    return [t for t in told if t.number in kept]


def in_order(trials: Sequence[Trial]) -> list[Trial]:
    """The trials that say something of their points, in the order in which they ended."""
    ended = [
        t
        for t in trials
        if t.ended and t.reason not in INTERRUPTED_REASONS and t.params is not None
    ]
    return sorted(ended, key=lambda t: (t.ended_at or 0.0, t.number))


def common(one: Sequence[Trial], other: Sequence[Trial]) -> int:
    """How many trials both begin with."""
    for i, (a, b) in enumerate(zip(one, other, strict=False)):
        if a is not b and a != b:
            return i
    return min(len(one), len(other))


def sampled(policy: Policy, space: SearchSpace, random: Random) -> tuple[Params, dict[str, float]]:
    """A point, and what was drawn for it."""
    draw: dict[str, float] = {}

    def value(name: str, parameter: Parameter) -> Any:
        draw[name] = policy.drawn(name, random)
        return value_of(parameter, draw[name])

    return space.suggest(value), draw


def drawn_by(
    version: Version, anywhere: Policy, space: SearchSpace, random: Random
) -> tuple[Params, Draw]:
    """A point of a version: by its policy, or evenly."""
    evenly = random.random() < version.even_share
    return sampled(anywhere if evenly else version.policy, space, random)


def learned_elite(
    before: Version, told: Sequence[Trial], target: Target, step: float = STEP
) -> Version:
    """The version after a step towards the elite: the archive's best, when the newest are in it.

    The elite is a fifth of all trials told, 6 to 24 of those that did not fail.
    """
    known = {t.number for t in before.archive}
    newest = [t for t in told[-VERSION_INTERVAL:] if t.number not in known]
    pool = [*before.archive, *newest]
    places = equal_time_ranks(pool, target)
    ranked = sorted(pool, key=lambda t: (places[t.number], t.number))[:_ARCHIVE]
    fit = [t for t in ranked if t.state not in (State.FAILED, State.INFEASIBLE)]
    count = max(_LEAST_ELITE, min(math.ceil(_ELITE * len(told)), _ARCHIVE))
    parameters = before.policy.parameters
    elite = [draw_of_point(parameters, t.params or {}) for t in fit[:count]]
    policy = towards(before.policy, elite, step) if elite else before.policy
    return replace(before, policy=policy, archive=tuple(ranked))


def learned(space: SearchSpace, target: Target, trials: Sequence[Trial]) -> Policy | None:
    """What an elite archive makes of a study's trials, whoever proposed them; None without any."""
    told, version = in_order(trials), Version(even(space.parameters()), LEAST_UNIFORM)
    for count in [*range(VERSION_INTERVAL, len(told), VERSION_INTERVAL), len(told)]:
        version = learned_elite(version, told[:count], target)
    return version.policy if told else None
