"""The exact AUC, the generator, Criteo's format, and files through several queues."""

from __future__ import annotations

import gzip
import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.metrics import roc_auc_score

from trainers import clicks
from trainers.auc import auc
from trainers.data import criteo, queues
from trainers.data.clicks import FEATURES, best_auc, generate
from trainers.data.queues import Queues, Source
from trainers.models.clicks import Batch
from trainers.parallel.ranks import Ranks

CPU = torch.device("cpu")
ONE = Ranks(0, 1, CPU)


# --- the AUC --------------------------------------------------------------------------------------


@pytest.mark.parametrize("levels", [2, 7, 10_000])
def test_the_auc_is_that_of_scikit_learn_also_with_equal_scores(levels: int) -> None:
    draw = torch.Generator().manual_seed(levels)
    labels = torch.randint(0, 2, (3000,), generator=draw)
    scores = (torch.rand(3000, generator=draw) + 0.3 * labels).mul(levels).round() / levels
    assert auc(scores, labels) == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)


def test_the_auc_of_one_kind_of_labels_is_no_number() -> None:
    assert auc(torch.rand(5), torch.ones(5)) != auc(torch.rand(5), torch.ones(5))


# --- the generator --------------------------------------------------------------------------------


def test_generated_clicks_follow_their_model_and_a_power_law() -> None:
    made = generate(20_000, 20_000, 100)
    chance = made.best.sigmoid()
    assert made.val.clicks.mean().item() == pytest.approx(chance.mean().item(), abs=0.015)
    for low in (0.0, 0.25, 0.5, 0.75):  # calibrated
        inside = (chance >= low) & (chance < low + 0.25)
        gap = made.val.clicks[inside].mean() - chance[inside].mean()
        assert gap.abs() < 4 * (0.25 / inside.sum()).sqrt()
    counts = torch.bincount(made.train.categories[:, 0], minlength=100)[:100].float()
    wanted = 1 / (torch.arange(100) + 10.0)
    assert (counts / counts.sum() - wanted / wanted.sum()).abs().max() < 0.005
    assert made.train.categories.max() < 100 * FEATURES
    again = generate(20_000, 20_000, 100)
    assert torch.equal(again.train.categories, made.train.categories)
    assert best_auc(20_000, 20_000, 100) == auc(made.best, made.val.clicks)
    worse = made.best + torch.randn(20_000, generator=torch.Generator().manual_seed(0))
    assert auc(worse, made.val.clicks) < auc(made.best, made.val.clicks) - 0.01


# --- Criteo's format ------------------------------------------------------------------------------


def line(label: int, number: str = "3", category: str = "68fd1e64") -> bytes:
    fields = [str(label), *[number] * criteo.NUMBERS, *[category] * criteo.FEATURES]
    return "\t".join(fields).encode() + b"\n"


def test_numbers_categories_and_missing_values_are_read(tmp_path: Path) -> None:
    path = tmp_path / "day_0.gz"
    path.write_bytes(gzip.compress(line(1) + line(0, "", "") + line(0, "-2", "0a")))
    found = criteo.read([path], None, 100)
    assert found.clicks.tolist() == [1, 0, 0]
    assert found.dense[:, 0].tolist() == pytest.approx([1.3862944, 0, 0])
    first = torch.arange(criteo.FEATURES) * 100
    assert torch.equal(found.categories[1], first)  # what is missing has the first row
    assert ((found.categories[0] > first) & (found.categories[0] < first + 100)).all()
    assert len((found.categories[0] - first).unique()) > 5  # features are hashed apart
    assert len(criteo.read([path], 2, 100)) == 2


