"""Image augmentation on the device: crop with padding, flip and cutout of a batch, and resizing.

Random numbers depend on the seed, the epoch and the sample's position in it, and not on the batch
size, the number of ranks or earlier steps: `draw` once an epoch, then `moved` and `cut`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

PARTS = ("crop", "flip", "cutout")
AT_ONCE = 4096  # images of a gather; on a GPU its indices are 32 bytes for each of their numbers


def draw(count: int, shape: tuple[int, int, int], generator: torch.Generator) -> Tensor:
    """Five random numbers for each of `count` samples: two shifts, flip, centre of the cutout."""
    _, height, width = shape
    pad_y, pad_x = _padding(height), _padding(width)
    ranges = ((-pad_y, pad_y + 1), (-pad_x, pad_x + 1), (0, 2), (0, height), (0, width))
    return torch.stack([torch.randint(a, b, (count,), generator=generator) for a, b in ranges])


def moved(images: Tensor, index: Tensor, drawn: Tensor, parts: frozenset[str]) -> Tensor:
    """The images at `index`, shifted and mirrored by the numbers `drawn` (5, len(index)).

    `crop` shifts by up to an eighth of the size and mirrors what is missing, `flip` mirrors left
    and right half of the time. Both are one gather for every `AT_ONCE` images, of any dtype.
    """
    if not parts & {"crop", "flip"}:
        return images.index_select(0, index)
    if len(index) <= AT_ONCE:
        return _gathered(images, index, drawn, parts)
    found = images.new_empty((len(index), *images.shape[1:]))
    for low in range(0, len(index), AT_ONCE):
        part = slice(low, low + AT_ONCE)
        found[part] = _gathered(images, index[part], drawn[:, part], parts)
    return found


def _gathered(images: Tensor, index: Tensor, drawn: Tensor, parts: frozenset[str]) -> Tensor:
    _, channels, height, width = images.shape
    down, right, flip = drawn[:3]
    rows = torch.arange(height, device=images.device).expand(len(index), height)
    columns = torch.arange(width, device=images.device).expand(len(index), width)
    if "flip" in parts:
        columns = torch.where(flip.bool()[:, None], width - 1 - columns, columns)
    if "crop" in parts:
        rows = _mirrored(rows + down[:, None], height)
        columns = _mirrored(columns + right[:, None], width)
    channel = torch.arange(channels, device=images.device)[None, :, None, None]
    return images[
        index[:, None, None, None], channel, rows[:, None, :, None], columns[:, None, None]
    ]


def cut(images: Tensor, drawn: Tensor) -> Tensor:
    """Normalised images with a square of a quarter of the size set to the mean.

    `cutout` (DeVries and Taylor 2017, arXiv 1708.04552), at the centres `drawn` (5, len(images)).
    """
    count, _, height, width = images.shape
    rows = torch.arange(height, device=images.device).expand(count, height)
    columns = torch.arange(width, device=images.device).expand(count, width)
    hole = _near(rows, drawn[3])[:, :, None] & _near(columns, drawn[4])[:, None, :]
    return images.masked_fill(hole[:, None], 0.0)


def resized(images: Tensor, size: int) -> Tensor:
    """Resize the images (N, C, H, W) to `size` pixels a side.

    Bilinear, and antialiased when they shrink. Images of that size are returned unchanged.
    """
    own = images.shape[-1]
    if size == own:
        return images
    return F.interpolate(images, (size, size), mode="bilinear", antialias=size < own)


def _padding(size: int) -> int:
    return max(1, size // 8)


def _near(places: Tensor, centre: Tensor) -> Tensor:
    side = max(2, places.shape[1] // 4)
    offset = places - centre[:, None] + side // 2
    return (offset >= 0) & (offset < side)


def _mirrored(places: Tensor, size: int) -> Tensor:
    places = places.abs()
    return torch.where(places >= size, 2 * (size - 1) - places, places)
