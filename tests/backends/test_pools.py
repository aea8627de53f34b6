"""Pools with real processes, on Ray and without it: two ranks, what may go wrong, what follows."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from toys import METRIC, deaf, reporter, toy

import autotune as at
from autotune.backends.groups import lifecycle
from autotune.backends.groups.pool import WorkerPool
from autotune.backends.local.pool import LocalPool
from autotune.backends.protocol import Launch, Progress, Stopped, WorkerFailed
from autotune.trial import Hardware, State

PATIENT = at.FailurePolicy(hang_timeout=600, max_retries=1, checkpoint_interval=0)
SECONDS = 600.0  # a guard against hangs, for what takes a second on an idle machine


def experiment(
    workers: int, faults: list[str | None], *, train: Any = toy, nap: float = 0.005, **options: Any
) -> at.Experiment:
    """The baseline is sound; then one configuration for each fault, in their order."""
    space = at.SearchSpace(
        {
            "rate": at.Float(0.1, 10),
            "fault": at.Choice([None, *dict.fromkeys(f for f in faults if f)]),
            "nap": at.Fixed(nap),
            "log": at.Fixed(options.pop("log", None)),
        }
    )
    options = {"scaling": at.Scaling(num_workers=workers), "failure": PATIENT, **options}
    return at.Experiment(
        "toy",
        train,
        space,
        at.Target(METRIC, options.pop("value", 0.95), limit=6000),
        baseline={"rate": 1.0, "fault": None},
        configs=[{"rate": 1.0, "fault": f} for f in faults],
        **options,
    )


def study(made: at.Experiment, folder: Path, **options: Any) -> at.StudyResult:
    options = {"pruner": "none", "sampler": "random", "tracking_uri": "off", **options}
    return at.run(made, trials=1 + len(made.configs), out=folder, **options)


def last(trial: at.Trial) -> dict[str, float]:
    return dict(trial.reports[-1].metrics)


@pytest.fixture(scope="module", params=[pytest.param("ray", marks=pytest.mark.slow), "local"])
def backend(request: pytest.FixtureRequest) -> str:
    """Each backend by its name; Ray has been started."""
    if request.param == "ray":
        request.getfixturevalue("ray_address")
    name: str = request.param
    return name


@pytest.fixture
def make_pool(backend: str) -> Callable[..., WorkerPool]:
    if backend == "local":
        return LocalPool
    from autotune.backends.ray.pool import RayPool

    return RayPool


EVERY_FAULT = [None, "raise", None, "differ", "one", "evaluate", "die", "apart", "nan", None]
FAULTS = {
    "local": EVERY_FAULT,
    # What a rank raises is an answer as any other: each kind of it would only cost new processes.
    "ray": [None, "evaluate", None, "die", None],
}
local_alone = pytest.mark.parametrize("backend", ["local"], indirect=True, scope="module")


@pytest.fixture(scope="module")
def two(backend: str, tmp_path_factory: pytest.TempPathFactory) -> at.StudyResult:
    """A study on two ranks with a backend's faults, one after another."""
    folder = tmp_path_factory.mktemp("two")
    policy = at.FailurePolicy(
        hang_timeout=600, max_retries=1, checkpoint_interval=0, max_consecutive_failed_trials=9
    )
    log = str(folder / "log")
    return study(experiment(2, FAULTS[backend], failure=policy, log=log), folder, backend=backend)


def of(result: at.StudyResult, fault: str) -> at.Trial:
    """The trial with this fault."""
    return next(t for t in result.trials if t.config["fault"] == fault)


def test_two_ranks_train_in_one_process_group_on_cores_of_their_own(two: at.StudyResult) -> None:
    trial = two.trials[0]
    assert trial.state is State.REACHED
    assert last(trial)["world"] == 2
    assert last(trial)["summed"] == 1000.0
    assert last(trial)["threads"] == 1
    assert last(trial)["cores"] in (1, 2)  # one core, as a mask
    assert trial.hardware.num_workers == 2
    assert not trial.hardware.shared
    assert trial.hardware.device


def test_the_study_goes_on_after_every_fault(two: at.StudyResult) -> None:
    others = {None: State.REACHED, "die": State.REACHED, "nan": State.CENSORED}
    faults = [t.config["fault"] for t in two.trials]
    assert faults in [[None, *known] for known in FAULTS.values()]
    assert [t.state for t in two.trials] == [others.get(f, State.FAILED) for f in faults]
    assert all(t.reason for t in two.trials)


def test_trials_run_on_the_same_warm_processes(two: at.StudyResult) -> None:
    first, second = two.trials[0], two.trials[1]
    assert last(first)["pid"] == last(second)["pid"]
    assert two.trials[2].state is State.FAILED
    assert last(two.trials[3])["pid"] != last(first)["pid"], "a trainer that raised is replaced"


@local_alone
def test_equal_errors_are_shown_once_for_all_ranks(two: at.StudyResult) -> None:
    trial = of(two, "raise")
    assert trial.reason == "RuntimeError: bad thing"
    assert trial.error.startswith("ranks 0, 1:\nTraceback")
    assert trial.error.count("RuntimeError: bad thing") == 1
    assert 'raise RuntimeError("bad thing")' in trial.error


