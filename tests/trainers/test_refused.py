"""Every combination that a table refuses: one line with the key, its value, and what is allowed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from trainers import language, settings
from trainers.communication import compression, synchronization
from trainers.communication.compression import EXCHANGES
from trainers.communication.wire import HOOKS
from trainers.compression import applied
from trainers.models import library
from trainers.plan import DEFAULTS, REFUSES

Case = tuple[dict[str, Any], str]
"""Keys of a configuration, and the line."""
OTHER: dict[str, Any] = {
    "data_parallel_shard_degree": 2,
    "tensor_parallel_degree": 2,
    "pipeline_parallel_degree": 2,
    "context_parallel_degree": 2,
    "bucket_cap_mb": 5,
    "static_graph": True,
    "all_reduce_topology": "hierarchical",
    "shard_optimizer_state": True,
    "optimizer_state_bits": 8,
    "pruning": "structured",
    "quantization": "post_training",
    "teacher": "teacher.pt",
}
"""A value that is no default, of every key in the tables."""
KINDS = synchronization.KINDS[1:]
LIBRARY = "timm:resnet18"


def of_both() -> Iterator[Case]:
    """What the trainers of images and of texts refuse."""
    for key, others in REFUSES.items():
        for other in others:
            says = f"{other} {OTHER[other]!r} needs {key} 1, got {OTHER[key]}"
            yield {key: OTHER[key], other: OTHER[other]}, says
    for kind, keys in compression.REFUSES.items():
        chosen = {"gradient_compression": kind}
        needs = f"needs gradient_compression other than {kind!r}"
        for key in keys:
            says = f"{key} {OTHER[key]!r} {needs}, or {DEFAULTS[key]!r}"
            yield {**chosen, key: OTHER[key]}, says
        if kind in EXCHANGES:
            says = f"precision 'fp16' {needs}: errors of other steps have another scale"
            yield {**chosen, "precision": "fp16"}, says
    for kind in KINDS:
        needs = f"needs synchronization 'every_step', got {kind!r}"
        refused = [(key, OTHER[key]) for key in synchronization.REFUSES]
        refused += [("gradient_compression", sent) for sent in (*HOOKS, *EXCHANGES)]
        for key, value in (*refused, ("precision", "fp16")):
            yield {"synchronization": kind, key: value}, f"{key} {value!r} {needs}"


def of_images() -> Iterator[Case]:
    """What the trainer of images refuses of smaller models."""
    for key in applied.USES:
        chosen, how = {key: OTHER[key]}, f"with {key} {OTHER[key]!r}"
        shards = "data_parallel_shard_degree"
        yield {**chosen, shards: OTHER[shards]}, f"{shards} must be 1 {how}"
        for kind in KINDS:
            says = f"synchronization must be 'every_step' {how}"
            yield {**chosen, "synchronization": kind}, says
    rule = "needs model mlp, resnet8, resnet18 or resnet50"
    says = f"pruning 'structured' {rule}, got {LIBRARY!r}"
    yield {"pruning": "structured", "model": LIBRARY}, says


READERS = {"images": settings.read_settings, "texts": language.read_settings}
KNOWN: dict[str, dict[str, Any]] = {
    "images": {"data": "digits", "model": "resnet8", "lr": 0.1},
    "texts": {"text": "synthetic", "lr": 0.1},
}
CASES = [
    pytest.param(of, *case, id=f"{of}-" + " ".join(f"{k}={v}" for k, v in case[0].items()))
    for of, cases in (("images", of_images), ("images", of_both), ("texts", of_both))
    for case in cases()
]


@pytest.mark.parametrize(("of", "keys", "line"), CASES)
def test_what_a_table_refuses_is_one_line(
    of: str, keys: dict[str, Any], line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {**library.NAMES, "timm": lambda what: ["resnet18"]}  # whether it is there or not
    monkeypatch.setattr(library, "NAMES", names)
    with pytest.raises(ValueError) as refused:
        READERS[of]({**KNOWN[of], **keys})
    assert str(refused.value) == line
