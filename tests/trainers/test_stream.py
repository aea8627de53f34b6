from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainers.data import augment
from trainers.data.augment import cut, draw, moved
from trainers.data.images import Images
from trainers.data.stream import MemoryStream, spans
from trainers.parallel.ranks import Ranks

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
    found = moved(images, index, drawn, frozenset(parts))
    found = cut(found, drawn) if "cutout" in parts else found
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


def bytes_of(count: int) -> Images:
    """Images as they are kept: bytes, with the mean and the spread of each channel."""
    generator = torch.Generator().manual_seed(4)
    x = torch.randint(0, 256, (count, 3, 8, 8), generator=generator, dtype=torch.uint8)
    spread, mean = torch.std_mean(x.float(), (0, 2, 3), keepdim=True)
    return Images(x, torch.arange(count), x[:7], torch.arange(7), count, mean, spread)


PARTS = [(), ("flip",), ("cutout",), ("crop", "flip", "cutout")]


@pytest.mark.parametrize("parts", PARTS, ids="+".join)
def test_bytes_are_normalised_as_whole_data_sets_were(parts: tuple[str, ...]) -> None:
    kept = bytes_of(50)
    floats = Images(kept.train_x, kept.train_y, kept.val_x, kept.val_y, 50)
    assert (kept.train.dtype, kept.train_x.dtype) == (torch.uint8, torch.float32)
    streams = [MemoryStream(x, frozenset(parts), 1, Ranks(0, 1, CPU)) for x in (kept, floats)]
    for seen, size in ((0, 20), (30, 40), (90, 33)):
        (x, y), (expected, labels) = (stream.take(seen, size, 6) for stream in streams)
        assert torch.equal(x, expected)
        assert torch.equal(y, labels)
    (x, y), (expected, labels) = (next(iter(stream.validation())) for stream in streams)
    assert torch.equal(x, expected)
    assert torch.equal(y, labels)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("parts", PARTS, ids="+".join)
def test_epochs_made_at_once_have_the_same_batches(parts: tuple[str, ...], ranks: int) -> None:
    """As on a GPU, with the next epoch's random numbers drawn on a thread."""
    for rank in range(ranks):
        each, whole = (
            MemoryStream(bytes_of(50), frozenset(parts), 1, Ranks(rank, ranks, CPU), None, at_once)
            for at_once in (False, True)
        )
        for seen in (*range(0, 170, 17), 160, 20):
            (x, y), (expected, labels) = (stream.take(seen, 17) for stream in (whole, each))
            assert torch.equal(x, expected)
            assert torch.equal(y, labels)
        whole.close()
        assert whole._thread is not None
        assert whole._thread._shutdown


@pytest.mark.parametrize("parts", [("crop",), ("flip",), ("crop", "flip")], ids="+".join)
@pytest.mark.parametrize("count", [20, 21, 30])
def test_a_gather_is_of_a_limited_number_of_images(
    count: int, parts: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Indices of a whole epoch would take gigabytes on a GPU; the images are the same."""
    images, generator = bytes_of(50).train, torch.Generator().manual_seed(2)
    index = torch.randperm(50, generator=generator)[:count]
    drawn = draw(count, (3, 8, 8), generator)
    whole = moved(images, index, drawn, frozenset(parts))
    gathered: list[int] = []
    real = augment._gathered

    def noted(images: torch.Tensor, index: torch.Tensor, *others: Any) -> torch.Tensor:
        gathered.append(len(index))
        return real(images, index, *others)

    monkeypatch.setattr(augment, "AT_ONCE", 10)
    monkeypatch.setattr(augment, "_gathered", noted)
    found = moved(images, index, drawn, frozenset(parts))
    assert torch.equal(found, whole)
    assert (found.dtype, max(gathered), sum(gathered)) == (torch.uint8, 10, count)
