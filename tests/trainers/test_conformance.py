"""Every exact plan trains as one rank on the whole batch does, and reads every other plan's state.

A technique has a row here. The ranks are started once for each number of them.
"""

from __future__ import annotations

import importlib.util
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import compressing
import documents
import pytest
import tiers
import torch
from averaged_steps import WEIGHTS, ByHand
from heads import free_ports

from autotune.schedules import Linear
from trainers import image
from trainers.communication.synchronization import KNOBS as SYNCHRONIZED
from trainers.models import library
from trainers.plan import KNOBS

HERE = Path(__file__).parent
Run = Callable[..., list[dict[str, Any]]]
CLOSE = 1e-5
STEPS = 5

ZERO3 = {"data_parallel_shard_degree": -1, "fsdp_reshard_after_forward": "always"}
UNEVEN = {"batch_size": 7, "microbatch": 2, "val_size": 65}
"""Of two ranks one has fewer samples in a step and in an evaluation."""
ADAFACTOR = {"optimizer": "adafactor", "lr": 0.05, "momentum": None}
ADAPTED = {"optimizer": "lamb", "lr": 0.01, "momentum": None}
DGC = {"gradient_compression": "dgc"}
POWERSGD = {"gradient_compression": "powersgd", "powersgd_start": 2}
ONE_BIT = {**ADAPTED, "gradient_compression": "one_bit", "one_bit_warmup_steps": 2}
COMPRESSED: dict[str, dict[str, Any]] = {
    "fp16": {"gradient_compression": "fp16", "bucket_cap_mb": 0.001},
    "bf16, zero-1": {"gradient_compression": "bf16", "shard_optimizer_state": True},
    "powersgd": {**POWERSGD, **UNEVEN},
    "powersgd, fp16, zero-1": {
        **POWERSGD,
        "powersgd_rank": 1,
        "powersgd_wire": "fp16",
        "powersgd_warm_start": False,
        "shard_optimizer_state": True,
        "static_graph": True,
    },
    "dgc": {**DGC, "dgc_warmup_steps": 3, "dgc_dense_below": 50, "dgc_clip": 1.0, **UNEVEN},
    "1-bit lamb": {**ONE_BIT, **UNEVEN},
    "1-bit adam": {**ONE_BIT, "optimizer": "adamw"},
}
PLANS: dict[str, dict[str, Any]] = {
    "replicas": {"data_parallel_replicate_degree": 2},
    "buckets": {"bucket_cap_mb": 0.001},
    "static graph": {"static_graph": True},
    "sums of a machine": {"all_reduce_topology": "hierarchical"},
    "static graph, microbatches": {"static_graph": True, **UNEVEN},
    "zero-1": {"shard_optimizer_state": True},
    "zero-1, microbatches": {"shard_optimizer_state": True, **UNEVEN},
    "zero-1, lamb": {
        "shard_optimizer_state": True,
        "optimizer": "lamb",
        "lr": 0.01,
        "momentum": None,
        "max_grad_norm": 0.1,
    },
    "zero-2": {"data_parallel_shard_degree": 2, "fsdp_reshard_after_forward": "never"},
    "zero-3": ZERO3,
    "zero-3, microbatches": {**ZERO3, **UNEVEN},
    "prefetched": {"data_parallel_shard_degree": -1, "fsdp_prefetch_units": 2},
    "sharded": {"data_parallel_shard_degree": -1},
    "offload": {"data_parallel_shard_degree": -1, "enable_cpu_offload": True},
    "recomputed": {"activation_checkpoint_mode": "full"},
    "recomputed by operation": {"activation_checkpoint_mode": "selective"},
    "every second recomputed": {
        "activation_checkpoint_mode": "selective",
        "selective_ac_option": 2,
    },
    "zero-3, recomputed": {**ZERO3, "activation_checkpoint_mode": "full"},
    "accumulated": {"gradient_accumulation_steps": 3},
    "accumulated, zero-3, microbatches": {**ZERO3, **UNEVEN, "gradient_accumulation_steps": 2},
    "noise scale": {"noise_scale_every": 1},
    "noise scale, static graph, microbatches": {
        "noise_scale_every": 2,
        "static_graph": True,
        "shard_optimizer_state": True,
        **UNEVEN,
    },
    "foreach": {"optimizer_implementation": "foreach"},
    "for-loop": {"optimizer_implementation": "for-loop"},
    "adafactor": ADAFACTOR,
    "dgc, all is sent": {**DGC, "dgc_ratio": 1.0, "dgc_dense_below": 0, "dgc_momentum": False},
    "dgc, all is sent, momentum corrected": {
        **DGC,
        "dgc_ratio": 1.0,
        "dgc_dense_below": 0,
        "momentum": 0.0,  # that of what was sent is forgotten
        **UNEVEN,
    },
    "dgc, all is dense": {**DGC, "dgc_dense_below": 10**9, "dgc_momentum": False},
    "powersgd, before its start": {**POWERSGD, "powersgd_start": 99, "bucket_cap_mb": 0.001},
    "1-bit, before its start": {**ADAPTED, "gradient_compression": "one_bit"},
    "adafactor, zero-1, foreach": {
        **ADAFACTOR,
        "shard_optimizer_state": True,
        "optimizer_implementation": "foreach",
    },
    "units compiled": {"compile": "units"},
    "units compiled, zero-3, recomputed": {
        **ZERO3,
        "compile": "units",
        "activation_checkpoint_mode": "full",
    },
}
PRUNED = {"pruning": "unstructured", "sparsity": 0.8, "sparsity_ramp": 1e-3}
SMALLER: dict[str, dict[str, Any]] = {
    "pruned": PRUNED,
    "pruned over all layers, zero-1, microbatches": {
        **PRUNED,
        "pruning_scope": "global",
        "shard_optimizer_state": True,
        **UNEVEN,
    },
    "pruned channels": {**PRUNED, "pruning": "structured", "model": "mlp", "width": None},
    "rounded weights": {"quantization": "qat", "lr": 1e-6},
    "taught": {"teacher": "teacher.pt", "distill_weight": 0.7, **UNEVEN},
}
"""Of images. Masks are of the weights, which are equal on all ranks: so are the masks.

Larger steps than those of "rounded weights" could bring a weight to the edge of two of its values.
"""
ADAMW = {"optimizer": "adamw", "lr": 0.01, "momentum": None, "eps": 1e-6, "width": 32}
"""Wide enough that some states have 8 bits."""
WINDOW = {"attention": "sliding_window", "attention_window": 5}
SPARSE = {"attention": "block_sparse", "attention_window": 4}
OF_TEXT: dict[str, dict[str, Any]] = {
    "sliding window": WINDOW,
    "block sparse, zero-3": {**ZERO3, **SPARSE},
}
LAMB = {"optimizer": "lamb", "lr": 0.01, "momentum": None, "max_grad_norm": 0.1}
TENSOR = {"tensor_parallel_degree": 2}
SEQUENCE = {**TENSOR, "enable_sequence_parallel": True, "layers": 2}
PIPELINE = {"pipeline_parallel_degree": 2}
CONTEXT = {"context_parallel_degree": 2}
ODD = {"sequence_length": 15}
DIVIDED: dict[str, dict[str, Any]] = {
    "tensor": TENSOR,
    "tensor, sequence": {**SEQUENCE, **ODD},
    "tensor, sequence, loss": {**SEQUENCE, "enable_loss_parallel": True, **UNEVEN},
    "tensor, loss, recomputed": {
        **TENSOR,
        "enable_loss_parallel": True,
        "activation_checkpoint_mode": "full",
    },
    "tensor, sequence, lamb": {**SEQUENCE, **LAMB},
    "tensor, adamw": {**TENSOR, **ADAMW, "eps": 0.01},
    "tensor, sequence, sliding window, foreach": {
        **SEQUENCE,
        **WINDOW,
        "optimizer_implementation": "foreach",
        "gradient_accumulation_steps": 3,
    },
    "1f1b": PIPELINE,
    "1f1b, adafactor, accumulated": {
        **PIPELINE,
        **ADAFACTOR,
        "gradient_accumulation_steps": 8,
    },
    "1f1b, block sparse": {**PIPELINE, **SPARSE},
    "1f1b, microbatches": {**PIPELINE, **UNEVEN},
    "1f1b, lamb": {**PIPELINE, **LAMB},
    "1f1b, recomputed": {**PIPELINE, "activation_checkpoint_mode": "full"},
    "gpipe": {**PIPELINE, "pipeline_parallel_schedule": "GPipe"},
    **{
        schedule: {**PIPELINE, "pipeline_parallel_schedule": schedule, "layers": 4, **UNEVEN}
        for schedule in ("Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble")
    },
    "ZBVZeroBubble, recomputed": {
        **PIPELINE,
        "pipeline_parallel_schedule": "ZBVZeroBubble",
        "layers": 4,
        "activation_checkpoint_mode": "full",
    },
    "InterleavedZeroBubble, every second recomputed": {
        **PIPELINE,
        "pipeline_parallel_schedule": "InterleavedZeroBubble",
        "layers": 4,
        "activation_checkpoint_mode": "selective",
        "selective_ac_option": 2,
    },
    "1f1b, recomputed by operation": {**PIPELINE, "activation_checkpoint_mode": "selective"},
    "context": CONTEXT,
    "context, microbatches": {**CONTEXT, **UNEVEN, **ODD},
    "context, sliding window, accumulated": {
        **CONTEXT,
        **WINDOW,
        **ODD,
        "gradient_accumulation_steps": 3,
    },
    "context, block sparse, adafactor": {**CONTEXT, **SPARSE, **ADAFACTOR},
    "context, zero-1, recomputed": {
        **CONTEXT,
        "bucket_cap_mb": 0.001,
        "shard_optimizer_state": True,
        "activation_checkpoint_mode": "full",
    },
}
"""Plans whose ranks work on the same samples: of the language model only."""
ROUNDING: dict[str, tuple[dict[str, Any], float]] = {
    "bf16": ({"precision": "bf16"}, 0.02),
    "bf16, units compiled, zero-3": ({"precision": "bf16", "compile": "units", **ZERO3}, 0.02),
    "fp16": ({"precision": "fp16"}, 0.005),
    "gradients of 16 bits": ({"gradient_compression": "fp16"}, 0.001),
    "gradients of 16 bits, bf16": ({"gradient_compression": "bf16"}, 0.01),
    "states of 8 bits": ({**ADAMW, "optimizer_state_bits": 8}, 0.02),
}
"""Each with the bound of its losses, relative to those in full, and of a text's gradients."""
SWITCHED = 0.1
"""The bound of images' gradients: a ReLU whose input is about 0 may be on with fewer bits."""
UPDATED = 0.05
"""The bound of the updates of all steps with states of 8 bits."""
ON_FOUR: dict[str, dict[str, Any]] = {
    "hsdp": {"data_parallel_shard_degree": 2},
    "hsdp, zero-3, microbatches": {
        "data_parallel_replicate_degree": 2,
        "data_parallel_shard_degree": 2,
        "fsdp_reshard_after_forward": "always",
        **UNEVEN,
    },
    "zero-1": {"shard_optimizer_state": True},
    "zero-3": ZERO3,
    "tensor over four": {**SEQUENCE, "tensor_parallel_degree": 4, "heads": 4},
    "zero-3 x tensor": {
        **ZERO3,
        "fsdp_prefetch_units": 1,
        **SEQUENCE,
        "enable_loss_parallel": True,
        **UNEVEN,
    },
    "sharded x tensor": {"data_parallel_shard_degree": 2, "enable_cpu_offload": True, **TENSOR},
    "copies x tensor": TENSOR,
    "pipeline over four": {"pipeline_parallel_degree": 4, "layers": 4},
    "copies x pipeline": PIPELINE,
    "copies x ZBVZeroBubble": {
        **PIPELINE,
        "pipeline_parallel_schedule": "ZBVZeroBubble",
        "layers": 4,
        **UNEVEN,
    },
    "context over four": {"context_parallel_degree": 4, **ODD},
    "copies x context": {
        **CONTEXT,
        "all_reduce_topology": "hierarchical",
        "all_reduce_group_size": 2,
        **UNEVEN,
    },
    "sharded x context": {"data_parallel_shard_degree": 2, **CONTEXT},
    "hierarchical": {
        "all_reduce_topology": "hierarchical",
        "all_reduce_group_size": 2,
        "static_graph": True,
        "shard_optimizer_state": True,
    },
    "two-dimensional, buckets, microbatches": {
        "all_reduce_topology": "two_dimensional",
        "all_reduce_group_size": 2,
        "bucket_cap_mb": 0.001,
        **UNEVEN,
    },
}
ON_EIGHT: dict[str, dict[str, Any]] = {
    "hsdp x tensor": {"data_parallel_shard_degree": 2, **SEQUENCE, "enable_loss_parallel": True},
    "hsdp x context": {"data_parallel_shard_degree": 2, **CONTEXT},
    "copies x InterleavedZeroBubble": {
        "pipeline_parallel_degree": 4,
        "pipeline_parallel_schedule": "InterleavedZeroBubble",
        "layers": 8,
    },
}
AVERAGED: dict[str, dict[str, Any]] = {
    "local sgd": {"synchronization": "local_sgd", "local_sgd_period": 1, **UNEVEN},
    "post-local sgd, lamb": {"synchronization": "local_sgd", "local_sgd_start": STEPS, **LAMB},
    "diloco": {
        "synchronization": "diloco",
        "diloco_period": 1,
        "diloco_outer_lr": 1.0,
        "diloco_outer_momentum": 0.0,
        "gradient_accumulation_steps": 2,
    },
    "geo-sgd": {"synchronization": "geo_sgd", "geo_sgd_period": 1, "geo_sgd_delay": 0},
    "no staleness, adamw": {
        "synchronization": "bounded_staleness",
        "staleness_bound": 0,
        **ADAMW,
        "eps": 0.01,
    },
}
"""Exchanges in every step: copies that are averaged otherwise than by DDP then compute the same."""
AVERAGED_ON_FOUR = {
    "synchronization": "hierarchical",
    "hierarchical_inner_period": 1,
    "hierarchical_outer_period": 1,
    "hierarchical_group_size": 2,
}
QUICK = {
    *("tensor", "1f1b", "1f1b, microbatches", "ZBVZeroBubble"),
    *("context, microbatches", "context, zero-1, recomputed"),
    *("context, sliding window, accumulated", "tensor, sequence, sliding window, foreach"),
    *("hsdp, zero-3, microbatches", "zero-3", "copies x pipeline"),
}
"""Of the rows whose ranks have the same samples, and of those on four ranks; others are slow."""
TASKS = ("text", "images")
LIBRARIES = (*library.IMAGES, *library.TEXT)
SLOW_LIBRARIES = [pytest.param(name, marks=pytest.mark.slow) for name in LIBRARIES]  # to import


