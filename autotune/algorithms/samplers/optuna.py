"""Optuna's samplers, by ask and tell.

Optuna's pruners and `trial.report` are not used: a trial is worth its `Target.score`, in seconds.
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
from autotune.algorithms.samplers.optuna_names import WIDENING, make_sampler
from autotune.algorithms.samplers.optuna_space import draw, frozen, inside
from autotune.space.search_space import SearchSpace
from autotune.trial import INTERRUPTED_REASONS, Params, State, Target, Trial

SEEN: Mapping[str, int] = {"tpe": 500, WIDENING: 500, "gp": 250}
"""How many ended trials a sampler looks at whose suggestions take longer the more it knows: half of
them the best, half the ones that ended last. It is told anew once it knows a quarter more.
"""
_BLIND = "random"  # looks at no trial, so it is told of none
_MADE_ANEW = (optuna.samplers.TPESampler, optuna.samplers.GPSampler)
"""What these know, they make of the trials at every suggestion. Others may have a state of their
own, a distribution or a place in a sequence, which is lost where they are told anew.
"""


class OptunaSampler:
    """An Optuna sampler over a search space, told every trial as it stands.

    Reached and censored trials are told with `Target.score` (on other hardware than the usual, with
    what `likeness.scores` makes of it); running ones are known as running;
    failed ones as failed; infeasible ones with a violated constraint, from which samplers that
    model constraints learn where the boundary lies, and the worst score, for those that do not.
    Configurations outside the space are not told. Samplers of `SEEN` are not told of all trials of
    a long study.

    Args:
        sampler: a name of `SAMPLERS`, the dotted path of an Optuna sampler with or without keyword
            arguments (`optuna.samplers.TPESampler(n_startup_trials=20)`), or a sampler.
        space: what is searched.
        target: gives each trial its score.
        seed: of the sampler's random numbers, together with the number of the first trial that it
            is asked for, so that a resumed study does not draw the same points again.

    Raises:
        UserError: an unknown name, a path that leads to no sampler, or wrong arguments.
    """

    def __init__(
        self, sampler: str | BaseSampler, space: SearchSpace, target: Target, seed: int
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._sampler, self._seed = sampler, seed
        self._space = space
        self._target = target
        self._most = SEEN.get(sampler, math.inf) if isinstance(sampler, str) else math.inf
        self._study = self._from(0)
        self._told: dict[int, optuna.Trial] = {}
        self._open: set[int] = set()
        self._closed: set[int] = set()  # ended: told, or never to be
        self._ends: dict[int, tuple[State, float]] = {}
        self._constrained = False
        self._scores: Mapping[int, float | None] = {}

    def _from(self, number: int) -> optuna.Study:
        made = self._sampler
        if isinstance(made, str):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
                made = make_sampler(made, zlib.crc32(f"{self._seed}/{number}".encode()))
        return optuna.create_study(direction="minimize", sampler=made)

    def ask(self, number: int, trials: Sequence[Trial]) -> Params:
        if self._sampler == _BLIND:
            return self._drawn(self._from(number).ask())
        constrained = any(t.state is State.INFEASIBLE and t.params is not None for t in trials)
        self._scores = scores(trials, self._target)
        fresh = [t for t in trials if t.number not in self._closed]
        known = len(self._told) - len(self._open) + sum(_tells(t) for t in fresh)
        anew = constrained != self._constrained or self._stands_anew(trials)
        if not self._told or known > 1.25 * self._most or anew:
            self._constrained = constrained  # all are told with constraints, or none
            self._begin(number, trials)
            fresh = [t for t in trials if t.number not in self._closed]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            warnings.filterwarnings("ignore", "Constraints have been set, but")
            for trial in fresh:
                if trial.params is not None:
                    self._tell(trial, trial.params)
            if self._sampler == WIDENING and number <= widening.WIDENED:
                self._study.enqueue_trial(self._kept(number, trials))
            live = self._study.ask()
            point = self._drawn(live)
        self._told[number] = live
        self._open.add(number)
        return point

    def _drawn(self, live: optuna.Trial) -> Params:
        return self._space.suggest(lambda name, parameter: draw(live, name, parameter))

    def _stands_anew(self, trials: Sequence[Trial]) -> bool:
        """Whether repeats have changed how a trial stands that was told already.

        Only where that costs nothing else: a sampler with a state of its own goes on with the
        first times.
        """
        if not isinstance(self._study.sampler, _MADE_ANEW):
            return False
        return any(self._ends.get(t.number, _end(t)) != _end(t) for t in trials)

    def _begin(self, number: int, trials: Sequence[Trial]) -> None:
        """Know nothing, and be told of no more ended trials than the sampler is to look at."""
        self._study = self._from(number)
        self._told, self._open, self._ends = {}, set(), {}
        ended = [t for t in trials if _tells(t)]
        self._closed = set()
        if len(ended) > self._most:
            kept = _best_and_newest(ended, self._scores, int(self._most))
            self._closed = {t.number for t in ended} - kept

    def _kept(self, number: int, trials: Sequence[Trial]) -> dict[str, Any]:
        """What the trial takes over from the baseline: less and less of it, the rest is drawn."""
        known = next((t.params for t in trials if t.kind == "baseline" and t.params), {})
        parameters, random = self._space.parameters(), Random(f"{self._seed}/{number}")
        kept = widening.kept(number, known, parameters, random)
        return {name: inside(parameters[name], value) for name, value in kept.items()}

    def _tell(self, trial: Trial, params: Params) -> None:
        ask = trial.ask_number
        if ask not in self._told:
            self._study.add_trial(frozen(trial, params, self._space, TrialState.RUNNING))
            made = self._study.get_trials(deepcopy=False)[-1]
            self._told[ask] = optuna.Trial(self._study, made._trial_id)
            self._open.add(ask)
        if _tells(trial) and ask in self._open:
            self._open.remove(ask)
            self._closed.add(trial.number)
            self._ends[trial.number] = _end(trial)
            told, score = self._told[ask], self._scores[trial.number]
            infeasible = trial.state is State.INFEASIBLE
            if self._constrained:
                told.set_constraint("feasible", 1.0 if infeasible else -1.0)
            if infeasible:
                score = 2 * self._target.limit  # the worst score
            state = TrialState.FAIL if score is None else TrialState.COMPLETE
            self._study.tell(told, score, state)


def _end(trial: Trial) -> tuple[State, float]:
    return trial.state, trial.seconds


def _tells(trial: Trial) -> bool:
    """Whether the trial has ended and says something of its point."""
    return trial.ended and trial.params is not None and trial.reason not in INTERRUPTED_REASONS


def _best_and_newest(
    ended: Sequence[Trial], scores: Mapping[int, float | None], count: int
) -> set[int]:
    """The numbers of `count` trials: those with the best scores, and those that ended last."""
    by_score = sorted(ended, key=lambda t: (scores[t.number] is None, scores[t.number] or 0.0))
    kept = {t.number for t in by_score[: count // 2]}
    by_end = sorted(ended, key=lambda t: (t.ended_at or 0.0, t.number))
    rest = [t.number for t in by_end if t.number not in kept]
    return kept | {*rest[-(count - len(kept)) :]}
