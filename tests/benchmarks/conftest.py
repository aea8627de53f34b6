"""Imports scripts in this process; runs `few_trials.py` there."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
CONFIGS, EPOCHS = 60, 12


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


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three tasks whose best learning rates differ, as a table of recorded curves."""
    rng = np.random.default_rng(0)
    configs = {
        "batch_size": rng.integers(16, 512, CONFIGS),
        "learning_rate": 10 ** rng.uniform(-4, -1, CONFIGS),
        "momentum": rng.uniform(0.1, 0.99, CONFIGS),
        "weight_decay": rng.uniform(1e-5, 0.1, CONFIGS),
        "num_layers": rng.integers(1, 5, CONFIGS),
        "max_units": rng.integers(64, 1024, CONFIGS),
        "max_dropout": rng.uniform(0, 1, CONFIGS),
    }
    log = np.log10(configs["learning_rate"])
    speed = np.stack([np.exp(-((log - best) ** 2)) for best in (-1.2, -2.5, -3.8)])
    epochs = np.arange(1, EPOCHS + 1)
    seconds = np.broadcast_to(
        epochs * (1 + configs["batch_size"][:, None] / 512), (3, CONFIGS, EPOCHS)
    )
    file = tmp_path_factory.mktemp("tables") / "tiny.npz"
    np.savez(
        file,
        val_accuracy=90 * (1 - np.exp(-speed[:, :, None] * epochs / 4)),
        time=seconds,
        tasks=np.array(["11", "22", "33"]),
        **{f"cfg_{name}": column for name, column in configs.items()},
    )
    return file
