"""What of a working directory is sent to a cluster."""

from __future__ import annotations

import os
import subprocess
import zipfile
from pathlib import Path

import pytest

from autotune.cli.jobs import archive as shipping
from autotune.errors import UserError


def tree(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)


def names(root: Path) -> list[str]:
    return [path.relative_to(root).as_posix() for path in shipping.files(root)]


def test_what_git_ignores_is_left_out(tmp_path: Path) -> None:
    """The same files that git itself would add."""
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    tree(
        tmp_path,
        *("a.py", "b.log", "keep.log", "data/x.bin", "deep/data/y.py", "deep/z.tmp"),
        *("deep/er/z.tmp", "deep/er/c.py", "build/d.py", "deep/build/e.py", "pkg/__init__.py"),
    )
    (tmp_path / ".gitignore").write_text("*.log\n!keep.log\n/data\nbuild/\n# comment\n\n")
    (tmp_path / "deep" / ".gitignore").write_text("*.tmp\n!er/z.tmp\n")
    command = ["git", "ls-files", "--others", "--exclude-standard"]
    git = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert sorted(names(tmp_path)) == sorted(git.stdout.split())
    assert "deep/er/z.tmp" in names(tmp_path)
    assert "b.log" not in names(tmp_path)


def test_rules_above_the_directory_count(tmp_path: Path) -> None:
    tree(tmp_path, "sub/a.py", "sub/b.log", "sub/c.csv")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".gitignore").write_text("*.log\nsub/*.csv\n")
    assert names(tmp_path / "sub") == ["a.py"]


def test_never_sent(tmp_path: Path) -> None:
    tree(tmp_path, "a.py", "__pycache__/a.pyc", ".git/config", "x.bin", "far/b.py")
    tree(tmp_path, "runs/one/journal.jsonl", "runs/one/experiment.json", "runs/one/mlflow.db")
    (tmp_path / ".rayignore").write_text("*.bin\n")
    (tmp_path / "link").symlink_to(tmp_path / "far")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    (tmp_path / "file.py").symlink_to(tmp_path / "a.py")
    assert names(tmp_path) == [".rayignore", "a.py", "far/b.py", "file.py"]


def test_the_same_files_are_the_same_archive(tmp_path: Path) -> None:
    root = tmp_path / "root"
    tree(root, "a.py", "b/c.sh")
    (root / "b" / "c.sh").chmod(0o755)
    first = shipping.pack(root, tmp_path / "1.zip").read_bytes()
    os.utime(root / "a.py", (1e9, 1e9))
    assert shipping.pack(root, tmp_path / "2.zip").read_bytes() == first
    with zipfile.ZipFile(tmp_path / "1.zip") as archive:
        assert archive.read("a.py") == b"a.py"
        assert archive.getinfo("b/c.sh").external_attr >> 16 == 0o755


def test_too_large_names_the_largest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "root"
    tree(root, "a.py")
    (root / "weights.bin").write_bytes(os.urandom(3 * 2**20))
    (root / "data").mkdir()
    (root / "data" / "train.bin").write_bytes(os.urandom(5 * 2**20))
    monkeypatch.setattr(shipping, "LIMIT_BYTES", 4 * 2**20)
    with pytest.raises(UserError) as caught:
        shipping.pack(root, tmp_path / "1.zip")
    said = str(caught.value)
    assert "has 8 MiB that are not ignored, and a cluster takes 4 MiB packed" in said
    assert said.endswith("data/train.bin (5 MiB), weights.bin (3 MiB)")
    monkeypatch.setattr(shipping, "_PACKS_BYTES", 7 * 2**20)
    with pytest.raises(UserError, match=r"data/train\.bin \(5 MiB\)"):
        shipping.pack(root, tmp_path / "2.zip")
    assert not (tmp_path / "2.zip").exists()
    (root / ".gitignore").write_text("data/\n")
    assert shipping.pack(root, tmp_path / "3.zip").stat().st_size < 4 * 2**20


def test_nothing_to_send(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("*\n")
    with pytest.raises(UserError, match="nothing to submit"):
        shipping.pack(tmp_path, tmp_path / "x.zip")
