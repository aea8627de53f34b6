"""A small real disk for tests, which can be filled, become read-only, and be slow.

It is an ext4 in a file, on a loop device: that needs root, and a system that allows it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

_BALLAST = "ballast"
_SLOW = """
trap 'fsfreeze -u "$0" 2>/dev/null; exit' TERM
while kill -0 "$1" 2>/dev/null; do
    fsfreeze -f "$0"; sleep "$2"; fsfreeze -u "$0"; sleep 0.02
done
"""


class Disk:
    """`place` is where it is mounted."""

    def __init__(self, folder: Path, kib: int) -> None:
        self.place = folder / "disk"
        self.place.mkdir()
        self._image = folder / "disk.img"
        with open(self._image, "wb") as file:
            file.truncate(kib * 1024)
        _call("mkfs.ext4", "-q", "-F", "-m", "0", "-O", "^has_journal", str(self._image))
        self.mount()

    def mount(self, options: str = "loop") -> None:
        _call("mount", "-o", options, str(self._image), str(self.place))

    def unmount(self) -> None:
        _call("umount", str(self.place))

    def reserve(self, file: Path, size: int) -> None:
        """Keep room for `size` more bytes of a file, also when the disk is full."""
        end = str(file.stat().st_size)
        _call("fallocate", "--keep-size", "--offset", end, "--length", str(size), str(file))

    def fill(self) -> None:
        """Take all the room that is left."""
        with open(self.place / _BALLAST, "ab", buffering=0) as file:
            for size in (2**16, 2**12, 1):
                with contextlib.suppress(OSError):
                    while True:
                        file.write(bytes(size))

    def free(self) -> None:
        (self.place / _BALLAST).unlink()

    def fail(self) -> None:
        """Become read-only at once, as a disk does that has an error."""
        _call("mount", "-o", "remount,abort", str(self.place))

    @contextlib.contextmanager
    def slow(self, seconds: float) -> Iterator[None]:
        """Everything that is written waits for up to so many seconds."""
        loop = subprocess.Popen(
            ["bash", "-c", _SLOW, str(self.place), str(os.getpid()), str(seconds)]
        )
        try:
            yield
        finally:
            loop.terminate()
            loop.wait()
            subprocess.run(["fsfreeze", "-u", str(self.place)], capture_output=True)

    def close(self) -> None:
        subprocess.run(["umount", str(self.place)], capture_output=True)
        subprocess.run(["umount", "-l", str(self.place)], capture_output=True)


def _call(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def missing() -> str:
    """Why there can be no such disk here; an empty string if there can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "only root can mount a disk"
    tools = [t for t in ("mkfs.ext4", "mount", "fsfreeze") if shutil.which(t) is None]
    return f"{', '.join(tools)} not installed" if tools else ""


@contextlib.contextmanager
def disk(folder: Path, kib: int = 1024) -> Iterator[Disk]:
    """A disk until the block is left; skips the test where none can be had."""
    if why := missing():
        pytest.skip(why)
    try:
        made = Disk(folder, kib)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no disk can be mounted: {error.stderr.decode(errors='replace').strip()}")
    try:
        yield made
    finally:
        made.close()