@local_alone
def test_different_errors_are_both_shown(two: at.StudyResult) -> None:
    error = of(two, "differ").error
    assert "rank 0:\nTraceback" in error
    assert "rank 1:\nTraceback" in error
    for rank in (0, 1):
        assert f"RuntimeError: bad thing on rank {rank}" in error


@local_alone
def test_an_error_on_one_rank_ends_the_trial_on_all(two: at.StudyResult) -> None:
    trial = of(two, "one")
    assert "RuntimeError: only here" in trial.error
    assert "only here" in trial.reason, "the cause, and not what it led to on other ranks"


def test_a_killed_rank_is_retried_from_the_last_checkpoint(two: at.StudyResult) -> None:
    trial = of(two, "die")
    assert (trial.state, trial.attempts, trial.retries) == (State.REACHED, 2, 1)
    assert last(trial)["summed"] == last(trial)["step"] == 1000.0, "no step lost or done twice"
    starts = [
        line.split(" ", 3)[3]
        for line in (two.folder / "log").read_text().splitlines()
        if line.startswith(f"{trial.seed} 0 ") and "start" in line
    ]
    assert starts == ["start 0", "start 100"]
    steps = [r.step for r in trial.reports if r.metrics]
    assert steps == sorted(set(steps))


@local_alone
def test_ranks_at_different_milestones_are_an_error(two: at.StudyResult) -> None:
    assert of(two, "apart").reason == (
        "the ranks are not at the same milestone: "
        "rank 0 milestone at step 300, rank 1 milestone at step 307"
    )


@local_alone
def test_a_loss_that_is_no_number_is_diverged(two: at.StudyResult) -> None:
    trial = of(two, "nan")
    assert (trial.reason, trial.detail) == ("diverged", "train_loss is nan")


def test_trainers_are_closed_on_every_rank(two: at.StudyResult) -> None:
    rows = (two.folder / "log").read_text().splitlines()
    for trial in (t for t in two.trials if t.config["fault"] in (None, "nan")):
        closed = [r for r in rows if r.startswith(f"{trial.seed} ") and r.endswith("closed")]
        assert {r.split()[1] for r in closed} == {"0", "1"}


def test_trainers_are_closed_where_another_rank_failed(two: at.StudyResult) -> None:
    """The rank that waits at the milestone runs its `finally` before its process is ended."""
    failed = of(two, "evaluate")
    assert "evaluation went wrong" in failed.error
    assert "ranks 0, 1" not in failed.error
    deadline = time.monotonic() + SECONDS
    closed: set[str] = set()
    while closed != {"0", "1"} and time.monotonic() < deadline:
        rows = (two.folder / "log").read_text().splitlines()
        own = [r for r in rows if r.startswith(f"{failed.seed} ") and r.endswith("closed")]
        closed = {r.split()[1] for r in own}
        time.sleep(0.1)
    assert closed == {"0", "1"}


def test_waiting_for_the_driver_is_measured(two: at.StudyResult) -> None:
    trial = two.trials[1]
    clock = trial.clock
    assert trial.ended_at is not None
    assert 0 < clock.decide < trial.ended_at
    assert clock.setup > 0
    assert clock.checkpoint > 0


def test_checkpoints_of_ended_trials_are_removed_but_the_bests(two: at.StudyResult) -> None:
    best = two.best
    assert best is not None
    left = [p.name for p in (two.folder / "checkpoints").iterdir()]
    assert left == [f"trial-{best.number:04d}"]
    assert best.checkpoint is not None
    assert sorted(os.listdir(best.checkpoint.path)) == ["rank-0.pt", "rank-1.pt"]


# --- other studies ----------------------------------------------------------------------------


