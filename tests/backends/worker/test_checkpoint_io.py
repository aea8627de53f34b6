"""A rank's state on its way to the disk and back, in this process."""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch

from autotune.backends.worker import checkpoint_io, reporting
from autotune.backends.worker.checkpoint_io import Writer, Written, load, owned
from autotune.storage import checkpoint_files

LARGE = 2 * 2**20  # float32s: 8 MiB, which is written beside training


@pytest.fixture
def writer() -> Writer:
    return Writer(0)


def taken(writer: Writer, seconds: float = 120) -> tuple[Written | None, str]:
    end = time.monotonic() + seconds
    while writer._writing is not None and not writer._writing.done():
        assert time.monotonic() < end
        time.sleep(0.01)
    return writer.taken()


def test_a_small_state_is_there_at_once(writer: Writer, tmp_path: Path) -> None:
    writer.save({"step": 3, "w": torch.ones(3)}, str(tmp_path))
    written, unsaved = writer.taken()
    assert written is not None
    assert (written.folder, unsaved) == (str(tmp_path), "")
    state = load(str(tmp_path), 0, written.checksum)
    assert state["step"] == 3
    assert state["w"].tolist() == [1.0, 1.0, 1.0]
    assert writer.taken() == (None, ""), "reported once"


def test_what_is_written_beside_training_is_the_state_as_it_was(
    writer: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = threading.Event()
    real = checkpoint_files.writing

    def blocked(folder: str, name: str) -> Any:
        assert begin.wait(120)
        return real(folder, name)

    monkeypatch.setattr(checkpoint_files, "writing", blocked)
    weights = torch.ones(LARGE)
    writer.save({"w": weights, "tied": weights}, str(tmp_path))
    assert writer.taken() == (None, ""), "it is being written, and nobody waits for it"
    weights.zero_()  # training goes on
    begin.set()
    written, _ = taken(writer)
    assert written is not None
    state = load(str(tmp_path), 0, written.checksum)
    assert state["w"].min() == 1
    assert state["w"].data_ptr() == state["tied"].data_ptr(), "what was one tensor stays one"
    assert os.path.getsize(tmp_path / "rank-0.pt") < 1.1 * 4 * LARGE


def test_a_blocking_save_is_complete_when_it_returns(writer: Writer, tmp_path: Path) -> None:
    writer.save({"w": torch.ones(LARGE)}, str(tmp_path / "a"))
    writer.save({"w": torch.ones(LARGE)}, str(tmp_path / "b"), blocking=True)
    written, _ = writer.taken()
    assert written is not None
    assert written.folder == str(tmp_path / "b")
    assert os.listdir(tmp_path / "b") == ["rank-0.pt"]
    assert os.listdir(tmp_path / "a") == ["rank-0.pt"], "the one before was waited for"


def test_a_cancelled_save_leaves_nothing(
    writer: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = writer._stopped
    real = checkpoint_files.writing

    def blocked(folder: str, name: str) -> Any:
        assert stopped.wait(120)
        return real(folder, name)

    monkeypatch.setattr(checkpoint_files, "writing", blocked)
    writer.save({"w": torch.ones(LARGE)}, str(tmp_path))
    writer.cancel()
    assert os.listdir(tmp_path) == []
    assert writer.taken() == (None, "")
    monkeypatch.undo()
    writer.save({"w": torch.ones(LARGE)}, str(tmp_path))
    assert taken(writer)[0] is not None, "the next one is written"


@pytest.mark.parametrize("size", [3, LARGE], ids=["small", "large"])
def test_what_cannot_be_written_gets_one_clear_line(
    writer: Writer, tmp_path: Path, size: int
) -> None:
    place = tmp_path / "file"
    place.write_text("no folder")
    writer.save({"w": torch.ones(size)}, str(place))
    assert taken(writer) == (None, "File exists")


def test_a_full_disk_is_reported(writer: Writer, tmp_path: Path) -> None:
    """/dev/full takes nothing: what is written there finds the disk full."""

    class Full:
        checksum = ""

        def write(self, data: Any) -> int:
            with open("/dev/full", "wb", buffering=0) as file:
                return file.write(data) or 0

        def flush(self) -> None: ...

    from contextlib import contextmanager

    @contextmanager
    def full(folder: str, name: str) -> Any:
        yield Full()

    real, checkpoint_files.writing = checkpoint_files.writing, full  # type: ignore[assignment]
    try:
        writer.save({"w": torch.ones(LARGE)}, str(tmp_path))
        assert taken(writer) == (None, "No space left on device")
    finally:
        checkpoint_files.writing = real


@pytest.mark.parametrize("damage", ["cut", "flipped"])
def test_a_damaged_state_is_not_loaded(writer: Writer, tmp_path: Path, damage: str) -> None:
    writer.save({"w": torch.ones(1000)}, str(tmp_path))
    written, _ = writer.taken()
    assert written is not None
    file = tmp_path / "rank-0.pt"
    data = bytearray(file.read_bytes())
    if damage == "cut":
        data = data[: len(data) // 2]
    else:
        data[len(data) // 2] ^= 1  # a bit of a weight: torch would load it without a word
        file.write_bytes(data)
        assert torch.load(file, weights_only=True)["w"].shape == (1000,)
    file.write_bytes(data)
    with pytest.raises(checkpoint_files.DamagedError):
        load(str(tmp_path), 0, written.checksum)


def test_an_unreadable_state_is_refused_before_it_is_written(
    writer: Writer, tmp_path: Path
) -> None:
    with pytest.raises(TypeError, match="Milestone state must hold tensors, numbers"):
        writer.save({"deep": [{"path": Path("/")}]}, str(tmp_path))
    assert os.listdir(tmp_path) == []


def test_a_copy_keeps_the_form_of_the_state() -> None:
    state = OrderedDict(a=[torch.ones(2), (torch.zeros(1), "x")], b={"c": None, "d": 1.5})
    state._metadata = {"version": 1}  # type: ignore[attr-defined]  # as modules' states have
    made = owned(state, {})
    assert type(made) is OrderedDict
    assert made._metadata == {"version": 1}
    assert made["b"] == {"c": None, "d": 1.5}
    assert made["a"][0].data_ptr() != state["a"][0].data_ptr()
    assert made["a"][1][1] == "x"
    assert checkpoint_io.size_of(state) == 12


@pytest.mark.parametrize("size", [3, LARGE], ids=["small", "large"])
def test_copies_from_gpus_are_complete_before_they_are_written(
    writer: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """A stand-in for GPUs: what is copied arrives when all of them are synchronised."""
    arrives: list[tuple[torch.Tensor, torch.Tensor]] = []

    def queued(state: Any, copies: dict[Any, torch.Tensor]) -> dict[str, torch.Tensor]:
        arrives.extend((torch.zeros_like(value), value) for value in state.values())
        return dict(zip(state, (copy for copy, _ in arrives), strict=True))

    def arrive() -> None:
        for copy, value in arrives:
            copy.copy_(value)

    monkeypatch.setattr(checkpoint_io, "_on_gpu", lambda state: True)
    monkeypatch.setattr(checkpoint_io, "owned", queued)
    monkeypatch.setattr(reporting, "synchronize", arrive)
    writer.save({"first": torch.ones(size), "second": torch.ones(size)}, str(tmp_path))
    written, _ = taken(writer)
    assert written is not None
    state = load(str(tmp_path), 0, written.checksum)
    assert [float(state[name].min()) for name in ("first", "second")] == [1, 1]
