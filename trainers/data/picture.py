"""Images of files, decoded with as many pixels as are needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from PIL import Image

from trainers.data.image_files import DECODED

Size = tuple[int, int]


class Picture(Protocol):
    """An image of a file; `size` is that of the file."""

    @property
    def size(self) -> Size: ...

    def at_least(self, least: Size) -> Image.Image:
        """The image in colours, with at least so many pixels if the file has them."""
        ...


Source = Callable[[int, str], Picture]
"""Opens the image of a number at a path; OSError or SyntaxError if it cannot be read."""


def shrunk(file: Image.Image, least: Size, mode: str = "RGB") -> Image.Image:
    """The image of a file; a JPEG that is not loaded is decoded at a half, a quarter or an eighth.

    Its decoder then computes fewer pixels. Other formats ignore `least`.
    """
    file.draft(mode, least)
    return file.convert(mode)


@dataclass(frozen=True)
class _File:
    """An image of a file that is open."""

    file: Image.Image
    size: Size

    def at_least(self, least: Size) -> Image.Image:
        with self.file:
            return shrunk(self.file, least)


def opened(path: Any) -> _File:
    """The image of a path or an open file."""
    file = Image.open(path, formats=DECODED)
    return _File(file, file.size)
