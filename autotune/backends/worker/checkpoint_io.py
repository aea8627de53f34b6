"""Checkpoints of a rank: written beside its training, and read back.

The state is copied at its milestone and written by a thread while training continues. A small one
is written at once, as a thread would cost more than it saves. Of tensors that are sharded over the
ranks each rank writes its own part.
"""

from __future__ import annotations

import io
import pickle
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._pytree import tree_leaves

from autotune.backends.worker import reporting
from autotune.backends.worker.isolation import WRITER
from autotune.backends.worker.messages import Written
from autotune.backends.worker.sharded_tensors import (
    assemble,
    assemble_all,
    encode_shards,
    map_children,
)
from autotune.storage import checkpoint_files
from autotune.storage.remote import is_gone

_SMALL_BYTES = 4 * 2**20
_PAUSE_SECONDS = 1.0  # between two attempts to read from a store that cannot be reached


class _Cancelled(Exception):  # noqa: N818  # nothing is wrong
    """The state is not needed any more."""


class Writer:
    """Writes the states of one rank, one at a time, on a thread that lives as long as the process.

    `blocking` states are written before `save` returns, others while training continues.
    """

    def __init__(self, rank: int) -> None:
        self._name = f"rank-{rank}.pt"
        self._thread = ThreadPoolExecutor(1, WRITER)
        self._writing: Future[Written] | None = None
        self._folder = ""
        self._stopped = threading.Event()

    def kept(self, state: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        """A copy of `state` on the host, which `save` may be given while training goes on."""
        if state is None:
            return None
        encoded = encode_shards(state)
        copy: Mapping[str, Any] = owned(encoded, {})
        if _on_gpu(encoded):
            reporting.synchronize()
        return copy

    def save(
        self,
        state: Mapping[str, Any] | None,
        folder: str,
        blocking: bool = False,
        kept: bool = False,
    ) -> None:
        """Write `state` into `folder`, after the one that is still being written, if any.

        Where it is None nothing is written, and `taken` says why. What was `kept` is not copied
        again.

        Raises:
            TypeError: the state could not be read back with `torch.load(weights_only=True)`.
        """
        if state is not None:
            state = encode_shards(state)
            check_readable(state)
        self._folder = folder
        if self._writing is not None:
            self._writing.exception()
        if state is None:
            self._writing = Future()
            self._writing.set_exception(OSError("the trainer's state() returned None"))
            return
        at_once, on_gpu = blocking or size_of(state) < _SMALL_BYTES, _on_gpu(state)
        if not kept and (not at_once or on_gpu):  # what is written at once need not be copied
            state = owned(state, {})
        if on_gpu:
            reporting.synchronize()  # with every GPU, as the state may be on several
        if at_once:
            self._writing = Future()
            try:
                self._writing.set_result(self._write(state, folder))
            except Exception as error:
                self._writing.set_exception(error)
            return
        self._writing = self._thread.submit(self._write, state, folder)

    def taken(self) -> tuple[Written | None, str]:
        """What has been written since the last call, or why it could not be, in one line.

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
        """Cancel what is being written, if anything, and wait until it has stopped."""
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
    """Read this rank's state of a checkpoint, with tensors sharded over the present ranks.

    Their number may differ from that of the ranks that wrote it. What is not sharded comes from
    the rank of the same number, modulo the number of ranks that wrote it. A process without a
    process group gets whole tensors, and rank 0's state otherwise.

    Args:
        sums: the files' checksums, if they are known.

    Raises:
        Exception: a file that is needed is not there, or not what was written.
    """
    ranks, rank = len(sums) or _written_by(folder), dist.get_rank() if dist.is_initialized() else 0

    def read(number: int, device: str) -> dict[str, Any]:
        return load(folder, number, sums[number] if sums else "", device)

    state: dict[str, Any] = assemble(read(rank % ranks, "cpu"), read, ranks)
    return state


def all_ranks(folder: str, sums: Sequence[str]) -> list[dict[str, Any]]:
    """Read all ranks' states of a checkpoint, in their order, with whole tensors for sharded ones.

    Args:
        sums: of every rank's file, its checksum or an empty text.

    Raises:
        Exception: a file is not there, or not what was written.
    """

    def read(number: int, device: str) -> dict[str, Any]:
        return load(folder, number, sums[number], device)

    return assemble_all([read(number, "cpu") for number in range(len(sums))], read)


def retry_reading(read: Callable[[], Any], folder: str, seconds: float) -> Any:
    """Call `read` on a checkpoint's folder, again and again while its store cannot be reached.

    Raises:
        OSError: it still cannot after so many seconds.
        Exception: the store is there, and the checkpoint is not or is damaged.
    """
    end = time.monotonic() + seconds
    while True:
        try:
            return _read_if_reachable(read, folder)
        except OSError as error:
            if is_gone(error) or time.monotonic() >= end:
                raise
        time.sleep(min(_PAUSE_SECONDS, seconds))


def _read_if_reachable(read: Callable[[], Any], folder: str) -> Any:
    """Call `read`; if the whole root is missing, its checkpoints are unreachable and not gone."""
    try:
        return read()
    except OSError as error:
        if is_gone(error):
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
    """Load a rank's file; `checksum` may be empty if it is not known.

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
    """Copy a state to memory of its own on the host; tensors that share memory still do.

    Copies from GPUs are complete once these are synchronised. They use pinned memory, which torch
    keeps for the next checkpoint.
    """
    if isinstance(value, Tensor):
        key = (value.untyped_storage().data_ptr(), value.storage_offset(), value.shape)
        key += (value.stride(), value.dtype)  # type: ignore[assignment]
        if key not in copies:
            pinned = value.device.type == "cuda"
            host = torch.empty_like(value.detach(), device="cpu", pin_memory=pinned)
            copies[key] = host.copy_(value.detach(), non_blocking=pinned)
        return copies[key]
    return map_children(value, lambda inner: owned(inner, copies))


def _on_gpu(state: Any) -> bool:
    tensors = (leaf for leaf in tree_leaves(state) if isinstance(leaf, Tensor))
    return any(tensor.device.type == "cuda" for tensor in tensors)


def size_of(state: Any) -> int:
    """Bytes of the tensors in a state."""
    tensors = (leaf for leaf in tree_leaves(state) if isinstance(leaf, Tensor))
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def check_readable(state: Mapping[str, Any]) -> None:
    """Refuse a state that could be written but not read back.

    This is tried on a state of the same structure, with empty tensors.

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
    return map_children(value, _emptied)