def test_reporting_trainers_stop_on_every_rank_at_the_same_step(
    backend: str, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    made = experiment(2, [], train=reporter, value=0.45, log=str(log))
    trial = study(made, tmp_path / "study", backend=backend).trials[0]
    assert (trial.state, trial.reports[-1].step) == (State.REACHED, 500)
    rows = [row.split(" ", 3) for row in log.read_text().splitlines()]
    assert sorted((rank, what) for _, rank, _, what in rows) == [
        ("0", "StopTrial at 500"),
        ("1", "StopTrial at 500"),
    ]


@local_alone
def test_a_function_that_swallows_its_stop_costs_its_processes_and_not_the_study(
    backend: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was waited for without end."""
    one = at.Scaling(num_workers=2, max_concurrent_trials=1)
    made = experiment(2, [None], train=deaf, value=0.25, scaling=one)
    result = study(made, tmp_path / "study", backend=backend)
    assert [t.state for t in result.trials] == [State.REACHED] * 2
    assert [t.reports[-1].step for t in result.trials] == [300] * 2, "later reports do not count"
    assert last(result.trials[0])["pid"] != last(result.trials[1])["pid"]
    why = "workers are started anew after trial 0: a trainer reports on, 0.1 s after it was stopped"
    assert capsys.readouterr().err.count(why) == 1


OUT_OF_MEMORY = [
    pytest.param("ray", 2, "full", marks=pytest.mark.slow),
    ("local", 1, "memory"),
    ("local", 2, "full"),
]


@pytest.mark.parametrize(
    ("backend", "workers", "fault"), OUT_OF_MEMORY, indirect=["backend"], scope="module"
)
def test_out_of_memory_that_no_rank_waits_for_keeps_the_processes(
    backend: str, tmp_path: Path, workers: int, fault: str
) -> None:
    """A rank is alone, or all agreed to raise: the next attempt needs no new processes."""
    log, one = tmp_path / "log", at.Scaling(num_workers=workers, max_concurrent_trials=1)
    made = experiment(workers, [fault, None], scaling=one, log=str(log))
    result = study(made, tmp_path / "study", backend=backend)
    states = [State.REACHED, State.INFEASIBLE, State.REACHED]
    assert [t.state for t in result.trials] == states, result.trials[1].error
    assert len({row.split(" ")[2] for row in log.read_text().splitlines()}) == workers


def until(pool: WorkerPool, holds: Any, seconds: float = SECONDS) -> Any:
    """What the pool says until `holds()`."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        signal = pool.wait(1)
        if signal is not None:
            return signal
    return None


# --- the pool by itself -------------------------------------------------------------------------


def test_a_rank_killed_between_trials_is_reported_and_replaced(
    make_pool: Callable[..., WorkerPool], tmp_path: Path
) -> None:
    pool = make_pool(toy, at.Scaling(num_workers=2), hang_timeout=SECONDS)
    try:
        until(pool, pool.capacity)
        place = next(iter(pool._groups.groups.values())).places[1]
        os.kill(place.pid, signal.SIGKILL)
        psutil.wait_procs([psutil.Process(place.pid)] if psutil.pid_exists(place.pid) else [])
        hardware = pool.start(Launch(3, {}, 1))
        assert hardware == Hardware(hardware.device, 2, 1)
        broke = pool.wait(SECONDS)
        assert isinstance(broke, WorkerFailed)
        assert broke.trial == 3
        assert broke.reason == f"worker died: rank 1 (pid {place.pid} on {place.host})"
        assert "died" in broke.error  # what the cluster says of it
        assert pool.busy() == 0
        until(pool, pool.capacity)
        pool.start(Launch(4, {}, 1))
        first = pool.wait(SECONDS)
        assert isinstance(first, Progress)
        assert (first.report.step, first.report.metrics, first.can_save) == (0, {}, True)
        pool.stop(4, tmp_path / "end")
        stopped = pool.wait(SECONDS)
        assert isinstance(stopped, Stopped)
        assert stopped.saved is not None
        assert sorted(os.listdir(stopped.saved.path)) == ["rank-0.pt", "rank-1.pt"]
    finally:
        pool.close()


@local_alone
@pytest.mark.slow
def test_of_idle_groups_a_trial_takes_one_on_comparable_hardware(
    make_pool: Callable[..., WorkerPool],
) -> None:
    pool = make_pool(toy, at.Scaling(max_concurrent_trials=2), hang_timeout=SECONDS)
    try:
        until(pool, lambda: pool.capacity() == 2)
        usual, other = pool._groups.groups.values()
        other.hardware = replace(usual.hardware, label="other")  # as if on another node
        assert pool.next_hardware() == usual.hardware
        assert pool.next_hardware(other.hardware) == other.hardware
        assert pool.start(Launch(0, {}, 1, comparable_to=other.hardware)) == other.hardware
        again = pool.start(Launch(1, {}, 1, comparable_to=other.hardware))
        assert again == usual.hardware, "none is left"
    finally:
        pool.close()


def test_a_hanging_rank_ends_the_trial_within_the_timeout(backend: str, tmp_path: Path) -> None:
    policy = at.FailurePolicy(hang_timeout=8, max_retries=0)  # it would hang for 1000 s
    result = study(experiment(2, ["hang"], failure=policy), tmp_path, backend=backend)
    assert [t.state for t in result.trials] == [State.REACHED, State.FAILED]
    assert result.trials[1].reason.startswith("worker hung: ")
    assert "rank 1 (pid " in result.trials[1].reason


def test_a_trainer_that_workers_cannot_load_ends_the_study(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "_MOST_STARTS", 1)

    class Unloadable:
        def __call__(self, config: dict[str, Any]) -> Iterator[at.Milestone]:
            raise NotImplementedError

        def __reduce__(self) -> Any:
            return (int, ("no number",))

    with pytest.raises(at.StudyError, match="worker processes do not start") as error:
        study(experiment(1, [], train=Unloadable()), tmp_path, backend=backend)
    assert "invalid literal for int" in str(error.value)


def test_a_trainer_that_cannot_be_sent_is_the_users_mistake(backend: str, tmp_path: Path) -> None:
    lock = threading.Lock()

    def train(config: dict[str, Any]) -> Iterator[at.Milestone]:
        with lock:
            yield at.Milestone(0, dict)

    with pytest.raises(at.UserError, match=r"the trainer cannot be sent to workers: .*lock"):
        study(experiment(1, [], train=train), tmp_path, backend=backend)
