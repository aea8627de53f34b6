"""How busy the machine is: pressure and load, from files and figures by hand."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from autotune.backends import machine_load
from autotune.backends.machine_load import (
    MachineLoad,
    counted_pressure,
    look,
    own_seconds,
    pressure,
    warning_at,
)

SOME = "some avg10=12.50 avg60=3.00 avg300=1.00 total=123\nfull avg10=0.00 avg60=0.00 total=0\n"


def test_pressure_is_what_the_kernel_counts(tmp_path: Path) -> None:
    file = tmp_path / "cpu"
    file.write_text(SOME)
    assert counted_pressure(file) == pressure(file) == pytest.approx(0.125)


@pytest.mark.parametrize("text", [None, "", "some total=3\n", "some avg10=x\n", "full avg10=1\n"])
def test_without_it_pressure_is_the_load_for_which_there_is_no_core(
    text: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "cpu"
    if text is not None:
        file.write_text(text)
    monkeypatch.setattr(machine_load, "usable_cores", lambda: range(2))
    assert counted_pressure(file) is None
    for load, share in ((24.0, 11 / 12), (2.0, 0.0), (0.0, 0.0)):
        monkeypatch.setattr(machine_load, "_load", lambda value=load: value)
        assert pressure(file) == pytest.approx(share)


@pytest.mark.parametrize(
    ("used", "cores", "busy"), [(0.0, 2, False), (0.5, 2, False), (0.6, 2, True), (3.0, 64, False)]
)
def test_a_machine_is_busy_when_others_use_a_quarter_of_it(
    used: float, cores: int, busy: bool
) -> None:
    assert MachineLoad(used, cores, 1.0).busy is busy


def test_a_look_takes_a_moment() -> None:
    slept: list[float] = []
    seen = look(slept.append)
    assert len(slept) == 1
    assert 0 <= seen.used <= seen.cores


def test_processes_that_it_has_started_are_no_others() -> None:
    """MLflow's mirror, say, which is still at work when confirmations are to begin."""
    burn = "import sys, time\nwhile time.process_time() < 0.5: pass\nprint(flush=True)\ninput()"
    before, pipe = own_seconds(), subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", burn], stdin=pipe, stdout=pipe) as child:
        assert child.stdout is not None
        child.stdout.readline()
        while_it_runs = own_seconds()
        child.communicate(b"\n")
    assert while_it_runs - before >= 0.4
    assert own_seconds() >= while_it_runs - 0.1, "when it has ended as well"


@pytest.mark.parametrize(
    ("load", "cores", "counted", "warns"),
    [
        (24.0, 2, 0.9, True),
        (24.0, 2, None, True),
        (24.0, 2, 0.1, False),  # it was busy a minute ago
        (2.0, 2, None, False),
        (1.0, 2, 0.5, True),  # it is since a few seconds
        (3.0, 64, 0.5, False),  # a few processes meet on a core now and then
    ],
)
def test_at_the_start_load_and_pressure_must_agree(
    load: float, cores: int, counted: float | None, warns: bool
) -> None:
    said = warning_at(load, cores, counted)
    assert bool(said) is warns
    if warns:
        assert said == f"load {load:.3g} on {cores} cores: times will not be comparable"
