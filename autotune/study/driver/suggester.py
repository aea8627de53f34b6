"""Suggestions of the sampler, computed in a thread of their own, and ahead where they take long."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

from autotune.algorithms.samplers import Sampler
from autotune.backends.protocol import Pool
from autotune.errors import StudyError, UserError, raised_by
from autotune.trial import Params, Trial

SLOW_SECONDS = 0.1  # a suggestion that took longer was slow: an idle group would wait for it
REMEMBERED = 20  # suggestions; a single long one may have imported a module


@dataclass(frozen=True)
class Suggestion:
    """A point of the space, and the number of the ask that it answers."""

    ask: int
    params: Params


class Suggester:
    """Asks the sampler in another thread, one ask at a time, and wakes the loop at each answer.

    A sampler that answers within `SLOW_SECONDS` is asked when a worker group is idle, so it knows
    of every trial that has ended. One that takes longer, because it fits a model, now and then or
    always, is asked while all groups train: an idle group then gets a point at once, from a model
    that has not seen the last trials end. Where groups had to wait all the same, as they became
    idle together, one more point is computed ahead, up to one for each group. On a virtual clock,
    where nothing happens concurrently, nothing is asked ahead.

    An ask has a number, and no trial: the trial of its point gets its own number when it is written
    down, whatever forks and races have been written down meanwhile.
    """

    def __init__(self, sampler: Sampler, pool: Pool) -> None:
        self._sampler = sampler
        self._pool = pool
        self._thread = ThreadPoolExecutor(1, "suggest") if pool.realtime else None
        self._asked: deque[tuple[int, Future[Params | None]]] = deque()
        self._next_ask = 0
        self._unwritten: list[Trial] = []  # drawn ahead; only the thread that draws looks at them
        self._long: tuple[bool, ...] = ()  # which of the last suggestions took long
        self._depth, self._late = 1, False
        self.exhausted = False

    @property
    def slow(self) -> bool:
        """Whether suggestions are to be asked ahead: the last took long, or two of late did."""
        return self._thread is not None and (any(self._long[-1:]) or sum(self._long) > 1)

    def take(self, next_ask: int, trials: Collection[Trial]) -> Suggestion | None:
        """The next suggestion, or None while it is being computed.

        None as well once the sampler is `exhausted`, that is, has nothing left to propose.

        Args:
            next_ask: the least number that a new ask may have.
            trials: what a new ask is answered from.

        Raises:
            StudyError: the sampler raised.
        """
        ahead = bool(self._asked)
        if not ahead:
            self._submit(next_ask, tuple(trials))
        ask, answer = self._asked[0]
        if not answer.done():
            self._late |= ahead
            return None
        self._asked.popleft()
        error = answer.exception()
        if isinstance(error, UserError | StudyError):
            raise error
        if error is not None:
            raise StudyError(raised_by("sampler", error)) from error
        params = answer.result()
        self.exhausted = params is None
        return Suggestion(ask, params) if params is not None else None

    def ahead(self, next_ask: int, trials: Callable[[], Collection[Trial]], most: int) -> None:
        """Ask for points while all groups train, `most` at most; see `take` for the arguments."""
        if not self.slow:
            return
        self._depth, self._late = self._depth + self._late, False
        self._depth = min(self._depth, max(self._pool.busy(), 1))
        while len(self._asked) < min(self._depth, most):
            self._submit(next_ask, tuple(trials()))

    def _submit(self, next_ask: int, trials: Sequence[Trial]) -> None:
        ask = max(next_ask, self._next_ask)
        self._next_ask = ask + 1
        if self._thread is not None:
            answer = self._thread.submit(self._draw, ask, trials)
            answer.add_done_callback(lambda _: self._pool.wake())
        else:
            answer = Future()
            try:
                answer.set_result(self._sampler.ask(ask, trials))
            except (Exception, SystemExit) as error:
                answer.set_exception(error)
        self._asked.append((ask, answer))

    def _draw(self, ask: int, trials: Sequence[Trial]) -> Params | None:
        """Ask the sampler; it sees points that were drawn ahead as running trials."""
        begin, written = time.monotonic(), {t.ask for t in trials}
        number = max((t.number for t in trials), default=-1) + 1
        ahead = [t for t in self._unwritten if t.ask not in written]
        self._unwritten = [replace(t, number=number + i) for i, t in enumerate(ahead)]
        point = self._sampler.ask(ask, (*trials, *self._unwritten))
        if point is not None:
            self._unwritten.append(Trial(number + len(ahead), point, point, ask=ask))
        took = time.monotonic() - begin
        self._long = (*self._long, took > SLOW_SECONDS)[-REMEMBERED:]
        return point

    def close(self) -> None:
        """Cancel what has not been computed yet."""
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)
