"""A turn of a worker group: from the ranks' answers to the one signal that the study gets.

No process runs here: the ranks' calls are completed by hand, as a backend completes them.
"""

from __future__ import annotations

import queue
import time
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.backends.groups import turns
from autotune.backends.groups.turns import Group, Inbox, NodeOutOfMemory, PendingCheckpoint
from autotune.backends.protocol import (
    Finished,
    Launch,
    Progress,
    Raised,
    Signal,
    Stopped,
    WorkerFailed,
)
from autotune.backends.worker.checkpoint_io import Written
from autotune.backends.worker.cpu_wait import Wait
from autotune.backends.worker.hardware_probe import Machine
from autotune.backends.worker.messages import Answer, Place
from autotune.trial import Checkpoint, Clock, Hardware

LIMIT = 600.0
AT_100 = Answer("milestone", 100, {"accuracy": 0.5}, Clock(train=2.0), can_save=True)
DIED = RuntimeError("The actor died unexpectedly")
OUT_OF_MEMORY = Answer("raised", reason="OutOfMemoryError: 1 GiB", error="m", out_of_memory=True)


class Turn:
    """A turn of a group of two ranks that runs trial 7."""

    def __init__(self, **group: Any) -> None:
        places = [Place(f"n{r}", f"host{r}", 10 + r, (), Machine("cpu"), "") for r in (0, 1)]
        self.inbox: Inbox = queue.SimpleQueue()
        self.group = Group(0, None, "PACK", places=places, state="running", launch=Launch(7, {}, 1))
        self.group = replace(self.group, **group)
        self.calls = [Future[Any](), Future[Any]()]
        turns.begin(self.inbox, self.group, self.calls, LIMIT)

    def answer(self, rank: int, what: Answer | BaseException) -> bool:
        """Complete the call of a rank; whether the turn is over."""
        if isinstance(what, BaseException):
            self.calls[rank].set_exception(what)
        else:
            self.calls[rank].set_result(what)
        arrived = self.inbox.get_nowait()
        assert isinstance(arrived, Future)
        return turns.take(self.group, arrived)

    def signal(self, *answers: Answer | BaseException) -> Signal:
        over = [self.answer(rank, answer) for rank, answer in enumerate(answers)]
        assert over == [False, True][: len(answers)]
        return turns.signal(self.group, [])

    def left(self) -> float:
        return self.group.deadline - time.monotonic()


def test_metrics_that_come_later_are_no_report_yet() -> None:
    """The next turn has it, with the step and the clock of its own milestone."""
    turn = Turn(clock=Clock(train=1.0))
    yet = Answer("milestone", 100)
    assert turn.signal(yet, yet) == Progress(7, None)
    assert turn.group.clock == Clock(train=1.0)
    late = replace(AT_100, ahead=200)
    progress = Turn(clock=Clock(train=1.0)).signal(late, late)
    assert isinstance(progress, Progress)
    assert progress.report is not None
    assert (progress.report.step, progress.report.ahead, progress.report.seconds) == (100, 200, 3.0)


def test_a_process_that_died_while_it_validated_is_replaced() -> None:
    dead = Answer("raised", reason="BrokenExecutor: was ended by SIGKILL", helper_died=True)
    failed = Turn().signal(dead, AT_100)
    assert isinstance(failed, WorkerFailed)
    assert failed.reason == "BrokenExecutor: was ended by SIGKILL"


def test_a_report_has_rank_0s_metrics_and_the_slowest_ranks_time() -> None:
    turn = Turn(clock=Clock(train=1.0))
    slow = replace(AT_100, metrics={"accuracy": 0.1}, clock=Clock(train=3.0), can_save=False)
    progress = turn.signal(AT_100, slow)
    assert isinstance(progress, Progress)
    assert (progress.trial, progress.can_save, progress.save_pending) == (7, False, False)
    report = progress.report
    assert (report.step, dict(report.metrics), report.seconds) == (100, {"accuracy": 0.5}, 4.0)
    assert turn.group.clock == Clock(train=4.0)


