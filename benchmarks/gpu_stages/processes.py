"""Worker processes as a pool starts them, without Ray: ranks of one group, each in its process."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any

import cloudpickle

from autotune.backends.protocol import Launch
from autotune.backends.worker.messages import Answer, Rendezvous
from autotune.backends.worker.rank import Rank

HOST = "127.0.0.1"
PATIENCE = 600.0  # seconds for an answer; a stage's deadline is less
_HERE: dict[str, Rank] = {}


class Group:
    """The ranks of one group. `took` is how many seconds the last call took.

    Args:
        gpus: of a rank: 1 for rank r on GPU r, less for ranks that share GPU 0, 0 for none.
    """

    took = 0.0

    def __init__(self, train: Callable[[dict[str, Any]], Any], ranks: int, gpus: float) -> None:
        context = multiprocessing.get_context("spawn")
        self._ranks = []
        for rank in range(ranks):
            own = str(rank if gpus == 1 else 0) if gpus else ""
            environ = {} if gpus and ranks == 1 else {"CUDA_VISIBLE_DEVICES": own}
            self._ranks.append(
                ProcessPoolExecutor(
                    1, mp_context=context, initializer=_environ, initargs=(environ,)
                )
            )
        pickled = cloudpickle.dumps(train)
        places = self._each(_become, [(pickled, sys.path, r, ranks) for r in range(ranks)])
        port = self._ranks[0].submit(_serve).result(PATIENCE)
        rendezvous = Rendezvous(all(p.cores for p in places), gpus, PATIENCE)
        self._each(_join, [(port, rendezvous)] * ranks)

    def start(self, config: Mapping[str, Any], **launch: Any) -> list[Answer]:
        """Start a trial on all ranks; their answers."""
        return self("start", Launch(0, {**config}, 1, **launch))

    def __call__(self, method: str, *arguments: Any) -> list[Answer]:
        """Call a rank's method on all ranks; their answers."""
        begin = time.perf_counter()
        answers = self._each(_call, [(method, arguments)] * len(self._ranks))
        self.took = time.perf_counter() - begin
        return answers

    def send(self, method: str, *arguments: Any) -> list[Future[Answer]]:
        """Call a rank's method on all ranks without waiting."""
        return [rank.submit(_call, method, arguments) for rank in self._ranks]

    def _each(self, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]]) -> Any:
        pairs = zip(self._ranks, arguments, strict=True)
        waiting = [rank.submit(function, *given) for rank, given in pairs]
        concurrent.futures.wait(waiting, PATIENCE, return_when=concurrent.futures.FIRST_EXCEPTION)
        return [future.result(0) for future in waiting]

    def end(self) -> None:
        """Kill the processes, whatever they do."""
        for rank in self._ranks:
            for process in list((rank._processes or {}).values()):
                process.kill()
            rank.shutdown()


@contextmanager
def group(train: Callable[[dict[str, Any]], Any], ranks: int, gpus: float) -> Iterator[Group]:
    """A group that is ended with the context."""
    made = Group(train, ranks, gpus)
    try:
        yield made
    finally:
        made.end()


def _environ(own: dict[str, str]) -> None:
    """Set variables of a new process; CUDA reads them when it is first used."""
    os.environ.update(own)


def _become(train: bytes, path: list[str], number: int, ranks: int) -> Any:
    _HERE["rank"] = Rank(train, path, number, ranks)
    cores = len(os.sched_getaffinity(0)) // ranks  # as a study gives its workers all of them
    return _HERE["rank"].place("node", HOST, max(cores, 1))


def _serve() -> int:
    return _HERE["rank"].serve(HOST)


def _join(port: int, rendezvous: Rendezvous) -> None:
    _HERE["rank"].join(HOST, port, rendezvous)


def _call(method: str, arguments: tuple[Any, ...]) -> Any:
    return getattr(_HERE["rank"], method)(*arguments)
