"""The sampler `convergence` as an Optuna sampler.

    import optuna
    from autotune import Target
    from autotune.integrations.optuna import ConvergenceSampler

    target = Target("val_accuracy", 0.95, limit=60.0)

    def objective(trial):
        lr = trial.suggest_float("lr", 1e-3, 1.0, log=True)
        for seconds, accuracy in trained(lr):
            trial.report(accuracy, step=int(1000 * seconds))
            if accuracy >= target.value:
                return seconds
            if seconds >= target.limit:
                break
        raise optuna.TrialPruned

    study = optuna.create_study(sampler=ConvergenceSampler(target, seed=0))
    study.optimize(objective, n_trials=50)

A trial's value is its time to target in seconds. A trial that did not reach the target raises
`TrialPruned`, and is ranked by its reports until then. Steps are milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from zlib import crc32

from optuna import Study
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.samplers import BaseSampler, RandomSampler
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from autotune.algorithms.samplers.convergence import ConvergenceSampler as OurSampler
from autotune.errors import UserError
from autotune.space.parameters import Choice, Float, Int, Parameter
from autotune.space.search_space import RESERVED, SearchSpace
from autotune.trial import LIMIT, Params, Report, State, Target, Trial

_STATES = {
    TrialState.RUNNING: State.RUNNING,
    TrialState.PRUNED: State.CENSORED,
    TrialState.FAIL: State.FAILED,
}


class ConvergenceSampler(BaseSampler):
    """An Optuna sampler that searches for the least time to a target.

    The search space is that of the study's trials so far; conditional parameters are learned from
    the trials that have them. A parameter that no trial has had is drawn at random. Points are
    functions of the study's trials, the seed and the trial's number, so a study in a storage
    continues as if it had not been interrupted.

    Args:
        target: the target of the trials; its `mode` is that of the reported values, its `limit`
            the seconds after which a trial is censored.
        seed: of the random numbers.

    Raises:
        UserError: the study does not minimise one value, or the target has no value or no limit in
            seconds.
    """

    def __init__(self, target: Target, *, seed: int = 0) -> None:
        if not target.timed or target.limit is None:
            raise UserError(
                "ConvergenceSampler searches for the least seconds to a value: give its Target a "
                "value and a limit"
            )
        self._target, self._seed = target, seed
        self._space: dict[str, BaseDistribution] = {}
        self._sampler: OurSampler | None = None

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Every parameter of the ended trials, with its distribution in the last one."""
        _check_direction(study)
        found: dict[str, BaseDistribution] = {}
        for other in study.get_trials(deepcopy=False):
            if other.state.is_finished():
                found.update(other.distributions)
        return {name: d for name, d in sorted(found.items()) if not d.single()}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        _check_direction(study)
        if not search_space:
            return {}
        if self._sampler is None or self._space != search_space:
            space = SearchSpace({_safe(n): _parameter(d) for n, d in search_space.items()})
            self._space = search_space
            self._sampler = OurSampler(space, self._target, self._seed)
        trials = study.get_trials(deepcopy=False)
        others = [t for t in trials if t.number != trial.number]
        known = [as_trial(t, self._target, search_space) for t in others]
        point = self._sampler.ask(trial.number, known)
        return {name: _on_grid(d, point[_safe(name)]) for name, d in search_space.items()}

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        _check_direction(study)
        seed = crc32(f"{self._seed}/{trial.number}/{param_name}".encode())
        random = RandomSampler(seed=seed)
        return random.sample_independent(study, trial, param_name, param_distribution)


def _check_direction(study: Study) -> None:
    if study.directions != [StudyDirection.MINIMIZE]:
        got = ", ".join(direction.name.lower() for direction in study.directions)
        raise UserError(
            f"ConvergenceSampler minimises seconds: the study must minimise one value but has {got}"
        )


def as_trial(frozen: FrozenTrial, target: Target, space: Mapping[str, BaseDistribution]) -> Trial:
    """Convert an Optuna trial: its value is seconds, its steps are milliseconds.

    A complete one whose value is not below the target's limit did not reach the target.
    """
    reports = tuple(
        Report(step, step / 1000, {target.metric: value})
        for step, value in sorted(frozen.intermediate_values.items())
    )
    last = reports[-1].seconds if reports else 0.0
    state, seconds, reason = _STATES.get(frozen.state, State.RUNNING), last, "pruned"
    if frozen.state is TrialState.COMPLETE:
        seconds = float(frozen.values[0])
        reached = seconds < target.horizon
        state, reason = (State.REACHED, "target") if reached else (State.CENSORED, LIMIT)
        seconds = min(seconds, target.horizon)
    ended = frozen.datetime_complete
    return Trial(
        frozen.number,
        frozen.params,
        _point(frozen.params, space),
        state=state,
        reason=reason,
        seconds=seconds,
        reports=reports,
        ended_at=ended.timestamp() if ended is not None else None,
    )


def _point(params: Params, space: Mapping[str, BaseDistribution]) -> dict[str, Any]:
    """The searched parameters of a trial, without those outside the ranges of the space."""
    searched = {n: v for n, v in params.items() if n in space}
    return {
        _safe(n): v for n, v in searched.items() if space[n]._contains(space[n].to_internal_repr(v))
    }


def _safe(name: str) -> str:
    """A name that a `SearchSpace` allows: without dots, and not reserved."""
    return ("\0" if name in RESERVED else "") + name.replace(".", "\0")


def _parameter(distribution: BaseDistribution) -> Parameter:
    match distribution:
        case FloatDistribution(low=low, high=high, log=log):
            return Float(low, high, log=log)
        case IntDistribution(low=low, high=high, log=log, step=step):
            return Int(low, high, log=log, step=step)
        case CategoricalDistribution(choices=choices):
            return Choice(choices)
    raise UserError(f"ConvergenceSampler cannot search {distribution!r}")


def _on_grid(distribution: BaseDistribution, value: Any) -> Any:
    """The value on the grid of a stepped float next to `value`."""
    if isinstance(distribution, FloatDistribution) and distribution.step is not None:
        low, step = distribution.low, distribution.step
        steps = min(round((value - low) / step), round((distribution.high - low) / step))
        return low + steps * step
    return value