def test_a_group_waited_as_long_as_the_rank_that_waited_longest() -> None:
    group = Turn(clock=Clock(train=5.0), waited=0.5).group
    for waits, slowed_by, total in (
        ((Wait(0.25), Wait(1.5, "its GPU: hot")), "its GPU: hot", 2.0),
        ((Wait(0.5, "b"), Wait(0.25, "a")), "a; b", 2.5),
        ((Wait(90.0), Wait()), "", 11.0),  # no longer than it has trained
        ((None, None), "", 11.0),  # a set-up
    ):
        turn = Turn(clock=group.clock, waited=group.waited)
        progress = turn.signal(*[replace(AT_100, wait=wait) for wait in waits])
        assert isinstance(progress, Progress)
        assert (progress.report.waited, progress.report.slowed_by) == (total, slowed_by)
        group = turn.group
    progress = Turn().signal(AT_100, AT_100)
    assert isinstance(progress, Progress)
    assert progress.report.waited is None, "nothing was measured"


def test_a_checkpoint_is_there_once_all_ranks_have_written_it(tmp_path: Path) -> None:
    folder = str(tmp_path)
    pending = PendingCheckpoint(folder, 50, Clock(train=1.0))
    group = Turn(checkpoint=pending).group
    for rank in (0, 1):
        (tmp_path / f"rank-{rank}.pt").touch()
    for written, expected in (
        ((Written(folder, "a"), None), None),
        ((None, None), None),
        ((None, Written(folder, "b")), Checkpoint(50, folder, Clock(train=1.0), ("a", "b"))),
    ):
        turn = Turn(checkpoint=group.checkpoint)
        progress = turn.signal(*[replace(AT_100, saved=part) for part in written])
        assert isinstance(progress, Progress)
        assert (progress.saved, progress.save_pending) == (expected, expected is None)
        group = turn.group
    assert group.checkpoint is None


def test_a_checkpoint_that_one_rank_cannot_write_is_dropped() -> None:
    turn = Turn(checkpoint=PendingCheckpoint("folder", 50, Clock()))
    progress = turn.signal(AT_100, replace(AT_100, save_error="No space left on device"))
    assert isinstance(progress, Progress)
    assert (progress.saved, progress.save_pending) == (None, False)
    assert progress.save_error == "No space left on device"


def test_a_checkpoint_on_a_disk_that_the_driver_does_not_see_is_said(tmp_path: Path) -> None:
    folder = str(tmp_path / "trial-0007" / "step-50")
    turn = Turn(checkpoint=PendingCheckpoint(folder, 50, Clock()))
    progress = turn.signal(*[replace(AT_100, saved=Written(folder, made)) for made in "ab"])
    assert isinstance(progress, Progress)
    assert (progress.saved, progress.save_pending) == (None, False)
    closing = Turn(checkpoint=PendingCheckpoint(folder, 50, Clock()), state="closing")
    stopped = closing.signal(*[Answer("stopped", saved=Written(folder, made)) for made in "ab"])
    assert isinstance(stopped, Stopped)
    assert stopped.save_error == progress.save_error
    assert progress.save_error == (
        f"the driver does not see what workers wrote to {tmp_path}: "
        "give checkpoint_folder a folder that all nodes share, or a URL"
    )


@pytest.mark.parametrize(
    ("state", "kind", "expected"),
    [("running", "finished", Finished(7)), ("closing", "stopped", Stopped(7))],
)
def test_an_end_on_all_ranks_is_one_signal(state: str, kind: Any, expected: Signal) -> None:
    assert Turn(state=state).signal(Answer(kind), Answer(kind)) == expected


def test_what_rank_0_returned_is_the_last_report() -> None:
    turn = Turn(clock=Clock(train=1.0))
    first = Answer("finished", 108, {"accuracy": 0.7}, Clock(train=2.0))
    end = turn.signal(first, replace(first, metrics=None, clock=Clock(train=3.0), returned="None"))
    assert isinstance(end, Finished)
    assert end.report is not None
    report = end.report
    assert (report.step, dict(report.metrics), report.seconds) == (108, {"accuracy": 0.7}, 4.0)
    nothing = replace(first, metrics=None, returned="returned None")
    assert Turn().signal(nothing, first) == Finished(7, None, "returned None")


