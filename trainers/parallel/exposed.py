"""Exposed communication: the time in which a step waits for messages after all is computed.

Messages that travel while the backward pass computes cost nothing; what is left of them then is
exposed. It is measured from the end of the last gradient's computation to the end of the backward
pass, which waits for the messages, while ZeRO-1 and pipelines send parameters, and while pipelines
average gradients. Where messages are waited for between computations, as gathered parameters are on
CPUs, and activations in pipelines and between divided matrices, that is not seen here.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.autograd.variable import Variable


class Exposed:
    """Measures the exposed communication of this rank since the last `clear`.

    On a GPU it takes the times of the stream that computes, and waits for none of them before
    `seconds` is read.
    """

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self.clear()

    def clear(self) -> None:
        self._seconds = 0.0
        self._events: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque()

    def backward(self, loss: Tensor) -> None:
        """The backward pass of a loss.

        What is queued when the loss's own gradient is ready runs once all others are, and before
        what DDP and `fully_shard` queue later: their wait for the messages.
        """
        begun: list[float | torch.cuda.Event] = []
        queue = Variable._execution_engine.queue_callback
        loss.register_hook(  # type: ignore[no-untyped-call]
            lambda gradient: queue(lambda: begun.append(self._now()))
        )
        torch.autograd.backward(loss)
        self._add(begun[0], self._now())

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """A part of a step that only communicates."""
        begun = self._now()
        yield
        self._add(begun, self._now())

    def _now(self) -> float | torch.cuda.Event:
        if not self._on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def _add(self, begun: float | torch.cuda.Event, ended: float | torch.cuda.Event) -> None:
        if isinstance(begun, float) and isinstance(ended, float):
            self._seconds += ended - begun
        elif isinstance(begun, torch.cuda.Event) and isinstance(ended, torch.cuda.Event):
            self._events.append((begun, ended))
            while self._done():  # few are kept
                self._read()

    def _done(self) -> bool:
        """Whether the device has come to the end of the first events."""
        return bool(self._events and self._events[0][1].query())  # type: ignore[no-untyped-call]

    def _read(self) -> None:
        begun, ended = self._events.popleft()
        self._seconds += begun.elapsed_time(ended) / 1000

    def seconds(self) -> float:
        """Since the last `clear`; the device has done its work."""
        while self._events:
            self._read()
        return self._seconds
