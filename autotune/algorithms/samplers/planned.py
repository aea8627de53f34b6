"""A search in two stages: the second samples what a plan, found in the first, leaves open."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from autotune.algorithms.plans.parameters import extended, within, without
from autotune.algorithms.samplers import Sampler
from autotune.space.search_space import SearchSpace
from autotune.trial import Params, Trial


class PlannedSampler:
    """Proposes points of a space with a fixed plan, as another sampler proposes the rest of them.

    That sampler knows neither the parameters of the plan nor their values in trials: of a trial
    with another plan, such as the baseline, it sees the other parameters.

    Args:
        space: all that is searched.
        make: makes the sampler of a narrower space.
        fixed: the values of the plan's parameters, until `fix` gives others.
    """

    def __init__(
        self,
        space: SearchSpace,
        make: Callable[[SearchSpace], Sampler],
        fixed: Mapping[str, Any],
    ) -> None:
        self._space, self._make = space, make
        self.fix(fixed)

    def fix(self, fixed: Mapping[str, Any]) -> None:
        """Propose these values of the plan's parameters from now on."""
        self._fixed = dict(fixed)
        self._narrow = without(self._space, self._fixed)
        self._seen: dict[int, tuple[Trial, Trial]] = {}
        self.then = self._make(self._narrow)

    def ask(self, number: int, trials: Sequence[Trial]) -> Params | None:
        point = self.then.ask(number, self.seen(trials))
        return None if point is None else extended(self._space, point, self._fixed)

    def seen(self, trials: Sequence[Trial]) -> tuple[Trial, ...]:
        """The trials as the other sampler sees them; equal ones are the same objects."""
        for trial in trials:
            if trial.number not in self._seen or self._seen[trial.number][0] is not trial:
                self._seen[trial.number] = trial, self._within(trial)
        return tuple(self._seen[trial.number][1] for trial in trials)

    def _within(self, trial: Trial) -> Trial:
        own = replace(trial, params=within(self._narrow, trial.params))
        if trial.origin is None:
            return own
        origin = replace(trial.origin, params=within(self._narrow, trial.origin.params))
        return replace(own, origin=origin)
