"""Compressed gradients: nothing is lost, ranks stay equal, trainings go on bit for bit.

That ranks train alike is in `test_conformance.py` too.
"""

from __future__ import annotations

import doctest
import io
from collections.abc import Iterator
from itertools import pairwise
from math import prod
from typing import Any

import compressing
import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from autotune.schedules import Linear
from trainers import image, language, settings
from trainers.communication import (
    compression,
    dgc,
    frozen,
    largest,
    one_bit,
    powersgd,
    wire,
)
from trainers.communication.exchange import Memory, shapes
from trainers.models.gpt import GPT
from trainers.optimizers import make_optimizer
from trainers.parallel.ranks import Ranks
from trainers.plan import KNOBS as PLAN

ALONE = Ranks(0, 1, torch.device("cpu"))
TEXT = {
    "text": "synthetic",
    "optimizer": "sgd",
    "lr": 0.1,
    "momentum": 0.9,
    "width": 32,
    "milestone": 256,
    "horizon": 4,
}
ADAM = {"optimizer": "adamw", "momentum": None, "lr": 0.01}
GROWING, HORIZON = Linear(1, 4), 0.16  # epochs of 9000 tokens, 256 a step
KINDS: dict[str, dict[str, Any]] = {
    "fp16": {"gradient_compression": "fp16"},
    "bf16": {"gradient_compression": "bf16"},
    "powersgd": {"gradient_compression": "powersgd", "powersgd_start": 2},
    "powersgd, fp16, cold": {
        "gradient_compression": "powersgd",
        "powersgd_start": 2,
        "powersgd_rank": 3,
        "powersgd_warm_start": False,
        "powersgd_wire": "fp16",
    },
    "powersgd, more columns": {  # 2, 3 and 3 in steps 2 to 4
        "gradient_compression": "powersgd",
        "powersgd_start": 2,
        "powersgd_rank": GROWING,
        "horizon": HORIZON,
    },
    "dgc": {"gradient_compression": "dgc", "dgc_warmup_steps": 6, "dgc_dense_below": 100},
    "dgc, clipped": {
        "gradient_compression": "dgc",
        "dgc_momentum": False,
        "dgc_clip": 0.5,
        "dgc_ratio": Linear(0.1, 0.01),
    },
    "one_bit": {"gradient_compression": "one_bit", "one_bit_warmup_steps": 3, **ADAM},
    "one_bit, lamb": {
        "gradient_compression": "one_bit",
        "one_bit_warmup_steps": 3,
        **ADAM,
        "optimizer": "lamb",
        "weight_decay": 0.01,
    },
}

SLOW = {"fp16", "bf16", "powersgd", "powersgd, fp16, cold", "dgc, clipped", "one_bit"}


def rows(*names: str) -> list[Any]:
    return [pytest.param(n, marks=[pytest.mark.slow] if n in SLOW else []) for n in names]


def config(name: str, **more: Any) -> dict[str, Any]:
    given = {**TEXT, **KINDS.get(name, {}), **more}
    return {key: value for key, value in given.items() if value is not None}


