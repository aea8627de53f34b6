"""Training from a folder of image files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile

from autotune.schedules import Piecewise
from autotune.trial import Change
from trainers.data.folder import FolderStream, Pictures, central_box, random_box
from trainers.data.image_files import listed
from trainers.parallel.ranks import Ranks
from trainers.settings import read_settings

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("pictures")
    random = np.random.default_rng(0)
    for part, count in (("train", 12), ("val", 5)):
        for label, name in enumerate(("bird", "cat")):
            (root / part / name).mkdir(parents=True)
            for i in range(count):
                pixels = random.integers(0, 60, (20 + i, 24, 3), np.uint8) + np.uint8(150 * label)
                Image.fromarray(pixels).save(root / part / name / f"{i}.jpg")
    return root


def config(root: Path, **changed: Any) -> dict[str, Any]:
    few = {"image_size": 8, "batch_size": 4, "milestone": 8, "horizon": 3, "loader_workers": 0}
    what = {"data": "folder", "data_dir": str(root), "model": "mlp", "width": 4, "lr": 0.01}
    return {**what, **few, "augment": "crop+flip", **changed}


def stream(root: Path, ranks: Ranks, sizes: Any, **changed: Any) -> FolderStream:
    return FolderStream(read_settings(config(root, **changed)), ranks, sizes)


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_depend_on_the_samples_seen_only(workers: int, pictures: Path) -> None:
    one = stream(pictures, Ranks(0, 1, CPU), lambda seen: (8, 8), loader_workers=workers)
    whole = [one.take(seen, 8, 8) for seen in range(0, 64, 8)]
    again = one.take(16, 8, 8)
    assert torch.equal(again[0], whole[2][0])
    assert torch.equal(one.take(24, 5, 8)[0], whole[3][0][:5])
    one.close()
    two = stream(pictures, Ranks(1, 2, CPU), lambda seen: (8, 8), loader_workers=workers)
    assert torch.equal(two.take(56, 8, 8)[0], whole[7][0][4:])
    assert two.waited > 0
    two.close()


def test_a_restored_run_goes_on_bit_for_bit(pictures: Path, record: Any, same: Any) -> None:
    sizes = Piecewise((0.5,), (4, 6), kind="constant")
    settings = config(pictures, batch_size=sizes, loader_workers=1)
    changes = {1: Change(batch_size=5)}
    whole = record(settings, 5, changes=changes, save_at=2)
    rest = record({**settings, "state": whole["state"]}, 3)
    assert same(rest["final"], whole["final"])


def test_it_learns(pictures: Path, record: Any) -> None:
    metrics = record(config(pictures, lr=0.05, milestone=200, norm="batch"), 1)["metrics"]
    assert metrics[-1]["val_accuracy"] == 1.0


@pytest.mark.parametrize("box", [random_box, lambda w, h, _: central_box(w, h)])
def test_boxes_lie_within_the_image(box: Any) -> None:
    random = np.random.default_rng(0)
    for width, height in ((100, 100), (300, 20), (7, 500)):
        for _ in range(200):
            left, top, right, bottom = box(width, height, random)
            assert 0 <= left < right <= width
            assert 0 <= top < bottom <= height


def test_missing_folders_and_images_are_reported(tmp_path: Path, record: Any) -> None:
    with pytest.raises(FileNotFoundError, match=r"image folder: .*train is missing"):
        record(config(tmp_path), 1)
    (tmp_path / "train" / "cat").mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match=r"holds no images; they belong into .*/CLASS/"):
        record(config(tmp_path), 1)


def test_classes_must_agree(pictures: Path, tmp_path: Path, record: Any) -> None:
    (tmp_path / "train").symlink_to(pictures / "train")
    (tmp_path / "val" / "dog").mkdir(parents=True)
    Image.new("RGB", (9, 9)).save(tmp_path / "val" / "dog" / "0.png")
    with pytest.raises(ValueError, match=r"same classes, not \['bird', 'cat', 'dog'\]"):
        record(config(tmp_path), 1)


def test_too_many_images_are_refused(pictures: Path, record: Any) -> None:
    with pytest.raises(
        ValueError, match="train_size must be at most 24, all that there is, got 25"
    ):
        record(config(pictures, train_size=25), 1)


def test_large_jpegs_are_decoded_smaller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same boxes, and nearly the same pixels, as when decoded in full."""
    (tmp_path / "cat").mkdir(parents=True)
    across = np.linspace(0, 255, 400)[None, :, None] * np.ones((300, 1, 3))
    Image.fromarray(across.astype(np.uint8)).save(tmp_path / "cat" / "0.jpg", quality=95)
    sizes: list[tuple[int, int]] = []
    resize = Image.Image.resize

    def noted(image: Image.Image, *arguments: Any, **named: Any) -> Image.Image:
        sizes.append(image.size)
        return resize(image, *arguments, **named)

    monkeypatch.setattr(Image.Image, "resize", noted)
    for augment in (frozenset[str](), frozenset(("crop", "flip"))):
        found = Pictures(listed(tmp_path), augment, 3)
        for epoch in range(5):
            small = found[epoch, 0, 16][0].float()
            with monkeypatch.context() as patched:
                patched.setattr(JpegImageFile, "draft", lambda *_: None)
                whole = found[epoch, 0, 16][0].float()
            assert (small - whole).abs().mean() < 1.5
    assert (50, 38) in sizes  # an eighth
    assert sizes.count((400, 300)) >= 10
    assert Pictures(listed(tmp_path), frozenset(), 3)[0, 0, 200][0].shape == (3, 200, 200)
    assert sizes[-1] == (400, 300)  # twice the pixels needed are not there


@pytest.mark.slow
def test_the_loaders_of_both_parts_stay(pictures: Path) -> None:
    one = stream(pictures, Ranks(0, 1, CPU), lambda seen: (8, 8), loader_workers=1)
    first, second = (list(one.validation()) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first[0], second[0], strict=True))
    iterator = one._val_loader._iterator
    list(one.validation())
    assert one._val_loader._iterator is iterator
    one.close()


def test_the_warm_up_decodes_nothing_twice(pictures: Path) -> None:
    """The first batch is the warm-up's; other shapes are blank."""
    one = stream(pictures, Ranks(0, 1, CPU), lambda seen: (8, 8))
    blank, _ = one.warm(0, 8, 12)
    assert blank.shape == (8, 3, 12, 12)
    assert not blank.any()
    x, _ = one.warm(0, 8, 8)
    assert one.take(0, 8, 8)[0] is x
    fresh = stream(pictures, Ranks(0, 1, CPU), lambda seen: (8, 8))
    assert torch.equal(fresh.take(0, 8, 8)[0], x)
    assert torch.equal(fresh.take(8, 8, 8)[0], one.take(8, 8, 8)[0])
