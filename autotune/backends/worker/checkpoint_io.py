"""Inside a worker: writes a rank's state beside its training, and reads it back.

The state is copied at its milestone and written by a thread while training goes on. A small one is
written at once: a thread would cost more than it saves. Of tensors that are sharded over the ranks
each writes the part that it holds.
"""

from __future__ import annotations

import io
import pickle
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from autotune.backends.worker.sharded_tensors import apart, mapped, together, wholes
from autotune.storage import checkpoint_files

_SMALL_BYTES = 4 * 2**20
_PAUSE_SECONDS = 1.0  # between two tries to read from a store that is out of reach


@dataclass(frozen=True)
class Written:
    """One rank's part of the checkpoint in `folder`: complete, and with its checksum."""

    folder: str
    checksum: str


class _Cancelled(Exception):  # noqa: N818  # nothing is wrong
    """Nobody wants the state any more."""


class Writer:
    """Writes one state at a time of one rank; its thread lives as long as the process.

    `blocking` states are written before `save` returns, others while training goes on.
    """

    def __init__(self, rank: int) -> None:
        self._name = f"rank-{rank}.pt"
        self._thread = ThreadPoolExecutor(1, "autotune-writer")
        self._thread.submit(int).result()  # a thread of the clean process, not of a trial
        self._writing: Future[Written] | None = None
        self._folder = ""
        self._stopped = threading.Event()

    def save(self, state: Mapping[str, Any], folder: str, blocking: bool = False) -> None:
        """Write `state` into `folder`; one that is still being written is waited for.

        Raises:
            TypeError: the state could not be read back with `torch.load(weights_only=True)`.
        """
        state = apart(state)
        check_readable(state)
        self._folder = folder
        if self._writing is not None:
            self._writing.exception()
        if blocking or size_of(state) < _SMALL_BYTES:
            self._writing = Future()
            try:
                self._writing.set_result(self._write(state, folder))
            except Exception as error:
                self._writing.set_exception(error)
            return
        self._writing = self._thread.submit(self._write, owned(state, {}), folder)

    def taken(self) -> tuple[Written | None, str]:
        """What has been written since it was last asked, or why it could not be, in one line.

        A disk that is full or cannot be written is no fault of the trial's.
        """
        if self._writing is None or not self._writing.done():
            return None, ""
        done, self._writing = self._writing, None
        error = done.exception()
        if error is None:
            return done.result(), ""
        if isinstance(error, OSError):
            return None, error.strerror or str(error)
        if checkpoint_files.is_url(self._folder):  # stores have errors of their own
            return None, f"{type(error).__name__}: {error}"
        raise error

    def cancel(self) -> None:
        """Give up what is being written, if anything, and wait until it is."""
        if self._writing is not None:
            self._stopped.set()
            self._writing.exception()
            self._stopped.clear()
            self._writing = None

    def _write(self, state: Mapping[str, Any], folder: str) -> Written:
        try:
            checkpoint_files.make_below_root(folder)
            with checkpoint_files.writing(folder, self._name) as file:
                torch.save(state, _Stoppable(file, self._stopped))  # type: ignore[arg-type]
        except RuntimeError as error:  # torch hides what its file object raised
            cause = error.__context__ or error.__cause__
            raise (cause if isinstance(cause, OSError) else error) from None
        return Written(folder, file.checksum)


class _Stoppable:
    def __init__(self, file: checkpoint_files.Summed, stopped: threading.Event) -> None:
        self._file, self._stopped = file, stopped

    def write(self, data: Any) -> int:
        if self._stopped.is_set():
            raise _Cancelled
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()


def restored(folder: str, sums: Sequence[str] = ()) -> dict[str, Any]:
    """This rank's state of a checkpoint, its sharded tensors over the ranks that there are now.

    It need not be as many as wrote it. A process without a process group gets whole tensors, and
    of what was not sharded that of rank 0; of several, one gets that of the rank of its own number,
    modulo so many as there were.

    Args:
        sums: the files' checksums, where they were written down.

    Raises:
        Exception: a file that is needed is not there, or not what was written.
    """
    ranks, rank = len(sums) or _written_by(folder), dist.get_rank() if dist.is_initialized() else 0

    def read(number: int, device: str) -> dict[str, Any]:
        return load(folder, number, sums[number] if sums else "", device)

    state: dict[str, Any] = together(read(rank % ranks, "cpu"), read, ranks)
    return state