@pytest.fixture
def group() -> Iterator[None]:
    """A process group of this process alone, with its real messages."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("module", [dgc, largest, one_bit, powersgd, wire])
def test_examples(module: Any) -> None:
    failed, tried = doctest.testmod(module)
    assert tried
    assert not failed


# --- what is sent and what is kept ----------------------------------------------------------------


@pytest.mark.parametrize("name", compressing.SETTINGS)
def test_what_is_sent_and_what_is_kept_are_the_gradient(name: str, group: None) -> None:
    found = compressing.differences(name, ALONE)
    assert len(found) >= 12
    assert max(found) < (1e-3 if "fp16" in name else 1e-6)


@pytest.mark.parametrize("name", compressing.SETTINGS)
def test_a_compression_keeps_something(name: str, group: None) -> None:
    network, exchange, optimizer = compressing.made(name, ALONE)
    kept = exchange.memory.own["velocity" if "dgc" in name else "errors"]
    assert kept
    assert not any(value.any() for value in kept.values()), "nothing before the first step"
    for _ in range(3):
        for parameter in network.parameters():
            parameter.grad = torch.randn_like(parameter)
        compressed = exchange.next()
        if compressed:
            exchange.average()
        (exchange.update or optimizer).step(*(() if exchange.update is None else (optimizer, None)))
    assert all(value.any() for value in kept.values())


MATRICES = st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(0, 99))


@given(MATRICES, st.integers(1, 81))
def test_the_largest_numbers_are_taken_out_and_nothing_is_lost(
    sizes: tuple[int, int, int], asked: int
) -> None:
    rows, columns, seed = sizes
    v = torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))
    left, number = v.clone(), min(asked, v.numel())
    values, places = largest.taken(left, number)
    assert len(values) == len(places.unique()) == number
    assert torch.equal(left.flatten().index_add(0, places, values), v.flatten())
    assert not left.numel() or left.abs().max() <= values.abs().min() or number == v.numel()


@given(MATRICES)
def test_signs_and_scales_come_back_as_they_were_packed(sizes: tuple[int, int, int]) -> None:
    rows, columns, seed = sizes
    generator = torch.Generator().manual_seed(seed)
    had = [torch.randn(shape, generator=generator) for shape in ((rows, columns), (columns,))]
    message = one_bit.packed(had)
    assert message.nbytes == one_bit.sent([value.shape for value in had])
    for value, said in zip(had, one_bit.unpacked(message, [v.shape for v in had]), strict=True):
        assert torch.equal(said >= 0, value >= 0)
        of_row = value.reshape(one_bit.rows_of(value.shape), -1)
        scales = of_row.abs().mean(1, keepdim=True).expand_as(of_row).reshape(value.shape)
        torch.testing.assert_close(said.abs(), scales)


def test_a_gradient_of_low_rank_is_sent_as_it_is(group: None) -> None:
    network, exchange, _ = compressing.made("powersgd", ALONE)
    left, right = torch.randn(30, 2), torch.randn(2, 20)
    for _ in range(3):
        for parameter in network.parameters():
            parameter.grad = torch.zeros_like(parameter)
        network.matrix.grad = left @ right
        exchange.next()
    exchange.average()
    torch.testing.assert_close(network.matrix.grad, left @ right, rtol=1e-4, atol=1e-4)
    assert exchange.memory.own["errors"][0].abs().max() < 1e-4


def test_a_warm_start_comes_closer_to_a_gradient_that_stays(group: None) -> None:
    errors = {}
    for name in ("powersgd", "powersgd, cold"):
        network, exchange, _ = compressing.made(name, ALONE)
        generator = torch.Generator().manual_seed(3)
        basis, _ = torch.linalg.qr(torch.randn(20, 20, generator=generator))
        stays = torch.randn(30, 20, generator=generator) @ (basis * torch.logspace(0, -3, 20))
        for _ in range(12):
            for parameter in network.parameters():
                parameter.grad = torch.zeros_like(parameter)
            network.matrix.grad = stays.clone()
            exchange.memory.own["errors"][0].zero_()
            exchange.next()
            exchange.average()
        errors[name] = exchange.memory.own["errors"][0].norm().item()
    assert errors["powersgd"] < errors["powersgd, cold"]


def test_a_rank_that_follows_progress_begins_with_the_columns_that_there_are(group: None) -> None:
    network, exchange, _ = compressing.made("powersgd", ALONE, powersgd_rank=Linear(1, 4))
    for progress, columns in ((0.0, 1), (1.0, 4), (0.5, 2)):
        exchange.at(progress)
        for parameter in network.parameters():
            parameter.grad = torch.randn_like(parameter)
        exchange.average()
        assert exchange.memory.shared["factors"][0].shape == (20, columns)


def test_the_share_falls_to_its_end_in_the_warm_up() -> None:
    shares = [largest.share(0.001, step, 5) for step in range(7)]
    assert shares[0] == 0.25
    assert shares == sorted(shares, reverse=True)
    assert shares[5:] == [0.001, 0.001]
    ratios = [a / b for a, b in pairwise(shares[:6])]
    assert max(ratios) == pytest.approx(min(ratios)), "exponentially"
    assert largest.share(0.5, 0, 5) == 0.5, "never less than in the end"


def test_a_rank_s_gradient_is_clipped_to_its_part(group: None) -> None:
    """Of the norm allowed to the mean of n independent gradients, each has 1 / sqrt(n)."""
    network, exchange, _ = compressing.made("dgc, without momentum", Ranks(0, 1, ALONE.device))
    exchange.clip = 2.0
    for parameter in network.parameters():
        parameter.grad = torch.ones_like(parameter)
    exchange.next()
    exchange.average()
    sent = [p.grad for p in network.parameters()]
    kept = [compressing.kept_of(exchange, i, p) for i, p in enumerate(network.parameters())]
    total = torch.cat([(s + k).flatten() for s, k in zip(sent, kept, strict=True)])
    assert total.norm().item() == pytest.approx(2.0, rel=1e-5)


def test_a_frozen_step_of_adam_is_that_of_adam_whose_variance_stays() -> None:
    """With beta2 near 1 nothing changes it."""
    found = []
    for name in ("adamw", "lamb"):
        weights = []
        for freezes in (False, True):
            network = torch.nn.Linear(5, 4)
            with torch.no_grad():
                network.weight.copy_(torch.arange(20.0).view(4, 5) / 10 + 0.1)
                network.bias.zero_()
            betas = (0.9, 1 - 1e-9)
            optimizer = make_optimizer(name, network, lr=0.01, weight_decay=0.1, betas=betas)
            parameters = [*network.parameters()]
            kept = frozen.kept(optimizer, parameters)
            generator = torch.Generator().manual_seed(0)
            for step in range(6):
                for p in parameters:
                    p.grad = torch.randn(p.shape, generator=generator)
                if not freezes or step < 3:
                    optimizer.step()
                    for one in frozen.steps(optimizer, parameters, kept):
                        one.warm()
                    continue
                with torch.no_grad():
                    for one in frozen.steps(optimizer, parameters, kept):
                        momentum = frozen.momentum(one.state, one.group, one.parameter.grad)
                        one.make(momentum, step - 2)
            weights.append(network.weight.detach().clone())
        found.append((weights[0] - weights[1]).norm() / weights[0].norm())
    assert found[0] < 1e-2
    assert found[1] < 2e-2, "LAMB's ratio is the mean of the warm-up"


def test_a_number_without_variance_does_not_move() -> None:
    group = {"betas": (0.9, 0.999), "eps": 1e-8}
    momentum, variance = torch.tensor([1.0, 1.0]), torch.tensor([0.0, 1.0])
    assert frozen.direction(momentum, variance, group, (9.0, 9.0))[0] == 0


# --- trainings on ranks ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", rows(*KINDS))
def test_ranks_stay_equal_and_go_on_bit_for_bit(
    name: str, on_two_ranks: Any, record: Any, same: Any
) -> None:
    whole = on_two_ranks(config(name), 5, save_at=3)
    assert "error" not in whole[0], whole[0]
    finals = [rank["final"] for rank in whole]
    assert same(*(final["learner"]["model"] for final in finals))
    assert same(*(final["learner"]["optimizer"]["state"] for final in finals))
    exchanged = [final["learner"]["exchange"] for final in finals]
    if name not in wire.HOOKS:
        assert same(*(one["shared"] for one in exchanged))
        assert not same(*(one["own"] for one in exchanged)), "each its own"
    saved = [_through_a_file(rank["state"]) for rank in whole]
    again = on_two_ranks(config(name), 2, restore=saved)
    for rank, final in zip(again, finals, strict=True):
        assert same(rank["final"], final)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["powersgd", "dgc", "one_bit"])
@pytest.mark.parametrize(
    ("keys", "most"), [({"precision": "bf16"}, 0.02), ({"compile": "units"}, 1e-3)]
)
def test_fewer_bits_of_a_step_and_compiled_units_go_with_what_is_sent(
    name: str, keys: dict[str, Any], most: float, on_two_ranks: Any, same: Any
) -> None:
    plain, other = (on_two_ranks(config(name, **more), 5) for more in ({}, keys))
    for one, found in zip(plain, other, strict=True):
        assert "error" not in found, found["error"]
        losses = [[m["val_loss"] for m in rank["metrics"]] for rank in (one, found)]
        assert losses[1] == pytest.approx(losses[0], rel=most)
    assert same(*(rank["final"]["learner"]["model"] for rank in other))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["powersgd", "one_bit"])
def test_a_model_that_is_pruned_stays_one_on_all_ranks(
    name: str, on_two_ranks: Any, same: Any
) -> None:
    """What ranks hold back has parts for removed weights: these stay removed all the same."""
    net = {"model": "mlp", "width": 32, "train_size": 400, "val_size": 100, "batch_size": 50}
    pruned = {"pruning": "unstructured", "sparsity": 0.8, "sparsity_ramp": 1e-3, "milestone": 400}
    given = {**net, **pruned, "lr": 0.05, **KINDS[name]}
    found = on_two_ranks({k: v for k, v in given.items() if v is not None}, 3)
    for rank in found:
        assert "error" not in rank, rank["error"]
        assert rank["metrics"][-1]["sparsity"] == pytest.approx(0.8, abs=0.01)
        assert rank["metrics"][-1]["val_loss"] < rank["metrics"][0]["val_loss"]
    assert same(*(rank["final"]["learner"]["model"] for rank in found))


def test_what_these_settings_do_not_keep_is_not_taken_over(group: None) -> None:
    """Of a parent that sent few numbers of all parameters, where all are now averaged whole."""
    alone = Ranks(0, 1, ALONE.device)
    _, parent, _ = compressing.made("dgc", alone, dgc_dense_below=0)
    _, child, _ = compressing.made("dgc", alone, dgc_dense_below=10**9)
    child.memory.restore(parent.memory.state())
    assert child.memory.own == {"velocity": {}, "momentum": {}}


def _through_a_file(state: Any) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("name", rows("dgc", "one_bit"))
def test_on_another_number_of_ranks_it_begins_with_nothing_kept(
    name: str, on_two_ranks: Any, record: Any
) -> None:
    two = on_two_ranks(config(name), 3, save_at=2)
    alone = record(config(name), 1)
    assert alone["final"]["learner"]["exchange"] == {}
    for rank in on_two_ranks(config(name), 1, restore=[alone["final"]] * 2):
        assert "error" not in rank
    memory = Memory(name, Ranks(0, 4, ALONE.device), own={"errors": {0: torch.zeros(2)}})
    saved = {**two[0]["state"]["learner"]["exchange"], "own": {"errors": {0: torch.ones(2)}}}
    memory.restore(saved)
    assert memory.steps == saved["steps"] > 0
    assert not memory.own["errors"][0].any()
    memory.restore({**saved, "ranks": 4})
    assert memory.own["errors"][0].all()
    memory.restore({**saved, "kind": "another", "steps": 99})
    assert memory.steps == saved["steps"]


@pytest.mark.parametrize("name", ["dgc", "one_bit, lamb"])
def test_passes_of_a_step_are_added_up_before_they_are_sent(
    name: str, on_two_ranks: Any, apart: Any
) -> None:
    once = on_two_ranks(config(name), 3)
    passes = on_two_ranks(config(name, gradient_accumulation_steps=3), 3)
    for one, other in zip(once, passes, strict=True):
        assert apart(one["final"], other["final"]) < 1e-4


def test_a_momentum_before_the_exchange_is_the_optimizer_s_where_all_is_averaged(
    on_two_ranks: Any, apart: Any
) -> None:
    plain = on_two_ranks(config(""), 3)
    dense = config("dgc", dgc_dense_below=10**9, dgc_warmup_steps=0)
    for one, other in zip(plain, on_two_ranks(dense, 3), strict=True):
        assert apart(one["final"], other["final"]) < 1e-5


SENT = {
    "fp16": lambda of, step: wire.sent(of),
    "bf16": lambda of, step: wire.sent(of),
    "powersgd": lambda of, step: powersgd.sent(of, 2) if step >= 2 else 0,
    "powersgd, fp16, cold": lambda of, step: powersgd.sent(of, 3, "fp16") if step >= 2 else 0,
    "powersgd, more columns": lambda of, step: (
        powersgd.sent(of, round(GROWING(step * 256 / (HORIZON * 9000)))) if step >= 2 else 0
    ),
    "dgc": lambda of, step: dgc.sent(of, largest.share(0.01, step, 6), 100),
    "dgc, clipped": lambda of, step: dgc.sent(of, Linear(0.1, 0.01)(step * 256 / 36000), 1024),
    "one_bit": lambda of, step: one_bit.sent(of) if step >= 3 else 0,
    "one_bit, lamb": lambda of, step: one_bit.sent(of) if step >= 3 else 0,
}
"""By the formulas of the cards; DDP's own messages are not counted."""