def test_hashed_categories_are_spread_evenly() -> None:
    places = [criteo.hashed(f"{i:08x}", 3, 11) - 33 for i in range(5000)]
    counts = torch.bincount(torch.tensor(places), minlength=11)
    assert counts[0] == 0
    assert counts[1:].min() > 400


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (b"1\t2\n", "must have 40 fields between tabs, got 2"),
        (line(2), "must begin with the label 0 or 1, got '2'"),
        (line(1, "x"), "must have whole numbers in fields 2 to 14, got 'x'"),
        (line(1, category="no"), "must have hexadecimal categories in fields 15 to 40, got 'no'"),
    ],
)
@pytest.mark.parametrize("part", ["train", "val"])
def test_a_malformed_line_is_named_with_its_file(
    wrong: bytes, text: str, part: str, tmp_path: Path
) -> None:
    for name in ("train", "val"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a").write_bytes(line(0) * 300 + line(1) * 300)
    (tmp_path / part / "a").write_bytes(line(0) * 300 + wrong + line(1) * 300)
    before = {*threading.enumerate()}
    trainer = clicks.train({"data": "criteo", "data_dir": str(tmp_path), "lr": 0.1, "hash_size": 9})
    with pytest.raises(ValueError, match=f"a:301: {text}") as caught:
        list(trainer)
    assert "\n" not in str(caught.value)
    assert {*threading.enumerate()} <= before


# --- several queues -------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Files of different lengths; each sample has a number of its own."""
    place, made, low = tmp_path / "train", [], 0
    place.mkdir()
    for index, count in enumerate((700, 0, 30, 513, 256)):
        made.append(place / f"part-{index}")
        made[-1].write_bytes(b"".join(line(0, str(n)) for n in range(low, low + count)))
        low += count
    return made


SAMPLES = 700 + 30 + 513 + 256


def opened(
    files: list[Path], ranks: Ranks = ONE, begun: Any = (0, ()), threads: int = 3, window: int = 100
) -> Queues:
    val = criteo.parsed([line(0), line(1)], Path("val"), 1, 50)
    return Queues(files, Source((), (), 50, 5, threads, window), val, ranks, begun)


def numbers(batch: Batch) -> list[int]:
    return [round(x) for x in batch.dense[:, 0].double().expm1().tolist()]


def taken(stream: Queues, sizes: list[int], seen: int = 0) -> list[int]:
    found = []
    for size in sizes:
        found += numbers(stream.take(seen, size))
        seen += size
    stream.close()
    return found


def test_an_epoch_has_each_sample_once_in_an_order_of_its_own(files: list[Path]) -> None:
    found = taken(opened(files), [SAMPLES, SAMPLES])
    first, second = found[:SAMPLES], found[SAMPLES:]
    assert sorted(first) == sorted(second) == list(range(SAMPLES))
    assert first != second
    assert first != sorted(first)


@pytest.mark.parametrize("threads", [1, 2, 4, 9])
def test_the_order_does_not_depend_on_the_threads_speed_or_the_batches(
    threads: int, files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = taken(opened(files, threads=threads), [2 * SAMPLES])
    real, slow = criteo.parsed, random.Random(3)

    def parsed(*given: Any) -> Batch:
        time.sleep(slow.random() / 200)
        return real(*given)

    monkeypatch.setattr(criteo, "parsed", parsed)
    sizes = [64, 1, 33, 902, *[100] * 19, 98]
    assert taken(opened(files, threads=threads), sizes) == wanted[: sum(sizes)]


@pytest.mark.parametrize("at", [0, 1, 99, 100, 777, SAMPLES, SAMPLES + 1400])
def test_a_reading_goes_on_from_any_place(at: int, files: list[Path]) -> None:
    wanted = taken(opened(files), [2 * SAMPLES])
    found = taken(opened(files, begun=(at, [at])), [2 * SAMPLES - at], at)
    assert found == wanted[at:]


def test_ranks_have_files_of_their_own(files: list[Path]) -> None:
    with pytest.raises(ValueError, match="for each of the 5 ranks, got 4"):
        opened(files, Ranks(0, 5, CPU))
    streams = [opened(files, Ranks(rank, 2, CPU)) for rank in range(2)]
    found = [{*numbers(stream.take(0, 400))} for stream in streams]
    assert [len(own) for own in found] == [200, 200]
    assert found[0].isdisjoint(found[1])
    assert streams[0].state() == streams[1].state() == {"taken": [200, 200]}
    assert {stream.train_size for stream in streams} == {SAMPLES}
    for stream in streams:
        stream.close()
    anew = opened(files, begun=(400, [200, 200]))  # on one rank: as if it had taken all of them
    assert anew.state() == {"taken": [400]}
    anew.close()


def test_files_that_have_become_shorter_are_noticed(
    files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = criteo.count_lines

    def counted_and_cut(path: Path) -> int:
        """The lines of a file, which has but one when it is read."""
        found = real(path)
        if path in (files[0], files[3]):
            path.write_bytes(line(0))
        return found

    monkeypatch.setattr(criteo, "count_lines", counted_and_cut)
    stream = opened(files, threads=1)
    with pytest.raises(ValueError, match="lines are gone since they were counted"):
        taken(stream, [4 * SAMPLES])
    stream.close()


def test_it_trains_on_files_and_goes_on_bit_for_bit(files: list[Path], tmp_path: Path) -> None:
    draw, val = random.Random(0), tmp_path / "val"
    val.mkdir()
    for path in (*files, val / "only"):
        made = [(n, draw.choice(["aa", "bb", "cc"])) for n in range(300)]
        path.write_bytes(b"".join(line(int(c == "aa"), str(n % 7), c) for n, c in made))
    config = {
        "data": "criteo",
        "data_dir": str(tmp_path),
        "hash_size": 20,
        "lr": 0.01,
        "width": 2,
        "reader_threads": 2,
        "shuffle_buffer": 128,
        "milestone": 600,
        "lr_sparse": 0.1,
    }
    trainer = clicks.train(config)
    found = [next(trainer) for _ in range(3)]
    metrics, state = found[-1].evaluate(), found[-1].state()  # type: ignore[misc]
    kept = torch.load(_saved(state, tmp_path / "kept"), weights_only=True)
    assert metrics["val_auc"] > 0.99  # what is "aa" is clicked
    final = next(trainer)
    trainer.close()
    rest = clicks.train({**config, "state": kept})
    assert next(rest).evaluate()["val_auc"] == metrics["val_auc"]
    again = next(rest)
    assert again.evaluate()["train_loss"] == final.evaluate()["train_loss"]
    assert again.step == final.step
    rest.close()


def _saved(state: Any, path: Path) -> Path:
    torch.save(state, path)
    return path


def test_blocks_are_parsed_by_as_many_threads_as_asked(
    files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of files that one thread has are parsed on it; one that is done may have ended."""
    before, names, start = {*threading.enumerate()}, [], threading.Thread.start

    def noted(thread: threading.Thread) -> None:
        names.append(thread.name)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", noted)
    stream = opened(files, threads=3)
    assert names == ["clicks-reader"] * 3
    assert queues.BLOCK == 256
    stream.close()
    assert {*threading.enumerate()} == before
