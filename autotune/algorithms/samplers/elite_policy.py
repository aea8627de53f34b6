"""`policy:elite`: evolutionary search, with a distribution over points learned from ended trials.

The policy is folded over the ended trials in the order in which they ended, with a new version
after every fourth trial. It is a function of the journal, and a resumed study has the same one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from threading import Lock
from typing import Any

from autotune.algorithms.ranking.equal_time import equal_time_ranks
from autotune.algorithms.ranking.trial_index import common_prefix_length
from autotune.algorithms.samplers.distribution import (
    Policy,
    centred_on,
    shared_parameters,
    transferred,
    uniform,
)
from autotune.algorithms.samplers.elite import (
    LEAST_UNIFORM,
    VERSION_INTERVAL,
    Version,
    baseline_point,
    draw_point,
    elite_step,
    informative_trials,
    sample_point,
    select_trials,
)
from autotune.errors import UserError
from autotune.space.search_space import SearchSpace
from autotune.trial import Params, State, Target, Trial

_START_UNIFORM = 0.5  # the first share of uniform draws, where a start is given
_FADING = 0.8  # factor of that share from one version to the next
_FIRST = 16  # ended trials before the critic is used
_CANDIDATES, _EXPLORED = 256, 0.25  # candidates of a proposal, and the share drawn uniformly
_CRITIC_TRIALS = 250  # so many of the fastest and so many of the newest trials train the critic


class PolicySampler:
    """Proposes points by a policy over the space.

    The policy moves by natural-gradient steps to an elite archive; a critic picks one of 256
    candidates that are likely to be feasible.

    Args:
        space: the search space, conditions included.
        target: the target of the trials.
        seed: of the random numbers, together with the number of the ask.
        start: the policy of an earlier study over an overlapping space, as initial policy.

    Raises:
        UserError: the start has no parameter in common with the space.
    """

    def __init__(
        self, space: SearchSpace, target: Target, seed: int, start: Policy | None = None
    ) -> None:
        self._space, self._target, self._seed = space, target, seed
        self._parameters = space.parameters()
        self._prior = uniform(self._parameters)
        self._start = self._transferred(start) if start is not None else None
        self._lock = Lock()  # the study asks in one thread and saves in another
        self._initial: Version | None = None
        self._ended: list[Trial] = []  # the trials behind `_versions`
        self._versions: list[Version] = []
        self._critic: tuple[list[Trial], Any] | None = None
        self._feasible: Any = None

    def ask(self, number: int, trials: Sequence[Trial]) -> Params:
        """A point: a function of the trials, the seed and the number of the ask."""
        with self._lock:
            return self._ask(number, trials)

    def _ask(self, number: int, trials: Sequence[Trial]) -> Params:
        ended = informative_trials(trials)
        version = self._latest_version(trials, ended)
        if len(ended) >= _FIRST and self._parameters:
            return self._pick(number, version, ended)
        return draw_point(version, self._prior, self._space, Random(f"{self._seed}/{number}"))

    def policy(self, trials: Sequence[Trial]) -> Policy:
        """The policy learned from the trials so far."""
        with self._lock:
            return self._latest_version(trials, informative_trials(trials)).policy

    def _transferred(self, start: Policy) -> Policy:
        if not shared_parameters(start, self._parameters):
            here, there = ", ".join(self._parameters), ", ".join(start.parameters)
            raise UserError(
                f"the earlier study has no parameter in common with this one: it has "
                f"{there or 'none'}, and this one {here or 'none'}"
            )
        return transferred(start, self._space)

    # --- candidates ---------------------------------------------------------------------------

    def _pick(self, number: int, version: Version, ended: list[Trial]) -> Params:
        """The candidate with the best prediction of a random part of the critic's trees."""
        random = Random(f"{self._seed}/{number}")
        explored = round(_CANDIDATES * _EXPLORED)
        actors = [self._prior] * explored
        actors += [version.policy] * (_CANDIDATES - explored)
        points = [sample_point(actor, self._space, random) for actor in actors]
        kept = [points[i] for i in self._likely(ended, points)]
        seen = select_trials(ended, version, _CRITIC_TRIALS, self._target)
        chosen: int = self._critic_of(seen).choose(kept, random)
        return kept[chosen]

    def _likely(self, ended: list[Trial], points: Sequence[Params]) -> Sequence[int]:
        """The indices of points that are likely to be feasible; all if no trial was infeasible."""
        if not any(t.state is State.INFEASIBLE for t in ended):
            return range(len(points))
        from autotune.algorithms.samplers.feasibility import Feasible, likely

        if self._feasible is None:
            self._feasible = Feasible(self._space)
        return likely(self._feasible.chances(ended, points))

    def _critic_of(self, ended: list[Trial]) -> Any:
        """The critic trained on these trials, cached until the trials change."""
        if self._critic is None or self._critic[0] != ended:
            from autotune.algorithms.samplers.critic import Critic

            ranks = equal_time_ranks(ended, self._target)
            points = [t.params or {} for t in ended]
            seed = Random(f"{self._seed}/critic/{len(ended)}").getrandbits(31)
            critic = Critic(self._space, points, [ranks[t.number] for t in ended], seed)
            self._critic = ended, critic
        return self._critic[1]

    # --- versions -----------------------------------------------------------------------------

    def _latest_version(self, trials: Sequence[Trial], ended: list[Trial]) -> Version:
        """The version after all ended trials; versions of unchanged trials are reused."""
        first = self._first_version(trials)
        same = common_prefix_length(self._ended, ended) if first == self._initial else 0
        if not same or not self._versions:
            self._versions, self._initial = [first], first
        del self._versions[1 + same // VERSION_INTERVAL :]
        self._ended = ended
        while len(self._versions) <= len(ended) // VERSION_INTERVAL:
            self._versions.append(
                self._next_version(ended[: VERSION_INTERVAL * len(self._versions)])
            )
        return self._versions[-1]

    def _first_version(self, trials: Sequence[Trial]) -> Version:
        """The initial version: from an earlier study, centred on the baseline, or uniform."""
        if self._start is not None:
            return Version(self._start, _START_UNIFORM)
        known = baseline_point(trials)
        if known:
            return Version(centred_on(self._parameters, known), _START_UNIFORM)
        return Version(self._prior, LEAST_UNIFORM)

    def _next_version(self, ended: Sequence[Trial]) -> Version:
        """The version after the newest of the ended trials."""
        before = self._versions[-1]
        share = max(LEAST_UNIFORM, before.uniform_share * _FADING)
        return replace(elite_step(before, ended, self._target), uniform_share=share)
