"""What `precision` and `deterministic` set while a trainer runs, and put back when it ends."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

from trainers import image
from trainers.memory.precision import PRECISIONS, numerics
from trainers.settings import read_settings

CPU, GPU = torch.device("cpu"), torch.device("cuda")
CONFIG = {"data": "digits", "model": "mlp", "width": 8, "lr": 0.1, "batch_size": 64}
TF32 = torch.get_float32_matmul_precision, lambda: torch.backends.cudnn.allow_tf32


def now() -> tuple[Any, ...]:
    cudnn = torch.backends.cudnn
    mode, workspace = (
        torch.get_deterministic_debug_mode(),
        os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
    )
    return *(read() for read in TF32), cudnn.benchmark, cudnn.deterministic, mode, workspace


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_gpu_computes_in_the_precision_named(
    precision: str, deterministic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The settings are those of the process; they can be made, and read, without a GPU."""
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    before = now()
    with numerics(precision, deterministic, GPU):
        products, convolutions, benchmark, fixed, mode, workspace = now()
        assert (products, convolutions) == (
            ("high", True) if precision == "tf32" else ("highest", False)
        )
        assert (benchmark, fixed) == (not deterministic, deterministic)
        assert (mode, workspace) == ((2, ":4096:8") if deterministic else (0, None))
    assert now() == before


def test_settings_of_a_trial_end_with_it() -> None:
    before = now()
    trainer = image.train({**CONFIG, "deterministic": True})
    next(trainer)
    assert torch.are_deterministic_algorithms_enabled()
    trainer.close()
    assert now() == before


def test_an_error_puts_them_back_too() -> None:
    before = now()
    with pytest.raises(RuntimeError, match="kernel"), numerics("tf32", True, GPU):
        raise RuntimeError("no such kernel")
    assert now() == before


def test_a_cpu_has_no_tf32() -> None:
    with pytest.raises(
        ValueError, match=r"precision 'tf32' needs a GPU with CUDA, this rank .* cpu"
    ):
        next(image.train({**CONFIG, "precision": "tf32"}))


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_configurations_of_older_studies_are_read(precision: str) -> None:
    """The names of before are those of now, and the new key has a default."""
    found = read_settings({**CONFIG, "precision": precision}).training
    assert (found.precision, found.deterministic) == (precision, False)


def test_deterministic_training_is_the_same_in_every_bit(record: Any, same: Any) -> None:
    first, second, usual = (
        record({**CONFIG, "augment": "crop", "deterministic": d}, 2) for d in (True, True, False)
    )
    assert same(first["final"], second["final"])
    assert same(first["final"], usual["final"])  # a CPU is deterministic anyway
