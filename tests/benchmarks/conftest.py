"""Imports scripts in this process; runs `few_trials.py` there."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Imports a script, or a module of the scripts, by its name."""
    for place in (FOLDER, FOLDER / "research"):
        monkeypatch.syspath_prepend(str(place))
    return importlib.import_module


@pytest.fixture(scope="module")
def few() -> Iterator[ModuleType]:
    before = list(sys.path)
    sys.path[:0] = [str(FOLDER), str(FOLDER / "research")]
    yield importlib.import_module("few_trials")
    sys.path[:] = before


@pytest.fixture
def module(few: ModuleType) -> Any:
    return lambda name: importlib.import_module(f"_few_{name}")


@pytest.fixture
def run(few: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Runs the script with its arguments; returns the exit code."""

    def run(*arguments: object) -> int:
        monkeypatch.setattr(sys, "argv", ["few_trials.py", *map(str, arguments)])
        code: int = few.main()
        return code

    return run
