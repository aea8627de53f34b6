"""What becomes of a worker group when its trial has ended; no process runs here."""

from __future__ import annotations

import queue
from concurrent.futures import Future
from typing import Any

import pytest

from autotune.backends.groups.lifecycle import WorkerGroups
from autotune.backends.groups.turns import Group
from autotune.backends.protocol import Launch
from autotune.backends.worker.messages import Answer
from autotune.trial.scaling import Scaling


class NoProcesses:
    """A backend that starts nothing and counts how often it was asked to."""

    def __init__(self) -> None:
        self.started = 0

    def reserve(self, strategy: str, lost: Any = ()) -> None: ...

    def is_reserved(self, placement: Any) -> bool:
        return True

    def release(self, placement: Any) -> None: ...

    def start(self, placement: Any) -> list[Any]:
        self.started += 1
        return []

    def call(self, process: Any, method: str, *arguments: Any) -> Future[Any]:
        return Future()

    def kill(self, process: Any) -> None: ...


@pytest.mark.parametrize(
    ("kind", "why", "said"),
    [
        ("finished", "", ""),
        ("finished", "memory grew from 900 to 2000 MiB", "after trial 7: memory grew from"),
        ("raised", "the trainer raised", ""),
    ],
    ids=["kept", "replaced", "of a trial that failed its own line tells"],
)
def test_it_says_why_a_trial_costs_its_processes(
    kind: str, why: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A start takes seconds, which else look like a slow trial."""
    processes = NoProcesses()
    groups = WorkerGroups(processes, Scaling(), queue.SimpleQueue(), 60.0)
    group = Group(0, None, "PACK", state="running", launch=Launch(7, {}, 1))
    group.answers = {0: Answer(kind), 1: Answer(kind, must_restart=why)}
    groups.release(group)
    assert (processes.started, group.state) == ((1, "starting") if why else (0, "idle"))
    group.launch, group.answers = Launch(8, {}, 1), {0: Answer(kind, must_restart=why)}
    groups.release(group)
    printed = capsys.readouterr().err
    assert printed.count("\n") == bool(said), "once for each reason"
    assert said in printed
