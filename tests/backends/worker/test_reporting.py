"""`report`, alone and as the rank sees it."""

from __future__ import annotations

import _thread
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial, wraps
from traceback import TracebackException
from typing import Any

import numpy as np
import pytest
import torch

import autotune as at
from autotune.backends.worker.diagnostics import from_trainer
from autotune.backends.worker.reported import returned_metrics
from autotune.backends.worker.reporting import (
    Returned,
    StopTrial,
    ends_setup,
    left_running,
    steps,
)
from autotune.trial import Change

NAME = "autotune-trainer"
SECONDS = 600.0  # a guard against hangs


def generator(config: dict[str, Any], scale: float = 1.0) -> Iterator[at.Milestone]:
    yield at.Milestone(1, lambda: {"acc": scale})
    yield at.Milestone(2, lambda: {"acc": 2 * scale})


@wraps(generator)
def wrapped(config: dict[str, Any]) -> Any:
    return generator(config)


class Callable_:
    def __call__(self, config: dict[str, Any]) -> Iterator[at.Milestone]:
        yield from generator(config)


def reporting(config: dict[str, Any]) -> None:
    at.report(1, {"acc": 1.0})
    at.report(2, {"acc": 2.0})


@pytest.mark.parametrize(
    "train",
    [
        *(generator, partial(generator, scale=1.0), wrapped),
        *(Callable_(), partial(Callable_()), reporting),
    ],
)
def test_however_it_is_written_a_trainer_is_steps(train: Any) -> None:
    milestones = list(steps(train, {}))
    assert [m.step for m in milestones] == [1, 2]
    assert [m.evaluate() for m in milestones] == [{"acc": 1.0}, {"acc": 2.0}]
    assert not [t for t in threading.enumerate() if t.name == NAME]


def interrupted() -> None:
    """Ctrl-C for the main thread."""
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


@pytest.mark.parametrize("interrupt", [interrupted, _thread.interrupt_main], ids=["in", "before"])
def test_an_interrupt_of_who_waits_for_a_function_ends_it(interrupt: Callable[[], None]) -> None:
    """In a process of the user's own: the second Ctrl-C is for the trainer.

    It comes in the wait, or just before it: then nothing wakes the thread that waits.
    """
    began, ends = threading.Event(), []

    def train(config: dict[str, Any]) -> None:
        late = time.monotonic() + 600
        try:
            began.set()
            while time.monotonic() < late:
                pass
        except KeyboardInterrupt as error:
            ends.append(error)
            raise

    def later() -> None:
        began.wait()
        time.sleep(0.2)  # the main thread waits by now
        interrupt()

    threading.Thread(target=later).start()
    with pytest.raises(KeyboardInterrupt):
        next(steps(train, {}))
    assert len(ends) == 1


def ended(train: Any, clock: Callable[[], float] = time.perf_counter) -> Any:
    """What the steps of a trainer end with, all of which are taken."""
    made = steps(train, {}, clock)
    while True:
        try:
            next(made)
        except StopIteration as end:
            return end.value


def test_steps_end_with_what_a_function_returned() -> None:
    def train(config: dict[str, Any]) -> float:
        at.report(1, {"acc": 0.1})
        with at.evaluating():
            return 0.5

    end = ended(train)
    assert end == Returned(0.5, end.eval_seconds)
    assert end.eval_seconds > 0
    assert ended(reporting) == Returned(None)
    assert ended(reporting, lambda: float(threading.current_thread().name == NAME)).at == 1.0
    assert ended(generator) is None
    assert ended(wrapped) is None, "a generator's end, whoever made it"


