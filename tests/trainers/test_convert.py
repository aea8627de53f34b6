"""Archives and lists of images become folders of classes."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

import pictures
import pytest

from trainers.convert import convert, main
from trainers.data.image_files import parts


def found(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()}


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return pictures.write(tmp_path / "images", {"cat": 3, "dog": 3})


@pytest.mark.parametrize("kind", ["zip", "gztar", "tar"])
@pytest.mark.parametrize("top", [True, False])
def test_an_archive_is_unpacked(kind: str, top: bool, images: Path, tmp_path: Path) -> None:
    where = {"root_dir": images.parent, "base_dir": "images"} if top else {"root_dir": images}
    archive = Path(shutil.make_archive(str(tmp_path / "packed"), kind, **where))
    assert convert(archive, tmp_path / "to") == 6
    assert found(tmp_path / "to") == found(images)


def test_an_archive_cannot_write_elsewhere(images: Path, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "bad.tar", "w") as packed:
        packed.add(images / "cat" / "0.png", "../../outside.png")
    with pytest.raises(ValueError, match="cannot be unpacked"):
        convert(tmp_path / "bad.tar", tmp_path / "in" / "to")
    assert not (tmp_path / "outside.png").exists()
    assert not list((tmp_path / "in").iterdir())


LISTS = {
    "plain": "cat/0.png,a cat\ndog/1.png,dog\n",
    "named": "label,height,image\na cat,16,cat/0.png\ndog,17,dog/1.png\n",
    "tabs": "file\tclass\ncat/0\ta cat\ndog/1\tdog\n\n",
    "numbers": "cat/0.png 0\ndog/1.png 1\n",
}


@pytest.mark.parametrize("kind", LISTS)
def test_a_list_is_sorted_into_classes(kind: str, images: Path, tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text(LISTS[kind])
    (tmp_path / "names.txt").write_text("a cat\ndog\n")
    classes = tmp_path / "names.txt" if kind == "numbers" else None
    assert convert(tmp_path / "list.csv", tmp_path / "to", images, classes) == 2
    assert found(tmp_path / "to") == {"a cat/cat_0.png", "dog/dog_1.png"}
    for part in ("train", "val"):
        convert(tmp_path / "list.csv", tmp_path / "both" / part, images, classes)
    assert [len(files.paths) for files in parts(tmp_path / "both", 0.2)] == [2, 2]


MISTAKES = {
    "cat/9.png,cat": "list.csv, line 1: there is no file",
    "cat/0.png": "list.csv, line 1 must be FILE,CLASS but is 'cat/0.png'",
    "cat/0.png,..": "'..' cannot be the name of a class",
    "cat/0.png,cat\ncat/0.png,cat": "list.csv, line 2: cat/0.png is there twice",
    "a.txt,cat": "a.txt is no image",
    "": "list.csv has no images",
    f"file,label\n{'x' * 200_000},cat": "list.csv, line 2: field larger than field limit",
}


@pytest.mark.parametrize("text", MISTAKES)
def test_a_wrong_list_is_one_line_and_leaves_nothing(
    text: str, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (images / "a.txt").write_text("")
    (tmp_path / "list.csv").write_text(text)
    before = found(tmp_path)
    given = [str(tmp_path / "list.csv"), str(tmp_path / "to"), "--images", str(images)]
    assert main(given) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert MISTAKES[text] in err
    assert found(tmp_path) == before
    assert not (tmp_path / "to").exists()


def test_a_list_with_absolute_paths_and_a_folder_beside_the_new_one(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "to.part" / "mine.txt"
    kept.parent.mkdir()
    kept.write_text("precious")
    lines = [f"{images}/cat/0.png,cat", f"{images}/cat/1.png,cat", f"{images}/dog/1.png,dog"]
    (tmp_path / "list.csv").write_text("\n".join(lines))
    monkeypatch.chdir(tmp_path)
    assert convert(Path("list.csv"), Path("to")) == 3
    assert len(found(tmp_path / "to")) == 3
    assert kept.read_text() == "precious"
    assert {path.name for path in tmp_path.iterdir()} == {"images", "list.csv", "to", "to.part"}


def test_other_mistakes(images: Path, tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text("cat/0.png,7\n")
    (tmp_path / "names.txt").write_text("cat\n")
    with pytest.raises(ValueError, match="class '7' must be from 0 to 0"):
        convert(tmp_path / "list.csv", tmp_path / "to", images, tmp_path / "names.txt")
    with pytest.raises(ValueError, match="exists and is not an empty folder"):
        convert(tmp_path / "list.csv", images)
    with pytest.raises(ValueError, match="is no file"):
        convert(images, tmp_path / "to")
    (tmp_path / "odd.bin").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="neither an archive nor a list"):
        convert(tmp_path / "odd.bin", tmp_path / "to")
    (tmp_path / "odd.zip").write_bytes(b"PK nothing")
    with pytest.raises(ValueError, match="cannot be unpacked"):
        convert(tmp_path / "odd.zip", tmp_path / "to")
