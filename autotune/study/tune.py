"""`tune`: the short form of an experiment and its run."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

from autotune.errors import UserError, checked, shown
from autotune.space.parameters import Choice, Fixed, Float, Int, instead_of
from autotune.space.schedule_space import ScheduleSpace
from autotune.space.search_space import SearchSpace
from autotune.study import earlier, factory
from autotune.study.experiment import Experiment
from autotune.study.keywords import unknown_argument
from autotune.study.options import StudyOptions
from autotune.study.result import StudyResult
from autotune.study.run import run
from autotune.trial import FailurePolicy, Target
from autotune.trial.checks import is_finite
from autotune.trial.clock import STEPS
from autotune.trial.scaling import Scaling
from autotune.trial.trainer import function_of, may_never_end

_ENTRIES = (Float, Int, Choice, Fixed, ScheduleSpace)
_TARGET = ("clock", "confirm", "limit_steps", "scope")
_SILENT_SECONDS = 86_400.0
_EXPERIMENT = ("scaling", "baseline", "configs", "failure", "knobs", "canonical", "limits")


def tune(
    train: Callable[[dict[str, Any]], Any],
    space: SearchSpace | Mapping[str, Any],
    *,
    metric: str,
    target: float | None = None,
    mode: str | None = None,
    name: str | None = None,
    trials: int = 20,
    limit: float | None = None,
    **settings: Any,
) -> StudyResult:
    """Search the configuration of a function: the short form of `Experiment` and `run`.

    Without `out` it always begins a new study: `studies/NAME`, or `studies/NAME-2` and so on where
    there is one already.

    >>> def train(config):
    ...     return 1 - (config["x"] - config["center"]) ** 2
    >>> space = {"x": Float(-1, 1), "center": 0.3}
    >>> result = tune(train, space, metric="score")  # doctest: +SKIP
    >>> result.best_value, result.best_config  # doctest: +SKIP
    (0.9999, {'x': 0.2913, 'center': 0.3})

    Args:
        train: a function of a configuration that returns the metric, or a dict with it; or one that
            calls `autotune.report`; or a generator of `Milestone`s.
        space: what is searched, by name; plain values are fixed.
        metric: what is searched for: its best value or, with a `target`, the shortest time to that.
        target: the value of the metric that trials race to; it needs a `limit`.
        mode: "max" or "min" of the metric; see `Target`.
        name: the study's name; by default that of the function.
        trials: how many trials the study has in all.
        limit: seconds of training after which a trial ends; not needed without a target where the
            function ends by itself.
        settings: further arguments of `Target` (`limit_steps` in samples, `scope`, `clock`,
            `confirm`), `Experiment` (`baseline`, `scaling`, ...) and `run` (`out`, `sampler`,
            `seed`, ...).

    Raises:
        UserError: an unknown argument, one outside its range, or what `run` raises.
        KeyboardInterrupt: Ctrl-C ended the study, which can be resumed; see `run`.
    """
    goal = {"metric": metric, "value": target, "mode": mode, "limit": limit}
    experiment = _experiment(train, space, goal, name, settings)
    name = experiment.name
    how = {key: value for key, value in settings.items() if key not in (*_TARGET, *_EXPERIMENT)}
    if how.get("out") is None:
        how["out"], note = earlier.free_folder(StudyOptions().folder(name))
        if note:
            _check(how, trials)  # before anything is said of a study that then does not begin
            print(note, file=sys.stderr, flush=True)
    return run(experiment, trials=trials, **how)


@checked
def _check(how: Mapping[str, Any], trials: int) -> None:
    factory.check_named(StudyOptions(trials=trials, **how))


@checked
def _experiment(
    train: Callable[[dict[str, Any]], Any],
    space: SearchSpace | Mapping[str, Any],
    goal: Mapping[str, Any],
    name: str | None,
    settings: Mapping[str, Any],
) -> Experiment:
    """The experiment that the arguments of `tune` describe, those of its target in `goal`."""
    known = inspect.signature(tune).parameters
    for wrong in (name for name in settings if name not in known):
        raise UserError(unknown_argument("tune", wrong, known.keys()))
    value = goal["value"]
    if value is not None and not is_finite(value):
        raise UserError(f"tune target must be a value of {goal['metric']!r} but got {shown(value)}")
    steps = settings.get("clock") == STEPS
    if value is not None and (settings.get("limit_steps") if steps else goal["limit"]) is None:
        metric, needed = goal["metric"], "limit_steps=STEPS" if steps else "limit=SECONDS"
        raise UserError(
            f"tune target={value!r} is the {metric} to reach and needs {needed}; without target= "
            f"the best {metric} is searched"
        )
    aim = Target(**goal, **_part(settings, _TARGET))
    name = _name(train) if name is None else name
    parts = {"failure": _patience(train, settings), **_part(settings, _EXPERIMENT)}
    return Experiment(name, train, _space(space), aim, **parts)


def _patience(train: Any, settings: Mapping[str, Any]) -> FailurePolicy:
    """The failure policy: a function on one rank may say nothing for a day until it returns."""
    scaling = settings.get("scaling") or Scaling()
    ranks = settings.get("workers") or getattr(scaling, "num_workers", 1)
    if not callable(train) or may_never_end(train) or ranks != 1:
        return FailurePolicy()
    return FailurePolicy(hang_timeout=_SILENT_SECONDS)


def _part(settings: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: settings[name] for name in names if name in settings}


def _name(train: Any) -> str:
    """A study's name of the function's or script's: `train_digits`, or `study` for a lambda."""
    train = function_of(train)
    words = getattr(train, "__name__", type(train).__name__)
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", words).strip("-._")[:80]
    return name if name and "<" not in words else "study"


def _space(space: SearchSpace | Mapping[str, Any]) -> SearchSpace:
    """The search space; of a plain dict, with its plain values fixed."""
    if isinstance(space, SearchSpace):
        return space
    if not isinstance(space, Mapping):
        raise UserError(f"tune space must be a dict or a SearchSpace but got {shown(space)}")
    return SearchSpace({name: _entry(name, value) for name, value in space.items()})


def _entry(name: str, value: Any) -> Any:
    if isinstance(value, _ENTRIES):
        return value
    if instead := instead_of(value):
        raise UserError(f"tune space {name!r} is {shown(value)}: use {instead}")
    if isinstance(value, list | tuple | set | range):  # which of the two is meant?
        which = f"at.Choice({shown(value)}) tries each, at.Fixed({shown(value)}) passes it on"
        raise UserError(f"tune space {name!r} is {shown(value)}: {which}")
    return Fixed(value)


def _signature() -> inspect.Signature:
    """The signature of `tune` with all further arguments, for editors and `help`."""
    own = inspect.signature(tune)
    named = [p for p in own.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    known = {p.name for p in named}
    kinds = ((Target, _TARGET), (Experiment, _EXPERIMENT), (StudyOptions, None))
    for kind, wanted in kinds:
        parameters = inspect.signature(kind).parameters
        for field in fields(kind):
            if field.name not in known and (wanted is None or field.name in wanted):
                keyword = inspect.Parameter.KEYWORD_ONLY
                named.append(parameters[field.name].replace(kind=keyword))
    return own.replace(parameters=named)


tune.__signature__ = _signature()  # type: ignore[attr-defined]
