"""The language trainer: its text, its windows, its model, and training."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import tiers
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from autotune.schedules import Cosine, Following, Linear, Piecewise, warmed
from autotune.trial import Change
from trainers.data.stream import NO_LABEL
from trainers.data.text import (
    UNKNOWN,
    Text,
    TextStream,
    hashed,
    load_text,
    synthetic_text,
    tokenised,
)
from trainers.language import train
from trainers.models.gpt import GPT, flops_per_token, rotated, rotation
from trainers.parallel.ranks import Ranks

CPU = torch.device("cpu")
TEXT: dict[str, Any] = {"text": "synthetic", "val_size": 2000}


def stream(rank: int = 0, ranks: int = 1, seed: int = 3, **more: Any) -> TextStream:
    numbers = torch.arange(1000)
    text = Text(numbers, torch.arange(100), tuple(map(str, range(1000))))
    return TextStream(text, seed, Ranks(rank, ranks, CPU), **{"val_length": 8, **more})


# --- text ---------------------------------------------------------------------------------------


def test_characters_are_all_known_and_read_back() -> None:
    text = tokenised("aé\nb" * 50, "characters", 0)
    assert text.vocabulary == ("\n", "a", "b", "é")
    assert (len(text.train), len(text.val)) == (180, 20)
    assert "".join(text.vocabulary[i] for i in text.train) == "aé\nb" * 45


def test_words_are_the_most_frequent_of_the_training_part() -> None:
    text = tokenised("one two, two.\n" * 20 + "new " * 20, "words", 5)
    assert text.vocabulary == (UNKNOWN, "two", "one", ",", ".")
    assert [text.vocabulary[i] for i in text.train[:6]] == ["one", "two", ",", "two", ".", UNKNOWN]
    assert set(text.val.tolist()) == {0}


def test_the_synthetic_text_is_always_the_same() -> None:
    whole = synthetic_text()
    synthetic_text.cache_clear()
    assert synthetic_text() == whole
    assert len(set(whole)) < 30


def test_a_file_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "own.txt").write_text("hello world. " * 20)
    first, again = (
        load_text(str(tmp_path / "own.txt"), None, "characters", v, CPU) for v in (5, 6)
    )
    assert first is again
    (tmp_path / "tinyshakespeare").mkdir()
    (tmp_path / "tinyshakespeare" / "input.txt").write_text("To be, or not to be. " * 20)
    named = load_text("tinyshakespeare", str(tmp_path), "characters", 0, CPU)
    assert len(named.train) == 378


def test_wrong_texts_get_one_clear_line(tmp_path: Path) -> None:
    def message(error: type[Exception], name: str) -> str:
        with pytest.raises(error) as found:
            load_text(name, str(tmp_path), "characters", 0, CPU)
        assert "\n" not in str(found.value)
        return str(found.value)

    assert "input.txt is missing; put it there" in message(FileNotFoundError, "tinyshakespeare")
    assert "did you mean 'tinyshakespeare'?" in message(FileNotFoundError, "tinyshakespear")
    (tmp_path / "short.txt").write_text("short")
    assert "at least 100 characters" in message(ValueError, str(tmp_path / "short.txt"))
    (tmp_path / "bytes.txt").write_bytes(b"\xff" * 200)
    assert "must be UTF-8" in message(ValueError, str(tmp_path / "bytes.txt"))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"train_size": 10**9}, "train_size must be at most .*, all that there is, got 1000000000"),
        ({"val_size": 10**9}, "val_size must be at most"),
        (
            {"train_size": 20, "sequence_length": Linear(8, 20)},
            "sequence_length must be at most 19, what the training text can hold, but it goes up",
        ),
    ],
    ids=["train_size", "val_size", "sequence_length"],
)
def test_more_than_there_is_is_refused(changed: dict[str, Any], message: str, record: Any) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        record({**TEXT, **changed}, 0)


def test_a_text_without_words_to_validate_on_is_refused(tmp_path: Path, record: Any) -> None:
    (tmp_path / "own.txt").write_text("one two three " * 10 + "x" * 60)
    with pytest.raises(
        ValueError, match=r"^text must have at least 2 tokens in its last .* has 1$"
    ):
        record({"text": str(tmp_path / "own.txt"), "tokens": "words"}, 0)


# --- windows ------------------------------------------------------------------------------------


def test_windows_do_not_depend_on_ranks_or_what_ran_before() -> None:
    whole = stream().take(4096, 7, 16)
    shares = [stream(rank, 3).take(4096, 7, 16) for rank in range(3)]
    assert torch.equal(torch.cat([x for x, _ in shares]), whole[0])
    assert torch.equal(torch.cat([y for _, y in shares]), whole[1])
    assert torch.equal(whole[1], whole[0] + 1), "the target is the next token"
    later = stream().take(4096 + 3 * 16, 4, 16)
    assert torch.equal(later[0], whole[0][3:]), "the batch size is to change nothing"
    assert not torch.equal(stream(seed=4).take(4096, 7, 16)[0], whole[0])


def test_windows_are_spread_evenly_over_the_whole_text() -> None:
    places = stream().places(0, 98_400, 16)
    counts = places.bincount(minlength=984)
    assert (int(places.min()), int(places.max()), len(counts)) == (0, 983, 984)
    chi_square = float(((counts - 100.0) ** 2 / 100.0).sum())
    assert abs(chi_square - 983) < 5 * math.sqrt(2 * 983)
    neighbours = torch.corrcoef(torch.stack((places[1:], places[:-1])).double())
    assert abs(float(neighbours[0, 1])) < 0.02


def test_hashed_is_splitmix64() -> None:
    """The first outputs for seed 1234567, as its authors' C program gives them, less 11 bits."""
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    found = hashed(1234567, torch.tensor([1, 2, 3]))
    assert found.tolist() == [number >> 11 for number in expected]


