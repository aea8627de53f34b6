"""The known tasks of `few_trials.py`: where they are from, which are left out, and wrong ones.

A task under test is never among its own sources: neither under its name nor by its content, that
is, equal curves of equal configurations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import _few_problems as problems
import farm
import numpy as np

import autotune
from autotune.algorithms.experience.canonical import CanonicalSpace
from autotune.algorithms.experience.known_task import KnownTask
from autotune.algorithms.experience.model import explained, shared, useful
from autotune.algorithms.experience.names import EFFECTIVE_LR
from autotune.algorithms.experience.problems import by_problem
from autotune.errors import UserError
from autotune.space.encoding import unit_of, value_at
from autotune.space.parameters import Choice, is_real
from autotune.study.experience import store

SHIPPED = Path(autotune.__file__).parent / "data" / "experience.json.gz"
_MOST = 64  # known tasks of a study
_SEPARATORS = "-/:_."
_LEAST_POINTS = 10  # that two tasks share, for their contents to be compared
_ROUNDED = 1e-2  # relative difference of rounded numbers
_EQUAL = 0.99  # correlation of their curves from which on two tasks are one


def chosen(source: str | None, quick: bool) -> str:
    """Where known tasks are from: as was asked for, else from the package, or quickly made."""
    return source or ("others" if quick else "shipped")


def shipped() -> list[KnownTask]:
    """The known tasks that the package brings.

    Raises:
        UserError: it brings none.
    """
    found: list[KnownTask] = []
    if SHIPPED.exists():
        found = [summary.task() for summary in store.shipped(print)]
    if not found:
        raise UserError("this package brings no experience: give --source FILE or --source others")
    return found


def published_for(space: CanonicalSpace) -> list[Mapping[str, Any]]:
    """The published settings that the package brings, as a study in a space has them."""
    adopted = (space.adopted(point) for point in store.published())
    return [point for point in adopted if point is not None]


# --- a task is never among its own sources --------------------------------------------------------


def same_name(one: str, other: str) -> bool:
    """Whether two names are of one task; a family may stand before either.

    >>> same_name("lcbench-3945", "3945"), same_name("digits-few", "digits")
    (True, False)
    """
    short, long = sorted((one.casefold(), other.casefold()), key=len)
    return short == long or any(long.endswith(mark + short) for mark in _SEPARATORS)


def same_content(one: KnownTask, other: KnownTask) -> bool:
    """Whether two tasks have equal curves at the points that both have, up to unit and rounding."""
    rows, others = _shared_points(one, other)
    if len(rows) < _LEAST_POINTS:
        return False
    mine, theirs = one.curves[rows], other.curves[others]
    seen = np.isfinite(mine) & np.isfinite(theirs)
    mine, theirs = mine[seen], theirs[seen]
    if not (len(mine) and np.ptp(mine) and np.ptp(theirs)):
        return bool(np.allclose(mine, theirs, rtol=_ROUNDED))
    return bool(np.corrcoef(mine, theirs)[0, 1] >= _EQUAL)


def own_sources(under_test: KnownTask, known: Sequence[KnownTask]) -> dict[str, str]:
    """The known tasks that are the one under test: why, by name."""
    found = {}
    for task in known:
        if same_name(under_test.name, task.name):
            found[task.name] = "the same name"
        elif same_content(under_test, task):
            found[task.name] = "equal curves"
    return found


def checked(
    under_test: KnownTask, known: Sequence[KnownTask], given: str | None
) -> list[KnownTask]:
    """The known tasks without the one under test, which is told.

    Args:
        given: the file that the user gave for them; None where they are the default.

    Raises:
        UserError: it is among tasks of a given file.
    """
    own = own_sources(under_test, known)
    for name, why in own.items():
        if given is not None:
            raise among_its_own(given, name, under_test.name, why)
        print(f"{under_test.name}: {name} is left out of its sources ({why})", flush=True)
    return [task for task in known if task.name not in own]


def among_its_own(given: str, name: str, under_test: str, why: str) -> UserError:
    """The error where the file that is given for the sources has the task under test."""
    return UserError(
        f"--source {given}: its task {name!r} is {under_test!r}, which is under test ({why})"
    )


def _shared_points(one: KnownTask, other: KnownTask) -> tuple[Any, Any]:
    """The rows of two tasks that have equal points, up to rounding."""
    names = [n for n in one.points[0] if n != EFFECTIVE_LR and is_real(one.points[0][n])]
    if not all(name in point for point in other.points for name in names):
        return np.array([], dtype=int), np.array([], dtype=int)
    mine, theirs = (
        np.array([[p[n] for n in names] for p in t.points], float) for t in (one, other)
    )
    apart = np.zeros((len(mine), len(theirs)))
    for a, b in zip(mine.T, theirs.T, strict=True):
        scale = np.maximum(np.maximum.outer(np.abs(a), np.abs(b)), 1e-12)
        apart = np.maximum(apart, np.abs(np.subtract.outer(a, b)) / scale)
    nearest = apart.argmin(axis=0)
    others = np.flatnonzero(apart.min(axis=0) < _ROUNDED)
    return nearest[others], others


# --- where sources are from -----------------------------------------------------------------------


def of_table(path: str, trials: int) -> list[KnownTask]:
    """All tasks of a table."""
    return [problems.recorded_task(path, i, trials) for i in range(len(problems.table(path).names))]


def of_farm(trials: int, tasks: Sequence[farm.Task]) -> list[KnownTask]:
    """Tasks of the farm."""
    return [problems.trained_task(task, trials) for task in tasks]


def shipped_farm() -> list[KnownTask]:
    """Of the shipped tasks the first of each family of the farm."""
    firsts = {family(task.name): f"farm-{task.name}" for task in reversed(farm.tasks())}
    known = {task.name: task for task in shipped()}
    return [known[name] for name in firsts.values()]


def family(name: str) -> str:
    """The family of a task of the farm.

    >>> family("signals-windows"), family("digits-few")
    ('signals', 'digits')
    """
    return name.partition("-")[0]


# --- wrong experience -----------------------------------------------------------------------------


def reversed_task(task: KnownTask, space: CanonicalSpace) -> KnownTask:
    """The task with every searched parameter at the other end of its range."""

    def value(name: str, old: Any) -> Any:
        parameter = space.searched.get(name)
        if isinstance(parameter, Choice):
            options = list(parameter.options)
            return options[-1 - options.index(old)] if old in options else old
        if parameter is None or not is_real(old):
            return old
        return value_at(parameter, 1.0 - min(max(unit_of(parameter, old), 0.0), 1.0))

    return replace(task, points=[_moved(point, space, value) for point in task.points])


def permuted_task(task: KnownTask, seed: int) -> KnownTask:
    """The task with its points in another order than its results."""
    points = list(task.points)
    Random(f"{seed}/{task.name}").shuffle(points)
    return replace(task, points=points)


def _moved(
    point: Mapping[str, Any], space: CanonicalSpace, value: Callable[[str, Any], Any]
) -> dict[str, Any]:
    """A canonical point with other values; what is derived from them is derived again."""
    flat = {own: value(name, point[name]) for own, name in space.names.items() if name in point}
    again = space.point(flat)
    derived = {name for name in again if name not in space.searched and name not in space.fixed}
    rest = {k: v for k, v in point.items() if k not in space.searched and k not in derived}
    return {**again, **rest}


WRONG: Mapping[str, Callable[[KnownTask, CanonicalSpace], KnownTask]] = {
    "reversed": reversed_task,
    "permuted": lambda task, _: permuted_task(task, 0),
}


def for_space(tasks: Sequence[KnownTask], space: CanonicalSpace) -> list[KnownTask]:
    """What a study in a space would know of the tasks."""
    return by_problem(apart(tasks, space), space)


def apart(tasks: Sequence[KnownTask], space: CanonicalSpace) -> list[KnownTask]:
    """The tasks that a study in a space would use: of many those most like it."""
    usable = [taken for task in tasks if (taken := useful(task, space)) is not None]
    found = [task for task in usable if explained(task, space)]
    alike = sorted(found, key=lambda t: (-len(shared(t, space)), -len(t.points), t.name))
    return sorted(alike[:_MOST], key=lambda task: task.name)
