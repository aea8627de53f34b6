"""Folders of images: how they are divided, and what is wrong with them."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pictures
import pytest
from PIL import Image

from trainers.data.image_files import check, listed, parts


def names(paths: tuple[str, ...]) -> set[tuple[str, str]]:
    return {(Path(path).parent.name, Path(path).name) for path in paths}


@pytest.mark.parametrize("inside", ["", "train"])
def test_an_undivided_folder_is_divided_by_the_names_of_its_files(
    inside: str, tmp_path: Path
) -> None:
    pictures.write(tmp_path / inside, {"cat": 20, "dog": 10, "emu": 2})
    train, val = parts(tmp_path, 0.2)
    assert train.classes == val.classes == ("cat", "dog", "emu")
    assert Counter(val.labels) == {0: 4, 1: 2, 2: 1}
    assert Counter(train.labels) == {0: 16, 1: 8, 2: 1}
    assert names(train.paths) | names(val.paths) == names(listed(tmp_path / inside).paths)
    assert all(train.classes[y] in p for p, y in zip(train.paths, train.labels, strict=True))
    moved = tmp_path.with_name("elsewhere")
    shutil.copytree(tmp_path, moved)
    assert names(parts(moved, 0.2)[1].paths) == names(val.paths)
    shutil.rmtree(moved)
    assert len(parts(tmp_path, 0.9)[0].paths) == 4  # each class keeps one to train


def test_of_more_files_the_same_ones_validate_still(tmp_path: Path) -> None:
    pictures.write(tmp_path, {"cat": 40, "dog": 40})
    before = names(parts(tmp_path, 0.25)[1].paths)
    pictures.write(tmp_path, {"cat": 44, "dog": 44})
    assert len(before & names(parts(tmp_path, 0.25)[1].paths)) >= 16


@pytest.mark.parametrize("val", ["val", "valid", "validation"])
def test_a_divided_folder_stays_so(val: str, tmp_path: Path) -> None:
    pictures.write(tmp_path / "train", {"cat": 3, "dog": 3})
    pictures.write(tmp_path / val, {"cat": 2, "dog": 2}, suffix="jpg")
    pictures.write(tmp_path / "test", {"cat": 2, "dog": 2})
    train, validation = parts(tmp_path, 0.2)
    assert (len(train.paths), len(validation.paths)) == (6, 4)
    assert check(train, validation) == 16


def test_train_may_be_a_class(tmp_path: Path) -> None:
    pictures.write(tmp_path, {"bus": 5, "train": 5})
    train, val = parts(tmp_path, 0.2)
    assert train.classes == val.classes == ("bus", "train")
    assert (len(train.paths), len(val.paths)) == (8, 2)


@pytest.mark.parametrize("suffix", ["jpg", "png"])
def test_only_formats_of_pictures_are_decoded(suffix: str, tmp_path: Path) -> None:
    """Others start programs: PostScript runs Ghostscript, whatever the file's name says."""
    for good in ("webp", "tiff", "gif", "bmp"):
        pictures.write(tmp_path, {"cat": 4, "dog": 4}, suffix=good)
    assert check(*parts(tmp_path, 0.2)) == 16
    Image.new("RGB", (16, 16)).save(tmp_path / "cat" / f"odd.{suffix}", format="EPS")
    with pytest.raises(
        ValueError, match=f"odd.{suffix} cannot be read as an image: cannot identify"
    ):
        check(*parts(tmp_path, 0.2))


def test_other_folders_and_files_are_no_classes(tmp_path: Path) -> None:
    pictures.write(tmp_path, {"cat": 3, "dog": 3, ".hidden": 1, "__MACOSX": 1})
    (tmp_path / "cat" / "notes.txt").write_text("")
    assert listed(tmp_path).classes == ("cat", "dog")
    assert len(listed(tmp_path).paths) == 6


def test_what_cannot_be_trained_on_is_one_line(tmp_path: Path) -> None:
    def says(root: Path) -> str:
        with pytest.raises((ValueError, OSError)) as caught:
            check(*parts(root, 0.2))
        assert "\n" not in str(caught.value)
        return str(caught.value)

    (tmp_path / "none").mkdir()
    assert "image folder: " in says(tmp_path / "none")
    one = pictures.write(tmp_path / "one", {"cat": 5})
    assert says(one).endswith("but there is one: 'cat'")
    single = pictures.write(tmp_path / "single", {"cat": 5, "dog": 1})
    assert says(single) == "image folder: class 'dog' has no image to validate"
    (single / "emu").mkdir()
    assert says(single) == "image folder: class 'emu' has no image to train"
    broken = pictures.write(tmp_path / "broken", {"cat": 5, "dog": 5}, side=64, suffix="jpg")
    whole = (broken / "dog" / "3.jpg").read_bytes()
    (broken / "dog" / "3.jpg").write_bytes(whole[: len(whole) // 2])
    assert f"{broken / 'dog' / '3.jpg'} cannot be read as an image: image file is trunc" in says(
        broken
    )
    (broken / "cat" / "0.jpg").write_text("no image")
    assert says(broken).endswith("(and 1 more)")
    other = pictures.write(tmp_path / "other" / "train", {"cat": 5, "dog": 5}).parent
    pictures.write(other / "val", {"cat": 5, "emu": 5})
    assert says(other) == f"{other}: train and val must hold the same classes, not ['dog', 'emu']"
