"""How busy the machine is: pressure and load, from files and figures by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.backends import machine_load
from autotune.backends.machine_load import LoadMeter, MachineLoad, counted_pressure, pressure

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


def test_a_look_takes_a_moment_and_leaves_out_this_process() -> None:
    slept: list[float] = []
    meter = LoadMeter()
    sum(range(10**6))
    seen = meter.read(slept.append)
    assert len(slept) == 1, "it was only a moment ago"
    assert 0 <= seen.used <= seen.cores
