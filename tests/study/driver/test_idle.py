"""Before confirmations the study waits for an idle machine, or warns that there is none."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from sims import race, racing, simulate

from autotune.algorithms.ranking.repeats import confirming
from autotune.backends.machine_load import MachineLoad
from autotune.backends.simulator import SimPool
from autotune.storage.journal import JOURNAL
from autotune.study.driver import loop
from autotune.study.driver.idle import IdleWait

BUSY, IDLE = MachineLoad(1.9, 2, 24.0), MachineLoad(0.1, 2, 3.0)


class Machine:
    """A machine whose load is as given from one look to the next; the last stays."""

    def __init__(self, *loads: MachineLoad) -> None:
        self.loads = list(loads)
        self.looks = 0
        self.slept: list[float] = []
        self.said: list[str] = []

    def look(self) -> MachineLoad:
        self.looks += 1
        return self.loads.pop(0) if len(self.loads) > 1 else self.loads[0]

    def wait(self, seconds: float | None) -> IdleWait:
        return IdleWait(seconds, self.look, self.said.append, self.slept.append)


def never() -> bool:
    return False


@pytest.mark.parametrize("seconds", [None, 60.0])
def test_on_an_idle_machine_nothing_is_said_or_waited_for(seconds: float | None) -> None:
    machine = Machine(IDLE)
    wait = machine.wait(seconds)
    wait(never)
    wait(never)
    assert (machine.said, machine.slept, machine.looks) == ([], [], 2)


def test_by_default_one_line_warns() -> None:
    machine = Machine(BUSY)
    wait = machine.wait(None)
    wait(never)
    wait(never)
    (line,) = machine.said
    assert line.startswith("other processes use 1.9 of 2 cores (load 24): confirmed times will not")
    assert "--wait-idle" in line
    assert machine.slept == []


def test_it_waits_until_the_machine_is_idle() -> None:
    machine = Machine(BUSY, BUSY, BUSY, IDLE)
    machine.wait(600.0)(never)
    assert machine.slept == [5.0, 5.0, 5.0]
    (line,) = machine.said
    assert line.endswith("confirming when it is idle, in 600 s at the latest")


def test_it_waits_no_longer_than_it_was_allowed_to_in_all() -> None:
    machine = Machine(BUSY)
    wait = machine.wait(12.0)
    wait(never)
    wait(never)
    assert machine.slept == [5.0, 5.0, 2.0]
    assert machine.said[1:] == [f"{BUSY}: confirming all the same"]


def test_an_interrupt_ends_the_wait() -> None:
    machine = Machine(BUSY)
    answers = ["", "", "interrupted"]
    machine.wait(600.0)(lambda: answers.pop(0))
    assert machine.slept == [5.0, 5.0]


def test_a_study_looks_before_each_confirmation_and_never_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Sequence[object]) -> MachineLoad:
        raise AssertionError("a virtual clock has no machine")

    monkeypatch.setattr("autotune.backends.machine_load.look", refuse)
    result = simulate(racing([1.0, 2.0]), tmp_path / "s", 2, repeats=2, wait_idle=60)
    assert len(result.confirmed) == 2


def test_nothing_is_confirmed_when_the_time_is_up_after_the_wait(
    fast_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = SimPool(race, 1)

    def wait(stopped: object) -> None:
        pool._now += 1000.0

    monkeypatch.setattr(loop, "IdleWait", lambda *_: wait)
    result = simulate(racing([1.0, 2.0]), fast_path, 2, repeats=2, pool=pool, time_limit=500)
    assert (result.ended, confirming(result.trials)) == ("budget", [])


def test_a_confirmation_that_waits_for_its_workers_waits_for_an_idle_machine_too(
    fast_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulate(racing([1.0, 2.0]), fast_path, 2, repeats=1)
    rows = (fast_path / JOURNAL).read_bytes().splitlines(keepends=True)
    first = next(i for i, row in enumerate(rows) if b'"kind":"confirm"' in row)
    (fast_path / JOURNAL).write_bytes(b"".join(rows[: first + 3]))  # it has begun to train
    waited: list[object] = []
    monkeypatch.setattr(loop, "IdleWait", lambda *_: waited.append)
    result = simulate(racing([1.0, 2.0]), fast_path, 2, repeats=1)
    assert len(waited) == len(confirming(result.trials)) == 2
