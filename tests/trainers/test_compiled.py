"""Kernels for every shape of a schedule are compiled before the clock starts, and none after."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

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
    """The shapes that torch compiles for, as they are met; nothing is made of them."""
    found: list[tuple[int, ...]] = []

    def backend(graph: Any, inputs: list[Any]) -> Any:
        shapes = (tuple(x.shape) for x in inputs if isinstance(x, torch.Tensor))
        found.append(next(shapes, ()))
        return graph.forward

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    torch._dynamo.reset()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("what", [True, "units"])
@pytest.mark.parametrize(
    ("trainer", "config", "key"),
    [(image, IMAGES, "image_size"), (language, WORDS, "sequence_length")],
    ids=["images", "text"],
)
def test_nothing_is_compiled_on_the_clock(
    trainer: Any, config: dict[str, Any], key: str, what: bool | str, compiled: list[Any]
) -> None:
    run = trainer.train({**config, "compile": what})
    sizes, milestone = set(), next(run)
    before = list(compiled)
    if what is True:
        assert 2 <= len(before) <= 3  # to train and to evaluate, for all sizes; a rest is one more
    assert before
    for _ in range(8):
        metrics = milestone.evaluate()
        assert "recompile_limit_met" not in metrics
        sizes.add(metrics[key])
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
        assert torch._dynamo.config.recompile_limit == limit
    assert metrics.get("recompile_limit_met") == (1.0 if says else None)
    said = [str(w.message) for w in recwarn if "limit" in str(w.message)]
    assert [message.startswith("compile=True: this training needs") for message in said] == (
        [True] if says else []
    )


@pytest.mark.slow
def test_equal_units_share_their_graphs_and_compute_what_the_model_does(
    compiled: list[tuple[int, ...]], record: Any, apart: Any
) -> None:
    config = {**WORDS, "sequence_length": 16, "batch_size": 4, "milestone": 64}
    graphs = []
    for layers in (1, 3):
        torch._dynamo.reset()
        compiled.clear()
        units = record({**config, "layers": layers, "compile": "units"}, 2)
        graphs.append(len(compiled))
        plain = record({**config, "layers": layers}, 2)
        assert apart(units["final"], plain["final"]) < 1e-6
        assert units["freed"]
    assert graphs[0] == graphs[1] > 0
