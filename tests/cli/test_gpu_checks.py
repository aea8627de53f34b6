"""What `doctor` says of GPUs, from what their driver prints, and of the load: without a GPU."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch

from autotune.backends import machine_load
from autotune.cli import doctor, gpu_checks, main
from autotune.cli.gpu_checks import read_state, unseen

FULL = "0, Disabled, Default, 0x0000000000000001\n1, [N/A], Default, 0x0000000000000004\n"


def test_gpus_at_full_clocks_are_well() -> None:
    found = read_state(FULL, mps=False)
    assert (found.faults, found.notes) == ((), ())


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ("0, Disabled, Default, 0x0000000000000028", "GPU 0: slowed down by its hardware"),
        ("0, Disabled, Default, 0x0000000000000040", "GPU 0: too hot (slowed by its hardware)"),
        ("0, Disabled, Prohibited, Not Active", "GPU 0: its compute mode prohibits work on it"),
    ],
)
def test_what_slows_a_gpu_down_is_a_fault(row: str, fault: str) -> None:
    assert fault in read_state(row, mps=False).faults


def test_what_one_should_know_is_no_fault() -> None:
    found = read_state("0, Enabled, Exclusive_Process, 0x2", mps=True)
    assert found.faults == ()
    words = " ".join(found.notes)
    assert all(word in words for word in ("MIG", "one process only", "MPS", "clocks are set"))


@pytest.mark.parametrize(
    ("there", "cuda", "visible", "says"),
    [
        (0, None, None, ""),
        (0, "12.8", "", ""),
        (2, None, None, "built without CUDA, but this machine has 2 GPUs: install a build"),
        (1, "12.8", "", "has 1 GPU: CUDA_VISIBLE_DEVICES is ''"),
        (1, "12.8", None, "its driver may be too old for CUDA 12.8"),
    ],
)
def test_gpus_that_torch_does_not_see_are_a_fault(
    there: int, cuda: str | None, visible: str | None, says: str
) -> None:
    found = unseen(there, cuda, visible)
    assert (says in found) if says else found == ""


def parent_of(number: int) -> int:
    if number < 0:
        raise RuntimeError("GPU 0 (H100): no memory")
    return os.getppid()


@pytest.mark.slow
def test_gpus_are_tried_in_a_process_that_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that takes a single process is free for NCCL's then."""
    assert gpu_checks._elsewhere(parent_of, 1) == os.getpid()
    with pytest.raises(RuntimeError, match=r"GPU 0 \(H100\): no memory"):
        gpu_checks._elsewhere(parent_of, -1)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda.nccl, "version", lambda: (2, 27))
    monkeypatch.setattr(gpu_checks, "_elsewhere", lambda _, count: [f"{count} tried"])
    assert gpu_checks.try_gpus().startswith("2 tried; CUDA ")


def test_the_driver_s_program_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for it, which prints a table for the fields that it knows."""
    program = tmp_path / "nvidia-smi"
    known = "index,mig.mode.current,compute_mode,clocks_throttle_reasons.active"
    program.write_text(
        f"#!{sys.executable}\nimport sys\nassert sys.argv[1] == '--query-gpu={known}'\n"
        "print('0, Disabled, Default, 0x0000000000000020')\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match=r"GPU 0: too hot \(slowed by the driver\)"):
        gpu_checks.state()


def test_a_busy_machine_is_no_fault_but_is_not_ok(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(doctor, "_CHECKS", {"load": doctor._CHECKS["load"]})
    monkeypatch.setattr(machine_load, "counted_pressure", lambda: 0.91)
    for used, line in (
        (1.9, "warn  load: other processes use 1.9 of 2 cores (load 24): times will not be "),
        (0.1, "ok    load: other processes use 0.1 of 2 cores (load 24); pressure 91%"),
    ):
        load = machine_load.MachineLoad(used, 2, 24.0)
        monkeypatch.setattr(machine_load, "look", lambda load=load: load)
        assert main.main(["doctor"]) == main.DONE
        assert capsys.readouterr().out.startswith(line)
