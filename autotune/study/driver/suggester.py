"""Suggestions, computed beside the loop, and ahead of it where they take long."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from autotune.algorithms.samplers import Sampler
from autotune.backends.protocol import Pool
from autotune.errors import StudyError
from autotune.trial import Params, Trial

PATIENCE = 0.1  # seconds that an idle group waits for a suggestion that knows the newest results
REMEMBERED = 20  # suggestions; one long one among them is no sign: it may have imported a module


class Suggester:
    """Computes suggestions beside the loop, one after the other, and wakes it when one is ready.

    A sampler that answers within `PATIENCE` is asked when a worker group is idle, so it knows of
    every trial that has ended. One that takes longer, because it fits a model, now and then or
    always, is asked while all groups train, for the next number: an idle group then gets a point
    at once, from a model that has not seen the last trials end. Where groups had to wait all the
    same, as they became idle together, one point more is held ready, up to one for each group. On
    a virtual clock, where nothing happens beside the loop, nothing is asked ahead.
    """

    def __init__(self, sampler: Sampler, pool: Pool) -> None:
        self._sampler = sampler
        self._pool = pool
        self._beside = ThreadPoolExecutor(1, "suggest") if pool.realtime else None
        self._asked: deque[Future[Params | None]] = deque()
        self._held: list[Trial] = []  # drawn ahead; only the thread that draws looks at them
        self._long: tuple[bool, ...] = ()  # which of the last suggestions took long
        self._depth, self._late = 1, False
        self.exhausted = False

    @property
    def pending(self) -> bool:
        """Whether a suggestion has been asked for and not been taken yet."""
        return bool(self._asked)

    @property
    def slow(self) -> bool:
        """Whether suggestions are to be asked ahead: the last took long, or two of late did."""
        return self._beside is not None and (any(self._long[-1:]) or sum(self._long) > 1)

    def take(self, number: int, trials: Collection[Trial]) -> Params | None:
        """The suggestion for trial `number`, or None while it is being computed.

        None as well once the sampler is `exhausted`, that is, has nothing left to propose.
        """
        ahead = bool(self._asked)
        if not ahead:
            self._asked.append(self._submit(number, tuple(trials)))
        if not self._asked[0].done():
            self._late |= ahead
            return None
        done = self._asked.popleft()
        error = done.exception()
        if error is not None:
            raise StudyError(f"the sampler failed: {type(error).__name__}: {error}") from error
        self.exhausted = done.result() is None
        return done.result()

    def ahead(self, number: int, trials: Callable[[], Collection[Trial]], most: int) -> None:
        """All groups train: ask for trial `number` and those after it, `most` at most."""
        if not self.slow:
            return
        self._depth, self._late = self._depth + self._late, False
        self._depth = min(self._depth, max(self._pool.busy(), 1))
        while len(self._asked) < min(self._depth, most):
            self._asked.append(self._submit(number + len(self._asked), tuple(trials())))

    def _submit(self, number: int, trials: Sequence[Trial]) -> Future[Params | None]:
        if self._beside is not None:
            future = self._beside.submit(self._draw, number, trials)
            future.add_done_callback(lambda _: self._pool.wake())
            return future
        at_once: Future[Params | None] = Future()
        try:
            at_once.set_result(self._sampler.ask(number, trials))
        except Exception as error:
            at_once.set_exception(error)
        return at_once

    def _draw(self, number: int, trials: Sequence[Trial]) -> Params | None:
        """Ask the sampler, which takes points that are held ready for running trials."""
        begin, known = time.monotonic(), {t.number for t in trials}
        self._held = [t for t in self._held if t.number not in known]
        point = self._sampler.ask(number, (*trials, *self._held))
        if point is not None:
            self._held.append(Trial(number, point, point))
        took = time.monotonic() - begin
        self._long = (*self._long, took > PATIENCE)[-REMEMBERED:]
        return point

    def close(self) -> None:
        if self._beside is not None:
            self._beside.shutdown(wait=False, cancel_futures=True)
