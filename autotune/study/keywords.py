"""Lets `run` take the options of a study as keyword arguments."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

from autotune.errors import StudyError, UserError, end_script_in_one_line, unknown
from autotune.study.experiment import Experiment
from autotune.study.options import StudyOptions

_P = ParamSpec("_P")
_R = TypeVar("_R")


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
                    what = f"argument of {function.__name__}"
                    raise UserError(unknown(what, wrong, {"experiment", *keywords}))
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