@pytest.mark.parametrize("name", KINDS)
def test_as_many_bytes_are_sent_as_the_formula_says(name: str, on_two_ranks: Any) -> None:
    ranks = on_two_ranks(config(name), 5, sent=True)
    of = shapes(GPT(ranks[0]["words"], 1, width=32, heads=2))
    whole = 4 * sum(map(prod, of))
    for rank in ranks:
        assert "error" not in rank, rank["error"]
        assert rank["sent"] == [SENT[name](of, step) for step in range(5)]
        assert 0 < rank["sent"][-1] <= whole / 2
        least = powersgd.sent(of, 1) if name == "powersgd, more columns" else rank["sent"][-1]
        assert rank["warmed"] >= least, "the warm-up has compressed steps, as at progress 0"


# --- what is refused ------------------------------------------------------------------------------

COPIES = "data_parallel_shard_degree 1 and more than one rank"
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"gradient_compression": "topk"}, "one of none, fp16, bf16, powersgd, dgc, one_bit, got 'to"),
    ({"powersgd_rank": 0}, "powersgd_rank must be a whole number at least 1, got 0"),
    ({"powersgd_start": 1}, "powersgd_start must be a whole number at least 2, got 1"),
    ({"dgc_ratio": 1.5}, "dgc_ratio must be a number more than 0 and at most 1, got 1.5"),
    ({"dgc_clip": 0.0}, "dgc_clip must be a number more than 0, got 0"),
    ({"one_bit_warmup_steps": 0}, "one_bit_warmup_steps must be a whole number at least 1, got 0"),
    ({"dgc_ratio": 0.1}, "dgc_ratio 0.1 needs gradient_compression 'dgc'"),
    ({"powersgd_rank": 4}, "powersgd_rank 4 needs gradient_compression 'powersgd'"),
    ({"gradient_compression": "dgc", "powersgd_rank": 4}, "powersgd_rank 4 needs gradient_com"),
    ({"one_bit_warmup_steps": 5}, "one_bit_warmup_steps 5 needs gradient_compression 'one_bit'"),
    *(
        ({"gradient_compression": kind, **given}, f"gradient_compression {kind!r} needs {COPIES}")
        for kind, given in (
            ("fp16", {"data_parallel_shard_degree": -1}),
            ("dgc", {"data_parallel_shard_degree": 2}),
            ("powersgd", {"data_parallel_replicate_degree": 1}),
        )
    ),
    (
        {"gradient_compression": "dgc", **ADAM},
        "optimizer must be 'sgd' with gradient_compression 'dgc', got 'adamw'",
    ),
    ({"gradient_compression": "dgc", "nesterov": True}, "nesterov must be False with gradient_com"),
    ({"gradient_compression": "one_bit"}, "optimizer must be one of adamw, lamb with gradient_c"),
    *(
        (
            {"gradient_compression": "one_bit", **ADAM, "optimizer": "lamb", **given},
            f"{key} must be {needed} with gradient_compression 'one_bit', got {got}",
        )
        for given, key, needed, got in (
            ({"max_grad_norm": 1.0}, "max_grad_norm", None, 1.0),
            ({"variant": "nvlamb"}, "max_grad_norm", None, 1.0),
            ({"decoupled": False}, "decoupled", True, False),
            ({"grad_averaging": False}, "grad_averaging", True, False),
        )
    ),
    *(
        (
            {"gradient_compression": "one_bit", **ADAM, "optimizer": optimizer, key: schedule},
            f"{key} must be a number with gradient_compression 'one_bit', no schedule, got ",
        )
        for optimizer, key, schedule in (
            ("adamw", "beta2", Linear(0.99, 0.999)),
            ("lamb", "beta2", Linear(0.99, 0.999)),
            ("lamb", "trust_coefficient", Linear(0.1, 1.0)),
        )
    ),
]


