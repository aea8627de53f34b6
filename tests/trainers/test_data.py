from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch
from pictures import write_binary, write_cifar10, write_fashion_mnist

from trainers.data.formats import class_names, recognised
from trainers.data.images import Images, data_folder, read_images, synthetic

CPU = torch.device("cpu")


def check(images: Images, shape: tuple[int, int, int]) -> None:
    assert images.shape == shape
    assert images.train_x.dtype == torch.float32
    assert images.train_x.is_contiguous()
    means = images.train_x.mean((0, 2, 3))
    spread = images.train_x.std((0, 2, 3))
    torch.testing.assert_close(means, torch.zeros_like(means), atol=1e-4, rtol=0)
    torch.testing.assert_close(spread, torch.ones_like(spread), atol=2e-2, rtol=0)
    assert len(images.train_x) == len(images.train_y)
    assert len(images.val_x) == len(images.val_y)


def test_digits_are_split_by_class() -> None:
    images = read_images("digits", None, CPU)
    check(images, (1, 8, 8))
    assert (len(images.train_y), len(images.val_y)) == (1078, 719)
    shares = images.val_y.bincount() / (images.val_y.bincount() + images.train_y.bincount())
    assert (shares - 0.4).abs().max() < 0.01


def test_fashion_mnist_is_read_from_its_published_files(tmp_path: Path) -> None:
    write_fashion_mnist(tmp_path)
    images = read_images("fashion_mnist", str(tmp_path), CPU)
    check(images, (1, 28, 28))
    assert (len(images.train_y), len(images.val_y), images.classes) == (20, 10, 10)


def test_cifar10_is_read_from_all_its_shards(tmp_path: Path) -> None:
    write_cifar10(tmp_path)
    images = read_images("cifar10", str(tmp_path), CPU)
    check(images, (3, 32, 32))
    assert (len(images.train_y), len(images.val_y)) == (30, 10)


def same(a: Images, b: Images) -> bool:
    names = ("train", "train_y", "val", "val_y")
    return all(torch.equal(getattr(a, name), getattr(b, name)) for name in names)


def test_cifar10_is_read_from_its_binary_version_wherever_it_is(tmp_path: Path) -> None:
    write_cifar10(tmp_path / "arrays")
    arrays = read_images("cifar10", str(tmp_path / "arrays"), CPU)
    for i, where in enumerate((".", "cifar10", "cifar-10-batches-bin")):
        write_binary(tmp_path / str(i) / where)
        assert recognised(tmp_path / str(i)) == "cifar10"
        assert same(read_images("cifar10", str(tmp_path / str(i)), CPU), arrays)


def test_idx_files_may_be_unpacked(tmp_path: Path) -> None:
    write_fashion_mnist(tmp_path)
    plain = tmp_path / "plain"
    plain.mkdir()
    for path in (tmp_path / "fashion_mnist").iterdir():
        (plain / path.stem).write_bytes(gzip.decompress(path.read_bytes()))
    assert recognised(plain) == "fashion_mnist"
    packed = read_images("fashion_mnist", str(tmp_path), CPU)
    assert same(read_images("fashion_mnist", str(plain), CPU), packed)
    assert class_names("fashion_mnist", plain)[3] == "3"
    assert class_names("fashion_mnist", tmp_path / "Fashion-MNIST")[3] == "Dress"


def test_python_pickles_are_never_read(tmp_path: Path) -> None:
    (tmp_path / "cifar-10-batches-py").mkdir()
    with pytest.raises(ValueError, match="Python pickles, which are never read: use the") as caught:
        read_images("cifar10", str(tmp_path), CPU)
    assert "\n" not in str(caught.value)
    assert recognised(tmp_path / "cifar-10-batches-py") is None
    write_binary(tmp_path / "cifar10")
    (tmp_path / "cifar10" / "data_batch_1.bin").write_bytes(b"x" * 100)
    with pytest.raises(ValueError, match="is damaged: its size is no multiple of 3073"):
        read_images("cifar10", str(tmp_path), CPU)


def test_a_process_reads_a_data_set_once(tmp_path: Path) -> None:
    write_cifar10(tmp_path)
    assert read_images("cifar10", str(tmp_path), CPU) is read_images("cifar10", str(tmp_path), CPU)


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("fashion_mnist", "train-images-idx3-ubyte.gz"),
        ("cifar10", "train_1.npz"),
    ],
)
def test_missing_data_gets_one_clear_line_with_its_place(
    name: str, file: str, tmp_path: Path
) -> None:
    with pytest.raises(FileNotFoundError, match=f"{file} is missing; .*AUTOTUNE_DATA") as caught:
        read_images(name, str(tmp_path), CPU)
    assert str(tmp_path / name / file) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_data_folder_is_given_or_a_variable_or_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AUTOTUNE_DATA", raising=False)
    assert data_folder(None) == Path("data")
    monkeypatch.setenv("AUTOTUNE_DATA", "elsewhere")
    assert data_folder(None) == Path("elsewhere")
    assert data_folder("here") == Path("here")


def test_pickled_arrays_are_refused(tmp_path: Path) -> None:
    write_cifar10(tmp_path)
    np.savez(tmp_path / "cifar10" / "test.npz", x=np.array([{}]), y=np.array([0]))
    with pytest.raises(ValueError, match="allow_pickle"):
        read_images("cifar10", str(tmp_path), CPU)


def test_a_part_may_be_used() -> None:
    images = read_images("digits", None, CPU)
    part = images.first(100, None)
    assert (len(part.train_y), len(part.val_y)) == (100, 719)
    with pytest.raises(ValueError, match=r"train_size must be at most 1078.*got 2000"):
        images.first(2000, None)


def test_synthetic_images_are_always_the_same() -> None:
    a = synthetic(20, 10, 16, CPU)
    synthetic.cache_clear()
    assert torch.equal(a.train_x, synthetic(20, 10, 16, CPU).train_x)
    assert a.shape == (3, 16, 16)
