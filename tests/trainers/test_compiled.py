"""Kernels for every shape of a schedule are compiled before the clock starts, and none after."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from autotune.schedules import Piecewise, stages
from trainers import image, language

IMAGES = {
    "data": "digits",
    "model": "resnet8",
    "width": 4,
    "train_size": 320,
    "val_size": 70,
    "lr": 0.1,
    "horizon": 2,
    "milestone": 80,
    "microbatch": 40,
    "image_size": Piecewise((0.25, 0.5, 0.75), (5, 6, 7, 8), kind="constant"),
    "batch_size": stages((1, 32), (1, 48)),
}
WORDS = {
    "text": "synthetic",
    "layers": 1,
    "width": 16,
    "heads": 2,
    "optimizer": "adamw",
    "train_size": 2000,
    "val_size": 330,
    "lr": 0.01,
    "horizon": 1,
    "milestone": 250,
    "sequence_length": stages((1, 16), (1, 24), (1, 32)),
    "batch_size": stages((1, 4), (1, 8)),
}


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes that `compile=True` compiles for, as they are met; nothing is made of them."""
    found: list[tuple[int, ...]] = []

    def backend(graph: Any, inputs: list[Any]) -> Any:
        shapes = (tuple(x.shape) for x in inputs if isinstance(x, torch.Tensor))
        found.append(next(shapes, ()))
        return graph.forward

    compile_with = nn.Module.compile
    monkeypatch.setattr(nn.Module, "compile", lambda self: compile_with(self, backend=backend))
    torch._dynamo.reset()
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trainer", "config", "key"),
    [(image, IMAGES, "image_size"), (language, WORDS, "sequence_length")],
    ids=["images", "text"],
)
def test_nothing_is_compiled_on_the_clock(
    trainer: Any, config: dict[str, Any], key: str, compiled: list[Any]
) -> None:
    run = trainer.train({**config, "compile": True})
    sizes, milestone = set(), next(run)
    before = list(compiled)
    assert 2 <= len(before) <= 3  # to train and to evaluate, for all sizes; a rest is one more
    for _ in range(8):
        sizes.add(milestone.evaluate()[key])
        milestone = run.send(None)
    run.close()
    assert len(sizes) >= 3
    assert compiled == before


@pytest.mark.parametrize(("limit", "says"), [(1, True), (16, False)])
def test_the_limit_to_recompilation_is_reported(
    limit: int, says: bool, compiled: list[Any], recwarn: pytest.WarningsRecorder
) -> None:
    config = {**WORDS, "compile": True}
    with torch._dynamo.config.patch(recompile_limit=limit):
        run = language.train(config)
        next(run)
        metrics = next(run).evaluate()
        run.close()
    assert metrics.get("recompile_limit_met") == (1.0 if says else None)
    said = [str(w.message) for w in recwarn if "limit" in str(w.message)]
    assert [message.startswith("compile=True: this training needs") for message in said] == (
        [True] if says else []
    )