def marked(plan: dict[str, Any], *bound: float) -> Any:
    """A row of a test: slow where graphs are made, by `compile` or by torchao, and of DGC some."""
    slow = "compile" in plan or "optimizer_state_bits" in plan or bool(plan.get("dgc_dense_below"))
    return pytest.param(plan, *bound, marks=[pytest.mark.slow] if slow else [])


SAME = ("microbatch", "compile")


@pytest.fixture(scope="module")
def steps() -> Callable[..., dict[str, Any]]:
    """`conformance.steps` in this process, kept for the same arguments."""
    spec = importlib.util.spec_from_file_location("conformance_steps", HERE / "conformance.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    known: dict[str, dict[str, Any]] = {}

    def run(task: str, plan: dict[str, Any], states: Any = None) -> Any:
        if states is not None:
            return module.steps(task, plan, states)
        key = f"{task} {sorted(plan.items())}"
        if key not in known:
            known[key] = module.steps(task, plan)
        return known[key]

    return run


@pytest.fixture(scope="module")
def on_ranks() -> Iterator[Run]:
    """A task of `conformance.py` on so many ranks; what each of them found, kept without states."""
    ours = str(HERE.parents[1]), str(HERE.parent / "support")
    path = os.pathsep.join([*ours, os.environ.get("PYTHONPATH", "")])
    server = subprocess.Popen(
        [sys.executable, str(HERE / "conformance.py")],
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert server.stdin is not None
    assert server.stdout is not None
    known: dict[str, list[dict[str, Any]]] = {}

    def run(size: int, task: str, *given: Any) -> list[dict[str, Any]]:
        key = f"{size} {task} {given}" if len(given) < 2 else ""
        if key not in known:
            pickle.dump((size, *free_ports(1), (task, *given)), server.stdin)
            server.stdin.flush()
            found = [pickle.loads(rank) for rank in pickle.load(server.stdout)]
            if not key:
                return found
            known[key] = found
        return known[key]

    yield run
    server.stdin.close()
    assert server.wait(timeout=600) == 0


def near(found: torch.Tensor, wanted: torch.Tensor) -> bool:
    """No number is further away than this share of the tensor's largest."""
    return torch.allclose(found, wanted, rtol=0.0, atol=CLOSE * wanted.abs().max().item())


def trains_alike(ranks: list[dict[str, Any]], alone: dict[str, Any]) -> None:
    """Loss, gradients, validation and updated weights are those of one rank."""
    for rank in ranks:
        assert "error" not in rank, rank["error"]
    for step, wanted in enumerate(alone["gradients"]):
        by_rank = zip(*(rank["gradients"][step] for rank in ranks), strict=True)
        for found, gradient in zip(by_rank, wanted, strict=True):
            there = [one for one in found if one is not None]  # a pipeline's rank has its own
            assert there
            assert all(near(one, gradient) for one in there), f"gradients of step {step}"
    for rank in ranks:
        assert rank["losses"] == pytest.approx(alone["losses"], rel=CLOSE)
        assert rank["val_loss"] == pytest.approx(alone["val_loss"], rel=CLOSE)
        assert rank["ended"].keys() == alone["ended"].keys()
        for name, wanted in alone["ended"].items():
            assert near(rank["ended"][name], wanted), name


def trained(config: dict[str, Any]) -> dict[str, Any]:
    """The keys that change what is computed: no plan, no compiler, all of a batch at once."""
    without = {*KNOBS, *SYNCHRONIZED, *SAME}
    return {key: value for key, value in config.items() if key not in without}


def in_mean(ranks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """With the means over the ranks of their own gradients."""
    for rank in ranks:
        assert "error" not in rank, rank["error"]
    by_step = zip(*(rank["gradients"] for rank in ranks), strict=True)
    means = [[torch.stack(own).mean(0) for own in zip(*step, strict=True)] for step in by_step]
    return [{**rank, "gradients": means} for rank in ranks]


@pytest.mark.parametrize("task", ["text", pytest.param("images", marks=pytest.mark.slow)])
@pytest.mark.parametrize("plan", [marked(plan) for plan in PLANS.values()], ids=PLANS)
def test_two_ranks_train_as_one(plan: dict[str, Any], task: str, steps: Any, on_ranks: Any) -> None:
    trains_alike(on_ranks(2, task, plan), steps(task, trained(plan)))


@pytest.mark.parametrize("plan", SMALLER.values(), ids=SMALLER)
def test_two_ranks_make_a_model_smaller_as_one(
    plan: dict[str, Any], steps: Any, on_ranks: Any, tmp_path: Path
) -> None:
    if "quantization" in plan:
        pytest.importorskip("torchao", reason="torchao is not installed")
    if "teacher" in plan:
        plan = {**plan, "teacher": str(written_teacher(tmp_path))}
    ranks, alone = on_ranks(2, "images", plan), steps("images", trained(plan))
    trains_alike(ranks, alone)
    usual = {key: plan[key] for key in ("lr", *UNEVEN) if key in plan}
    assert alone["losses"] != pytest.approx(steps("images", trained(usual))["losses"], rel=CLOSE)
    for found in (*ranks, alone) if "pruning" in plan else ():
        weights = [v for k, v in found["ended"].items() if k.endswith("weight") and v.dim() > 1]
        gone = sum((w == 0).sum().item() for w in weights) / sum(w.numel() for w in weights)
        assert 0.1 < gone < 0.8


def written_teacher(folder: Path) -> Path:
    config = {"data": "digits", "model": "mlp", "width": 8, "lr": 0.1}
    trainer = image.train(config)
    torch.save(image.saved(config, [next(trainer).state()]), folder / "teacher.pt")
    trainer.close()
    return folder / "teacher.pt"


@pytest.mark.parametrize(
    "plan",
    [
        *("replicas", "zero-1", "zero-3", "zero-3, recomputed", "accumulated"),
        "units compiled, zero-3, recomputed",
    ],
)
@pytest.mark.parametrize("name", SLOW_LIBRARIES)
def test_a_model_of_a_library_trains_as_one_rank_too(
    name: str, plan: str, steps: Any, on_ranks: Any
) -> None:
    """A model without batch normalisation, whose units were found from its blocks."""
    pytest.importorskip(name)
    trains_alike(on_ranks(2, name, PLANS[plan]), steps(name, trained(PLANS[plan])))


@pytest.mark.parametrize("plan", COMPRESSED.values(), ids=COMPRESSED)
@pytest.mark.parametrize("task", ["text", pytest.param("images", marks=pytest.mark.slow)])
def test_two_ranks_with_compressed_gradients_have_equal_weights(
    plan: dict[str, Any], task: str, on_ranks: Any
) -> None:
    equal_weights(on_ranks(2, task, plan))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "more"),
    [
        *((name, {}) for name in ("powersgd", "dgc", "1-bit lamb")),
        *((name, CONTEXT) for name in ("fp16", "dgc", "powersgd, fp16, zero-1", "1-bit adam")),
    ],
)
def test_four_ranks_with_compressed_gradients_have_equal_weights(
    name: str, more: dict[str, Any], on_ranks: Any
) -> None:
    equal_weights(on_ranks(4, "text", {**COMPRESSED[name], **more}))


def equal_weights(ranks: list[dict[str, Any]]) -> None:
    """To the last bit, and other ones than at the beginning."""
    for rank in ranks:
        assert "error" not in rank, rank["error"]
        assert all(torch.equal(v, ranks[0]["ended"][k]) for k, v in rank["ended"].items())
        assert len({*rank["val_loss"]}) == len(rank["val_loss"])
        assert rank["val_loss"][-1] < 2 * rank["val_loss"][0]
        assert rank["val_loss"] == ranks[0]["val_loss"]


@pytest.mark.parametrize("name", compressing.SETTINGS)
def test_ranks_send_and_keep_all_of_their_gradients(name: str, on_ranks: Any) -> None:
    for found in on_ranks(2, "differences", name):
        assert len(found) >= 12
        assert max(found) < (1e-3 if "fp16" in name else 1e-6)


@pytest.mark.parametrize("plan", tiers.rows(DIVIDED, QUICK))
def test_two_ranks_with_the_same_samples_train_as_one(
    plan: dict[str, Any], steps: Any, on_ranks: Any
) -> None:
    trains_alike(on_ranks(2, "text", plan), steps("text", trained(plan)))


@pytest.mark.parametrize("plan", tiers.rows(ON_FOUR, QUICK))
def test_four_ranks_train_as_one(plan: dict[str, Any], steps: Any, on_ranks: Any) -> None:
    trains_alike(on_ranks(4, "text", plan), steps("text", trained(plan)))


@pytest.mark.slow
@pytest.mark.parametrize("plan", ON_EIGHT.values(), ids=ON_EIGHT)
def test_eight_ranks_train_as_one(plan: dict[str, Any], steps: Any, on_ranks: Any) -> None:
    trains_alike(on_ranks(8, "text", plan), steps("text", trained(plan)))


@pytest.mark.slow
@pytest.mark.parametrize("plan", ["hsdp", "two-dimensional, buckets, microbatches"])
def test_four_ranks_train_on_images_as_one(plan: str, steps: Any, on_ranks: Any) -> None:
    found = on_ranks(4, "images", ON_FOUR[plan])
    trains_alike(found, steps("images", trained(ON_FOUR[plan])))


@pytest.mark.parametrize(
    ("plan", "task"),
    [
        *(pytest.param(plan, "text", id=f"{name}-text") for name, plan in AVERAGED.items()),
        pytest.param(AVERAGED["local sgd"], "images", id="local sgd-images"),
        *(
            pytest.param(plan, "images", id=f"{name}-images", marks=pytest.mark.slow)
            for name, plan in AVERAGED.items()
            if name != "local sgd"
        ),
    ],
)
def test_copies_that_exchange_in_every_step_train_as_one_rank(
    plan: dict[str, Any], task: str, steps: Any, on_ranks: Any
) -> None:
    trains_alike(in_mean(on_ranks(2, task, plan)), steps(task, trained(plan)))


def test_copies_that_are_averaged_in_two_levels_train_as_one_rank(
    steps: Any, on_ranks: Any
) -> None:
    found = on_ranks(4, "text", AVERAGED_ON_FOUR)
    trains_alike(in_mean(found), steps("text", trained(AVERAGED_ON_FOUR)))


GROUPS: dict[str, list[list[int]]] = {"-": [], "n": [[0, 1], [2, 3]], "a": [[0, 1, 2, 3]]}
"""The ranks that average after a step: none, neighbours, or all."""


@pytest.mark.parametrize(
    ("inner", "outer", "averages"),
    [
        (2, 5, "-n-na-n-na-n"),
        # 1 1 1 1 2 2 2 2 2 2 3 3, and 3 3 4 4 4 4 5 5 5 5 6 6
        (Linear(1, 2.9), Linear(3, 6.1), "nnna-n-na--n"),
    ],
    ids=["constant", "rising"],
)
def test_neighbours_average_at_the_inner_period_and_all_at_the_outer(
    inner: Any, outer: Any, averages: str, on_ranks: Any
) -> None:
    keys = {"hierarchical_inner_period": inner, "hierarchical_outer_period": outer}
    keys = {**AVERAGED_ON_FOUR, **keys}
    found, hand = on_ranks(4, "averaged", keys, len(averages)), ByHand(4)
    for step, due in enumerate(averages):
        hand.step(hand.gradients())
        groups = GROUPS[due]
        for group in groups:
            hand.average(group)
            assert all(
                torch.equal(found[rank]["weights"][step], found[group[0]]["weights"][step])
                for rank in group
            )
        for rank, wanted in zip(found, hand.weights, strict=True):
            assert torch.allclose(rank["weights"][step], wanted, rtol=0, atol=1e-12)
            assert torch.allclose(rank["whole"][step], hand.mean(), rtol=0, atol=1e-12)
            assert rank["sent"][step] == (WEIGHTS if groups else 0)


@pytest.mark.parametrize("plan", OF_TEXT.values(), ids=OF_TEXT)
def test_two_ranks_train_texts_as_one(plan: dict[str, Any], steps: Any, on_ranks: Any) -> None:
    trains_alike(on_ranks(2, "text", plan), steps("text", trained(plan)))


def rounding() -> list[Any]:
    """Each plan of `ROUNDING` with each task; graphs of images, of 20 CPU seconds each, are soak.

    The slow tier has the same plans of texts, and images whose units are compiled in full.
    """
    found = []
    for name, (plan, bound) in ROUNDING.items():
        for task in TASKS:
            marks = marked(plan).marks
            marks = [pytest.mark.soak] if marks and task == "images" else marks
            found.append(pytest.param(plan, bound, task, id=f"{name}-{task}", marks=marks))
    return found


@pytest.mark.parametrize(("plan", "bound", "task"), rounding())
def test_fewer_bits_round_by_no_more_than_their_bound(
    plan: dict[str, Any], bound: float, task: str, steps: Any, on_ranks: Any
) -> None:
    if "optimizer_state_bits" in plan:
        pytest.importorskip("torchao", reason="torchao is not installed")
    wanted = steps(task, {k: v for k, v in trained(plan).items() if k != "precision"})
    for rank in on_ranks(2, task, plan):
        assert "error" not in rank, rank["error"]
        assert rank["val_loss"] == pytest.approx(wanted["val_loss"], rel=bound)
        assert rank["losses"] == pytest.approx(wanted["losses"], rel=bound)
        if "optimizer_state_bits" in plan:
            moved, should = (updates(of["begun"], of["ended"]) for of in (rank, wanted))
            assert 0 < apart(moved, should) <= UPDATED
        else:
            most = bound if task == "text" else SWITCHED
            assert 0 < apart(rank["gradients"][0], wanted["gradients"][0]) <= most


def apart(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> float:
    """How far all tensors together are from those that are wanted, relative to these."""
    pairs = zip(found, wanted, strict=True)
    squares = [((a - b).square().sum().item(), b.square().sum().item()) for a, b in pairs]
    differs, size = map(sum, zip(*squares, strict=True))
    return (differs / size) ** 0.5


def updates(begun: dict[str, torch.Tensor], ended: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """By how much each weight has changed."""
    return [value - begun[name] for name, value in ended.items() if " " not in name]


@pytest.mark.slow
def test_states_of_8_bits_go_on_in_8_and_in_32_bits(on_ranks: Any) -> None:
    pytest.importorskip("torchao", reason="torchao is not installed")
    low = {**ADAMW, "optimizer_state_bits": 8}
    half = on_ranks(2, "text", low)
    saved, states = half[0]["saved"], [rank["state"] for rank in half]
    same, more = (on_ranks(2, "text", plan, states)[0] for plan in (low, ADAMW))
    for again in (same, more):
        assert "error" not in again, again["error"]
        assert again["begun"].keys() == saved.keys()
    assert all(torch.equal(v, saved[k]) for k, v in more["begun"].items())
    weights, rounded = (list(of.values()) for of in (saved, same["begun"]))
    assert 0 < apart(rounded, weights) < 1e-3, "the signs' ranges differ: rounded once more"
    assert 0 < apart(*(updates(of["begun"], of["ended"]) for of in (more, same))) <= UPDATED


PROVED: dict[int, list[dict[str, Any]]] = {
    2: [*PLANS.values(), *DIVIDED.values(), *(plan for plan, _ in ROUNDING.values())],
    4: [*ON_FOUR.values()],
    8: [*ON_EIGHT.values()],
}
"""All plans by the numbers of ranks."""


def test_every_key_of_an_exact_technique_is_in_a_plan_that_is_proved() -> None:
    """And the table of the documentation says on how many ranks."""
    table = {row[0].strip("`"): row for row in documents.rows("docs/cards/parallel.md", "key")}
    for key, knob in KNOBS.items():
        proved = [size for size, plans in PROVED.items() if any(key in plan for plan in plans)]
        assert proved, key
        assert table[key][2] == ", ".join(map(str, proved)), key
        exact = [*PLANS.values(), *DIVIDED.values(), *ON_FOUR.values()]
        assert any(key in plan for plan in exact) == (knob.effect == "exact"), key


@pytest.mark.parametrize("task", [*TASKS, *SLOW_LIBRARIES])
def test_units_gathered_in_bfloat16_compute_what_autocast_does(task: str, on_ranks: Any) -> None:
    if task in LIBRARIES:
        pytest.importorskip(task)
    plain = on_ranks(2, task, {"precision": "bf16"})
    for rank, wanted in zip(
        on_ranks(2, task, {"precision": "bf16", **ZERO3, "fsdp_prefetch_units": 1}),
        plain,
        strict=True,
    ):
        assert rank["val_loss"] == pytest.approx(wanted["val_loss"], rel=2e-3)
        assert rank["val_loss"][0] == pytest.approx(wanted["val_loss"][0], rel=1e-6)


@pytest.mark.slow
def test_divided_layers_gathered_in_bfloat16_compute_what_autocast_does(on_ranks: Any) -> None:
    bf16 = {"precision": "bf16", **SEQUENCE}
    for rank, wanted in zip(
        on_ranks(4, "text", {**bf16, **ZERO3}), on_ranks(4, "text", bf16), strict=True
    ):
        assert "error" not in rank, rank["error"]
        assert rank["val_loss"] == pytest.approx(wanted["val_loss"], rel=2e-3)
        assert rank["val_loss"][0] == pytest.approx(wanted["val_loss"][0], rel=1e-6)


# A state of another layout is made whole and then divided, whatever the two are. So most
# plans are before or after one of another layout, and not every pair is here; some keep their own.
MOVES = [
    (2, "zero-1", "replicas"),
    (2, "replicas", "zero-1"),
    (2, "zero-3", "replicas"),
    (2, "replicas", "zero-3"),
    (2, "zero-1", "zero-3"),
    (2, "tensor", "replicas"),
    (2, "1f1b", "tensor"),
]
SLOW_MOVES = [
    (2, "zero-3", "zero-2"),
    (2, "zero-3", "offload"),
    (2, "recomputed", "zero-3, recomputed"),
    (2, "tensor", "zero-3"),
    (2, "zero-3", "tensor"),
    (2, "tensor", "1f1b"),
    (2, "1f1b", "gpipe"),
    (2, "zero-1", "1f1b"),
    (2, "1f1b", "zero-3"),
    (2, "context", "tensor"),
    (2, "1f1b, adafactor, accumulated", "adafactor, zero-1, foreach"),
    (4, "hsdp", "hsdp"),
    (4, "sharded x tensor", "sharded x tensor"),
    (4, "sharded x tensor", "zero-3"),
    (4, "hsdp", "copies x tensor"),
    (4, "copies x tensor", "copies x pipeline"),
    (4, "copies x pipeline", "sharded x context"),
    (4, "zero-3", "hsdp"),
    (4, "zero-1", "hsdp"),
]


@pytest.mark.parametrize(
    ("ranks", "before", "after"),
    [*MOVES, *(pytest.param(*move, marks=pytest.mark.slow) for move in SLOW_MOVES)],
)
def test_a_state_goes_on_under_another_plan(
    ranks: int, before: str, after: str, on_ranks: Any
) -> None:
    plans = {**PLANS, **DIVIDED} if ranks == 2 else ON_FOUR
    whole = on_ranks(ranks, "text", plans[before])
    rest = on_ranks(ranks, "text", plans[after], [rank["state"] for rank in whole])
    for again, wanted in zip(rest, whole, strict=True):
        assert "error" not in again, again["error"]
        goes_on(again, wanted)


def goes_on(again: dict[str, Any], wanted: dict[str, Any]) -> None:
    """From the same bits to the same end as without a pause."""
    assert again["begun"].keys() == wanted["saved"].keys()
    assert all(torch.equal(v, wanted["saved"][k]) for k, v in again["begun"].items())
    assert all(near(v, wanted["ended"][k]) for k, v in again["ended"].items())


@pytest.mark.parametrize(
    ("before", "after"),
    [("zero-3", "replicas"), ("replicas", "zero-3")],
)
@pytest.mark.slow
def test_momenta_of_kernels_that_are_kept_as_matrices_go_on_under_another_plan(
    before: str, after: str, on_ranks: Any
) -> None:
    """Muon computes its steps in bfloat16: they are as near as that."""
    muon = {"optimizer": "muon", "lr": 0.01}
    whole = on_ranks(2, "images", {**muon, **PLANS[before]})
    states = [rank["state"] for rank in whole]
    for again in on_ranks(2, "images", {**muon, **PLANS[after]}, states):
        assert "error" not in again, again["error"]
        wanted = whole[0]
        assert again["begun"].keys() == wanted["saved"].keys()
        assert all(torch.equal(v, wanted["saved"][k]) for k, v in again["begun"].items())
        moved, should = (updates(wanted["saved"], of["ended"]) for of in (again, wanted))
        assert apart(moved, should) < UPDATED


@pytest.mark.parametrize(
    "before",
    [*("replicas", "zero-1", "zero-3", "1f1b")]
    + [pytest.param(name, marks=pytest.mark.slow) for name in ("tensor", "context")],
)
def test_a_state_of_two_ranks_goes_on_on_one(before: str, steps: Any, on_ranks: Any) -> None:
    whole = on_ranks(2, "text", {**PLANS, **DIVIDED}[before])
    goes_on(steps("text", {}, [rank["state"] for rank in whole]), whole[0])


def test_gradients_come_back_through_a_gather_in_any_layout_of_memory(on_ranks: Any) -> None:
    """If torch's own operation passes here, `trainers.parallel.context.gathered` can be it."""
    for rank in on_ranks(2, "gathered", True):
        assert torch.equal(rank["found"], rank["wanted"])
    assert not all(torch.equal(r["found"], r["wanted"]) for r in on_ranks(2, "gathered", False))


def test_the_second_parameter_of_a_communication_hook_must_be_named_bucket(on_ranks: Any) -> None:
    assert on_ranks(2, "hooks") == [["", "KeyError('bucket')"]] * 2


def test_all_parameters_of_a_divided_model_are_tensors_of_one_mesh(on_ranks: Any) -> None:
    """Lists of both kinds are refused by what clips, updates and measures."""
    for rank in on_ranks(2, "mixed"):
        assert "mixed torch.Tensor and DTensor" in rank["said"]
        assert rank["kinds"] == {("DTensor", True)}
        assert {*rank["placements"]} == {"S(0)", "S(1)", "R"}