@pytest.mark.parametrize("val_size", [None, 64, 65, 3])
@pytest.mark.parametrize("ranks", [1, 3])
def test_validation_asks_for_every_token_once(val_size: int | None, ranks: int) -> None:
    parts = [stream(rank, ranks, val_size=val_size).validation(16_000) for rank in range(ranks)]
    batches = [batch for part in parts for batch in part]
    asked = torch.cat([y[y != NO_LABEL] for _, y in batches])
    assert asked.tolist() == list(range(1, (val_size or 99) + 1))
    for x, y in batches:
        assert len(x) <= 2
        assert torch.equal(x[y != NO_LABEL] + 1, y[y != NO_LABEL])


# --- the model ----------------------------------------------------------------------------------


@pytest.fixture
def model() -> GPT:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        found = GPT(11, layers=2, width=16, heads=2)
        for parameter in found.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
    return found


def test_a_token_changes_nothing_before_it(model: GPT) -> None:
    tokens = torch.randint(11, (2, 9), generator=torch.Generator().manual_seed(0))
    before = model(tokens)
    tokens[:, 5] = (tokens[:, 5] + 1) % 11
    after = model(tokens)
    torch.testing.assert_close(after[:, :5], before[:, :5], rtol=0, atol=1e-5)
    assert (after[:, 5:] - before[:, 5:]).abs().amax(dim=(0, 2)).min() > 1e-3
    torch.testing.assert_close(model(tokens[:, :4]), after[:, :4], rtol=0, atol=1e-5)


def test_rotation_keeps_lengths_and_tells_distances_only() -> None:
    q, k = torch.randn(2, 1, 1, 8, generator=torch.Generator().manual_seed(0)).unbind()
    turn = rotation(40, 8, CPU)
    turned_q, turned_k = (rotated(x.expand(1, 40, 8), turn)[0] for x in (q, k))
    torch.testing.assert_close(turned_q.norm(dim=-1), q.norm().expand(40))
    scores = turned_q @ turned_k.T
    for distance in (0, 1, 7):
        diagonal = scores.diagonal(-distance)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), rtol=0, atol=1e-4)
    assert abs(float(scores[1, 0] - scores[0, 0])) > 1e-3


def test_the_order_of_tokens_counts(model: GPT) -> None:
    one, other = model(torch.tensor([[1, 2, 3], [2, 1, 3]]))[:, -1]
    assert (one - other).abs().max() > 1e-3


def test_the_output_shares_the_embedding(model: GPT) -> None:
    weights = sum(p.numel() for p in model.parameters())
    assert weights == 11 * 16 + 2 * (12 * 16 * 16 + 2 * 16) + 16
    norms = [name for name, p in model.named_parameters() if p.ndim == 1]
    assert len(norms) == 5


@pytest.mark.parametrize("length", [1, 12])
def test_the_operations_are_those_that_torch_counts(length: int, model: GPT) -> None:
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(torch.zeros(3, length, dtype=torch.int64)).sum().backward()
    counts = {str(op): n for op, n in counter.get_flop_counts()["Global"].items()}
    assert counts.keys() == {"aten.mm", "aten.bmm"}
    weights = sum(p.numel() for p in model.parameters() if p.ndim > 1)
    assert counts["aten.mm"] == 6 * weights * 3 * length
    # The products of the attention are counted as the whole square; the formula tells its half.
    seen = (flops_per_token(model, length) - 6 * weights) * 3 * length
    assert counts["aten.bmm"] * (length + 1) / (2 * length) == seen


