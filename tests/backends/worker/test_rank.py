"""One rank in a process of its own: the trial's clock, its state, what it leaks."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import Remote
from toys import METRIC, chosen

from autotune.backends.worker.diagnostics import free_frames, out_of_memory
from autotune.backends.worker.messages import Answer
from autotune.trial import Change, Checkpoint, Clock


@pytest.fixture(scope="module")
def shared() -> Iterator[Remote]:
    """One process for all trials that leave it clean, as in a study."""
    remote = Remote(chosen)
    yield remote
    remote.close()


@pytest.fixture
def fresh() -> Iterator[Remote]:
    remote = Remote(chosen)
    yield remote
    remote.close()


def start(rank: Remote, train: str, **config: Any) -> Answer:
    return rank.start({"train": train, **config})


def lasted(clock: Clock, seconds: float, **naps: float) -> bool:
    """That each part lasted as long as its nap, and all of them together no longer than the call.

    So on any machine no part has taken from another, and on one that is idle none is longer.
    """
    parts = {f.name: getattr(clock, f.name) for f in fields(clock) if f.name != "decide"}
    assert {name for name, part in parts.items() if part} == {*naps}
    assert all(parts[name] > nap - 0.002 for name, nap in naps.items()), parts
    return sum(parts.values()) < seconds


def test_between_trials_everything_that_leaks_is_put_back(shared: Remote) -> None:
    found = []
    for _ in range(3):
        assert start(shared, "leaky").kind == "milestone"
        answer = shared("resume", None, None)
        assert answer.kind == "milestone", answer.error
        found.append(answer.metrics)
        end = shared("stop", None)
        assert (end.kind, end.must_restart) == ("stopped", "")
    first = found[0]
    assert first["modes"] == 0
    assert first["dtype"] == 1
    assert found[1] == first
    assert found[2] == first


def test_another_seed_gives_other_random_numbers(shared: Remote) -> None:
    found = []
    for seed in (1, 2, 1):
        shared.start({"train": "leaky"}, seed=seed)
        found.append(shared("resume", None, None).metrics)
        shared("stop", None)
    assert found[0] == found[2]
    assert found[0]["random"] != found[1]["random"]
    assert found[0]["torch"] != found[1]["torch"]


@pytest.mark.parametrize(
    ("leak", "must_restart"),
    [
        ("thread", "threads left running: left-behind"),
        ("child", "child processes left running"),
        ("memory", "memory grew from"),
    ],
)
def test_what_cannot_be_put_back_forces_a_restart(
    fresh: Remote, leak: str, must_restart: str
) -> None:
    start(fresh, "timed")
    assert fresh("stop", None).must_restart == ""  # the first trial fills the caches
    start(fresh, "leaking", leak=leak)
    fresh("resume", None, None)
    assert must_restart in fresh("stop", None).must_restart


def test_what_a_failed_trial_used_is_not_what_is_usual(fresh: Remote) -> None:
    """It may have ended before any library was loaded."""
    start(fresh, "toy", fault="memory")
    failed = [fresh("resume", None, None) for _ in range(3)][-1]
    assert (failed.out_of_memory, failed.must_restart) == (True, "")
    for _ in range(2):
        start(fresh, "leaking", leak="memory")
        fresh("resume", None, None)
        assert fresh("stop", None).must_restart == ""


def test_a_progress_bar_does_not_force_a_restart(shared: Remote) -> None:
    for _ in range(2):
        start(shared, "barred")
        assert shared("resume", None, None).metrics == {METRIC: 1.0}, "its watching thread runs"
        assert shared("stop", None).must_restart == ""


def test_a_process_can_be_deterministic_after_trials_that_are_not(shared: Remote) -> None:
    """Torch asks for cuBLAS's workspace once a process: it is set before CUDA is used."""
    asked = shared._process.submit(os.getenv, "CUBLAS_WORKSPACE_CONFIG")
    assert asked.result(600) == os.environ.get("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


# --- the clock --------------------------------------------------------------------------------


def test_set_up_is_off_the_clock_and_every_second_is_in_one_part(
    shared: Remote, tmp_path: Path
) -> None:
    first = start(shared, "timed")
    assert (first.kind, first.step, first.metrics, first.can_save) == ("milestone", 0, {}, False)
    assert lasted(first.clock, shared.took, setup=0.2)
    assert first.clock.decide == 0
    begin = time.perf_counter()
    second = shared("resume", None, None)
    assert second.metrics == {METRIC: 0.5}
    assert second.can_save
    assert second.clock.data == pytest.approx(0.04)
    assert lasted(second.clock, shared.took, data=0.04, train=0.06, eval=0.3)
    parts = second.clock
    assert parts.seconds("train") == pytest.approx(parts.data + parts.train)
    assert parts.seconds("wall") == pytest.approx(parts.data + parts.train + parts.eval)
    third = shared("resume", None, str(tmp_path / "save"))
    assert third.saved
    assert lasted(third.clock, shared.took, checkpoint=0.15, train=0.1, eval=0.3)
    assert 0 < third.clock.decide < time.perf_counter() - begin - shared.took
    assert shared("resume", None, None).kind == "finished"


def test_as_many_milestones_are_evaluated_as_the_launch_asks_for(shared: Remote) -> None:
    for evaluations, wanted in ((None, 3), (1, 1), (2, 2)):
        shared.start({"train": "toy"}, evaluations=evaluations)
        answers = [shared("resume", None, None) for _ in range(3)]
        assert [METRIC in a.metrics for a in answers] == [True] * wanted + [False] * (3 - wanted)
        assert all(a.clock.train > 0 for a in answers)
        assert shared("stop", None).kind == "stopped"


def test_a_trainer_that_trains_before_its_first_milestone_is_charged(shared: Remote) -> None:
    answer = start(shared, "timed", honest=False)
    assert answer.clock.setup == 0
    assert shared.took > answer.clock.train + answer.clock.data > 0.298
    shared("stop", None)


def test_data_seconds_are_never_more_than_was_trained(shared: Remote) -> None:
    start(shared, "timed", data=99.0)
    clock = shared("resume", None, None).clock
    assert clock.train == 0
    assert 0.098 < clock.data < shared.took - 0.298
    shared("stop", None)


def test_what_a_function_returns_is_its_last_report(shared: Remote, tmp_path: Path) -> None:
    end = shared.start({"train": "returning", "returns": 0.5}, metric=METRIC)
    assert (end.kind, end.step, end.metrics, end.returned) == ("finished", 1, {METRIC: 0.5}, "")
    assert lasted(end.clock, shared.took, train=0.1, eval=0.2)
    first = start(shared, "returning", steps=[0, 1])  # epochs, of which the first was trained
    assert (first.kind, first.step, first.metrics) == ("milestone", 0, {METRIC: 0.1})
    assert (first.clock.setup, first.clock.train > 0) == (0, True)
    shared("stop", None)
    start(shared, "returning", steps=[640], returns={"loss": torch.tensor(1.5)})
    end = shared("resume", None, None)
    assert (end.step, end.metrics) == (641, {"loss": 1.5})
    end = start(shared, "returning", returns="done")
    assert (end.step, end.metrics, end.returned) == (1, None, "returned 'done'")
    torch.save({"step": 20}, tmp_path / "rank-0.pt")
    checkpoint = Checkpoint(20, str(tmp_path))
    end = shared.start({"train": "returning", "returns": 1}, checkpoint=checkpoint, metric="m")
    assert (end.kind, end.step, end.metrics) == ("finished", 21, {"m": 1.0}), end.error


# --- state ------------------------------------------------------------------------------------


def test_a_saved_state_goes_on_where_it_was(shared: Remote, tmp_path: Path) -> None:
    start(shared, "stateful")
    shared("resume", None, None)
    assert shared("resume", None, None).metrics == {METRIC: 4.0}
    folder = tmp_path / "step-20"
    assert shared("resume", None, str(folder)).saved
    assert os.listdir(folder) == ["rank-0.pt"]
    content = torch.load(folder / "rank-0.pt", weights_only=True)
    assert content["step"] == 20
    shared("stop", None)
    again = shared.start({"train": "stateful"}, checkpoint=Checkpoint(20, str(folder)))
    assert (again.step, again.metrics) == (20, {})
    assert again.clock.restore > 0
    assert again.clock.train == 0
    assert shared("resume", None, None).metrics == {METRIC: 6.0}
    assert shared("stop", str(tmp_path / "end")).saved
    assert torch.load(tmp_path / "end" / "rank-0.pt", weights_only=True)["step"] == 30


def test_a_trainer_that_forgets_its_state_is_reported(shared: Remote, tmp_path: Path) -> None:
    start(shared, "stateful")
    shared("resume", None, None)
    shared("stop", str(tmp_path))
    config = {"train": "stateful", "forgets": True}
    answer = shared.start(config, checkpoint=Checkpoint(10, str(tmp_path)))
    assert answer.kind == "raised"
    assert "config['state']" in answer.reason


def test_a_state_of_none_is_no_checkpoint(shared: Remote, tmp_path: Path) -> None:
    folder, why = str(tmp_path / "step-0"), "the trainer's state() returned None"
    start(shared, "without_state")
    answer = shared("resume", None, folder)
    assert (answer.kind, answer.saved, answer.save_error) == ("milestone", None, why)
    assert shared("resume", None, None).save_error == ""
    answer = shared("stop", folder)
    assert (answer.kind, answer.saved, answer.save_error) == ("stopped", None, why)
    assert list(tmp_path.iterdir()) == []


def test_a_lost_checkpoint_is_an_error_of_the_trial(fresh: Remote, tmp_path: Path) -> None:
    answer = fresh.start({"train": "stateful"}, checkpoint=Checkpoint(10, str(tmp_path)))
    assert answer.kind == "raised"
    assert "FileNotFoundError" in answer.reason


# --- what trainers do wrong -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"bad": "text"}, "TypeError: the trainer must yield autotune.Milestone but got 'milest"),
        ({"bad": "metrics"}, "TypeError: evaluate must return a dict of metrics but got [1]"),
        ({"bad": "number"}, "TypeError: evaluate must return numbers"),
        ({"bad": "back"}, "ValueError: Milestone step must grow but got 0 after 0"),
        ({"bad": "float"}, "ValueError: Milestone step must be a whole number >= 0 but got 1.5"),
        (
            {"bad": "huge"},
            "ValueError: Milestone step must be a whole number >= 0 but got a whole number of 16",
        ),
        ({"bad": "speechless"}, "Speechless: (no text: its __str__ raised ValueError)"),
    ],
)
def test_what_is_no_milestone_is_named(shared: Remote, config: dict[str, Any], says: str) -> None:
    start(shared, "bad", **config)
    answer = shared("resume", None, None)
    assert answer.kind == "raised"
    assert answer.reason.startswith(says)
    assert answer.must_restart


