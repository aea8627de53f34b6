"""Two ranks that stay up for the session, and `record` in this process."""

from __future__ import annotations

import importlib.util
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from heads import free_ports

HERE = Path(__file__).parent
Record = Callable[..., dict[str, Any]]


@pytest.fixture(autouse=True)
def one_thread_and_seed() -> Iterator[None]:
    torch.manual_seed(0)  # or one draw in many is an unlucky one
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def record() -> Record:
    """`ranks.record`: train in this process."""
    spec = importlib.util.spec_from_file_location("autotune_test_ranks", HERE / "ranks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.record


@pytest.fixture(scope="session")
def on_two_ranks() -> Iterator[Callable[..., list[dict[str, Any]]]]:
    """`record` on two ranks of a gloo group; gives what each of them recorded."""
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(*free_ports(1))}
    ours = str(HERE.parents[1]), str(HERE.parent / "support")
    path = os.pathsep.join([*ours, os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, **place, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    ranks = subprocess.Popen(
        [sys.executable, str(HERE / "ranks.py")],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert ranks.stdin is not None
    assert ranks.stdout is not None

    def run(*arguments: Any, **named: Any) -> list[dict[str, Any]]:
        pickle.dump((arguments, named), ranks.stdin)
        ranks.stdin.flush()
        return pickle.load(ranks.stdout)

    yield run
    ranks.stdin.close()
    assert ranks.wait(timeout=600) == 0


def same(a: Any, b: Any) -> bool:
    """Whether two states are equal to the last bit."""
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(v, b[k]) for k, v in a.items())
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


@pytest.fixture(scope="session", name="same")
def _same() -> Callable[[Any, Any], bool]:
    return same


@pytest.fixture(scope="session")
def apart() -> Callable[[dict[str, Any], dict[str, Any]], float]:
    """The largest difference of two states' parameters."""

    def measure(a: dict[str, Any], b: dict[str, Any]) -> float:
        one, other = a["learner"]["model"], b["learner"]["model"]
        return max((one[k].double() - other[k].double()).abs().max().item() for k in one)

    return measure
