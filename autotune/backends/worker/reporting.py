"""`autotune.report` and `autotune.evaluating`, for trainers whose framework owns the loop.

Such a trainer cannot yield: it is a plain function of its configuration. It runs on a thread of its
own, and the rank sees a generator: each `report` is a milestone.
"""

from __future__ import annotations

import contextlib
import ctypes
import inspect
import queue
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from autotune.backends.worker.reported import numbers
from autotune.errors import shown
from autotune.trial import Change, Milestone
from autotune.trial.checks import whole
from autotune.trial.trainer import is_generator

_WAIT_SECONDS = 1.0  # at a time, for a trainer's next milestone
_PAUSE_SECONDS = 0.1  # at a time, for a stopped function's end, which an ended thread cuts short
_END_SECONDS = 30.0  # for a function that reports again after it was stopped: it may clean up


@dataclass(frozen=True)
class Returned:
    """The value that a function returned, and its seconds in `evaluating` since its last report.

    `at` is when it did, by the clock that `steps` was given.
    """

    value: Any
    eval_seconds: float = 0.0
    at: float = field(default=0.0, compare=False)


Steps = Generator[Milestone, Change | None, Returned | None]
"""A trainer as milestones; one that is a function ends with what it `Returned`."""
_Item = Milestone | Returned | BaseException | None


@dataclass(frozen=True)
class Given:
    """The `evaluate` of a milestone whose metrics are known already: those of a report."""

    values: Mapping[str, float]

    def __call__(self) -> Mapping[str, float]:
        return self.values


def ends_setup(milestone: Milestone, start_step: int) -> bool:
    """Whether a first milestone only says that the set-up is done: nothing was trained before it.

    Metrics that were reported at step 0 come after training: of an epoch with that number, say.
    """
    evaluate = milestone.evaluate
    trained = start_step == 0 and isinstance(evaluate, Given) and bool(evaluate.values)
    return milestone.step == start_step and not trained


class StopTrial(BaseException):
    """Raised by `report` on every rank at the same step when the trial has been ended.

    Not an `Exception`, so that a framework's `except Exception` does not swallow it. Where a
    function swallows it and goes on, every later `report` raises it again.
    """


class _Session:
    """What passes between a function, on its thread, and the rank that waits for its milestones."""

    def __init__(self) -> None:
        self.milestones: queue.SimpleQueue[_Item] = queue.SimpleQueue()
        self.answers: queue.SimpleQueue[Change | None] = queue.SimpleQueue()
        self.stopped = False
        self.raised_at: list[float] = []  # the first is the stop; then the function has ignored it
        self.step: int | None = None  # of the last report
        self.paused_at: float | None = None
        self.eval_seconds = 0.0

    def decision(self, milestone: Milestone) -> Change | None:
        """Wait at a milestone for the decision on the trial; a StopTrial is raised."""
        self.milestones.put(milestone)
        change = self.answers.get()
        self.check()
        return change

    def check(self) -> None:
        """Raise a StopTrial if the trial has been stopped, however often that was said before."""
        if self.stopped:
            if len(self.raised_at) < 2:
                self.raised_at.append(time.monotonic())
            raise StopTrial

    def stop(self) -> None:
        self.stopped = True
        self.answers.put(None)  # for a function that waits

    @property
    def ignores(self) -> bool:
        """Whether the function has gone on for long after a stop that it swallowed."""
        again = self.raised_at[1:2]
        return bool(again) and time.monotonic() - again[0] >= _END_SECONDS


class _OfThread(threading.local):
    session: _Session | None = None


_session: _Session | None = None
_own = _OfThread()
_left: list[threading.Thread] = []  # of functions that were stopped and did not end


def _current() -> _Session | None:
    """The session of the caller: its thread's own, as one that runs on is not of the next trial."""
    return _own.session or _session


def report(
    step: int,
    metrics: Mapping[str, float],
    state: Callable[[], dict[str, Any]] | None = None,
) -> Change | None:
    """Report metrics at `step` samples and wait for the decision on this trial.

    Call it on every rank at the same steps. A first report at step 0 without metrics says that the
    set-up is done, and takes it off the clock. Time inside `evaluating` since the last report is
    evaluation, not training. Outside autotune the function does nothing and returns None.

    Raises:
        StopTrial: the trial has ended; do not catch it. Later calls raise it again.
        RuntimeError: called inside `evaluating`.
        TypeError: the metrics are no dict of numbers.
        ValueError: the step is no whole number, or not above that of the last report; or `state`
            is no function.
    """
    session = _current()
    if session is None:
        return None
    session.check()
    if session.paused_at is not None:
        raise RuntimeError("autotune.report belongs after the block of autotune.evaluating()")
    if not isinstance(metrics, Mapping):
        needed = "must be a dict such as {'val_accuracy': 0.9}"
        raise TypeError(f"autotune.report metrics {needed} but got {shown(metrics)}")
    values = numbers("autotune.report metrics must be numbers", metrics)
    step = whole("autotune.report step", step, 0)
    if session.step is not None and step <= session.step:
        raise ValueError(
            f"autotune.report step must grow but got {step} after {session.step}: "
            "it counts the samples seen so far by all ranks"
        )
    if state is not None and not callable(state):
        raise ValueError(f"autotune.report state must be a function but got {shown(state)}")
    session.step, paused, session.eval_seconds = step, session.eval_seconds, 0.0
    return session.decision(Milestone(step, Given(values), state, eval_seconds=paused))


