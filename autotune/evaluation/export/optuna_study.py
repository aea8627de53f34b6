"""A study's trials as an Optuna study, for optuna-dashboard."""

from __future__ import annotations

from collections.abc import Sequence

import optuna
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial

from autotune.algorithms.ranking.repeats import PROBE
from autotune.algorithms.samplers.optuna_space import frozen_trial
from autotune.errors import UserError
from autotune.space.search_space import SearchSpace
from autotune.trial import State, Target, Trial
from autotune.trial.wording import metric_of

_EXPORTED = {
    State.REACHED: TrialState.COMPLETE,
    State.COMPLETED: TrialState.COMPLETE,
    State.CENSORED: TrialState.PRUNED,
    State.FAILED: TrialState.FAIL,
    State.INFEASIBLE: TrialState.FAIL,
    State.RUNNING: TrialState.RUNNING,
}


def export(trials: Sequence[Trial], space: SearchSpace, target: Target, url: str, name: str) -> int:
    """Write the trials as an Optuna study into the storage `url`, for optuna-dashboard.

    The objective is the time to target: only reached trials have a value; censored ones are
    `PRUNED`, with their bound as the attribute `censored_at_seconds`. Without a value of the target
    it is the metric, in the direction of its mode, of the trials that completed. Returns how many
    there are.

    Raises:
        UserError: the storage cannot be opened, or holds a study of that name; or a trial is not of
            this search space.
    """
    lowest = target.timed or target.mode == "min"
    direction = StudyDirection.MINIMIZE if lowest else StudyDirection.MAXIMIZE
    own = [t for t in trials if t.params is not None and t.kind != PROBE]
    within = [_exported(t, space, target) for t in own]
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        study = optuna.create_study(storage=url, study_name=name, direction=direction)
    except optuna.exceptions.DuplicatedStudyError:
        raise UserError(f"the storage already holds an Optuna study named {name!r}") from None
    except Exception as error:  # SQLAlchemy and drivers raise many kinds
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"cannot open the Optuna storage: {reason}") from None
    for trial in within:
        study.add_trial(trial)
    study.set_user_attr("autotune.metric", target.metric)
    return len(within)


def _exported(trial: Trial, space: SearchSpace, target: Target) -> FrozenTrial:
    try:
        known = frozen_trial(trial, trial.params or {}, space, TrialState.RUNNING)
    except (KeyError, ValueError, TypeError) as error:
        name = type(error).__name__
        raise UserError(
            f"trial {trial.number} is not of the search space in the study's manifest: "
            f"{name}: {error}"
        ) from None
    result = target.result(trial)
    bound = trial.seconds if trial.state is State.CENSORED else None
    facts = {
        "state": str(trial.state),
        "reason": trial.reason,
        "kind": trial.kind,
        "censored_at_seconds": bound,
        f"best_{target.metric}": target.best(trial),
    }
    return create_trial(
        state=_EXPORTED[trial.state],
        value=result if target.timed or result is None else metric_of(target, result),
        params=known.params,
        distributions=known.distributions,
        user_attrs={**known.user_attrs, **{k: v for k, v in facts.items() if v is not None}},
        intermediate_values={
            r.step: r.metrics[target.metric] for r in trial.reports if target.metric in r.metrics
        },
    )
