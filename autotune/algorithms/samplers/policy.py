"""`policy`: reinforcement learning as searcher, a stochastic policy learned from ended trials.

The policy is folded from the ended trials in the order in which they ended, a new version after
every fourth. So it is a function of what the journal says, and a resumed study has the same one.

Which version drew a trial need not be written down: a draw is a function of the version, the seed
and the trial's number. The version that draws the trial's point again is the one that drew it, and
what it drew, and how likely that was, are then known exactly.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from threading import Lock
from typing import Any

from autotune.algorithms.ranking.equal_time import equal_time_ranks
from autotune.algorithms.samplers.distribution import (
    Draw,
    Policy,
    around,
    carried,
    draw_of_point,
    even,
    shared,
    value_of,
)
from autotune.algorithms.samplers.elite import (
    LEAST_UNIFORM,
    VERSION_INTERVAL,
    Version,
    common,
    drawn_by,
    in_order,
    learned_elite,
    log_behaviour,
    remembered,
    sampled,
)
from autotune.errors import UserError, unknown
from autotune.space.encoding import rank_score
from autotune.space.search_space import SearchSpace
from autotune.trial import Params, State, Target, Trial

NAMES = ("policy", "policy:actor", "policy:reinforce", "policy:ppo")
_NEWEST, _WINDOW = 8, 32  # REINFORCE's batch; PPO's, and among whom ranks are taken
_DOUBT, _FADING = 0.5, 0.8  # that share at first, where a start is given; what is left of it
_FIRST = 16  # ended trials before the critic judges
_CANDIDATES, _ANYWHERE = 256, 0.25
_KNOWN = 250  # of the fastest and of the newest trials: more than the critic sees at once


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
        from autotune.algorithms.samplers.feasibility import Feasible, likely

        if self._feasible is None:
            self._feasible = Feasible(self._space)
        return likely(self._feasible.chances(told, points))

    def _judge(self, told: list[Trial]) -> Any:
        """The critic of these trials, made once for all proposals before the next one ends."""
        if self._critic is None or self._critic[0] != told:
            from autotune.algorithms.samplers.critic import Critic

            places = equal_time_ranks(told, self._target)
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
        del self._versions[1 + same // VERSION_INTERVAL :]
        for trial in self._told[same:]:
            self._drawn.pop(trial.number, None)
        self._told = told
        while len(self._versions) <= len(told) // VERSION_INTERVAL:
            self._versions.append(self._after(told[: VERSION_INTERVAL * len(self._versions)]))
        return self._versions[-1]

    def _begun(self, trials: Sequence[Trial]) -> Version:
        """The first version: from an earlier study, around the baseline, or even."""
        if self._start is not None:
            return Version(self._start, _DOUBT)
        known = next((t.params for t in trials if t.kind == "baseline" and t.params), None)
        if known:
            return Version(around(self._parameters, known), _DOUBT)
        return Version(self._anywhere, LEAST_UNIFORM)

    def _after(self, told: Sequence[Trial]) -> Version:
        """The version after the last few of the trials told."""
        before = self._versions[-1]
        share = max(LEAST_UNIFORM, before.even_share * _FADING)
        if self.name in ("policy", "policy:actor"):
            return replace(learned_elite(before, told, self._target), even_share=share)
        from autotune.algorithms.samplers import policy_gradient

        step, newest = (
            (policy_gradient.ppo, _WINDOW)
            if self.name == "policy:ppo"
            else (policy_gradient.reinforce, _NEWEST)
        )
        window = told[-_WINDOW:]
        places = equal_time_ranks(window, self._target)
        batch = [
            policy_gradient.Sample(*self._origin(t), -rank_score(places[t.number], len(window)))
            for t in window[-newest:]
        ]
        memory = before.memory if before.memory is not None else policy_gradient.Moments()
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
        for version in reversed(self._versions[: ended // VERSION_INTERVAL + 1]):
            draw = self._again(version, trial.ask_number, point)
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