@pytest.mark.parametrize(
    ("fault", "reason", "memory"),
    [
        ("exit", "SystemExit: 3", False),
        ("memory", "OutOfMemoryError: CUDA out of memory. Tried to allocate 1 GiB", True),
        ("raise", "RuntimeError: bad thing", False),
    ],
)
def test_an_error_is_the_trainers_traceback(
    shared: Remote, fault: str, reason: str, memory: bool
) -> None:
    start(shared, "toy", fault=fault)
    assert [shared("resume", None, None).kind for _ in range(2)] == ["milestone"] * 2
    answer = shared("resume", None, None)
    assert (answer.kind, answer.reason, answer.out_of_memory) == ("raised", reason, memory)
    assert answer.error.startswith("Traceback")
    assert "in fault" in answer.error
    assert "worker/rank.py" not in answer.error
    assert bool(answer.must_restart) is not memory, "a rank alone goes on in its process"


@pytest.mark.parametrize(
    "text",
    [
        "CUDA out of memory. Tried to allocate 2.00 GiB",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
        "GET was unable to find an engine to execute this computation",
        "Unable to find a valid cuDNN algorithm to run convolution",
        "cudaErrorMemoryAllocation: the API call failed",
        "[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory",
    ],
)
def test_texts_of_libraries_that_run_out_of_memory_are_known(text: str) -> None:
    error = ValueError("while training")
    error.__cause__ = RuntimeError(text)
    assert out_of_memory(error)
    assert not out_of_memory(ValueError(text)), "what a trainer says itself is no library's error"


