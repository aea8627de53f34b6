"""Lets `run` take the options of a study as keyword arguments."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from autotune.errors import StudyError, UserError, end_script_in_one_line, unknown
from autotune.study.experiment import Experiment
from autotune.study.options import StudyOptions
from autotune.trial import Target

_P = ParamSpec("_P")
_R = TypeVar("_R")

_FOREIGN = {
    "direction": "mode",
    "max_evals": "trials",
    "max_trials": "trials",
    "n_jobs": "max_concurrent_trials",
    "n_trials": "trials",
    "num_samples": "trials",
    "num_trials": "trials",
    "objective": "metric",
    "scheduler": "pruner",
    "search_alg": "sampler",
    "stop": "target",
    "study_name": "name",
    "timeout": "time_limit",
}
"""Arguments of Optuna, Ray Tune and other libraries, by what they are called here."""


def unknown_argument(function: str, name: str, known: Collection[str]) -> str:
    """One line for an argument that `run` or `tune` does not have, with the right name.

    >>> unknown_argument("tune", "direction", ["metric", "mode"])
    "unknown argument of tune 'direction'; did you mean 'mode'?"
    >>> unknown_argument("run", "limit", ["trials"])
    "unknown argument of run 'limit': it is the 'limit' of the Target"
    """
    meant = _FOREIGN.get(name.lower(), name)
    if meant in known:
        return f"unknown argument of {function} {name!r}; did you mean {meant!r}?"
    for kind in (Target, Experiment):
        if meant in inspect.signature(kind).parameters:
            theirs = f"it is the {meant!r} of the {kind.__name__}"
            return f"unknown argument of {function} {name!r}: {theirs}"
    return unknown(f"argument of {function}", name, known)


def by_keyword(
    make: Callable[_P, StudyOptions],
) -> Callable[
    [Callable[[Experiment, StudyOptions], _R]], Callable[Concatenate[Experiment, _P], _R]
]:
    """Let a function of an experiment and of options take the options by keyword.

    Type checkers, editors and `inspect.signature` see one keyword argument for each option.
    """
    keywords = inspect.signature(make).parameters

    def decorated(
        function: Callable[[Experiment, StudyOptions], _R],
    ) -> Callable[Concatenate[Experiment, _P], _R]:
        @functools.wraps(function)
        def called(experiment: Experiment, *rest: Any, **named: Any) -> _R:
            try:
                for wrong in (name for name in named if name not in keywords):
                    known = {"experiment", *keywords}
                    raise UserError(unknown_argument(function.__name__, wrong, known))
                options = cast("Callable[..., StudyOptions]", make)(*rest, **named)
                return function(experiment, options)
            except (UserError, StudyError) as error:
                end_script_in_one_line()
                # Its line says everything; what called what does not help.
                raise error.with_traceback(None)  # noqa: B904 (its cause stays)

        own = inspect.signature(function)
        parameters = [own.parameters["experiment"], *keywords.values()]
        called.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        return cast("Callable[Concatenate[Experiment, _P], _R]", called)

    return decorated