class Strange:
    def __float__(self) -> float:
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("value", "metrics"),
    [
        (1, {"acc": 1.0}),
        (np.float32(0.5), {"acc": 0.5}),
        (torch.tensor(0.5), {"acc": 0.5}),
        ({"acc": torch.tensor([0.5]), "epochs": np.int64(3)}, {"acc": 0.5, "epochs": 3.0}),
        ({"loss": 0.5}, {"loss": 0.5}),
        (None, "returned None"),
        ("0.5", "returned '0.5'"),
        (True, "returned True"),
        (np.bool_(True), "returned np.True_"),
        ((0.5, 0.6), "returned (0.5, 0.6)"),
        (torch.ones(2), "returned tensor([1., 1.])"),
        ({"acc": 0.5, "by": "me"}, "returned a dict in which 'by' is 'me', no number,"),
        ({"acc": Strange}, "returned a dict in which 'acc' is <class"),
    ],
)
def test_a_returned_number_or_dict_is_a_report(value: Any, metrics: Any) -> None:
    found, text = returned_metrics(value, "acc")
    if isinstance(metrics, str):
        assert found is None
        assert text.startswith(metrics)
    else:
        assert (found, text) == (metrics, "")
    assert returned_metrics(Strange(), "acc")[0] is None


def test_only_a_first_report_without_metrics_ends_the_set_up() -> None:
    """A loop over `range(epochs)` reports its first epoch at step 0."""

    def train(config: dict[str, Any]) -> None:
        at.report(0, config["metrics"])
        at.report(1, {})

    for metrics, is_setup in (({}, True), ({"acc": 0.1}, False)):
        first, second = steps(train, {"metrics": metrics})
        assert ends_setup(first, 0) == is_setup
        assert first.evaluate() == metrics
        assert not ends_setup(second, 0)
    assert ends_setup(at.Milestone(0, lambda: {"acc": 0.1}), 0), "nothing is evaluated yet"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ((5, 0.9), "TypeError: autotune.report metrics must be a dict such as .* but got 0.9"),
        (
            (5, {"a": torch.ones(3)}),
            "TypeError: autotune.report metrics must be numbers but 'a' is",
        ),
        ((1.5, {}), "ValueError: autotune.report step must be a whole number >= 0 but got 1.5"),
        ((1, {}), "ValueError: autotune.report step must grow but got 1 after 2: it counts"),
        ((5, {}, {"w": 1}), "ValueError: autotune.report state must be a function but got {'w'"),
    ],
)
def test_a_mistake_in_a_report_names_it_and_the_line(given: Any, says: str) -> None:
    def train(config: dict[str, Any]) -> None:
        at.report(2, {"acc": np.float32(1)})
        at.report(*given)

    made = steps(train, {})
    next(made)
    with pytest.raises((TypeError, ValueError)) as error:
        next(made)
    below = error.value.__traceback__.tb_next  # type: ignore[union-attr]
    found = from_trainer(TracebackException(error.type, error.value, below))
    text = "".join(found.format())
    assert [frame.name for frame in found.stack] == ["train"]
    assert "at.report(*given)" in text
    assert re.search(f"^{says}", text, re.MULTILINE)


def test_a_mistake_in_a_milestone_is_in_the_trainers_line() -> None:
    def train(config: dict[str, Any]) -> Iterator[at.Milestone]:
        yield at.Milestone(1.5, dict)  # type: ignore[arg-type]

    with pytest.raises(ValueError, match="Milestone step must be a whole number") as error:
        next(steps(train, {}))
    shown = from_trainer(TracebackException.from_exception(error.value)).stack
    assert shown[-1].line == "yield at.Milestone(1.5, dict)  # type: ignore[arg-type]"


def test_outside_autotune_report_does_nothing() -> None:
    assert at.report(1, {"acc": 1.0}) is None
    assert reporting({}) is None


def test_metrics_are_those_of_the_moment() -> None:
    def train(config: dict[str, Any]) -> None:
        metrics = {"acc": 1.0}
        at.report(1, metrics)
        metrics["acc"] = 2.0
        at.report(2, metrics)

    assert [m.evaluate()["acc"] for m in list(steps(train, {}))] == [1.0, 2.0]


def test_a_change_is_returned_and_a_state_passed_on() -> None:
    seen: list[Change | None] = []

    def train(config: dict[str, Any]) -> None:
        seen.append(at.report(1, {}, state=lambda: {"w": 1}))
        seen.append(at.report(2, {}))

    made = steps(train, {})
    milestone = next(made)
    assert milestone.state is not None
    assert milestone.state() == {"w": 1}
    made.send(Change(lr_factor=0.5))
    assert list(made) == []
    assert seen == [Change(lr_factor=0.5), None]


