"""Completion of a command line by the shell, with `argcomplete`: nothing slow is imported for it.

`eval "$(register-python-argcomplete autotune)"` turns it on in a shell. Recipes are found in the
text of their modules, which are not imported.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from autotune.cli.arguments import ACTIONS
from autotune.storage.journal import JOURNAL
from autotune.study.option import BACKENDS
from autotune.study.options import CONTROLLER_NAMES, PRUNER_NAMES, SAMPLER_NAMES

_ASKED = "_ARGCOMPLETE"  # set by the shell's function
_RECIPES = "search_spaces"
_USUAL = "studies"  # where studies are, unless their folder is named
_Completer = Callable[..., Sequence[str]]


def answer(parser: argparse.ArgumentParser) -> None:
    """Answer a shell that asks what may follow, and leave; nothing where none does."""
    if _ASKED not in os.environ:
        return
    import argcomplete
    from argcomplete.completers import FilesCompleter, SuppressCompleter

    quiet, files = SuppressCompleter(), FilesCompleter()
    for command in _commands(parser):
        for action in command._actions:
            completer = _completer(action) or (files if _is_path(action) else None)
            if completer is not None:
                action.completer = completer  # type: ignore[attr-defined]
    argcomplete.autocomplete(
        parser, always_complete_options=False, default_completer=quiet, validator=_fits
    )


def _fits(name: str, prefix: str) -> bool:
    """Whether the name begins so, in any case."""
    return name.lower().startswith(prefix.lower())


def _commands(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.values()


def _completer(action: argparse.Action) -> _Completer | None:
    known = _BY_DEST.get(action.dest)
    return _studies if known is None and action.metavar == "DIR" else known


def _is_path(action: argparse.Action) -> bool:
    return any(word in str(action.metavar) for word in ("FILE", "DIR", "EXPORT", "SOURCE"))


# --- what may follow ------------------------------------------------------------------------------


def _one_of(names: Sequence[str]) -> _Completer:
    return lambda **_: names


def _studies(prefix: str, **_: Any) -> list[str]:
    """Study folders that begin so, and other folders, in which there may be some."""
    begun = Path(prefix or ".")
    parent = begun if not prefix or prefix.endswith("/") else begun.parent
    found = _folders(parent)
    if not prefix and Path(_USUAL).is_dir():
        found += [folder for folder in _folders(Path(_USUAL)) if _is_study(folder)]
    return [str(folder) if _is_study(folder) else f"{folder}/" for folder in found]


def _folders(parent: Path) -> list[Path]:
    try:
        return sorted(p for p in parent.iterdir() if p.is_dir() and p.name[0] != ".")
    except OSError:
        return []


def _is_study(folder: Path) -> bool:
    return (folder / JOURNAL).is_file()


def _recipes(prefix: str, **_: Any) -> list[str]:
    """The recipes that ship with autotune; or Python files, and the recipes of one."""
    place, colon, _typed = prefix.rpartition(":")
    if colon and place.endswith(".py"):
        return [f"{place}:{name}" for name in _functions(Path(place))]
    files = Path(prefix or ".") if prefix.endswith("/") else Path(prefix or "x").parent
    own = [*_python_files(files), *(f"{folder}/" for folder in _folders(files))]
    return [*_shipped(), *own] if not colon else _shipped()


def _python_files(folder: Path) -> list[str]:
    try:
        return [f"{path}:" for path in sorted(folder.glob("*.py")) if _functions(path)]
    except OSError:
        return []


def _shipped() -> list[str]:
    return [
        f"{_RECIPES}.{path.stem}:{name}"
        for folder in _recipe_folders()
        for path in sorted(folder.glob("[a-z]*.py"))
        for name in _functions(path)
    ]


def _recipe_folders() -> list[Path]:
    spec = importlib.util.find_spec(_RECIPES)
    return [Path(place) for place in (spec.submodule_search_locations or [])] if spec else []


def _arguments(prefix: str, parsed_args: argparse.Namespace, **_: Any) -> list[str]:
    """The arguments of the recipe that was typed."""
    place, _colon, name = str(getattr(parsed_args, "recipe", "")).rpartition(":")
    package, _dot, module = place.rpartition(".")
    files = [Path(place)] if place.endswith(".py") else []
    if package == _RECIPES:
        files = [folder / f"{module}.py" for folder in _recipe_folders()]
    found = next((f for file in files if (f := _functions(file).get(name)) is not None), None)
    if found is None:
        return []
    return [f"{one.arg}=" for one in (*found.args.args, *found.args.kwonlyargs)]


def _functions(path: Path) -> dict[str, ast.FunctionDef]:
    """The functions of a file that may return an experiment, as its text says."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return {}
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    return {f.name: f for f in functions if f.name[0] != "_" and _may_be_recipe(f)}


def _may_be_recipe(function: ast.FunctionDef) -> bool:
    returned = function.returns
    return returned is None or "Experiment" in ast.unparse(returned)


_BY_DEST: Mapping[str, _Completer] = {
    "action": _one_of(ACTIONS),
    "sampler": _one_of(SAMPLER_NAMES),
    "pruner": _one_of(PRUNER_NAMES),
    "controller": _one_of(CONTROLLER_NAMES),
    "backend": _one_of(BACKENDS),
    "recipe": _recipes,
    "recipe_arguments": _arguments,
}
