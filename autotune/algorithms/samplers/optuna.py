"""Optuna's samplers through its ask-and-tell interface.

Optuna's pruners and `trial.report` are not used: the value of a trial is its `Target.score`, in
seconds, or the metric where the target has no value.
"""

from __future__ import annotations

import math
import warnings
import zlib
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

import optuna
from optuna.samplers import BaseSampler
from optuna.trial import TrialState

from autotune.algorithms.ranking.hardware import scores
from autotune.algorithms.samplers import widening
from autotune.algorithms.samplers.elite import baseline_point, is_informative
from autotune.algorithms.samplers.optuna_names import NAMES, WIDENING, make_optuna_sampler
from autotune.algorithms.samplers.optuna_space import draw, frozen_trial, to_optuna
from autotune.algorithms.specs import canonical_spec
from autotune.space.search_space import SearchSpace
from autotune.trial import Params, State, Target, Trial

TRIAL_LIMITS: Mapping[str, int] = {"tpe": 500, WIDENING: 500, "gp": 250}
"""The most ended trials that a sampler gets whose suggestions take longer the more trials it has:
half of them the best, half the last. A new Optuna study replaces one with a quarter more.
"""
_UNINFORMED = "random"  # uses no trials, so it gets none
_STATELESS = (optuna.samplers.TPESampler, optuna.samplers.GPSampler)
"""Samplers whose suggestions depend on the study's trials only. Others may have internal state (a
distribution, a position in a sequence), which is lost when the Optuna study is replaced.
"""


