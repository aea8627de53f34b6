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
    return [path.relative_to(root).as_posix() for path in shipping.select(root).files]


def pack(root: Path, to: Path) -> Path:
    return shipping.pack(shipping.select(root), to)


def test_what_git_ignores_is_left_out(tmp_path: Path) -> None:
    """The same files that git itself would add."""
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    tree(
        tmp_path,
        *("a.py", "b.log", "keep.log", "data/x.bin", "deep/data/y.py", "deep/z.tmp"),
        *("deep/er/z.tmp", "deep/er/c.py", "build/d.py", "deep/build/e.py", "pkg/__init__.py"),
    )
    (tmp_path / ".gitignore").write_text("*.log\n!keep.log\n/data\nbuild/\n# comment\n\n!\na\\\n")
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


def test_links_are_sent_only_for_files_that_are_sent_themselves(tmp_path: Path) -> None:
    """Nothing outside of the folder is followed, and nothing that stays here for its own sake."""
    root = tmp_path / "root"
    tree(root, "a.py", "data/big.bin", "data/.gitignore", ".env")
    tree(tmp_path, "secret.txt", "far/b.py")
    (root / "data" / ".gitignore").write_text("*.bin\n")
    links = {"inside": root / "a.py", "outside": tmp_path / "secret.txt", "folder": root / "data"}
    links |= {"far": tmp_path / "far", "ignored": root / "data" / "big.bin", "env": root / ".env"}
    links |= {"loop": root / "loop", "nowhere": root / "none"}
    for name, target in links.items():
        (root / name).symlink_to(target)
    assert names(root) == ["a.py", "data/.gitignore", "inside"]
    secrets, left = shipping.notes(shipping.select(root))
    assert secrets.startswith("not sent: '.env' (may hold a secret")
    assert "'env', 'far', 'folder', 'ignored', 'loop' and 2 more (a link" in left
    with zipfile.ZipFile(pack(root, tmp_path / "1.zip")) as archive:
        assert archive.read("inside") == b"a.py"


KEPT = """
    .env .env.local prod.env sub/.netrc id_rsa id_ed25519 server.pem tls.KEY .aws/credentials
    .ssh/config credentials.json .git-credentials .pypirc sub/kubeconfig secrets.toml plain_name
"""
SENT = ".env.example id_rsa.pub key.py keys/a.txt environment.py secrets.py monkey.keys"


def test_secrets_stay_here_unless_they_are_asked_for(tmp_path: Path) -> None:
    tree(tmp_path, *KEPT.split(), *SENT.split())
    (tmp_path / "plain_name").write_text("-----BEGIN OPENSSH PRIVATE KEY-----\nx\n")
    (tmp_path / ".gitignore").write_text("!.env\n")  # says what git keeps, not what is sent
    assert names(tmp_path) == sorted([".gitignore", *SENT.split()])
    (note,) = shipping.notes(shipping.select(tmp_path))
    assert "and 11 more (may hold a secret; to send it, write its name after ! into .rayign" in note
    (tmp_path / ".rayignore").write_text("!.env\n!server.pem\n")
    assert {".env", "server.pem"} <= {*names(tmp_path)}


def test_a_name_that_is_not_utf8_is_not_sent(tmp_path: Path) -> None:
    tree(tmp_path, "a.py")
    (tmp_path / os.fsdecode(b"caf\xe9.jpg")).touch()
    assert names(tmp_path) == ["a.py"]
    assert shipping.notes(shipping.select(tmp_path)) == [
        "not sent: 'caf\\udce9.jpg' (its name is not UTF-8)"
    ]


def test_the_same_files_are_the_same_archive(tmp_path: Path) -> None:
    root = tmp_path / "root"
    tree(root, "a.py", "b/c.sh")
    (root / "b" / "c.sh").chmod(0o755)
    first = pack(root, tmp_path / "1.zip").read_bytes()
    os.utime(root / "a.py", (1e9, 1e9))
    assert pack(root, tmp_path / "2.zip").read_bytes() == first
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
        pack(root, tmp_path / "1.zip")
    said = str(caught.value)
    assert "has 8 MiB that are not ignored, and a cluster takes 4 MiB packed" in said
    assert said.endswith("data/train.bin (5 MiB), weights.bin (3 MiB)")
    monkeypatch.setattr(shipping, "_PACKS_BYTES", 7 * 2**20)
    with pytest.raises(UserError, match=r"data/train\.bin \(5 MiB\)"):
        pack(root, tmp_path / "2.zip")
    assert not (tmp_path / "2.zip").exists()
    (root / ".gitignore").write_text("data/\n")
    assert pack(root, tmp_path / "3.zip").stat().st_size < 4 * 2**20


def test_nothing_to_send(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("*\n")
    with pytest.raises(UserError, match="nothing to submit"):
        pack(tmp_path, tmp_path / "x.zip")