@contextlib.contextmanager
def evaluating() -> Iterator[None]:
    """Stop the training clock: `with autotune.evaluating(): metrics = validate()`.

    For trainers that `report`; the seconds count as evaluation at the next report. It first waits
    for queued GPU work, which is training. Outside autotune it does nothing.

    Raises:
        RuntimeError: called inside itself.
    """
    session = _current()
    if session is None:
        yield
        return
    if session.paused_at is not None:
        raise RuntimeError("autotune.evaluating() cannot be inside another one")
    synchronize()
    session.paused_at = time.perf_counter()
    try:
        yield
        synchronize()
    finally:
        session.eval_seconds += time.perf_counter() - session.paused_at
        session.paused_at = None


def synchronize() -> None:
    """Wait for all GPUs of this process, if it uses any; torch is not imported for it."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        for device in range(torch.cuda.device_count()):
            torch.cuda.synchronize(device)


def left_running() -> str:
    """Why no other trial can run in this process, or an empty string: a function has not ended."""
    if any(thread.is_alive() for thread in _left):
        must = "`except BaseException` and a bare `except` must raise StopTrial again"
        return f"a trainer reports on, {_END_SECONDS:g} s after it was stopped ({must})"
    return ""


def steps(
    train: Callable[[dict[str, Any]], Any],
    config: dict[str, Any],
    clock: Callable[[], float] = time.perf_counter,
) -> Steps:
    """Start the trainer as a generator of milestones, whichever way it is written.

    `clock` is read when a function has returned, in the thread in which it ran: what the system
    has counted for that thread is gone afterwards.
    """
    if is_generator(train):
        made: Steps = train(config)
        return made
    return _on_thread(train, config, clock)


def _on_thread(
    train: Callable[[dict[str, Any]], Any], config: dict[str, Any], clock: Callable[[], float]
) -> Steps:
    global _session
    session = _session = _Session()

    def body() -> None:
        _own.session = session
        end: Returned | BaseException | None = None
        try:
            made = train(config)
            if inspect.isgenerator(made):
                _drain(cast(Steps, made), session)
            else:
                synchronize()
                end = Returned(made, session.eval_seconds, clock())
        except StopTrial:
            pass
        except SystemExit as left:
            fine = left.code in (None, 0)  # as a script that ends so
            end = Returned(None, session.eval_seconds, clock()) if fine else left
        except BaseException as error:
            end = error
        session.milestones.put(end)

    thread = threading.Thread(target=body, name="autotune-trainer", daemon=True)
    try:
        thread.start()
        while isinstance(item := _next(session.milestones), Milestone):
            session.answers.put((yield item))
        if isinstance(item, BaseException):
            raise item
        return item
    except KeyboardInterrupt:  # of the user of this very process, whose trainer is to end as well
        _interrupt(thread)
        raise
    finally:
        session.stop()
        try:
            while thread.is_alive() and not session.ignores:
                thread.join(_PAUSE_SECONDS)  # another interrupt leaves it sooner
        finally:
            _session = None
            if thread.is_alive():
                _left.append(thread)


def _next(items: queue.SimpleQueue[_Item]) -> _Item:
    """The next item; an interrupt that comes just before a wait is seen when that wait is over."""
    while True:
        with contextlib.suppress(queue.Empty):
            return items.get(timeout=_WAIT_SECONDS)


def _interrupt(thread: threading.Thread) -> None:
    """Raise a KeyboardInterrupt in the thread, at its next step of Python code."""
    if not thread.is_alive():
        return
    ident = ctypes.c_ulong(thread.ident or 0)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(KeyboardInterrupt))


def _drain(made: Steps, session: _Session) -> None:
    """Run a generator that a plain function returned, through `report`."""
    change: Change | None = None
    try:
        while True:
            change = session.decision(made.send(change))
    except StopIteration:
        return
    finally:
        made.close()