# --- training -----------------------------------------------------------------------------------


def entropies(text: str) -> tuple[float, float]:
    """Nats a character of the best model that knows nothing, and of one that knows the last one."""
    ones, twos = Counter(text), Counter(pairwise(text))
    total = len(text)
    unigram = -sum(n * math.log(n / total) for n in ones.values()) / total
    bigram = -sum(n * math.log(n / ones[pair[0]]) for pair, n in twos.items()) / total
    return unigram, bigram


@pytest.mark.slow
def test_it_learns_more_than_pairs_of_characters(record: Any) -> None:
    size = {"layers": 2, "width": 48, "heads": 4, "batch_size": 16, "train_size": None}
    config = {**TEXT, **size, "lr": 5e-3, "milestone": 70_000, "sequence_length": 48}
    metrics = record(config, 1)["metrics"]
    unigram, bigram = entropies(synthetic_text()[:200_000])
    assert metrics[0]["val_loss"] > unigram > bigram > metrics[1]["val_loss"]
    assert metrics[1]["val_accuracy"] > 0.5


def test_metrics_and_their_units(record: Any) -> None:
    found = record(TEXT, 2)
    first, second, _ = found["metrics"]
    assert set(first) == {
        *("val_accuracy", "val_loss", "lr", "momentum", "batch_size", "sequence_length"),
        "progress",
    }
    sampled = {"grad_norm", "weight_norm", "update_ratio"}  # four steps have no spread
    assert set(second) == {*first, "train_loss", "samples_per_second", "flops_per_second", *sampled}
    assert found["steps"] == [0, 1024, 2048]
    assert (second["batch_size"], second["sequence_length"]) == (8, 32)
    names = load_text("synthetic", None, "characters", 0, CPU).vocabulary
    flops = flops_per_token(GPT(len(names), 1, 16, 2), 32)
    ratio = second["flops_per_second"] / second["samples_per_second"]
    assert ratio == pytest.approx(flops)


def test_words_train(record: Any) -> None:
    config = {**TEXT, "tokens": "words", "vocabulary": 40, "lr": 0.01}
    metrics = record({**config, "milestone": 8192}, 1)["metrics"]
    assert metrics[0]["val_loss"] == pytest.approx(math.log(40), rel=0.02)
    assert metrics[1]["val_loss"] < 3.4


def test_neither_length_nor_batch_moves_progress(record: Any) -> None:
    """Steps count tokens: a schedule is where it is whatever the shape of the steps."""
    lengths = Piecewise((0.5,), (8, 32), kind="constant")
    config = {**TEXT, "lr": Linear(1e-2, 0.0), "horizon": 1, "train_size": 4096}
    found = record({**config, "sequence_length": lengths, "milestone": 1}, 40)
    sizes = [after - before for before, after in pairwise(found["steps"])]
    assert sizes == [8 * 8] * 32 + [8 * 32] * 8
    lrs = [m["lr"] for m in found["metrics"]]
    assert lrs == pytest.approx([1e-2 * (1 - step / 4096) for step in found["steps"]])
    assert {m["sequence_length"] for m in found["metrics"]} == {8, 32}


def test_evaluation_is_at_full_length(record: Any) -> None:
    """A model of short sequences is asked for long ones, and the tokens stay the same."""
    short, long, given = (
        record({**TEXT, "lr": 0.0, **sized}, 0)["metrics"][0]
        for sized in (
            {"sequence_length": 8},
            {"sequence_length": Linear(8, 64)},
            {"sequence_length": 8, "val_sequence_length": 64},
        )
    )
    assert long["val_loss"] == given["val_loss"] != short["val_loss"]
    assert long["val_loss"] == pytest.approx(short["val_loss"], rel=0.05)


OPTIMIZERS: list[dict[str, Any]] = [
    {"optimizer": "adamw", "weight_decay": 0.1, "beta2": Linear(0.9, 0.99)},
    {"optimizer": "sgd", "lr": 0.5, "momentum": 0.9},
    {"optimizer": "lars", "lr": 5.0, "trust_coefficient": 0.01, "momentum": 0.8},
    {"optimizer": "nadamw", "weight_decay": 0.1, "momentum_decay": 0.01},
    {"optimizer": "muon", "lr": 0.01, "weight_decay": 0.1},
    {"optimizer": "schedulefree_adamw", "lr": 0.01, "precision": "bf16"},
    {"optimizer": "schedulefree_sgd", "lr": 5.0},
    {"optimizer": "lamb", "lr": warmed(Cosine(0.01, 0.0), 0.2), "precision": "bf16"},
]
QUICK = ("adamw", "nadamw", "schedulefree_adamw")


