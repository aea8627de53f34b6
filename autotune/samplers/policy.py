"""`policy`: reinforcement learning as searcher, a stochastic policy learned from ended trials.

The policy is folded from the ended trials in the order in which they ended, a new version after
every fourth. So it is a function of what the journal says, and a resumed study has the same one.

Which version drew a trial need not be written down: a draw is a function of the version, the seed
and the trial's number. The version that draws the trial's point again is the one that drew it, and
what it drew, and how likely that was, are then known exactly.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from threading import Lock
from typing import Any

from autotune.encoding import rank_score
from autotune.errors import UserError, unknown
from autotune.parameters import Parameter
from autotune.samplers.actor import (
    STEP,
    Draw,
    Policy,
    around,
    carried,
    draw_of_point,
    even,
    shared,
    towards,
    value_of,
)
from autotune.space import SearchSpace
from autotune.standing import standings
from autotune.trial import CUT, Params, State, Target, Trial

NAMES = ("policy", "policy:actor", "policy:reinforce", "policy:ppo")
_EVERY = 4  # ended trials from one version to the next
_ARCHIVE, _LEAST_ELITE, _ELITE = 24, 6, 0.2
_NEWEST, _WINDOW = 8, 32  # REINFORCE's batch; PPO's, and among whom ranks are taken
_EVEN = 0.1  # the least share of even draws
_DOUBT, _FADING = 0.5, 0.8  # that share at first, where a start is given; what is left of it
_FIRST = 16  # ended trials before the critic judges
_CANDIDATES, _ANYWHERE = 256, 0.25
_KNOWN = 250  # of the fastest and of the newest trials: more than the critic sees at once


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


class PolicySampler:
    """Proposes points by a policy over the space.

    Args:
        name: `policy` (an elite archive shapes the actor, and a critic picks among 256 of its
            candidates, those that are likely to be feasible), `policy:actor` (without the critic),
            `policy:reinforce`, `policy:ppo`.
        space: what is searched; conditions included.
        target: what the trials race to.
        seed: of the random numbers, together with the number of the trial that is asked for.
        start: a policy of an earlier study to begin with, over a space that overlaps.

    Raises:
        UserError: an unknown name, or a start that has no parameter in common with the space.
    """

    def __init__(
        self, name: str, space: SearchSpace, target: Target, seed: int, start: Policy | None = None
    ) -> None:
        if name not in NAMES:
            raise UserError(unknown("sampler", name, NAMES))
        self.name = name
        self._space, self._target, self._seed = space, target, seed
        self._parameters = space.parameters()
        self._anywhere = even(self._parameters)
        self._start = self._carried(start) if start is not None else None
        self._one = Lock()  # the study asks on a thread of its own, and saves on another
        self._first: Version | None = None
        self._told: list[Trial] = []  # what `_versions` and `_drawn` were made from
        self._versions: list[Version] = []
        self._drawn: dict[int, tuple[Draw, float]] = {}
        self._critic: tuple[list[Trial], Any] | None = None
        self._feasible: Any = None

    def ask(self, number: int, trials: Sequence[Trial]) -> Params:
        """The point of trial `number`: a function of the trials, the seed and the number."""
        with self._one:
            return self._ask(number, trials)

    def _ask(self, number: int, trials: Sequence[Trial]) -> Params:
        told = in_order(trials)
        version = self._newest(trials, told)
        if self.name == "policy" and len(told) >= _FIRST and self._parameters:
            return self._picked(number, version, told)
        return self._draw(version, number)[0]

    def policy(self, trials: Sequence[Trial]) -> Policy:
        """What has been learned from the trials so far."""
        with self._one:
            return self._newest(trials, in_order(trials)).policy

    def _carried(self, start: Policy) -> Policy:
        if not shared(start, self._parameters):
            here, there = ", ".join(self._parameters), ", ".join(start.parameters)
            raise UserError(
                f"the earlier study has no parameter in common with this one: it has "
                f"{there or 'none'}, and this one {here or 'none'}"
            )
        return carried(start, self._space)

    # --- draws --------------------------------------------------------------------------------

    def _draw(self, version: Version, number: int) -> tuple[Params, Draw]:
        return drawn_by(version, self._anywhere, self._space, Random(f"{self._seed}/{number}"))

    def _picked(self, number: int, version: Version, told: list[Trial]) -> Params:
        """The candidate that the critic likes best, by trees of this proposal's own."""
        random = Random(f"{self._seed}/{number}")
        elsewhere = round(_CANDIDATES * _ANYWHERE)
        actors = [self._anywhere] * elsewhere
        actors += [version.policy] * (_CANDIDATES - elsewhere)
        points = [sampled(actor, self._space, random)[0] for actor in actors]
        kept = [points[i] for i in self._likely(told, points)]
        seen = remembered(told, version, _KNOWN)
        chosen: int = self._judge(seen).choice(kept, random)
        return kept[chosen]

    def _likely(self, told: list[Trial], points: Sequence[Params]) -> Sequence[int]:
        """Which points are likely to be feasible: all, where no trial was infeasible."""
        if not any(t.state is State.INFEASIBLE for t in told):
            return range(len(points))
        from autotune.samplers.feasible import Feasible, likely

        if self._feasible is None:
            self._feasible = Feasible(self._space)
        return likely(self._feasible.chances(told, points))

    def _judge(self, told: list[Trial]) -> Any:
        """The critic of these trials, made once for all proposals before the next one ends."""
        if self._critic is None or self._critic[0] != told:
            from autotune.samplers.critic import Critic

            places = standings(told, self._target)
            points = [t.params or {} for t in told]
            seed = Random(f"{self._seed}/critic/{len(told)}").getrandbits(31)
            made = Critic(self._space, points, [places[t.number] for t in told], seed)
            self._critic = told, made
        return self._critic[1]

    # --- versions -----------------------------------------------------------------------------

    def _newest(self, trials: Sequence[Trial], told: list[Trial]) -> Version:
        """The last version, folded from those that are known already as far as these hold."""
        first = self._begun(trials)
        same = common(self._told, told) if first == self._first else 0
        if not same or not self._versions:
            self._versions, self._first = [first], first
        del self._versions[1 + same // _EVERY :]
        for trial in self._told[same:]:
            self._drawn.pop(trial.number, None)
        self._told = told
        while len(self._versions) <= len(told) // _EVERY:
            self._versions.append(self._after(told[: _EVERY * len(self._versions)]))
        return self._versions[-1]

    def _begun(self, trials: Sequence[Trial]) -> Version:
        """The first version: from an earlier study, around the baseline, or even."""
        if self._start is not None:
            return Version(self._start, _DOUBT)
        known = next((t.params for t in trials if t.kind == "baseline" and t.params), None)
        if known:
            return Version(around(self._parameters, known), _DOUBT)
        return Version(self._anywhere, _EVEN)

    def _after(self, told: Sequence[Trial]) -> Version:
        """The version after the last few of the trials told."""
        before = self._versions[-1]
        share = max(_EVEN, before.even_share * _FADING)
        if self.name in ("policy", "policy:actor"):
            return replace(learned_elite(before, told, self._target), even_share=share)
        from autotune.samplers import gradient

        step, newest = (
            (gradient.ppo, _WINDOW) if self.name == "policy:ppo" else (gradient.reinforce, _NEWEST)
        )
        window = told[-_WINDOW:]
        places = standings(window, self._target)
        batch = [
            gradient.Sample(*self._origin(t), -rank_score(places[t.number], len(window)))
            for t in window[-newest:]
        ]
        memory = before.memory if before.memory is not None else gradient.Moments()
        policy, memory = step(before.policy, memory, batch)
        return Version(policy, share, memory=memory)

    def _origin(self, trial: Trial) -> tuple[Draw, float]:
        """What was drawn for a trial, and the log density with which it was.

        A point that no version draws again (a given configuration, another sampler's) counts as
        drawn evenly.
        """
        if trial.number not in self._drawn:
            self._drawn[trial.number] = self._sought(trial)
        return self._drawn[trial.number]

    def _sought(self, trial: Trial) -> tuple[Draw, float]:
        point = trial.params or {}
        ended = bisect_right(self._told, trial.waiting_since, key=lambda t: t.ended_at or 0.0)
        for version in reversed(self._versions[: ended // _EVERY + 1]):
            draw = self._again(version, trial.number, point)
            if draw is not None:
                return draw, log_behaviour(version, self._anywhere, draw)
        draw = draw_of_point(self._parameters, point)
        return draw, self._anywhere.log_density(draw)

    def _again(self, version: Version, number: int, point: Params) -> Draw | None:
        """What the version draws for the trial, if it is that point; else None."""
        random = Random(f"{self._seed}/{number}")
        policy = self._anywhere if random.random() < version.even_share else version.policy
        draw: dict[str, float] = {}
        for name, parameter in self._parameters.items():
            if name in point:  # a point has what exists, and is drawn in this order
                draw[name] = policy.drawn(name, random)
                if value_of(parameter, draw[name]) != point[name]:
                    return None
        return draw


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
    ended = [t for t in trials if t.ended and t.reason not in CUT and t.params is not None]
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
    newest = [t for t in told[-_EVERY:] if t.number not in known]
    pool = [*before.archive, *newest]
    places = standings(pool, target)
    ranked = sorted(pool, key=lambda t: (places[t.number], t.number))[:_ARCHIVE]
    fit = [t for t in ranked if t.state not in (State.FAILED, State.INFEASIBLE)]
    count = max(_LEAST_ELITE, min(math.ceil(_ELITE * len(told)), _ARCHIVE))
    parameters = before.policy.parameters
    elite = [draw_of_point(parameters, t.params or {}) for t in fit[:count]]
    policy = towards(before.policy, elite, step) if elite else before.policy
    return replace(before, policy=policy, archive=tuple(ranked))


def learned(space: SearchSpace, target: Target, trials: Sequence[Trial]) -> Policy | None:
    """What an elite archive makes of a study's trials, whoever proposed them; None without any."""
    told, version = in_order(trials), Version(even(space.parameters()), _EVEN)
    for count in [*range(_EVERY, len(told), _EVERY), len(told)]:
        version = learned_elite(version, told[:count], target)
    return version.policy if told else None
