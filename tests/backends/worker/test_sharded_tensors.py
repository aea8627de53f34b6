"""Sharded states written by some ranks and read by as many, by others, and by none.

`sharders` is imported where it is used: with torch's sharded tensors, it takes seconds.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from autotune.backends.worker.checkpoint_io import all_ranks, restored
from autotune.storage import checkpoint_files


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What two ranks wrote, its checksums, and what they read back."""
    from sharders import on_ranks, written

    folder = str(tmp_path_factory.mktemp("two"))
    found = on_ranks(2, written, folder, (2,))
    return folder, tuple(rank["sum"] for rank in found), found


def test_as_many_ranks_get_what_they_wrote(two: Any) -> None:
    one, other = two[2]
    assert one["right"], one
    assert other["right"], other
    assert (one["rank"], other["rank"], one["step"]) == (0, 1, 7)
    assert (one["own"]["uneven"], other["own"]["uneven"]) == ([3, 3], [2, 3])
    assert (one["own"]["tiny"], other["own"]["tiny"]) == ([1, 2], [0, 2])
    assert (one["own"]["columns"], other["own"]["columns"]) == ([3, 4], [3, 3])


@pytest.mark.slow
def test_another_number_of_ranks_shares_it_again(two: Any) -> None:
    from sharders import on_ranks, read

    ranks = on_ranks(3, read, *two[:2])
    assert all(rank["right"] for rank in ranks), ranks
    assert [rank["own"]["uneven"] for rank in ranks] == [[2, 3], [2, 3], [1, 3]]
    assert [rank["rank"] for rank in ranks] == [0, 1, 0]


def test_a_process_alone_gets_it_whole_from_a_url_too(two: Any) -> None:
    from sharders import read

    folder, sums, _ = two
    for place in (folder, f"file://{folder}"):
        for given in (sums, ()):
            assert read(0, place, given) == {"right": True, "own": {}, "rank": 0, "step": 7}


def test_all_ranks_files_with_whole_tensors(two: Any) -> None:
    """What a model is built of, when it is registered."""
    from sharders import SHAPES, numbers

    folder, sums, _ = two
    states = all_ranks(folder, sums)
    assert [state["rank"] for state in states] == [0, 1]
    for state in states:
        assert all(torch.equal(state["model"][name], numbers(name)) for name in SHAPES)


@pytest.mark.slow
def test_a_grid_of_ranks_is_read_by_as_many_or_by_nobody(tmp_path: Path) -> None:
    """Two copies of a model over two ranks each. Two ranks also learn what they cannot save."""
    from sharders import on_ranks, read, refused_or_read, written

    grid, other = str(tmp_path / "grid"), str(tmp_path / "other")
    again = on_ranks(4, written, grid, (2, 2))
    assert all(rank["right"] for rank in again), again
    assert read(0, grid, tuple(rank["sum"] for rank in again))["right"]
    for partial, of_grid in on_ranks(2, refused_or_read, other, grid):
        assert "Milestone state must hold tensors that are sharded or whole along" in partial
        assert "a checkpoint sharded over 2 x 2 ranks can only be read by as many" in of_grid
    assert not os.path.exists(other)


@pytest.mark.parametrize("damage", ["flipped", "gone"])
def test_a_damaged_shard_of_another_rank_is_reported(two: Any, tmp_path: Path, damage: str) -> None:
    folder, sums, _ = two
    assert checkpoint_files.copy(folder, str(tmp_path / "copy"))
    file = tmp_path / "copy" / "rank-1.pt"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.unlink()
    if damage == "flipped":
        file.write_bytes(data)
    expected = checkpoint_files.DamagedError if damage == "flipped" else FileNotFoundError
    with pytest.raises(expected):
        restored(str(tmp_path / "copy"), sums)
    if damage == "gone":
        with pytest.raises(ValueError, match="a checkpoint of 1 ranks holds tensors sharded over"):
            restored(str(tmp_path / "copy"))


def test_a_shard_is_plain_tensors_and_numbers(two: Any) -> None:
    """Nothing in it needs more than `weights_only=True`, and nothing else lies beside it."""
    folder = two[0]
    assert sorted(os.listdir(folder)) == ["rank-0.pt", "rank-1.pt"]
    state = torch.load(Path(folder, "rank-1.pt"), weights_only=True)
    assert state["model"]["uneven"]["offsets"] == [3, 0]
    assert state["model"]["uneven"]["local"].shape == (2, 3)
