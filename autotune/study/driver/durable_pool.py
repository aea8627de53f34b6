"""A pool that acts only on what is on disk."""

from __future__ import annotations

from autotune.backends.protocol import KnowsMemory, Launch, Measures, Pool, Signal
from autotune.storage.journal import Journal
from autotune.trial import Change, Hardware


class DurablePool:
    """A `Pool` that flushes the journal before `start`, `resume`, `stop` and `wait`.

    A worker group so never acts on an event that a crash of the driver could take back, and resume
    is a replay of the journal.
    """

    def __init__(self, pool: Pool, journal: Journal) -> None:
        self._pool = pool
        self._journal = journal
        self.realtime = pool.realtime

    # --- after a flush ------------------------------------------------------------------------

    def start(self, launch: Launch) -> Hardware:
        self._journal.sync()
        return self._pool.start(launch)

    def resume(self, trial: int, change: Change | None, save: str | None) -> None:
        self._journal.sync()
        self._pool.resume(trial, change, save)

    def stop(self, trial: int, save: str | None) -> None:
        self._journal.sync()
        self._pool.stop(trial, save)

    def wait(self, timeout: float | None) -> Signal | None:
        self._journal.sync()
        return self._pool.wait(timeout)

    def measure(self, trial: int) -> bool:
        """Have a waiting trial's ranks measure their model; False where the pool cannot."""
        if not isinstance(self._pool, Measures):
            return False
        self._journal.sync()
        self._pool.measure(trial)
        return True

    @property
    def training(self) -> bool:
        """Whether the trainer runs in this thread now (`backends.local.here`)."""
        return getattr(self._pool, "training", False)

    # --- at once ------------------------------------------------------------------------------

    def busy(self) -> int:
        return self._pool.busy()

    def capacity(self) -> int:
        return self._pool.capacity()

    def next_hardware(self, like: Hardware | None = None) -> Hardware:
        return self._pool.next_hardware(like)

    def memory(self, like: Hardware | None = None) -> int | None:
        """Bytes for each rank of the next trial; None where the pool does not know."""
        return self._pool.memory(like) if isinstance(self._pool, KnowsMemory) else None

    def wake(self) -> None:
        self._pool.wake()

    def now(self) -> float:
        return self._pool.now()

    def close(self) -> None:
        self._pool.close()
