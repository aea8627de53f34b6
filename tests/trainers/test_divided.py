"""The language trainer on two ranks that work on the same samples, with what it measures."""

from __future__ import annotations

from typing import Any

import pytest

from autotune.schedules import Linear
from trainers.plan import KNOBS

pytestmark = pytest.mark.slow  # the quick tier has rows of `test_conformance.py`
TEXT = {"text": "synthetic", "layers": 2}
TENSOR = {"tensor_parallel_degree": 2, "enable_sequence_parallel": True}
PIPELINE = {"pipeline_parallel_degree": 2}
CONTEXT = {"context_parallel_degree": 2}
GROWING = {
    "batch_size": Linear(3, 9),
    "sequence_length": Linear(9, 32),
    "horizon": 0.5,
    "optimizer": "sgd",
    "lr": 0.1,
}
FREE = {"optimizer": "schedulefree_adamw", "lr": 0.01, "weight_decay": 0.1}
KINDS: dict[str, dict[str, Any]] = {
    "tensor": TENSOR,
    "tensor, growing": {**TENSOR, "enable_loss_parallel": True, **GROWING},
    "tensor, schedule-free": {**TENSOR, **FREE},
    "pipeline": PIPELINE,
    "pipeline, growing": {**PIPELINE, **GROWING},
    "pipeline, muon": {**PIPELINE, "optimizer": "muon", "lr": 0.01, "weight_decay": 0.1},
    "context": CONTEXT,
    "context, growing": {**CONTEXT, **GROWING},
    "context, schedule-free": {**CONTEXT, **FREE},
}


@pytest.mark.parametrize("config", KINDS.values(), ids=KINDS)
def test_ranks_with_the_same_samples_equal_one_process(
    config: dict[str, Any], record: Any, on_two_ranks: Any
) -> None:
    rounding = 1e-2 if config.get("optimizer") == "muon" else 1e-3  # its steps are in bfloat16
    one = {key: value for key, value in config.items() if key not in KNOBS}
    alone, ranks = record({**TEXT, **one}, 2), on_two_ranks({**TEXT, **config}, 2)
    for rank in ranks:
        assert "error" not in rank, rank["error"]
        assert rank["steps"] == alone["steps"]
        for found, wanted in zip(rank["metrics"], alone["metrics"], strict=True):
            assert 0 <= found.pop("exposed_communication", 0.0) < 1
            assert found.keys() == wanted.keys()
            for key in ("val_accuracy", "val_loss", "lr", "batch_size"):
                assert found[key] == pytest.approx(wanted[key], rel=rounding / 10)
        for key in ("train_loss", "grad_norm", "weight_norm", "update_ratio"):
            wanted = alone["metrics"][-1][key]
            assert rank["metrics"][-1][key] == pytest.approx(wanted, rel=rounding), key
        assert rank["freed"]


@pytest.mark.parametrize("config", [TENSOR, PIPELINE, CONTEXT], ids=["tensor", "pipeline", "parts"])
def test_layers_under_autocast_compute_what_one_process_does(
    config: dict[str, Any], record: Any, on_two_ranks: Any
) -> None:
    alone = record({**TEXT, "precision": "bf16"}, 1)["metrics"]
    for rank in on_two_ranks({**TEXT, **config, "precision": "bf16"}, 1):
        assert "error" not in rank, rank["error"]
        for key in ("val_loss", "train_loss", "grad_norm"):
            wanted = alone[-1][key]
            assert rank["metrics"][-1][key] == pytest.approx(wanted, rel=5e-3), key


def test_heads_and_width_must_fit_the_ranks_before_anything_is_divided(on_two_ranks: Any) -> None:
    errors = [rank["error"] for rank in on_two_ranks({**TEXT, **TENSOR, "heads": 1}, 1)]
    assert errors == ["tensor_parallel_degree must divide the heads, 1, got 2"] * 2
