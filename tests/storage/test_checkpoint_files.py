"""Checkpoints on disk and behind URLs: whole or not there, and known to be what was written."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from autotune.storage import checkpoint_files


def write(folder: str, data: bytes, name: str = "rank-0.pt") -> str:
    with checkpoint_files.writing(folder, name) as file:
        file.write(data[:3])
        file.write(data[3:])
    return file.checksum


def check(folder: str, expected: str, name: str = "rank-0.pt") -> None:
    with checkpoint_files.reading(folder, name) as file:
        checkpoint_files.verify(file, expected, checkpoint_files.join(folder, name))


@contextmanager
def half(folder: Path) -> Iterator[None]:
    """A file of which half is written when the block begins."""
    with checkpoint_files.writing(str(folder), "rank-0.pt") as file:
        file.write(b"half")
        yield


@pytest.fixture(params=["path", "file", "dir"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A folder as a path, and as URLs of two of fsspec's filesystems."""
    folder = tmp_path / "with space"
    kinds = {"path": str(folder), "file": f"file://{folder}", "dir": f"local://{folder}"}
    return kinds[request.param]


def test_what_is_written_is_read_back_and_checked(root: str) -> None:
    place = checkpoint_files.join(root, "trial-0001", "step-10")
    written = write(place, b"0123456789")
    assert checkpoint_files.names(place) == ["rank-0.pt"]
    with checkpoint_files.reading(place, "rank-0.pt") as file:
        assert file.read() == b"0123456789"
    check(place, written)


@pytest.mark.parametrize("damage", ["cut", "flipped", "gone"])
def test_damage_is_reported(root: str, tmp_path: Path, damage: str) -> None:
    written = write(root, b"0123456789")
    file = tmp_path / "with space" / "rank-0.pt"
    data = bytearray(file.read_bytes())
    if damage == "cut":
        file.write_bytes(data[:7])
    elif damage == "flipped":
        data[4] ^= 1
        file.write_bytes(data)
    else:
        file.unlink()
    gone = pytest.raises(FileNotFoundError)
    damaged = pytest.raises(checkpoint_files.DamagedError, match="is damaged: its checksum is crc")
    with gone if damage == "gone" else damaged:
        check(root, written)


def test_copies_outlive_what_they_were_made_from(root: str) -> None:
    source, to = checkpoint_files.join(root, "a"), checkpoint_files.join(root, "b", "step-1")
    write(source, b"state 0")
    write(source, b"state 1", "rank-1.pt")
    assert checkpoint_files.copy(source, to)
    checkpoint_files.remove(source)
    assert checkpoint_files.names(source) == []
    assert checkpoint_files.names(to) == ["rank-0.pt", "rank-1.pt"]
    with checkpoint_files.reading(to, "rank-1.pt") as file:
        assert file.read() == b"state 1"
    assert not checkpoint_files.copy(
        checkpoint_files.join(root, "nothing"), checkpoint_files.join(root, "c")
    )


def test_on_a_disk_copies_are_links(tmp_path: Path) -> None:
    write(str(tmp_path / "a"), b"state")
    checkpoint_files.copy(str(tmp_path / "a"), str(tmp_path / "b"))
    assert (tmp_path / "a" / "rank-0.pt").samefile(tmp_path / "b" / "rank-0.pt")


def test_what_breaks_off_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="broken off"), half(tmp_path):
        raise RuntimeError("broken off")
    assert os.listdir(tmp_path) == []


def test_what_is_replaced_stays_until_the_new_one_is_whole(tmp_path: Path) -> None:
    write(str(tmp_path), b"before")
    with pytest.raises(RuntimeError, match="broken off"), half(tmp_path):
        raise RuntimeError("broken off")
    assert (tmp_path / "rank-0.pt").read_bytes() == b"before"


