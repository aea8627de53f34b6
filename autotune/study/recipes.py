"""Recipes: functions that return a complete `Experiment`, found by name or in a file.

Their arguments, if they have any, are text that is read by the annotations (`recipe_arguments`).

A recipe is code: loading one runs it.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from autotune import schedules, trial
from autotune.backends.recipe_modules import FILE_PREFIX
from autotune.errors import UserError, shown, text_of, unknown
from autotune.space import parameters, schedule_space, search_space
from autotune.study import experiment, recipe_arguments
from autotune.study.experiment import Experiment
from autotune.study.options import StudyOptions

_CLASSES = {  # what recipes are made of, for the nearest right name of a mistyped argument
    name: value
    for module in (experiment, parameters, schedule_space, schedules, search_space, trial)
    for name, value in vars(module).items()
    if isinstance(value, type)
}
_OURS = (str(Path(schedules.__file__).parents[1]), str(Path(importlib.__file__).parent))
_INSTALLED = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib"))


def find(path: str, what: str = "recipe") -> Callable[..., Any]:
    """The function that `package.module:function` or `path/file.py:function` names.

    Args:
        what: the function's part in the study, for messages.

    Raises:
        UserError: what cannot be found, with the nearest right name.
    """
    place, _, name = path.rpartition(":")
    if not place or not name:
        raise UserError(f"{what} {path!r} must be module:function or path/file.py:function")
    module = _from(place, what)
    function = getattr(module, name, None)
    if not callable(function):
        raise UserError(f"{what} {path!r}: {unknown('function', name, _functions(module))}")
    named: Callable[..., Any] = function
    return named


@dataclass(frozen=True)
class Loaded:
    """An experiment, with the recipe and its arguments as they are found again from any folder."""

    experiment: Experiment
    recipe: str
    arguments: Mapping[str, str] | None


def load(recipe: str, arguments: Mapping[str, str] | None = None) -> Experiment:
    """The experiment that a recipe returns: `loaded`, and what else that raises."""
    return loaded(recipe, arguments).experiment


def load_again(options: StudyOptions) -> Experiment:
    """The experiment of a study, by the options in its manifest."""
    return load(moved(str(options.recipe)), options.recipe_arguments)


def loaded(recipe: str, arguments: Mapping[str, str] | None = None) -> Loaded:
    """The experiment that a recipe returns.

    Args:
        arguments: the recipe's own, by name, as text.

    Raises:
        UserError: in one line, what cannot be found (with the nearest right name), or what the
            recipe raised, with the file and line at which it did; its cause is the recipe's own
            exception.
    """
    function = find(recipe)
    given = arguments or {}
    values = recipe_arguments.read(recipe, function, given)
    try:
        made = function(**values)
    except (Exception, SystemExit) as error:
        raise UserError(f"recipe {recipe!r}: {_line(error)}") from error
    if not isinstance(made, Experiment):
        raise UserError(f"recipe {recipe!r} must return an Experiment but got {shown(made)}")
    kept = recipe_arguments.stored(given, values) or None
    return Loaded(made, absolute(recipe), kept)


def absolute(recipe: str) -> str:
    """`recipe` so that it is found again from any folder."""
    place, _, name = recipe.rpartition(":")
    return f"{Path(place).resolve()}:{name}" if place.endswith(".py") else recipe


def moved(recipe: str) -> str:
    """`recipe`, or the same file below this folder where it is not where a study says it was.

    A study that ran elsewhere names a file there: the longest end of its path that is one here is
    taken for it.
    """
    place, _, name = recipe.rpartition(":")
    if not place.endswith(".py") or Path(place).is_file():
        return recipe
    parts = Path(place).parts
    ends = (Path(*parts[i:]) for i in range(1, len(parts)))
    here = next((end.resolve() for end in ends if end.is_file()), None)
    return f"{here}:{name}" if here is not None else recipe


def _from(place: str, what: str) -> ModuleType:
    return _from_file(Path(place), what) if place.endswith(".py") else _from_module(place, what)


def _from_file(path: Path, what: str) -> ModuleType:
    if not path.is_file():
        raise UserError(f"{what} file {str(path)!r} does not exist")
    path = path.resolve()
    digest = hashlib.sha256(os.fsencode(path)).hexdigest()[:12]
    name = f"{FILE_PREFIX}{path.stem}_{digest}"
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise UserError(f"{what} file {str(path)!r} cannot be imported: {_line(error)}") from error
    return module


def _from_module(name: str, what: str) -> ModuleType:
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            if what == "recipe":
                raise UserError(f"recipe module: {unknown('module', name, _recipes())}") from None
            raise UserError(f"{what} module {name!r} does not exist") from None
        raise UserError(f"{what} module {name!r} cannot be imported: {_line(error)}") from error
    except (Exception, SystemExit) as error:
        raise UserError(f"{what} module {name!r} cannot be imported: {_line(error)}") from error


def _recipes() -> list[str]:
    """The modules of recipes that ship with autotune."""
    spec = importlib.util.find_spec("search_spaces")
    folders = list(spec.submodule_search_locations or []) if spec else []
    files = [p for folder in folders for p in Path(folder).glob("[a-z]*.py")]
    return [f"search_spaces.{p.stem}" for p in files]


def _functions(module: ModuleType) -> list[str]:
    return [
        name
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__ and name[0] != "_"
    ]


def _line(error: BaseException) -> str:
    """The error in one line, and where the recipe raised it.

    With the nearest right name for a mistyped keyword.
    """
    text = text_of(error).strip().partition("\n")[0]
    if isinstance(error, SystemExit):
        said = f"it called sys.exit({error.code!r:.80})"
    elif near := _mistyped(text):
        said = near
    elif isinstance(error, UserError) and text and not _is_value(error):
        return text  # it says what is wrong with its arguments
    elif isinstance(error, ValueError) and text:
        said = text
    else:
        said = f"{type(error).__name__}: {text}"
    place = _place(error)
    return f"{said} ({place})" if place else said


def _mistyped(text: str) -> str:
    """What is said of a mistyped keyword of ours; empty where it is none."""
    found = re.match(r"(\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'", text)
    kind = _CLASSES.get(found[1]) if found else None
    if found is None or kind is None:
        return ""
    return unknown(f"argument of {found[1]}", found[2], set(inspect.signature(kind).parameters))


def _place(error: BaseException) -> str:
    """The file and line of the recipe's own code in which the error was raised, or empty.

    That is the innermost frame outside of what is installed, or else outside of this package. A
    SyntaxError names its own place.
    """
    if isinstance(error, SyntaxError):
        return ""
    files = [(Path(f.filename), f.lineno) for f in traceback.extract_tb(error.__traceback__)]
    theirs = [(p, line) for p, line in files if p.is_absolute() and not _is_in(p, _OURS)]
    own = [(p, line) for p, line in theirs if not _is_in(p, _INSTALLED)]
    if not theirs:
        return ""
    path, line = (own or theirs)[-1]
    here = Path.cwd()
    return f"{path.relative_to(here) if path.is_relative_to(here) else path}, line {line}"


def _is_value(error: BaseException) -> bool:
    """Whether a value of autotune's, as a parameter, raised it; not the recipe itself."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and _is_in(Path(frames[-1].filename), _OURS)


def _is_in(path: Path, folders: Sequence[str]) -> bool:
    return any(path.is_relative_to(folder) for folder in folders)