@pytest.mark.parametrize(("keys", "says"), REFUSED)
@pytest.mark.parametrize(
    ("read", "known"),
    [
        (language.read_settings, {"text": "synthetic", "lr": 0.1}),
        (settings.read_settings, {"data": "digits", "model": "resnet8", "lr": 0.1}),
    ],
)
def test_what_does_not_go_together_is_one_line(
    read: Any, known: dict[str, Any], keys: dict[str, Any], says: str
) -> None:
    given = {k: v for k, v in {**known, **keys}.items() if v is not None}
    with pytest.raises(ValueError) as refused:
        read(given)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_all_that_is_not_refused_is_read() -> None:
    for name in KINDS:
        made = language.read_settings(config(name)).training
        assert made.gradient_compression["gradient_compression"] == name.partition(",")[0]
    zero1 = config("powersgd", shard_optimizer_state=True, bucket_cap_mb=1, static_graph=True)
    assert language.read_settings(zero1).training.plan.shard_optimizer_state


def test_keys_say_their_effect_and_what_changes_memory() -> None:
    for trainer in (image, language):
        keys = trainer.train.memory_keys
        for key, knob in compression.KNOBS.items():
            assert trainer.train.effects[key] == knob.effect
            assert (key in keys) == knob.memory
    assert not compression.KNOBS.keys() & PLAN.keys()


@pytest.mark.slow
def test_what_is_kept_counts_as_memory() -> None:
    sizes = {"text": "synthetic", "lr": 0.1, "width": 128, "layers": 1, "momentum": 0.0}
    plain = language.memory(sizes, 2)
    weights = 4 * sum(p.numel() for p in GPT(65, 1, width=128, heads=4).parameters())
    for name, copies in (("powersgd", 0.8), ("dgc", 1.8), ("one_bit", 0.8)):
        keys = {k: v for k, v in KINDS[name].items() if v is not None}
        base = plain
        if name == "one_bit":
            sizes = {key: value for key, value in sizes.items() if key != "momentum"}
            base = language.memory({**sizes, "optimizer": "adamw"}, 2)
        assert language.memory({**sizes, **keys}, 2) > base + copies * weights, name