def test_a_killed_writer_leaves_no_file_of_that_name(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from autotune.storage import checkpoint_files\n"
        "with checkpoint_files.writing(sys.argv[1], 'rank-0.pt') as file:\n"
        "    file.write(b'half' * 10**6); file.flush(); os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code, tmp_path], check=False, timeout=900)
    assert os.listdir(tmp_path) == ["rank-0.pt.part"]
    assert checkpoint_files.copy(str(tmp_path), str(tmp_path.with_name("copy"))) is False


def test_a_full_disk_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk's."""
    code = (
        "import resource, signal, sys; from autotune.storage import checkpoint_files\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (10**5, 10**5))\n"
        "try:\n"
        "    with checkpoint_files.writing(sys.argv[1], 'rank-0.pt') as file:\n"
        "        file.write(b'x' * 10**6)\n"
        "except OSError as error: print(error.errno)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path], capture_output=True, text=True, timeout=900
    )
    assert done.stdout.strip() == str(errno.EFBIG), done.stderr
    assert os.listdir(tmp_path) == []


def test_an_unknown_protocol_is_refused() -> None:
    with pytest.raises(ValueError, match="Protocol not known: nowhere"):
        checkpoint_files.reach("nowhere://bucket")


def test_a_store_that_refuses_at_once_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with pytest.raises(OSError, match="refused"):
        checkpoint_files.reach(f"ftp://127.0.0.1:{port}/bucket")


class Unreachable(MemoryFileSystem):
    """A store that is there, but does not answer; its errors are its own."""

    protocol = "unreachable"

    def ls(self, path, detail=True, **options):
        raise LookupError("no answer")

    def _open(self, path, *arguments, **options):
        raise LookupError("no answer")


def test_a_store_that_does_not_answer_is_not_damaged() -> None:
    fsspec.register_implementation("unreachable", Unreachable, clobber=True)
    place = "unreachable://bucket/trial-0001/step-10"
    with pytest.raises(OSError, match="LookupError: no answer"):
        checkpoint_files.names(place)
    with pytest.raises(OSError, match="LookupError: no answer"):
        check(place, "crc32:00000000")
    with pytest.raises(checkpoint_files.UnreachableError, match="no answer"):
        checkpoint_files.demand("unreachable://bucket")
    with pytest.raises(FileNotFoundError):
        check("/nowhere/at/all", "crc32:00000000")


def test_a_root_that_is_not_there_is_out_of_reach_and_an_empty_one_is_not(tmp_path: Path) -> None:
    with pytest.raises(checkpoint_files.UnreachableError, match="is not there"):
        checkpoint_files.demand(str(tmp_path / "mount"))
    (tmp_path / "mount").mkdir()
    checkpoint_files.demand(str(tmp_path / "mount"))


def test_a_checkpoints_folder_is_made_in_a_root_that_is_there_only(tmp_path: Path) -> None:
    """A mount that is gone leaves an empty folder, in which nothing is to be made."""
    root, gone = tmp_path / "mount" / "digits-5eed5eed", tmp_path / "gone" / "digits-5eed5eed"
    checkpoint_files.make_root(str(root))
    checkpoint_files.make_root(str(root))
    checkpoint = checkpoint_files.join(str(root), "trial-0001", "step-10")
    for _ in range(2):  # every rank makes it
        checkpoint_files.make_below_root(checkpoint)
    assert os.path.isdir(checkpoint)
    gone.parent.mkdir()
    with pytest.raises(checkpoint_files.UnreachableError, match="5eed5eed is not there"):
        checkpoint_files.make_below_root(checkpoint_files.join(str(gone), "trial-0001", "step-10"))
    assert os.listdir(gone.parent) == []
    assert not checkpoint_files.copy(str(gone / "trial-0001"), str(gone / "trial-0002" / "step-10"))
    assert os.listdir(gone.parent) == [], "nor by the driver, which copies for forks"


def test_behind_a_url_and_in_a_study_folder_of_another_node_no_root_is_asked_for(
    tmp_path: Path,
) -> None:
    for root in (f"file://{tmp_path}/bucket/digits-5eed5eed", str(tmp_path / "study/checkpoints")):
        place = checkpoint_files.join(root, "trial-0001", "step-10")
        checkpoint_files.make_below_root(place)
        write(place, b"state")
        assert checkpoint_files.names(place) == ["rank-0.pt"]


class Second(MemoryFileSystem):
    """A store that tells who comes second to make a folder an error, as FTP servers do."""

    protocol = "second"
    answered = False

    def makedirs(self, path, exist_ok=False):
        super().makedirs(path, exist_ok=True)
        if not Second.answered:
            Second.answered = True
            raise LookupError("550 it is there")


def test_two_ranks_may_make_a_folder_at_the_same_moment() -> None:
    fsspec.register_implementation("second", Second, clobber=True)
    write("second://bucket/trial-0001/step-10", b"0123456789")
    assert Second.answered
    assert checkpoint_files.names("second://bucket/trial-0001/step-10") == ["rank-0.pt"]
