"""Imports `few_trials.py` and its parts, and runs it in this process."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


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