def all_ranks(folder: str, sums: Sequence[str]) -> list[dict[str, Any]]:
    """Every rank's state of a checkpoint, in their order, with whole tensors for sharded ones.

    Args:
        sums: of every rank's file, its checksum or an empty text.

    Raises:
        Exception: a file is not there, or not what was written.
    """

    def read(number: int, device: str) -> dict[str, Any]:
        return load(folder, number, sums[number], device)

    return wholes([read(number, "cpu") for number in range(len(sums))], read)


def patiently(read: Callable[[], Any], folder: str, seconds: float) -> Any:
    """What `read` finds in a checkpoint's folder, tried again while its store is out of reach.

    Raises:
        OSError: it still was after so many seconds.
        Exception: the store is there, and the checkpoint is not or is damaged.
    """
    end = time.monotonic() + seconds
    while True:
        try:
            return _demanded(read, folder)
        except OSError as error:
            if checkpoint_files.is_gone(error) or time.monotonic() >= end:
                raise
        time.sleep(min(_PAUSE_SECONDS, seconds))


def _demanded(read: Callable[[], Any], folder: str) -> Any:
    try:
        return read()
    except OSError as error:
        if checkpoint_files.is_gone(error):
            checkpoint_files.demand(checkpoint_files.root_of(folder))
        raise


def _written_by(folder: str) -> int:
    found = sum(
        name.startswith("rank-") and name.endswith(".pt") for name in checkpoint_files.names(folder)
    )
    if not found:
        raise FileNotFoundError(f"{folder} is no checkpoint: it holds no rank-0.pt")
    return found


def load(folder: str, rank: int, checksum: str, device: str = "cpu") -> dict[str, Any]:
    """What a rank wrote; `checksum` may be empty, where none was written down.

    Raises:
        Exception: the file is not there, or not what was written.
    """
    name = f"rank-{rank}.pt"
    with checkpoint_files.reading(folder, name) as file:
        if checksum:  # of the file that is then read, and not of one that has taken its place
            checkpoint_files.verify(file, checksum, checkpoint_files.join(folder, name))
            file.seek(0)
        state: dict[str, Any] = torch.load(file, map_location=device, weights_only=True)
    return state


def owned(value: Any, copies: dict[Any, Tensor]) -> Any:
    """A copy of a state in memory of its own on the host; tensors that were one stay one."""
    if isinstance(value, Tensor):
        key = (value.untyped_storage().data_ptr(), value.storage_offset(), value.shape)
        key += (value.stride(), value.dtype)  # type: ignore[assignment]
        if key not in copies:
            copies[key] = value.detach().to("cpu", copy=True)
        return copies[key]
    return mapped(value, lambda inner: owned(inner, copies))


def size_of(value: Any) -> int:
    """Bytes of the tensors in a state."""
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, Mapping):
        value = list(value.values())
    return sum(map(size_of, value)) if isinstance(value, list | tuple) else 0


def check_readable(state: Mapping[str, Any]) -> None:
    """Tell a state that cannot be read back when it is written, not when it is needed.

    What is tried has the state's form, with tensors of no elements.

    Raises:
        TypeError: it holds something that `torch.load(weights_only=True)` refuses.
    """
    file = io.BytesIO()
    torch.save(_emptied(state), file)
    file.seek(0)
    try:
        torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        line = str(error).strip().partition("\n")[0]
        raise TypeError(
            "Milestone state must hold tensors, numbers, text, lists and dicts only, as it is read "
            f"with torch.load(weights_only=True): {line}"
        ) from None


def _emptied(value: Any) -> Any:
    if type(value) is Tensor:
        return torch.empty(0, dtype=value.dtype)
    return mapped(value, _emptied)
