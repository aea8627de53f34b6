"""Decoded images that the processes of a rank keep in the memory that they share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile

from trainers.data.picture import Picture, Size, Source, opened
from trainers.data.shared import Shared

_SCALES = (8, 4, 2, 1)  # of Pillow's JPEG decoder
PER_IMAGE = 1 + len(_SCALES)  # slots: what is known of the file, and its pixels at each scale


@dataclass(frozen=True)
class Decoded:
    """An image of which each scale is kept once it is decoded.

    Args:
        first: its first slot.
        scales: whether its decoder has scales.
    """

    kept: Shared
    first: int
    path: str
    size: Size
    scales: bool

    def at_least(self, least: Size) -> Image.Image:
        fits = min(self.size[0] // least[0], self.size[1] // least[1]) if self.scales else 1
        scale = next((scale for scale in _SCALES if fits >= scale), 1)
        size = -(-self.size[0] // scale), -(-self.size[1] // scale)
        slot = self.first + 1 + _SCALES.index(scale)
        found = self.kept.get(slot)
        if found is not None:
            return Image.frombytes("RGB", size, bytes(found))
        image = opened(self.path).at_least(least)
        if image.size == size:
            self.kept.put(slot, image.tobytes())
        return image


def decoded(kept: Shared) -> Source:
    """Opens images of which each scale is decoded once; an image has `PER_IMAGE` slots."""

    def open_(number: int, path: str) -> Picture:
        first = number * PER_IMAGE
        known: bytes | memoryview | None = kept.get(first)
        if known is None:
            with opened(path).file as file:
                about = (*file.size, isinstance(file, JpegImageFile))
            known = np.array(about, np.int32).tobytes()
            kept.put(first, known)
        width, height, scales = np.frombuffer(known, np.int32).tolist()
        return Decoded(kept, first, path, (width, height), bool(scales))

    return open_
