"""How images of a folder are loaded, and what is kept of them: batches are always the same."""

from __future__ import annotations

import doctest
import gc
import multiprocessing
import os
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from trainers import settings
from trainers.data import cache, decoded, folder, shared
from trainers.data.folder import FolderStream
from trainers.data.picture import opened
from trainers.data.shared import Shared
from trainers.parallel.ranks import Ranks

CPU = torch.device("cpu")
KEYS = settings.INPUT
INPUTS: dict[str, dict[str, Any]] = {
    "processes": {"loader_workers": 2},
    "further ahead": {"loader_workers": 1, "prefetch_factor": 5},
    "disk": {"cache": "disk", "cache_dir": "copies"},
    "disk for some": {"cache": "disk", "cache_dir": "copies", "cache_gb": 20_000 / 2**30},
    "disk, processes": {"cache": "disk", "cache_dir": "copies", "loader_workers": 2},
    "memory": {"cache": "memory"},
    "memory, processes": {"cache": "memory", "loader_workers": 2},
    "decoded": {"cache": "decoded"},
    "decoded, processes": {"cache": "decoded", "loader_workers": 2, "prefetch_factor": 1},
    "memory for some": {"cache": "memory", "cache_gb": 5_000 / 2**30},
    "memory for some decoded ones": {"cache": "decoded", "cache_gb": 60_000 / 2**30},
    "memory for none": {"cache": "decoded", "cache_gb": 1 / 2**30},
}
"""A row for each exact way to load images."""


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """JPEGs that are decoded at several scales, in colours and grey, and other formats."""
    root = tmp_path_factory.mktemp("pictures")
    random = np.random.default_rng(0)
    for part, count in (("train", 6), ("val", 3)):
        for label, name in enumerate(("bird", "cat")):
            (root / part / name).mkdir(parents=True)
            for i in range(count):
                pixels = random.integers(0, 60, (90 + 31 * i, 130, 3), np.uint8) + 150 * label
                image = Image.fromarray(pixels.astype(np.uint8))
                image = image.convert("L") if i == 1 else image
                suffix = ("jpg", "jpg", "png", "jpg", "bmp", "jpg")[i]
                image.save(root / part / name / f"{i}.{suffix}")
    return root


def config(root: Path, **changed: Any) -> dict[str, Any]:
    what = {"data": "folder", "data_dir": str(root), "model": "resnet8", "width": 4, "lr": 0.01}
    sizes = {"image_size": 16, "val_image_size": 12, "batch_size": 4}
    return {**what, **sizes, "loader_workers": 0, "augment": "crop+flip", "seed": 3, **changed}


