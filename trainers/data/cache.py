"""What is kept of the files of an image folder, between the times that they are used.

| `cache` | what is kept |
|---|---|
| none | nothing |
| disk | copies of files in the folder `cache_dir`, made before training and kept after it |
| memory | the bytes of files, in memory, until the training ends |
| decoded | images as they were decoded, in memory, until the training ends |

`cache_gb` is the most that is kept, in 2^30 bytes (4): in the folder, or in the memory of a rank
and its loader's processes together. Images that do not fit are read again each time. A JPEG is kept
once for every scale (1, 1/2, 1/4, 1/8) at which it was decoded, so that images are the same bit for
bit at every level.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path

from trainers.data.copies import Copies
from trainers.data.decoded import PER_IMAGE, decoded
from trainers.data.picture import Picture, Source, opened
from trainers.data.shared import Shared
from trainers.readers import Number, one_of, optional, text
from trainers.technique import Knob, when

LEVELS = ("none", "disk", "memory", "decoded")

KNOBS: Mapping[str, Knob] = {
    "cache": Knob(
        "none",
        one_of(LEVELS),
        "exact",
        when("data", "folder"),
        memory=False,
    ),
    "cache_dir": Knob(
        None,
        optional(text),
        "exact",
        when("cache", "disk"),
        memory=False,
    ),
    "cache_gb": Knob(
        4.0,
        Number(0.0, open_low=True),
        "exact",
        when("cache", "disk", "memory", "decoded"),
        memory=False,
    ),
}


def check(values: Mapping[str, object]) -> None:
    """Raise a ValueError, one line, for copies without a folder."""
    if values["cache"] == "disk" and values["cache_dir"] is None:
        raise ValueError("cache 'disk' needs cache_dir, a folder on a disk of this machine")


def source(level: str, folder: str | None, gb: float, paths: Sequence[str]) -> Source:
    """What opens the images of these paths, by their numbers.

    Raises:
        ValueError: the folder of copies cannot be made, or there is not so much memory; one line.
    """
    if level == "none":
        return lambda number, path: opened(path)
    try:
        limit = int(gb * 2**30)
        if level == "disk":
            assert folder is not None, "required before"
            return Copies(folder, limit, paths)
        kept = Shared(len(paths) * (1 if level == "memory" else PER_IMAGE), limit)
    except (OSError, OverflowError) as error:
        raise ValueError(f"cache_gb {gb:g} cannot be had on this machine: {error}") from None
    return _of_bytes(kept) if level == "memory" else decoded(kept)


def _of_bytes(kept: Shared) -> Source:
    def open_(number: int, path: str) -> Picture:
        found: bytes | memoryview | None = kept.get(number)
        if found is None:
            found = Path(path).read_bytes()
            kept.put(number, found)
        return opened(BytesIO(found))

    return open_
