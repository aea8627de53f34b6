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
    Policy,
    draw_of_point,
    natural_gradient_step,
    uniform,
    value_of,
)
from autotune.space.parameters import Parameter
from autotune.space.search_space import SearchSpace
from autotune.trial import INTERRUPTED_REASONS, Params, State, Target, Trial

VERSION_INTERVAL = 4  # ended trials from one version to the next
_ARCHIVE, _LEAST_ELITE, _ELITE = 24, 6, 0.2
LEAST_UNIFORM = 0.1  # the least share of uniform draws


@dataclass(frozen=True)
class Version:
    """One version of a policy: a mixture of the policy and uniform draws.

    `uniform_share` is the share of uniform draws. `archive` has the best trials so far, the best
    first.
    """

    policy: Policy
    uniform_share: float
    archive: tuple[Trial, ...] = ()


def select_trials(
    ended: Sequence[Trial], version: Version, count: int, target: Target
) -> list[Trial]:
    """The `count` best and `count` newest of the ended trials and the elite, in their order.

    A model that learns from these has a bounded cost in a long study.
    """
    done = sorted((t for t in ended if t.succeeded), key=target.order)
    kept = {t.number for t in (*done[:count], *version.archive)}
    rest = [t.number for t in ended if t.number not in kept]
    kept.update(rest[-count:])
    return [t for t in ended if t.number in kept]


def is_informative(trial: Trial) -> bool:
    """Whether the trial has ended with a result for its point."""
    interrupted = trial.reason in INTERRUPTED_REASONS
    return trial.ended and trial.params is not None and not interrupted


def informative_trials(trials: Sequence[Trial]) -> list[Trial]:
    """The ended trials with a result for their points, in the order in which they ended."""
    ended = [t for t in trials if is_informative(t)]
    return sorted(ended, key=lambda t: (t.ended_at or 0.0, t.number))


def baseline_point(trials: Sequence[Trial]) -> Params | None:
    """The point of the baseline; None without one, or where it is outside the space."""
    return next((t.params for t in trials if t.kind == "baseline" and t.params), None)


def sample_point(policy: Policy, space: SearchSpace, random: Random) -> Params:
    """A point drawn from the policy."""

    def value(name: str, parameter: Parameter) -> Any:
        return value_of(parameter, policy.drawn(name, random))

    return space.suggest(value)


def draw_point(version: Version, prior: Policy, space: SearchSpace, random: Random) -> Params:
    """A point drawn from a version: from its policy, or uniformly."""
    explores = random.random() < version.uniform_share
    return sample_point(prior if explores else version.policy, space, random)


def elite_step(
    before: Version, ended: Sequence[Trial], target: Target, step: float = STEP
) -> Version:
    """The version after the newest trials enter the archive and the policy steps to the elite.

    The elite is the best fifth of the ended trials, 6 to 24 of those that did not fail.
    """
    known = {t.number for t in before.archive}
    newest = [t for t in ended[-VERSION_INTERVAL:] if t.number not in known]
    pool = [*before.archive, *newest]
    ranks = equal_time_ranks(pool, target)
    ranked = sorted(pool, key=lambda t: (ranks[t.number], t.number))[:_ARCHIVE]
    fit = [t for t in ranked if t.state not in (State.FAILED, State.INFEASIBLE)]
    count = max(_LEAST_ELITE, min(math.ceil(_ELITE * len(ended)), _ARCHIVE))
    parameters = before.policy.parameters
    elite = [draw_of_point(parameters, t.params or {}) for t in fit[:count]]
    policy = natural_gradient_step(before.policy, elite, step) if elite else before.policy
    return replace(before, policy=policy, archive=tuple(ranked))


def learned_policy(space: SearchSpace, target: Target, trials: Sequence[Trial]) -> Policy | None:
    """The policy that an elite archive learns from a study's trials; None if no trial has ended.

    Any sampler may have proposed the trials.
    """
    ended, version = informative_trials(trials), Version(uniform(space.parameters()), LEAST_UNIFORM)
    for count in [*range(VERSION_INTERVAL, len(ended), VERSION_INTERVAL), len(ended)]:
        version = elite_step(version, ended[:count], target)
    return version.policy if ended else None
