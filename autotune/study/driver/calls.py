"""Calls of functions that the user may have written: what goes wrong in them becomes one line."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from autotune.errors import StudyError, UserError, raised_by, shown
from autotune.space.search_space import SearchSpace
from autotune.storage.codec import plain
from autotune.trial import Params


def called(what: str, kinds: tuple[type, ...], function: Callable[..., Any], *given: Any) -> Any:
    """What `function` returns: a value of one of `kinds`, or None.

    Args:
        what: the function's part in the study, as a message names it.
        kinds: empty where the function only has an effect, and what it returns does not matter.
        function, given: the function and its arguments.

    Raises:
        UserError: it raised, which the message says with the place, or it returned something else.
        StudyError: it raised one.
    """
    try:
        answer = function(*given)
    except (UserError, StudyError):
        raise
    except (Exception, SystemExit) as error:
        raise UserError(raised_by(what, error)) from error
    if not kinds:
        if inspect.iscoroutine(answer) or inspect.isgenerator(answer):
            answer.close()
            raise UserError(f"the {what} must be a plain function but returned {shown(answer)}")
    elif answer is not None and not isinstance(answer, kinds):
        names = " or ".join([*(kind.__name__ for kind in kinds), "None"])
        raise UserError(f"the {what} must return {names} but got {shown(answer)}")
    return answer


def checked_point(space: SearchSpace, params: Any) -> Params:
    """The sampler's point as the journal gives it back.

    Raises:
        UserError: it is not a point of the space.
    """
    if not isinstance(params, Mapping):
        needed = "a dict of parameters, or None where nothing is left"
        raise UserError(f"the sampler must return {needed}, but got {shown(params)}")
    try:
        point = plain(params)
        space.check(point)
    except (ValueError, TypeError) as error:
        raise UserError(f"the sampler's point is not in the search space: {error}") from error
    return point