@pytest.mark.parametrize("options", tiers.rows({o["optimizer"]: o for o in OPTIMIZERS}, QUICK))
def test_a_restored_run_goes_on_bit_for_bit(
    options: dict[str, Any], record: Any, same: Any
) -> None:
    config = {**TEXT, "sequence_length": Linear(8, 32), "batch_size": Linear(4, 12), **options}
    changes = {0: Change(lr_factor=0.5), 1: Change(batch_size=6)}
    whole = record(config, 3, changes=changes, save_at=2)
    rest = record({**config, "state": whole["state"]}, 1)
    assert rest["steps"] == whole["steps"][2:]
    assert same(rest["final"], whole["final"])
    assert rest["metrics"][0]["val_loss"] == whole["metrics"][2]["val_loss"]
    assert rest["metrics"][1]["train_loss"] == whole["metrics"][3]["train_loss"]


@pytest.mark.parametrize(
    "config",
    [
        {"batch_size": 5, "microbatch": 2},
        {"batch_size": Linear(3, 9), "sequence_length": Linear(8, 32), "horizon": 1},
    ],
    ids=["uneven microbatches", "schedules"],
)
def test_two_ranks_equal_one_process(
    config: dict[str, Any], record: Any, on_two_ranks: Any, apart: Any
) -> None:
    config = {**TEXT, "optimizer": "sgd", "lr": 0.1, "val_size": 333, **config}
    alone, ranks = record(config, 2), on_two_ranks(config, 2)
    for rank in ranks:
        assert rank["steps"] == alone["steps"]
        assert apart(rank["final"], alone["final"]) < 5e-6
        assert rank["freed"]
        for found, wanted in zip(rank["metrics"], alone["metrics"], strict=True):
            assert found["val_loss"] == pytest.approx(wanted["val_loss"], rel=1e-5)
            assert found["val_accuracy"] == wanted["val_accuracy"]


@pytest.mark.parametrize("microbatch", [1, 3])
def test_microbatches_keep_the_gradient(microbatch: int, record: Any, apart: Any) -> None:
    config = {**TEXT, "optimizer": "sgd", "lr": 0.1, "label_smoothing": 0.1}
    whole, parts = record(config, 1), record({**config, "microbatch": microbatch}, 1)
    assert apart(whole["final"], parts["final"]) < 5e-6
    loss = whole["metrics"][1]["train_loss"]
    assert parts["metrics"][1]["train_loss"] == pytest.approx(loss, rel=1e-5)


def test_the_learning_rate_follows_the_batch(record: Any) -> None:
    batch = Piecewise((0.5,), (4, 16), kind="constant")
    config = {**TEXT, "batch_size": batch, "lr": Following(Cosine(1e-3, 1e-3), batch, 0.5, 4)}
    found = record({**config, "horizon": 0.5}, 6, changes={5: Change(batch_size=36)})["metrics"]
    assert [m["lr"] for m in found] == pytest.approx([1e-3] * 3 + [2e-3] * 3 + [3e-3])


def test_the_warm_up_leaves_no_trace() -> None:
    before = torch.random.get_rng_state()
    config = {"lr": 1e-3, "batch_size": 4, "layers": 1, "width": 16, "heads": 2, **TEXT}
    trainer = train({**config, "sequence_length": Linear(8, 16), "train_size": 500})
    state = next(trainer).state()
    trainer.close()
    assert torch.equal(before, torch.random.get_rng_state())
    assert state["learner"]["optimizer"]["state"] == {}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        vocabulary = load_text("synthetic", None, "characters", 0, CPU).vocabulary
        fresh = GPT(len(vocabulary), 1, 16, 2)
    for name, value in fresh.state_dict().items():
        assert torch.equal(state["learner"]["model"][name], value), name


def test_the_rotation_is_kept_and_the_same() -> None:
    made = GPT(65, 1, 16, 2)
    for length in (5, 9, 7, 9):
        cos, sin = made._rotation(length, CPU)
        expected = rotation(length, 8, CPU)
        assert torch.equal(cos, expected[0])
        assert torch.equal(sin, expected[1])
    kept = made._turn
    made(torch.zeros(2, 4, dtype=torch.int64))
    assert made._turn is kept
    assert len(kept[0]) == 9
    assert "_turn" not in str(made.state_dict().keys())
