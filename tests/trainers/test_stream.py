from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainers.augment import augmented, draw
from trainers.data import Images
from trainers.distributed import Ranks
from trainers.stream import MemoryStream, spans

CPU = torch.device("cpu")


def numbered(count: int) -> Images:
    """Images whose only pixel value is their number."""
    x = torch.arange(count, dtype=torch.float32).view(-1, 1, 1, 1).expand(count, 1, 8, 8)
    y = torch.arange(count)
    return Images(x, y, x[:7], y[:7], count)


def taken(ranks: int, sizes: list[int], augment: frozenset[str] = frozenset()) -> list[int]:
    streams = [MemoryStream(numbered(50), augment, 3, Ranks(r, ranks, CPU)) for r in range(ranks)]
    labels: list[int] = []
    seen = 0
    for size in sizes:
        labels += [int(y) for stream in streams for y in stream.take(seen, size)[1]]
        seen += size
    return labels


@given(st.integers(0, 500), st.integers(0, 200), st.integers(1, 60))
def test_spans_cover_the_range_once(start: int, length: int, count: int) -> None:
    covered = [
        e * count + i for e, a, b in spans(start, start + length, count) for i in range(a, b)
    ]
    assert covered == list(range(start, start + length))


@given(st.integers(0, 1000), st.integers(0, 300), st.integers(1, 9))
def test_shares_are_even_and_cover_the_range(start: int, length: int, size: int) -> None:
    shares = [Ranks(r, size, CPU).share(start, start + length) for r in range(size)]
    assert [i for a, b in shares for i in range(a, b)] == list(range(start, start + length))
    assert max(b - a for a, b in shares) - min(b - a for a, b in shares) <= 1


def test_the_order_depends_on_neither_ranks_nor_batch_size() -> None:
    reference = taken(1, [150])
    assert taken(1, [7] * 21) == reference[:147]
    assert taken(3, [7, 40, 60, 43]) == reference


def test_every_epoch_holds_every_sample_once_in_an_order_of_its_own() -> None:
    order = taken(1, [150])
    epochs = [order[i : i + 50] for i in (0, 50, 100)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(50))] * 3
    assert epochs[0] != epochs[1] != epochs[2]


def test_augmentation_does_not_depend_on_ranks_or_batch_size() -> None:
    images = torch.randn(50, 2, 8, 8, generator=torch.Generator().manual_seed(0))
    data = Images(images, torch.arange(50), images, torch.arange(50), 50)
    parts = frozenset(("crop", "flip", "cutout"))
    whole = MemoryStream(data, parts, 1, Ranks(0, 1, CPU)).take(30, 40)[0]
    second = MemoryStream(data, parts, 1, Ranks(1, 2, CPU))
    torch.testing.assert_close(second.take(30, 40)[0], whole[20:], rtol=0, atol=0)
    assert not torch.equal(whole, MemoryStream(data, parts, 2, Ranks(0, 1, CPU)).take(30, 40)[0])


@pytest.mark.parametrize("parts", [("crop",), ("flip",), ("cutout",), ("crop", "flip", "cutout")])
def test_augmented_equals_one_image_at_a_time(parts: tuple[str, ...]) -> None:
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(20, 3, 16, 16, generator=generator)
    index = torch.randperm(20, generator=generator)
    drawn = draw(20, (3, 16, 16), generator)
    found = augmented(images, index, drawn, frozenset(parts))
    for place, number in enumerate(index):
        down, right, flip, y, x = drawn[:, place].tolist()
        image = images[number]
        if "crop" in parts:
            padded = torch.nn.functional.pad(image[None], (2, 2, 2, 2), mode="reflect")[0]
            image = padded[:, 2 + down : 18 + down, 2 + right : 18 + right]
        if "flip" in parts and flip:
            image = (
                image.flip(2) if "crop" not in parts else _flip_first(images[number], down, right)
            )
        image = image.clone()
        if "cutout" in parts:
            image[:, max(0, y - 2) : y + 2, max(0, x - 2) : x + 2] = 0
        assert torch.equal(found[place], image)


def _flip_first(image: torch.Tensor, down: int, right: int) -> torch.Tensor:
    """Flipped, then shifted the other way, as one gather of mirrored columns does."""
    width = image.shape[2]
    columns = (width - 1 - torch.arange(width) + right).abs()
    columns = torch.where(columns >= width, 2 * (width - 1) - columns, columns)
    rows = (torch.arange(width) + down).abs()
    rows = torch.where(rows >= width, 2 * (width - 1) - rows, rows)
    return image[:, rows][:, :, columns]


def test_validation_is_shared_out_completely() -> None:
    found = [
        int(label)
        for rank in range(3)
        for _, y in MemoryStream(numbered(50), frozenset(), 0, Ranks(rank, 3, CPU)).validation(2)
        for label in y
    ]
    assert found == list(range(7))
