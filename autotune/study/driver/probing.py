"""The first stage of a search in two: probes, one after the other, each alone, and then one plan.

What is probed next and which plan is kept are functions of the probes (`algorithms.plans`), so that
a resumed study goes on where it was and keeps the same plan. Probes come after the given
configurations and before the first suggestion.
"""

from __future__ import annotations

from functools import cached_property

from autotune.algorithms.plans.choice import chosen, next_probe
from autotune.algorithms.plans.measured import nothing_decided
from autotune.algorithms.plans.parameters import ProbedParameters
from autotune.algorithms.plans.probed import ended
from autotune.algorithms.plans.words import decision
from autotune.algorithms.ranking.repeats import PROBE, probes
from autotune.algorithms.samplers import Sampler
from autotune.algorithms.samplers.planned import PlannedSampler
from autotune.storage.codec import plain
from autotune.study.driver.state import StudyState, say
from autotune.study.experiment import refusal
from autotune.study.stages import Stages
from autotune.trial import Config, Params, Trial
from autotune.trial.checks import is_whole
from autotune.trial.plan_text import plan_keys

_MILESTONE, _SHORTER = "milestone", 8  # samples between two, if the recipe says it: a block


class Probing:
    """The probes of a study, and the plan that they leave its sampler.

    Args:
        state: the study's.
        stages: what is probed.
        sampler: proposes points in the plan that is kept.
    """

    def __init__(self, state: StudyState, stages: Stages, sampler: PlannedSampler) -> None:
        self._state, self._stages, self._sampler = state, stages, sampler
        self._settled = False

    @classmethod
    def of(cls, state: StudyState, sampler: Sampler) -> Probing | None:
        """That of a study in two stages, None for one stage."""
        if state.settings.stages is None or not isinstance(sampler, PlannedSampler):
            return None
        return cls(state, state.settings.stages, sampler)

    def left(self) -> bool:
        """Whether anything is left to probe; once nothing is, the plan is fixed.

        Not before the given configurations: they are the first to run.
        """
        if self._settled or self._state.given_left:
            return False
        if self._unended() is not None or self._next() is not None:
            return True
        self._settle()
        return False

    def trial(self) -> Trial:
        """The probe to start now: one that waits, or a new one; called only if any is `left`."""
        state, waits = self._state, self._unended()
        if waits is not None:
            return waits
        point = self._next()
        assert point is not None, "something is left"
        config = _shorter(state.settings.experiment.space.config(point))
        return state.add(plain(config), kind=PROBE, params=point)

    def _unended(self) -> Trial | None:
        own = probes(self._state.trials.values())
        return next((trial for trial in own if not trial.ended), None)

    def _next(self) -> Params | None:
        state = self._state
        if any(t.ask is not None for t in state.compared.values()):
            return None  # the second stage has begun
        return next_probe(
            state.trials.values(),
            self._first,
            self._alternatives,
            self._parameters.together,
            self._stages.seconds,
        )

    @property
    def _first(self) -> Params:
        """The point of the default plan: that of the first probe, once there is one."""
        done = ended(self._state.trials.values())
        return done[0].params if done and done[0].params is not None else self._parameters.default

    @cached_property
    def _alternatives(self) -> list[Params]:
        return self._parameters.alternatives()

    @cached_property
    def _parameters(self) -> ProbedParameters:
        """The parameters, about the baseline's point; else about the first of the space."""
        settings = self._state.settings
        experiment, space = settings.experiment, settings.experiment.space
        point: Params | None = None
        if experiment.baseline is not None:
            point = space.complete(experiment.baseline)[1]
        if point is None:
            drawn = space.sample(1, settings.seed)[0]
            point = {n: v for n, v in drawn.items() if n not in self._stages.names}
        refused = refusal(experiment)
        return ProbedParameters(
            space,
            self._stages.names,
            plan_keys(experiment.train),
            point,
            experiment.scaling.num_workers,
            lambda config: refused is None or not refused(config),
            settings.seed,
        )

    def _settle(self) -> None:
        """Fix the plan, and say which one it is when it is decided.

        Where probes cannot decide it, none is fixed: its parameters are searched like all others.
        """
        state, trials = self._state, list(self._state.trials.values())
        self._settled = True
        done, plan = ended(trials), chosen(trials)
        if done and nothing_decided(done[0]):
            self._sampler.fix({})
        else:
            point = plan.point if plan is not None else self._first
            self._sampler.fix(self._parameters.fixed(point))
        begun = any(t.ask is not None for t in state.compared.values())
        if state.pool.realtime and not begun and (said := decision(trials)):
            say(f"plan: {said}")


def _shorter(config: Config) -> Config:
    """A configuration with shorter blocks, where it says how long they are."""
    samples = config.get(_MILESTONE)
    if samples is None or not is_whole(samples, 2):
        return config
    return {**config, _MILESTONE: max(samples // _SHORTER, 1)}