def size_at(seen: int) -> tuple[int, int]:
    """Of a training whose images grow, and become small again: other scales of their decoder."""
    return 4, (8, 16, 40)[seen // 4 % 3]


def batches(root: Path, ranks: Ranks, **changed: Any) -> Iterator[Tensor]:
    """Those of more than two epochs with a validation after each of the first two."""
    stream = FolderStream(settings.read_settings(config(root, **changed)), ranks, size_at)
    try:
        for seen in range(0, 28, 4):
            yield from stream.take(seen, *size_at(seen))
            if seen in (8, 20):
                for batch in stream.validation():
                    yield from batch
    finally:
        stream.close()


@pytest.mark.parametrize("ranks", [Ranks(0, 1, CPU), Ranks(1, 2, CPU)], ids=["alone", "second"])
@pytest.mark.parametrize("loads", INPUTS.values(), ids=INPUTS)
def test_batches_are_the_same(
    loads: dict[str, Any],
    ranks: Ranks,
    pictures: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    plain = [*batches(pictures, ranks)]
    found = [*batches(pictures, ranks, **loads)]
    assert len(found) == len(plain) >= 18
    assert all(map(torch.equal, found, plain))


def test_every_key_is_in_a_row() -> None:
    assert {key for loads in INPUTS.values() for key in loads} == set(KEYS)
    assert {knob.effect for knob in KEYS.values()} == {"exact"}


@pytest.mark.parametrize(
    ("level", "again"), [("none", 12), ("memory", 0), ("decoded", 0), ("disk", 0)]
)
def test_a_kept_image_is_not_read_again(
    level: str, again: int, pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the second epoch, at the same sizes and crops."""
    kept = {"cache": level, "augment": "none"}
    if level == "disk":
        kept["cache_dir"] = str(tmp_path / "copies")
    made = settings.read_settings(config(pictures, **kept))
    stream = FolderStream(made, Ranks(0, 1, CPU), lambda seen: (6, 16))
    for seen in (0, 6):
        stream.take(seen, 6, 16)
    read: list[str] = []
    for owner, name in ((Image, "open"), (Path, "read_bytes")):
        real = getattr(owner, name)

        def noted(path: Any, *given: Any, real: Any = real, **named: Any) -> Any:
            read.append(str(path))
            return real(path, *given, **named)

        monkeypatch.setattr(owner, name, noted)
    for seen in (12, 18):
        stream.take(seen, 6, 16)
    stream.close()
    assert sum(path.startswith(str(pictures)) for path in read) == again


@pytest.mark.parametrize("level", ["memory", "decoded"])
def test_what_is_kept_in_memory_ends_with_the_training(
    level: str, pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And so do the processes that share it."""
    kept: list[weakref.ref[Shared]] = []

    def noted(slots: int, limit: int) -> Shared:
        made = Shared(slots, limit)
        kept.append(weakref.ref(made))
        return made

    monkeypatch.setattr(cache, "Shared", noted)
    assert len([*batches(pictures, Ranks(0, 1, CPU), cache=level, loader_workers=1)]) >= 18
    gc.collect()
    assert [made() for made in kept] == [None]
    assert not multiprocessing.active_children()


def test_copies_are_made_at_the_start_and_for_other_trainings_too(
    pictures: Path, tmp_path: Path
) -> None:
    place = tmp_path / "deep" / "copies"
    made = settings.read_settings(config(pictures, cache="disk", cache_dir=str(place)))
    FolderStream(made, Ranks(0, 1, CPU), size_at).close()
    numbers = {path: path.stat().st_ino for path in place.iterdir()}
    assert len(numbers) == 18
    for rank in range(2):
        FolderStream(made, Ranks(rank, 2, CPU), size_at).close()
    assert {path: path.stat().st_ino for path in place.iterdir()} == numbers


@pytest.mark.parametrize("level", ["none", "memory", "decoded"])
def test_a_broken_image_is_named_whatever_is_kept(
    level: str, pictures: Path, tmp_path: Path
) -> None:
    for name in ("bird", "cat"):
        (tmp_path / name).mkdir()
        for i in range(2):
            (tmp_path / name / f"{i}.jpg").write_bytes(b"no image")
    made = settings.read_settings(config(tmp_path, cache=level))
    stream = FolderStream(made, Ranks(0, 1, CPU), size_at)
    with pytest.raises(ValueError, match=rf"{tmp_path}/\w+/\d.jpg cannot be read as an image"):
        stream.take(0, 2, 8)
    stream.close()


def test_processes_see_what_others_have_kept() -> None:
    kept = Shared(3, 100)
    for slot in range(2):
        if (child := os.fork()) == 0:
            kept.put(slot, bytes([slot]) * 40)
            os._exit(0)
        os.waitpid(child, 0)
    kept.put(2, b"x" * 40)
    values = [kept.get(slot) for slot in range(3)]
    assert [None if value is None else bytes(value) for value in values] == [
        b"\0" * 40,
        b"\1" * 40,
        None,  # there was no room for it
    ]


@pytest.mark.parametrize("module", [shared, decoded])
def test_examples(module: Any) -> None:
    assert doctest.testmod(module).failed == 0


def test_a_scale_is_that_of_the_decoder(pictures: Path) -> None:
    """What is kept of a JPEG has as many pixels as its decoder gives at each scale."""
    path = str(pictures / "train" / "bird" / "5.jpg")
    opens = decoded.decoded(Shared(decoded.PER_IMAGE, 2**24))
    for size in (2, 5, 9, 17, 30, 60, 200):
        for box in (folder.central_box(130, 245), (0.0, 0.0, 130.0, 245.0), (3.0, 9.0, 43.0, 50.0)):
            least = folder.least((130, 245), box, size)
            wanted = opened(path).at_least(least)
            for _ in range(2):
                found = opens(0, path).at_least(least)
                assert found.size == wanted.size
                assert found.tobytes() == wanted.tobytes()


DIGITS = {"data": "digits", "model": "mlp", "lr": 0.1}


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({**DIGITS, "cache": "memory"}, "cache 'memory' needs data 'folder'"),
        ({**DIGITS, "prefetch_factor": 4}, "prefetch_factor 4 needs data 'folder' and loader_work"),
        ({"loader_workers": 0, "prefetch_factor": 4}, "prefetch_factor 4 needs data 'folder' and"),
        ({"cache": "ram"}, "cache must be one of none, disk, memory, decoded, got 'ram'"),
        ({"cache": "disk"}, "cache 'disk' needs cache_dir, a folder on a disk of this machine"),
        ({"cache_dir": "here"}, "cache_dir 'here' needs cache 'disk'"),
        ({"cache_gb": 8}, "cache_gb 8 needs cache 'disk', 'memory' or 'decoded'"),
        ({"cache": "memory", "cache_gb": 0}, "cache_gb must be a number more than 0, got 0"),
        ({"prefetch_factor": 0}, "prefetch_factor must be a whole number at least 1, got 0"),
        ({"prefetch_faktor": 2}, "did you mean 'prefetch_factor'"),
    ],
)
def test_what_does_not_go_together_is_one_line(keys: dict[str, Any], says: str) -> None:
    known = {"data": "folder", "model": "mlp", "lr": 0.1}
    with pytest.raises(ValueError) as refused:
        settings.read_settings({**known, **keys})
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"cache": "memory", "cache_gb": 1e12}, "cache_gb 1e+12 cannot be had on this machine"),
        ({"cache": "disk", "cache_dir": "/dev/null/copies"}, "cache_dir /dev/null/copies cannot"),
    ],
)
def test_what_the_machine_does_not_have_is_one_line(
    keys: dict[str, Any], says: str, pictures: Path
) -> None:
    made = settings.read_settings(config(pictures, **keys))
    with pytest.raises(ValueError) as refused:
        FolderStream(made, Ranks(0, 1, CPU), size_at)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)