def test_stop_trial_passes_through_what_a_framework_catches() -> None:
    assert not issubclass(StopTrial, Exception)
    seen: list[str] = []

    def train(config: dict[str, Any]) -> None:
        try:
            for step in range(1, 9):
                try:
                    at.report(step, {})
                except Exception:
                    seen.append("swallowed")
        finally:
            seen.append("cleaned up")

    made = steps(train, {})
    next(made)
    made.close()
    assert seen == ["cleaned up"]
    assert at.report(1, {}) is None


def test_a_function_that_swallows_its_stop_runs_on_and_is_not_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each of its reports raises at once, also while the next trial reports."""
    monkeypatch.setattr("autotune.backends.worker.reporting._END_SECONDS", 0.01)
    caught: list[type[BaseException]] = []
    later, done = threading.Event(), threading.Event()

    def deaf(config: dict[str, Any]) -> None:
        for step in (1, 2, 3):
            if step == 3:
                later.wait(SECONDS)
            try:
                at.report(step, {"acc": 9.0})
            except BaseException as error:
                caught.append(type(error))
        done.set()

    def following(config: dict[str, Any]) -> None:
        later.set()
        done.wait(SECONDS)
        at.report(1, {"acc": 1.0})

    made = steps(deaf, {})
    next(made)
    made.close()
    assert left_running().startswith("a trainer reports on, 0.01 s after it was stopped")
    assert [(m.step, m.evaluate()) for m in steps(following, {})] == [(1, {"acc": 1.0})]
    assert caught == [StopTrial] * 3
    for thread in [t for t in threading.enumerate() if t.name == NAME]:
        thread.join(SECONDS)
    assert left_running() == ""


def test_an_error_of_the_trainer_is_raised_where_its_steps_are_taken() -> None:
    def train(config: dict[str, Any]) -> None:
        at.report(1, {})
        raise KeyError("lr")

    made = steps(train, {})
    next(made)
    with pytest.raises(KeyError, match="lr"):
        next(made)


@pytest.mark.parametrize("code", [None, 0, 3, "bad"])
def test_a_function_that_exits_without_a_fault_has_ended(code: int | str | None) -> None:
    def train(config: dict[str, Any]) -> None:
        sys.exit(code)

    if code in (None, 0):
        assert ended(train) == Returned(None)
    else:
        with pytest.raises(SystemExit):
            next(steps(train, {}))


# --- evaluating ---------------------------------------------------------------------------------


def test_what_was_evaluated_since_the_last_report_is_not_training() -> None:
    least, most = [], []

    def train(config: dict[str, Any]) -> None:
        at.report(0, {})
        for _ in range(2):
            begin = time.perf_counter()
            with at.evaluating():
                within = time.perf_counter()
                time.sleep(0.05)
                least.append(time.perf_counter() - within)
            most.append(time.perf_counter() - begin)
        time.sleep(0.05)
        at.report(1, {"acc": 1.0})
        at.report(2, {"acc": 1.0})

    seconds = [m.eval_seconds for m in steps(train, {})]
    assert (seconds[0], seconds[2]) == (0.0, 0.0)
    assert sum(least) <= seconds[1] <= sum(most)


def test_outside_autotune_evaluating_does_nothing() -> None:
    with at.evaluating(), at.evaluating():
        assert at.report(1, {}) is None


def test_an_evaluation_that_raises_is_over() -> None:
    def train(config: dict[str, Any]) -> None:
        try:
            with at.evaluating():
                raise KeyError("accuracy")
        except KeyError:
            at.report(1, {})

    (milestone,) = steps(train, {})
    assert milestone.eval_seconds > 0


@pytest.mark.parametrize(
    ("inner", "says"),
    [
        (lambda: at.report(1, {}), "belongs after the block"),
        (lambda: at.evaluating().__enter__(), "cannot be inside another"),
    ],
)
def test_what_does_not_belong_into_an_evaluation(inner: Any, says: str) -> None:
    def train(config: dict[str, Any]) -> None:
        with at.evaluating():
            inner()

    with pytest.raises(RuntimeError, match=says):
        next(steps(train, {}))