class OptunaSampler:
    """An Optuna sampler over a search space, with every trial of the study in an Optuna study.

    Trials that reached the target or completed, and censored ones, have the value `Target.score`
    (on other hardware than the usual one, that of `ranking.hardware.scores`); running trials are
    running, failed ones failed. Infeasible trials have a violated constraint, for samplers that
    model constraints, and the worst score, for those that do not. Configurations outside the space
    are left out, and so are some trials of a long study for the samplers in `TRIAL_LIMITS`.

    Args:
        sampler: a name of `SAMPLERS`, the dotted path of an Optuna sampler with or without keyword
            arguments (`optuna.samplers.TPESampler(n_startup_trials=20)`), or a sampler.
        space: the search space.
        target: gives each trial its score.
        seed: of the sampler's random numbers, together with the number of the first ask, so that a
            resumed study does not draw the same points again.

    Raises:
        UserError: an unknown name, a path that leads to no sampler, or wrong arguments.
    """

    def __init__(
        self, sampler: str | BaseSampler, space: SearchSpace, target: Target, seed: int
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        sampler = canonical_spec(sampler, NAMES) if isinstance(sampler, str) else sampler
        self._sampler, self._seed = sampler, seed
        self._space = space
        self._target = target
        self._limit = TRIAL_LIMITS.get(sampler, math.inf) if isinstance(sampler, str) else math.inf
        self._study = self._new_study(0)
        self._optuna_trials: dict[int, optuna.Trial] = {}
        self._running: set[int] = set()
        self._finished: set[int] = set()  # in the Optuna study with their result, or left out
        self._results: dict[int, tuple[State, float, float | None]] = {}
        self._has_constraints = False
        self._scores: Mapping[int, float | None] = {}

    def _new_study(self, number: int) -> optuna.Study:
        sampler = self._sampler
        if isinstance(sampler, str):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
                seed = zlib.crc32(f"{self._seed}/{number}".encode())
                sampler = make_optuna_sampler(sampler, seed)
        return optuna.create_study(direction="minimize", sampler=sampler)

    def ask(self, number: int, trials: Sequence[Trial]) -> Params:
        if self._sampler == _UNINFORMED:
            return self._draw_point(self._new_study(number).ask())
        constrained = any(t.state is State.INFEASIBLE and t.params is not None for t in trials)
        self._scores = scores(trials, self._target)
        fresh = [t for t in trials if t.number not in self._finished]
        finished = len(self._optuna_trials) - len(self._running)
        finished += sum(is_informative(t) for t in fresh)
        changed = constrained != self._has_constraints or self._results_changed(trials)
        if not self._optuna_trials or finished > 1.25 * self._limit or changed:
            self._has_constraints = constrained  # all trials have constraints, or none has
            self._restart(number, trials)
            fresh = [t for t in trials if t.number not in self._finished]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            warnings.filterwarnings("ignore", "Constraints have been set, but")
            for trial in fresh:
                if trial.params is not None:
                    self._tell(trial, trial.params)
            if self._sampler == WIDENING and number <= widening.WIDENED:
                self._study.enqueue_trial(self._inherited(number, trials))
            live = self._study.ask()
            point = self._draw_point(live)
        self._optuna_trials[number] = live
        self._running.add(number)
        return point

    def _draw_point(self, live: optuna.Trial) -> Params:
        return self._space.suggest(lambda name, parameter: draw(live, name, parameter))

    def _results_changed(self, trials: Sequence[Trial]) -> bool:
        """Whether repeats have changed the result of a trial that the sampler has.

        False for samplers with internal state, which keep the first results.
        """
        if not isinstance(self._study.sampler, _STATELESS):
            return False
        return any(self._results.get(t.number, _result(t)) != _result(t) for t in trials)

    def _restart(self, number: int, trials: Sequence[Trial]) -> None:
        """Start a new Optuna study with no more ended trials than the sampler's limit."""
        self._study = self._new_study(number)
        self._optuna_trials, self._running, self._results = {}, set(), {}
        ended = [t for t in trials if is_informative(t)]
        self._finished = set()
        if len(ended) > self._limit:
            kept = _best_and_newest(ended, self._scores, int(self._limit))
            self._finished = {t.number for t in ended} - kept

    def _inherited(self, number: int, trials: Sequence[Trial]) -> dict[str, Any]:
        """The values that the trial keeps of the baseline; fewer from trial to trial."""
        parameters, random = self._space.parameters(), Random(f"{self._seed}/{number}")
        kept = widening.kept(number, baseline_point(trials) or {}, parameters, random)
        return {name: to_optuna(parameters[name], value) for name, value in kept.items()}

    def _tell(self, trial: Trial, params: Params) -> None:
        ask = trial.ask_number
        if ask not in self._optuna_trials:
            self._study.add_trial(frozen_trial(trial, params, self._space, TrialState.RUNNING))
            added = self._study.get_trials(deepcopy=False)[-1]
            self._optuna_trials[ask] = optuna.Trial(self._study, added._trial_id)
            self._running.add(ask)
        if is_informative(trial) and ask in self._running:
            self._running.remove(ask)
            self._finished.add(trial.number)
            self._results[trial.number] = _result(trial)
            optuna_trial, score = self._optuna_trials[ask], self._scores[trial.number]
            infeasible = trial.state is State.INFEASIBLE
            if self._has_constraints:
                optuna_trial.set_constraint("feasible", 1.0 if infeasible else -1.0)
            if infeasible:
                score = self._target.worst_score
            state = TrialState.FAIL if score is None else TrialState.COMPLETE
            self._study.tell(optuna_trial, score, state)


def _result(trial: Trial) -> tuple[State, float, float | None]:
    return trial.state, trial.seconds, trial.mean_result


def _best_and_newest(
    ended: Sequence[Trial], scores: Mapping[int, float | None], count: int
) -> set[int]:
    """The numbers of `count` trials: those with the best scores, and those that ended last."""
    by_score = sorted(ended, key=lambda t: (scores[t.number] is None, scores[t.number] or 0.0))
    kept = {t.number for t in by_score[: count // 2]}
    by_end = sorted(ended, key=lambda t: (t.ended_at or 0.0, t.number))
    rest = [t.number for t in by_end if t.number not in kept]
    return kept | {*rest[-(count - len(kept)) :]}
