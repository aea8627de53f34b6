"""Images of a scheduled size: while training, when evaluating, and in the warm-up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from autotune.schedules import Constant, Linear, Piecewise
from autotune.trial import Change
from trainers import learner
from trainers.data.augment import resized
from trainers.data.images import Images, read_images
from trainers.data.stream import MemoryStream
from trainers.image import train
from trainers.models.images import make_model, stride_of
from trainers.parallel.ranks import Ranks
from trainers.shapes import warmed_up

CPU = torch.device("cpu")
NET = {"model": "resnet8", "width": 4, "augment": "crop+flip+cutout", "train_size": 320}
GROWS = Piecewise((0.5,), (4, 8), kind="constant")


@pytest.fixture
def seen_sizes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, tuple[int, ...]]]:
    """The shapes that the learner is given, in order, and what for."""
    shapes: list[tuple[str, tuple[int, ...]]] = []
    step, evaluate = learner.Learner.step, learner.Learner.evaluate

    def watched_step(self: Any, batch: Any, *others: Any) -> None:
        shapes.append(("step", tuple(batch[0].shape)))
        step(self, batch, *others)

    def watched_evaluate(self: Any, batches: Any) -> Any:
        batches = list(batches)
        shapes.extend(("evaluate", tuple(x.shape)) for x, _ in batches)
        return evaluate(self, batches)

    monkeypatch.setattr(learner.Learner, "step", watched_step)
    monkeypatch.setattr(learner.Learner, "evaluate", watched_evaluate)
    return shapes


def test_a_schedule_of_sizes_is_read_at_every_step_and_evaluation_is_in_full(
    record: Any, seen_sizes: Any
) -> None:
    config = {**NET, "image_size": Linear(4, 8), "horizon": 1, "milestone": 160, "batch_size": 80}
    metrics = record(config, 2)["metrics"]
    assert [m["image_size"] for m in metrics] == [4, 6, 8]
    # The first six steps warm up: one shape after the other, the largest first and twice.
    steps = [shape[-1] for kind, shape in seen_sizes if kind == "step"]
    assert steps == [8, 8, 7, 6, 5, 4, 4, 5, 6, 7]
    assert {shape[-1] for kind, shape in seen_sizes if kind == "evaluate"} == {8}


def test_the_size_of_an_evaluation_may_be_given(record: Any, seen_sizes: Any) -> None:
    record({**NET, "image_size": 4, "val_image_size": 12, "milestone": 64}, 1)
    assert {shape[1:] for kind, shape in seen_sizes if kind == "evaluate"} == {(1, 12, 12)}
    assert {shape[1:] for kind, shape in seen_sizes if kind == "step"} == {(1, 4, 4)}


def test_synthetic_images_are_in_full_at_the_largest_size(record: Any, seen_sizes: Any) -> None:
    config = {**NET, "data": "synthetic", "val_size": 64, "image_size": Linear(8, 16)}
    record({**config, "milestone": 320, "horizon": 1}, 1)
    assert {shape for kind, shape in seen_sizes if kind == "evaluate"} == {
        (32, 3, 16, 16),  # the warm-up's
        (64, 3, 16, 16),
    }


def test_the_native_size_changes_nothing(record: Any, same: Any) -> None:
    plain, given = (record({**NET, **size}, 2) for size in ({}, {"image_size": 8}))
    scheduled = record({**NET, "image_size": Linear(8.2, 7.8)}, 2)
    assert same(plain["final"], given["final"])
    assert same(plain["final"], scheduled["final"])
    images = read_images("digits", None, CPU)
    assert resized(images.train_x, 8) is images.train_x


@pytest.mark.parametrize("size", [3, 4, 5, 8, 12])
def test_resized_keeps_means_and_is_smooth(size: int) -> None:
    """A ramp stays a ramp, whose corners the new pixels' centres tell."""
    ramp = torch.arange(8.0).expand(2, 1, 8, 8)
    found = resized(ramp, size)
    assert found.shape == (2, 1, size, size)
    torch.testing.assert_close(found.mean(), ramp.mean(), atol=1e-5, rtol=0)
    inner = found[0, 0, 0].diff()[1:-1]
    torch.testing.assert_close(inner, torch.full_like(inner, 8 / size), atol=0.2, rtol=0)


def test_shrinking_averages_over_all_pixels() -> None:
    checks = (torch.arange(16)[:, None] + torch.arange(16)).remainder(2).float()
    inner = resized(checks.expand(1, 1, 16, 16), 4)[..., 1:-1, 1:-1]
    torch.testing.assert_close(inner, torch.full_like(inner, 0.5), atol=0.02, rtol=0)


def test_batches_are_resized_after_augmentation() -> None:
    images = torch.randn(50, 2, 8, 8, generator=torch.Generator().manual_seed(0))
    data = Images(images, torch.arange(50), images, torch.arange(50), 50)
    stream = MemoryStream(data, frozenset(("crop", "cutout")), 1, Ranks(0, 1, CPU))
    whole, small = stream.take(30, 40)[0], stream.take(30, 40, 5)[0]
    assert torch.equal(resized(whole, 5), small)


@pytest.mark.parametrize(
    ("name", "side", "stride"),
    [("resnet8", 32, 4), ("resnet18", 64, 8), ("resnet18", 65, 32), ("resnet50", 224, 32)],
)
def test_the_stride_is_what_makes_one_pixel(name: str, side: int, stride: int) -> None:
    assert stride_of(name, (3, side, side)) == stride
    model = make_model(name, (3, side, side), 7, 4, "group")
    body = model[:-3]  # type: ignore[index]
    assert body(torch.zeros(1, 3, stride, stride)).shape[-2:] == (1, 1)
    assert body(torch.zeros(1, 3, 2 * stride, 2 * stride)).shape[-2:] == (2, 2)