def test_ranks_at_different_milestones_are_an_error() -> None:
    raised = Turn().signal(AT_100, replace(AT_100, step=107))
    assert isinstance(raised, Raised)
    assert raised.reason == (
        "the ranks are not at the same milestone: "
        "rank 0 milestone at step 100, rank 1 milestone at step 107"
    )


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (
            Answer("raised", error="same", reason="E: a"),
            Answer("raised", error="same", reason="E: a"),
            Raised(7, "ranks 0, 1:\nsame", "E: a"),
        ),
        (
            Answer("raised", error="lost its partner", reason="E: a"),
            OUT_OF_MEMORY,
            Raised(
                7,
                "rank 0:\nlost its partner\n\nrank 1:\nm",
                "OutOfMemoryError: 1 GiB",
                out_of_memory=True,
            ),
        ),
        (
            Answer(
                "raised",
                error="x",
                reason="OutOfMemoryError: 1 GiB",
                out_of_memory=True,
                crowded=True,
            ),
            AT_100,
            WorkerFailed(
                7,
                "OutOfMemoryError: 1 GiB: others hold more of the GPU than is theirs",
                "rank 0:\nx\n\nrank 1: raised nothing",
            ),
        ),
        (
            Answer("raised", error="x", reason="E: a", damaged=True),
            AT_100,
            Raised(7, "rank 0:\nx\n\nrank 1: raised nothing", "E: a", damaged=True),
        ),
        (
            Answer("raised", error="x", reason="OSError: a", store_unreachable=True),
            AT_100,
            WorkerFailed(
                7, "OSError: a", "rank 0:\nx\n\nrank 1: raised nothing", store_unreachable=True
            ),
        ),
    ],
    ids=["equal", "memory", "crowded", "damaged", "unreachable"],
)
def test_errors_of_all_ranks_are_merged(one: Answer, other: Answer, expected: Signal) -> None:
    assert Turn().signal(one, other) == expected


def test_after_an_error_the_other_ranks_have_some_seconds_left() -> None:
    """After one for memory fewer, as they wait for that rank in a collective."""
    for answer, seconds in (
        (Answer("raised"), turns._GRACE_SECONDS),
        (DIED, turns._GRACE_SECONDS),
        (OUT_OF_MEMORY, turns._MEMORY_GRACE_SECONDS),
    ):
        turn = Turn()
        assert not turn.answer(0, answer)
        assert turn.left() <= seconds
    turn = Turn()
    assert not turn.answer(0, AT_100)
    assert turn.left() > LIMIT / 2


def test_a_rank_that_does_not_answer_in_time_hangs() -> None:
    failed = Turn().signal(AT_100)
    assert isinstance(failed, WorkerFailed)
    where, limit = "rank 1 (pid 11 on host1)", "600 s (hang_timeout)"
    assert failed.reason == f"worker hung: {where}: reached no milestone within {limit}"
    assert Turn(state="closing").signal(Answer("stopped")) == Stopped(7)


def test_a_rank_that_died_ends_the_trial() -> None:
    turn = Turn()
    failed = turn.signal(AT_100, DIED)
    reason = "worker died: rank 1 (pid 11 on host1)"
    assert failed == WorkerFailed(7, reason, "The actor died unexpectedly")
    assert turns.nodes_of_failed(turn.group) == {"n1"}
    lost = turns.signal(turn.group, ["n1"])
    reason = "node lost: rank 1 (pid 11 on host1)"
    assert lost == WorkerFailed(7, reason, "The actor died unexpectedly", node_lost=True)
    assert Turn(state="closing").signal(Answer("stopped"), DIED) == Stopped(7)


@pytest.mark.parametrize("gpus", [0.0, 1.0])
def test_what_ray_kills_for_its_memory_raised_unless_it_trains_on_a_gpu(gpus: float) -> None:
    turn = Turn(hardware=Hardware("x", gpus_per_worker=gpus))
    signal = turn.signal(NodeOutOfMemory("killed"))
    reason = "killed by Ray, as its node was running out of memory: rank 0 (pid 10 on host0)"
    error = str(NodeOutOfMemory("killed"))
    on_host, on_gpu = Raised(7, error, reason, out_of_memory=True), WorkerFailed(7, reason, error)
    assert signal == (on_gpu if gpus else on_host)
    assert turns.nodes_of_failed(turn.group) == set()


def test_answers_to_an_abandoned_turn_belong_to_no_group() -> None:
    turn = Turn()
    turns.abandon(turn.group)
    turn.calls[0].set_result(AT_100)
    assert turn.inbox.get_nowait() not in turn.group.unanswered
    assert turn.group.deadline == float("inf")
