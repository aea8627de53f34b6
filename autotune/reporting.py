"""`autotune.report`: for trainers whose framework owns the loop and cannot yield.

Such a trainer is a plain function of its configuration. It runs on a thread of its own and looks
like a generator to the rank: each `report` is a milestone.
"""

from __future__ import annotations

import inspect
import queue
import threading
from collections.abc import Callable, Generator, Mapping
from functools import partial
from typing import Any, cast

from autotune.trial import Change, Milestone

Steps = Generator[Milestone, Change | None, None]


class StopTrial(BaseException):
    """Raised by `report` on every rank at the same step when the trial has been ended.

    Not an `Exception`, so that a framework's `except Exception` does not swallow it.
    """


class _Session:
    def __init__(self) -> None:
        self.milestones: queue.SimpleQueue[Milestone | BaseException | None] = queue.SimpleQueue()
        self.answers: queue.SimpleQueue[Change | StopTrial | None] = queue.SimpleQueue()


_session: _Session | None = None


def report(
    step: int,
    metrics: Mapping[str, float],
    state: Callable[[], dict[str, Any]] | None = None,
) -> Change | None:
    """Report metrics at `step` samples and wait for the decision on this trial.

    Called on every rank at the same steps. Report step 0 with no metrics when the set-up is done,
    so that it is off the clock. Outside autotune it does nothing and returns None.

    Raises:
        StopTrial: the trial has ended; let it pass.
    """
    if _session is None:
        return None
    values = dict(metrics)
    _session.milestones.put(Milestone(step, lambda: values, state))
    answer = _session.answers.get()
    if isinstance(answer, StopTrial):
        raise answer
    return answer


def steps(train: Callable[[dict[str, Any]], Any], config: dict[str, Any]) -> Steps:
    """The trainer as a generator of milestones, whichever way it is written."""
    function = train
    while isinstance(function, partial):
        function = function.func
    call = getattr(type(function), "__call__", None)
    if inspect.isgeneratorfunction(function) or inspect.isgeneratorfunction(call):
        made: Steps = train(config)
        return made
    return _on_thread(train, config)


def _on_thread(train: Callable[[dict[str, Any]], Any], config: dict[str, Any]) -> Steps:
    global _session
    session = _session = _Session()

    def body() -> None:
        end: BaseException | None = None
        try:
            made = train(config)
            if inspect.isgenerator(made):
                _drain(cast(Steps, made))
        except StopTrial:
            pass
        except BaseException as error:
            end = error
        session.milestones.put(end)

    thread = threading.Thread(target=body, name="autotune-trainer", daemon=True)
    thread.start()
    try:
        while isinstance(item := session.milestones.get(), Milestone):
            session.answers.put((yield item))
        if item is not None:
            raise item
    finally:
        session.answers.put(StopTrial())
        thread.join()
        _session = None


def _drain(made: Steps) -> None:
    """Run a generator that a plain function returned, through `report`."""
    session, change = _session, None
    assert session is not None
    try:
        while True:
            session.milestones.put(made.send(change))
            answer = session.answers.get()
            if isinstance(answer, StopTrial):
                raise answer
            change = answer
    except StopIteration:
        return
    finally:
        made.close()