def test_a_warm_up_of_several_sizes_leaves_no_trace(seen_sizes: Any) -> None:
    before = torch.random.get_rng_state()
    sizes = Piecewise((0.2, 0.4), (16, 32, 20), kind="constant")
    config = {"data": "digits", "lr": 0.1, "batch_size": sizes, **NET, "image_size": Linear(4, 8)}
    trainer = train({**config, "microbatch": 16})
    state = next(trainer).state()
    trainer.close()
    warmed = [(shape[0], shape[-1]) for kind, shape in seen_sizes if kind == "step"]
    # 32 images are two passes of 16, which need no warm-up of their own; 20 are 16 and 4.
    assert sorted(warmed[1:]) == [(16, 4), (16, 5), (16, 6), (20, 6), (20, 7), (20, 8)]
    assert warmed[0] == warmed[1] == (20, 8)
    assert torch.equal(before, torch.random.get_rng_state())
    assert state["learner"]["optimizer"]["state"] == {}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = make_model("resnet8", (1, 8, 8), 10, 4, "batch")
    for name, value in model.state_dict().items():
        assert torch.equal(state["learner"]["model"][name], value), name


def test_a_checkpoint_warms_up_what_is_ahead_only(record: Any, seen_sizes: Any) -> None:
    config = {**NET, "image_size": GROWS, "batch_size": 80, "horizon": 1, "milestone": 160}
    whole = record(config, 2, save_at=1)
    seen_sizes.clear()
    rest = record({**config, "state": whole["state"]}, 1)
    assert {shape[-1] for kind, shape in seen_sizes if kind == "step"} == {8}
    assert rest["metrics"][0]["val_loss"] == whole["metrics"][1]["val_loss"]


def test_of_many_kinds_start_end_and_the_most_frequent_are_warmed_up() -> None:
    steps = [(64, size) for size in range(8, 40)] + [(64, 20)] * 5 + [(64, 12)]
    assert warmed_up(steps, 2, None) == [(64, 20), (64, 12), (64, 8)]
    assert len(warmed_up(steps[:16], 2, None)) == 16


@pytest.mark.slow
def test_ranks_warm_up_alike_whatever_their_shares(
    on_two_ranks: Any, record: Any, apart: Any
) -> None:
    """Batches of 3 and 4 are one shape on one rank, and two on the other."""
    config = {**NET, "norm": "group", "momentum": 0.5, "milestone": 40, "horizon": 0.5}
    config["image_size"] = Piecewise((0.5,), (6, 8), kind="constant")
    config["batch_size"] = Piecewise((0.3,), (7, 8), kind="constant")
    alone, ranks = record(config, 3), on_two_ranks(config, 3)
    assert [r["steps"] for r in ranks] == [alone["steps"]] * 2
    assert [m["image_size"] for m in ranks[1]["metrics"]] == [6, 6, 8, 8]
    assert max(apart(rank["final"], alone["final"]) for rank in ranks) < 5e-6


def test_a_restored_run_goes_on_bit_for_bit(record: Any, same: Any) -> None:
    config = {**NET, "image_size": Linear(5, 8), "batch_size": Linear(16, 40), "horizon": 3}
    whole = record(config, 4, changes={1: Change(batch_size=24)}, save_at=2)
    rest = record({**config, "state": whole["state"]}, 2)
    assert same(rest["final"], whole["final"])


def folder(root: Path) -> dict[str, Any]:
    random = np.random.default_rng(0)
    for part, count in (("train", 12), ("val", 4)):
        for label, name in enumerate(("bird", "cat")):
            (root / part / name).mkdir(parents=True)
            for i in range(count):
                pixels = random.integers(0, 60, (20 + i, 24, 3), np.uint8) + np.uint8(150 * label)
                Image.fromarray(pixels).save(root / part / name / f"{i}.png")
    where = {"data": "folder", "data_dir": str(root), "model": "resnet8", "width": 4, "lr": 0.01}
    return {**where, "batch_size": 8, "milestone": 24, "horizon": 2, "augment": "crop+flip"}


@pytest.mark.parametrize("workers", [0, 1])
def test_a_folder_is_decoded_at_the_size_of_its_batch(
    workers: int, tmp_path: Path, record: Any, same: Any, seen_sizes: Any
) -> None:
    sizes = Piecewise((0.5,), (8, 12), kind="constant")
    config = {**folder(tmp_path), "image_size": sizes, "loader_workers": workers}
    whole = record(config, 2, save_at=1)
    steps = [shape for kind, shape in seen_sizes if kind == "step"]
    assert steps[3:] == [(8, 3, 8, 8)] * 3 + [(8, 3, 12, 12)] * 3
    assert {shape[-1] for kind, shape in seen_sizes if kind == "evaluate"} == {12}
    rest = record({**config, "state": whole["state"]}, 1)
    assert same(rest["final"], whole["final"])


def test_a_folder_of_one_size_is_as_ever(tmp_path: Path, record: Any, same: Any) -> None:
    config = {**folder(tmp_path), "loader_workers": 0, "max_epochs": 1}
    one, other = (record({**config, "image_size": s}, 1) for s in (16, Constant(16)))
    assert same(one["final"], other["final"])
