"""Samples of many files through several queues, shuffled, in an order that the seed determines.

Each rank has files of its own, and deals them to threads. A thread reads and parses its files into
a queue, block by block; the blocks of all queues are taken in turn, so that the order does not
depend on which thread is faster. They are shuffled within windows of so many samples. All of this
is a function of seed and epoch, so that a reading goes on from a number of samples.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from trainers.data import criteo
from trainers.data.stream import generator
from trainers.models.clicks import Batch, joined
from trainers.parallel.ranks import Ranks

BLOCK = 256  # lines that are parsed at once
_AHEAD = 4  # blocks in a queue


@dataclass(frozen=True)
class Source:
    """The files of one rank, and how they are read.

    Args:
        lines: of each file.
        size: rows of each feature.
        window: samples that are shuffled among each other.
    """

    files: tuple[Path, ...]
    lines: tuple[int, ...]
    size: int
    seed: int
    threads: int
    window: int

    @property
    def samples(self) -> int:
        return sum(self.lines)

    def dealt(self, epoch: int) -> list[list[int]]:
        """Which files each thread reads in an epoch, in its order."""
        order = torch.randperm(len(self.files), generator=generator(self.seed, 2 * epoch)).tolist()
        return [found for t in range(self.threads) if (found := order[t :: self.threads])]

    def turns(self, dealt: Sequence[Sequence[int]]) -> Iterator[tuple[int, int]]:
        """The threads whose blocks are taken, in turn while they have some, and their lengths."""
        left = [[n for f in files for n in _lengths(self.lines[f])] for files in dealt]
        for place in range(max(map(len, left), default=0)):
            yield from ((t, own[place]) for t, own in enumerate(left) if place < len(own))


def _lengths(lines: int) -> list[int]:
    return [min(BLOCK, lines - low) for low in range(0, lines, BLOCK)]


class Reader:
    """The samples of an epoch from a place on; its threads end with it.

    Args:
        offset: samples of the epoch to leave out.
    """

    def __init__(self, source: Source, epoch: int, offset: int) -> None:
        self._source, self._epoch = source, epoch
        self._window, self._rest = divmod(offset, source.window)
        dealt = source.dealt(epoch)
        skipped, self._drop = [0] * len(dealt), self._window * source.window
        turns = deque(source.turns(dealt))
        while turns and self._drop >= turns[0][1]:
            thread, length = turns.popleft()
            skipped[thread] += 1
            self._drop -= length
        self._order = [thread for thread, _ in turns]
        self._queues = [queue.Queue[Batch | Exception](_AHEAD) for _ in dealt]
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(
                target=self._read, args=(t, files, skipped[t]), name="clicks-reader", daemon=True
            )
            for t, files in enumerate(dealt)
        ]
        for started in self._threads:
            started.start()

    def _read(self, thread: int, files: Sequence[int], skipped: int) -> None:
        paths, found = [self._source.files[f] for f in files], self._queues[thread]
        try:
            for block in criteo.blocks(paths, BLOCK, skipped, self._source.size):
                if not self._put(found, block):
                    return
            names = ", ".join(map(str, paths))
            self._put(found, ValueError(f"lines are gone since they were counted: {names}"))
        except Exception as error:
            self._put(found, error)

    def _put(self, found: queue.Queue[Batch | Exception], block: Batch | Exception) -> bool:
        while not self._ended.is_set():
            try:
                found.put(block, timeout=0.1)
                return True
            except queue.Full:
                pass
        return False

    def windows(self) -> Iterator[Batch]:
        """The samples, shuffled within each window."""
        kept, count = [], 0
        for thread in self._order:
            block = self._queues[thread].get()
            if isinstance(block, Exception):
                raise block
            kept.append(block.part(slice(self._drop, None)))
            count += len(kept[-1])
            self._drop = 0
            while count >= self._source.window:
                whole = joined(kept)
                yield self._shuffled(whole.part(slice(0, self._source.window)))
                kept = [whole.part(slice(self._source.window, None))]
                count = len(kept[0])
        if count:
            yield self._shuffled(joined(kept))

    def _shuffled(self, samples: Batch) -> Batch:
        random = generator(self._source.seed, (2 * self._epoch + 1 << 32) + self._window)
        self._window += 1
        found = samples.part(torch.randperm(len(samples), generator=random))
        rest, self._rest = self._rest, 0
        return found.part(slice(rest, None))

    def close(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()


class Queues:
    """`Clickstream` of the files of one rank.

    Args:
        files: of all ranks.
        source: how they are read.
        val: what is validated on.
        begun: the samples that all ranks have taken, and each of them; where there are other ranks
            now, the former are divided anew.

    Raises:
        ValueError: fewer files than ranks.
    """

    features, numbers = criteo.FEATURES, criteo.NUMBERS

    def __init__(
        self,
        files: Sequence[Path],
        source: Source,
        val: Batch,
        ranks: Ranks,
        begun: tuple[int, Sequence[int]],
    ) -> None:
        counts = [criteo.count_lines(path) for path in files]
        self._source = part_of(source, files, counts, ranks)
        self.rows = criteo.FEATURES * source.size
        self.train_size = sum(counts)
        self.validation = val
        self.waited = 0.0
        self._ranks = ranks
        seen, taken = begun
        own = len(taken) == ranks.size
        self._taken = [*taken] if own else [seen // ranks.size] * ranks.size
        epoch, offset = divmod(self._taken[ranks.rank], self._source.samples)
        self._epoch = epoch
        self._reader = Reader(self._source, epoch, offset)
        self._windows = self._reader.windows()
        self._left: list[Batch] = []

    def take(self, seen: int, batch_size: int) -> Batch:
        begun = time.perf_counter()
        ranks = self._ranks
        for rank in range(ranks.size):
            low, high = Ranks(rank, ranks.size, ranks.device).share(seen, seen + batch_size)
            self._taken[rank] += high - low
        start, stop = ranks.share(seen, seen + batch_size)
        found = self._next(stop - start)
        self.waited += time.perf_counter() - begun
        return found

    def _next(self, wanted: int) -> Batch:
        while sum(map(len, self._left)) < wanted or not self._left:
            window = next(self._windows, None)
            if window is None:
                self._reader.close()
                self._epoch += 1
                self._reader = Reader(self._source, self._epoch, 0)
                self._windows = self._reader.windows()
            else:
                self._left.append(window)
        whole = joined(self._left)
        self._left = [whole.part(slice(wanted, None))]
        return whole.part(slice(0, wanted))

    def state(self) -> dict[str, list[int]]:
        return {"taken": [*self._taken]}

    def close(self) -> None:
        self._reader.close()


def part_of(source: Source, files: Sequence[Path], counts: Sequence[int], ranks: Ranks) -> Source:
    """The files of one rank: those with lines, in turn.

    Raises:
        ValueError: fewer files with lines than ranks; one line.
    """
    some = [(path, count) for path, count in zip(files, counts, strict=True) if count]
    if len(some) < ranks.size:
        rule = f"must have a file of lines in train/ for each of the {ranks.size} ranks"
        raise ValueError(f"data_dir {rule}, got {len(some)}")
    own = some[ranks.rank :: ranks.size]
    return replace(source, files=tuple(p for p, _ in own), lines=tuple(n for _, n in own))
