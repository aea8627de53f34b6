"""Validation in a process of its own gives what validation between two steps gives."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Future
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from trainers import image
from trainers.settings import read_settings
from trainers.validation_process import Beside, RemoteTraceback

NET = {"model": "resnet8", "width": 4, "train_size": 500, "val_size": 300, "batch_size": 50}
FAST = {"data": "digits", "model": "mlp", "width": 8, "lr": 0.1, "val_size": 300}
MEASURED = ("samples_per_second", "flops_per_second", "exposed_communication")  # by the clock
SECONDS = 600.0  # a guard against hangs


def metrics(found: dict[str, Any]) -> list[dict[str, float]]:
    """What was reported, without what is measured by the clock."""
    every = [m.result(SECONDS) if isinstance(m, Future) else m for m in found["metrics"]]
    return [{k: v for k, v in m.items() if k not in MEASURED} for m in every]


def test_the_metrics_are_those_of_validation_inline(record: Any) -> None:
    config = {**NET, "optimizer": "schedulefree_sgd"}  # running statistics, averaged weights
    inline, beside = (
        record({**config, "validation": v}, 3, done=v == "beside") for v in ("inline", "beside")
    )
    assert metrics(beside) == metrics(inline)
    assert [*metrics(beside)[-1]] == [*metrics(inline)[-1]]
    assert beside["steps"] == inline["steps"]
    assert beside["freed"]
    left = [" ".join(child.cmdline()) for child in psutil.Process().children()]
    assert not [command for command in left if "trainers.validation_process" in command]


@pytest.mark.parametrize("degree", ["data_parallel_shard_degree", "tensor_parallel_degree"])
@pytest.mark.slow
def test_on_two_ranks_they_are_those_of_validation_inline(on_two_ranks: Any, degree: str) -> None:
    """Weights are gathered before they are sent.

    Running statistics, which are averaged first, are in `tests/study/test_beside.py`.
    """
    config = {"text": "synthetic", degree: 2}
    inline, beside = (
        [metrics(r) for r in on_two_ranks({**config, "validation": v}, 2, done=v == "beside")]
        for v in ("inline", "beside")
    )
    for one, other in zip(inline[0], beside[0], strict=True):
        assert other["val_loss"] == pytest.approx(one["val_loss"], rel=1e-6)  # in another order
        assert {**other, "val_loss": 0} == {**one, "val_loss": 0}
    assert all("val_loss" not in m for m in beside[1]), "the first rank's metrics count"


def test_a_training_that_ends_waits_for_its_last_validation(record: Any) -> None:
    found = record({**NET, "validation": "beside", "max_epochs": 1, "milestone": 500}, 5)
    assert [m.done() for m in found["metrics"]] == [True, True]
    assert metrics(found)[-1]["val_accuracy"] > 0


# --- the process ----------------------------------------------------------------------------------


@pytest.fixture
def beside() -> Iterator[Callable[[Callable[[], Any]], Beside]]:
    with contextlib.ExitStack() as opened:

        def make(again: Callable[[], Any]) -> Beside:
            made = Beside(again, read_settings(FAST).training)
            opened.callback(made.close)
            return made

        yield make


def test_what_is_raised_there_is_raised_here_with_both_tracebacks(beside: Any) -> None:
    def broken() -> None:
        raise FileNotFoundError("no images of digits")

    made = beside(broken)
    with pytest.raises(FileNotFoundError, match="no images of digits") as raised:
        made.ready()
    assert isinstance(raised.value.__cause__, RemoteTraceback)
    text = "".join(traceback.format_exception(raised.value))
    assert "in broken" in text


@pytest.mark.slow
def test_weights_that_do_not_fit_raise_and_the_next_ones_are_validated(beside: Any) -> None:
    task = image._task(read_settings(FAST), begins=False)
    made = beside(task.again)
    made.ready()
    threads = psutil.Process(made._process.pid).threads()  # each has a priority on Linux
    assert {os.getpriority(os.PRIO_PROCESS, thread.id) for thread in threads} == {19}
    with pytest.raises(KeyError):
        made.submit({"none": torch.zeros(1)}, {}).result(SECONDS)
    trainer = image.train(FAST)
    milestone = next(trainer)
    weights, inline = milestone.state()["learner"]["model"], milestone.evaluate()
    found = made.submit(weights, {"lr": 0.5}).result(SECONDS)
    trainer.close()
    keys = "val_accuracy", "val_loss"
    assert found == {**{k: inline[k] for k in keys}, "lr": 0.5}


def test_a_process_that_is_killed_is_told_from_an_error(beside: Any) -> None:
    made = beside(image._task(read_settings(FAST), begins=False).again)
    made.ready()
    os.kill(made._process.pid, signal.SIGKILL)
    with pytest.raises(BrokenExecutor, match="was ended by SIGKILL, which the system also sends"):
        made.submit({}, {}).result(SECONDS)


@pytest.mark.slow
def test_the_process_ends_with_its_rank(tmp_path: Path) -> None:
    """However that ends, and though the process computes."""
    script = tmp_path / "rank.py"
    script.write_text(
        textwrap.dedent("""
        import sys, time
        from trainers import image
        trainer = image.train({"data": "digits", "model": "mlp", "width": 8, "lr": 0.1,
                               "validation": "beside"})
        milestone = next(trainer)
        milestone.evaluate()
        print(milestone.evaluate.__self__._beside._process.pid, flush=True)
        time.sleep(1000)
        """)
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, env=environment
    ) as rank:
        assert rank.stdout is not None
        process = psutil.Process(int(rank.stdout.readline()))
        rank.kill()
    deadline = time.monotonic() + SECONDS
    while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.1)


# --- what it refuses ------------------------------------------------------------------------------


def test_a_pipeline_is_refused_in_one_line() -> None:
    config = {"text": "synthetic", "lr": 0.1, "pipeline_parallel_degree": 2, "validation": "beside"}
    from trainers import language

    rule = r"validation must be 'inline' where no rank has all layers \(pipeline_parallel_degree\)"
    with pytest.raises(ValueError, match=rule):
        language.check(config)
    with pytest.raises(ValueError, match="validation must be one of inline, beside, got 'besides'"):
        image.check({**FAST, "validation": "besides"})