def test_what_a_failed_trial_held_is_freed_with_the_errors_behind_it() -> None:
    held: list[weakref.ref[torch.Tensor]] = []

    def filling() -> None:
        block = torch.zeros(8)
        held.append(weakref.ref(block))
        raise torch.OutOfMemoryError("no more")

    def training() -> None:
        try:
            filling()
        except torch.OutOfMemoryError as error:
            raise RuntimeError("the step failed") from error

    with pytest.raises(RuntimeError) as caught:
        training()
    assert held[0]() is not None
    free_frames(caught.value)
    assert held[0]() is None


def test_a_controllers_change_arrives_at_the_yield(shared: Remote) -> None:
    start(shared, "knobs")
    assert shared("resume", Change(lr_factor=0.5), None).metrics == {"factor": 0.5}
    assert shared("resume", None, None).metrics == {"factor": -1.0}
    assert shared("resume", None, None).kind == "finished"


def test_a_process_group_that_a_trial_closed_is_opened_again(shared: Remote) -> None:
    for _ in range(2):
        assert start(shared, "regroups").metrics == {METRIC: 1.0}
        end = shared("resume", None, None)
        assert (end.kind, end.must_restart) == ("finished", "")


# --- trainers that report -----------------------------------------------------------------------


def test_a_reporting_trainer_is_stopped_by_stop_trial(shared: Remote, tmp_path: Path) -> None:
    log = tmp_path / "log"
    first = start(shared, "reporter", log=str(log))
    assert (first.step, first.metrics, first.can_save) == (0, {}, False)
    assert shared("resume", None, None).metrics == {METRIC: 0.1}
    assert shared("resume", None, None).step == 200
    end = shared("stop", None)
    assert (end.kind, end.must_restart) == ("stopped", "")
    assert [row.split(" ", 3)[3] for row in log.read_text().splitlines()] == ["StopTrial at 200"]


def test_what_a_framework_evaluates_by_itself_is_off_the_training_clock(shared: Remote) -> None:
    assert lasted(start(shared, "pausing").clock, shared.took, setup=0.1)
    for _ in range(2):
        clock = shared("resume", None, None).clock
        assert lasted(clock, shared.took, train=0.1, eval=0.3)
        assert clock.seconds("wall") == pytest.approx(clock.train + clock.eval)
    shared("stop", None)


def test_a_reporting_trainer_comes_to_its_end(shared: Remote) -> None:
    assert start(shared, "reporter").kind == "milestone"
    kinds = [shared("resume", None, None).kind for _ in range(11)]
    assert kinds == ["milestone"] * 10 + ["finished"]


def test_a_function_that_returns_a_generator_is_a_trainer(shared: Remote, tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert start(shared, "stubborn", log=str(log)).step == 0
    assert shared("resume", None, None).metrics == {METRIC: 1.0}
    assert shared("stop", None).must_restart == ""
    assert log.read_text() == "closed"
