"""A rank in a fresh process of its own, as a worker is, without Ray."""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import cloudpickle

from autotune.backends.protocol import Launch
from autotune.backends.worker.messages import Answer, Place, Rendezvous
from autotune.backends.worker.rank import Rank

_HERE: dict[str, Rank] = {}


class Remote:
    """The only rank of a group of one. `took`: how many seconds its last call took."""

    took: float

    def __init__(self, train: Callable[[dict[str, Any]], Any], *, patience: float = 600) -> None:
        self._patience = patience
        context = multiprocessing.get_context("spawn")
        self._process = ProcessPoolExecutor(1, mp_context=context)
        become = self._process.submit(_become, cloudpickle.dumps(train), sys.path)
        self.place: Place = become.result(patience)

    def start(
        self, config: Mapping[str, Any] | None = None, *, seed: int = 1, **launch: Any
    ) -> Answer:
        answer: Answer = self("start", Launch(0, config or {}, seed, **launch))
        return answer

    def __call__(self, method: str, *arguments: Any) -> Any:
        begin = time.perf_counter()
        answer = self._process.submit(_call, method, arguments).result(self._patience)
        self.took = time.perf_counter() - begin
        return answer

    def send(self, method: str, *arguments: Any) -> None:
        """Call without waiting for the answer."""
        self._process.submit(_call, method, arguments)

    def leave(self) -> None:
        """End the process in its own time."""
        self._process.shutdown()

    def close(self) -> None:
        for process in self._process._processes.values():
            process.kill()
        self._process.shutdown()


def _become(train: bytes, path: list[str]) -> Place:
    rank = Rank(train, path, 0, 1)
    place = rank.place("node", "127.0.0.1", 1)
    rank.join("127.0.0.1", rank.serve("127.0.0.1"), Rendezvous(bool(place.cores), 0, 600.0))
    _HERE["rank"] = rank
    return place


def _call(method: str, arguments: tuple[Any, ...]) -> Any:
    return getattr(_HERE["rank"], method)(*arguments)
