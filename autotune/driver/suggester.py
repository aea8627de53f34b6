"""Suggestions, computed beside the loop."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from autotune.errors import StudyError
from autotune.pools import Pool
from autotune.samplers import Sampler
from autotune.trial import Params, Trial


class Suggester:
    """Computes one suggestion at a time beside the loop, and wakes it when it is ready."""

    def __init__(self, sampler: Sampler, pool: Pool) -> None:
        self._sampler = sampler
        self._pool = pool
        self._beside = ThreadPoolExecutor(1, "suggest") if pool.realtime else None
        self._pending: Future[Params | None] | None = None
        self.exhausted = False

    @property
    def pending(self) -> bool:
        """Whether a suggestion has been asked for and not been taken yet."""
        return self._pending is not None

    def take(self, number: int, trials: Collection[Trial]) -> Params | None:
        """The suggestion for trial `number`, or None while it is being computed.

        None as well once the sampler is `exhausted`, that is, has nothing left to propose.
        """
        if self._pending is None:
            self._pending = self._submit(number, tuple(trials))
        if not self._pending.done():
            return None
        done, self._pending = self._pending, None
        error = done.exception()
        if error is not None:
            raise StudyError(f"the sampler failed: {type(error).__name__}: {error}") from error
        self.exhausted = done.result() is None
        return done.result()

    def _submit(self, number: int, trials: Sequence[Trial]) -> Future[Params | None]:
        if self._beside is not None:
            future = self._beside.submit(self._sampler.ask, number, trials)
            future.add_done_callback(lambda _: self._pool.wake())
            return future
        at_once: Future[Params | None] = Future()
        try:
            at_once.set_result(self._sampler.ask(number, trials))
        except Exception as error:
            at_once.set_exception(error)
        return at_once

    def close(self) -> None:
        if self._beside is not None:
            self._beside.shutdown(wait=False, cancel_futures=True)
