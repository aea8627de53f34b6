"""The Ray pool with real processes: what is Ray's own (`test_pools.py` has the rest)."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from toys import METRIC, toy

import autotune as at
from autotune.backends.groups import lifecycle
from autotune.backends.groups.resources import fit, resolve_scaling
from autotune.backends.protocol import Launch, Progress, Stopped
from autotune.backends.ray.actors import _environment, check_gpus
from autotune.backends.ray.pool import RayPool
from autotune.cli import main

pytestmark = pytest.mark.usefixtures("ray_address")
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


# --- trials side by side ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def beside(ray_address: str, tmp_path_factory: pytest.TempPathFactory) -> at.StudyResult:
    return study(experiment(1, [None] * 5, nap=0.03), tmp_path_factory.mktemp("beside"))


def test_trials_beside_each_other_have_cores_of_their_own(beside: at.StudyResult) -> None:
    pids = {last(t)["pid"]: last(t)["cores"] for t in beside.trials}
    assert len(pids) == 2
    first, second = (int(mask) for mask in pids.values())
    assert first & second == 0
    assert first.bit_count() == second.bit_count() == 1


@pytest.mark.slow
def test_fractions_of_cores_are_marked_as_shared(tmp_path: Path) -> None:
    scaling = at.Scaling(cpus_per_worker=0.5, max_concurrent_trials=1)
    result = study(experiment(1, [], scaling=scaling), tmp_path)
    assert result.trials[0].hardware.shared
    assert last(result.trials[0])["cores"] > 2 or os.cpu_count() == 1


def test_a_slow_driver_is_not_a_hanging_worker() -> None:
    pool = RayPool(toy, at.Scaling(max_concurrent_trials=1), hang_timeout=0.5)
    try:
        assert until(pool, pool.capacity) is None
        pool.start(Launch(0, {}, 1))
        deadline = next(iter(pool._groups.groups.values())).deadline
        while pool._inbox.empty() or time.monotonic() < deadline:
            time.sleep(0.05)
        assert isinstance(pool.wait(SECONDS), Progress)
    finally:
        pool.close()


def until(pool: RayPool, holds: Any, seconds: float = SECONDS) -> Any:
    """What the pool says until `holds()`."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        signal = pool.wait(1)
        if signal is not None:
            return signal
    return None


# --- the pool by itself -------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("bare_ray")
def test_a_busy_cluster_holds_up_some_groups_and_not_the_study(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another tenant has one of the two cores: half of the trials' groups never start."""
    import ray

    monkeypatch.setattr(lifecycle, "_MOST_STARTS", 1)

    @ray.remote(num_cpus=1)
    class Tenant:
        def here(self) -> bool:
            return True

    tenant = Tenant.remote()
    ray.get(tenant.here.remote())
    pool = RayPool(toy, at.Scaling(), hang_timeout=SECONDS)
    try:
        until(pool, pool.capacity)
        (waiting,) = (g for g in pool._groups.groups.values() if g.state == "starting")
        waiting.deadline = time.monotonic()  # the time that it has for its start is over
        pool.start(Launch(0, {}, 1))
        assert isinstance(until(pool, lambda: False), Progress)
        until(pool, lambda: waiting.deadline > time.monotonic())  # it goes on waiting
        assert waiting in pool._groups.groups.values()
        pool.stop(0, None)
        assert isinstance(until(pool, lambda: False), Stopped)
        ray.kill(tenant)
        until(pool, lambda: pool.capacity() == 2)
    finally:
        pool.close()
        ray.kill(tenant)


def test_an_answer_for_a_given_up_group_is_dropped() -> None:
    """Its processes may still answer, or be reported as dead, after the pool has let it go."""
    pool = RayPool(toy, at.Scaling(max_concurrent_trials=1))
    try:
        until(pool, pool.capacity)
        late: Future[Any] = Future()  # no group waits for this call
        late.set_exception(RuntimeError("late"))
        pool._inbox.put(late)
        assert pool.wait(0.2) is None
        assert pool.capacity() == 1
    finally:
        pool.close()


# --- what the cluster holds ---------------------------------------------------------------------


A100_NODE = {"CPU": 64.0, "GPU": 8.0, "accelerator_type:A100": 1.0}
H100_NODE = {"CPU": 32.0, "GPU": 2.0, "accelerator_type:H100": 1.0}
H100 = at.Scaling(gpus_per_worker=1, accelerator="H100")


def apart(strategy: str) -> at.Scaling:
    return at.Scaling(num_workers=2, placement_strategy=strategy)


@pytest.mark.parametrize(
    ("scaling", "says"),
    [
        (
            at.Scaling(num_workers=3),
            "a trial of 3 workers with 1 CPU each can never fit: the cluster has 1 node (2 CPU",
        ),
        (at.Scaling(gpus_per_worker=1), "a trial of 1 workers with 1 CPU and 1 GPU each can never"),
        (at.Scaling(cpus_per_worker=4), "4 CPU each can never fit"),
        (
            at.Scaling(num_workers=2, placement_strategy="STRICT_SPREAD"),
            "1 CPU each can never fit on different nodes: the cluster has 1 node",
        ),
    ],
)
def test_an_impossible_scaling_is_refused_at_once(
    tmp_path: Path, scaling: at.Scaling, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle.WorkerGroups, "grow", lambda *_: pytest.fail("a group is opened"))
    with pytest.raises(at.UserError) as error:
        study(experiment(1, [], scaling=scaling), tmp_path)
    assert says in str(error.value)


@pytest.mark.parametrize(
    ("scaling", "nodes", "expected"),
    [
        (at.Scaling(), [{"CPU": 4.0}], (4, "STRICT_PACK")),
        (at.Scaling(num_workers=2), [{"CPU": 3.0}, {"CPU": 3.0}], (2, "STRICT_PACK")),
        (at.Scaling(num_workers=4), [{"CPU": 3.0}, {"CPU": 3.0}], (1, "PACK")),
        (at.Scaling(cpus_per_worker=0.1), [{"CPU": 1.0}], (10, "STRICT_PACK")),
        (at.Scaling(gpus_per_worker=1), [{"CPU": 8.0, "GPU": 2.0}], (2, "STRICT_PACK")),
        (at.Scaling(gpus_per_worker=0.5), [{"CPU": 8.0, "GPU": 2.0}], (4, "STRICT_PACK")),
        (at.Scaling(gpus_per_worker=0.4), [{"CPU": 64.0, "GPU": 8.0}], (16, "STRICT_PACK")),
        (at.Scaling(3, gpus_per_worker=0.4), [{"CPU": 64.0, "GPU": 2.0}], (1, "STRICT_PACK")),
        (at.Scaling(gpus_per_worker=0.1), [{"CPU": 64.0, "GPU": 1.0}], (10, "STRICT_PACK")),
        (at.Scaling(gpus_per_worker=2), [{"CPU": 8.0, "GPU": 3.0}] * 2, (2, "STRICT_PACK")),
        (H100, [A100_NODE, H100_NODE], (2, "STRICT_PACK")),
        (apart("SPREAD"), [{"CPU": 4.0}], (2, "SPREAD")),
        (apart("STRICT_SPREAD"), [{"CPU": 3.0}, {"CPU": 3.0}, {"CPU": 1.0}], (3, "STRICT_SPREAD")),
        (apart("STRICT_PACK"), [{"CPU": 3.0}, {"CPU": 3.0}], (2, "STRICT_PACK")),
    ],
)
def test_how_many_trials_fit(
    scaling: at.Scaling, nodes: list[dict[str, float]], expected: tuple[int, str]
) -> None:
    assert fit(scaling, nodes) == expected


@pytest.mark.parametrize(
    ("given", "nodes", "expected", "says"),
    [
        (at.Scaling(), [{"CPU": 8.0}], (1, 0), ""),
        (at.Scaling(gpus_per_worker=0), [A100_NODE], (1, 0), ""),
        (at.Scaling(), [A100_NODE, H100_NODE], (8, 1), "GPUs: 1 a worker, as the cluster has 10"),
        (at.Scaling(cpus_per_worker=2), [A100_NODE], (2, 1), "--gpus-per-worker 0 for none"),
        (at.Scaling(gpus_per_worker=0.5), [H100_NODE], (8, 0.5), ""),
        (at.Scaling(gpus_per_worker=2), [H100_NODE], (32, 2), ""),
        (at.Scaling(3), [H100_NODE], (1, 0), "a trial of 3 workers does not fit on them"),
        (at.Scaling(accelerator="H100"), [A100_NODE, H100_NODE], (16, 1), ""),
    ],
)
def test_what_a_scaling_leaves_open_the_cluster_decides(
    given: at.Scaling, nodes: list[dict[str, float]], expected: tuple[float, float], says: str
) -> None:
    made, note = resolve_scaling(given, nodes)
    assert (made.cpus_per_worker, made.gpus_per_worker) == expected
    assert (says in note) if says else not note
    fit(made, nodes)


def test_a_kind_of_gpu_that_the_cluster_lacks_is_named() -> None:
    for nodes, says in (
        ([A100_NODE, H100_NODE], r"unknown accelerator 'H10'; did you mean 'H100'"),
        ([{"CPU": 4.0}], "1 CPU and 1 GPU of kind H10 each can never fit"),
    ):
        made, _ = resolve_scaling(at.Scaling(accelerator="H10"), nodes)
        with pytest.raises(at.UserError, match=says):
            fit(made, nodes)


@pytest.mark.parametrize(
    ("given", "visible", "fault"),
    [
        (["1"], "1", False),
        (["0", "2"], "0,2", False),
        ([], "", False),
        ([], None, False),
        (["1"], None, True),
        (["1"], "0,1,2,3", True),
        ([], "0", True),
    ],
)
def test_a_worker_that_sees_other_gpus_than_its_own_does_not_start(
    given: list[str], visible: str | None, fault: bool
) -> None:
    if not fault:
        check_gpus(given, visible)
        return
    with pytest.raises(RuntimeError, match=r"Ray has given a worker the GPUs .*, but it sees "):
        check_gpus(given, visible)


def test_workers_compile_on_their_own_cores_only() -> None:
    made = _environment(at.Scaling(cpus_per_worker=4, gpus_per_worker=1))
    names = ("OMP_NUM_THREADS", "TORCHINDUCTOR_COMPILE_THREADS", "CUBLAS_WORKSPACE_CONFIG")
    assert [made[name] for name in names] == ["4", "4", ":4096:8"]
    assert "CUDA_VISIBLE_DEVICES" not in made


@pytest.mark.slow
def test_no_cluster_at_the_address_is_the_users_mistake() -> None:
    code = (
        "from autotune.backends.ray.pool import RayPool; import autotune as at\n"
        "try: RayPool(print, at.Scaling(), address='127.0.0.1:1')\n"
        "except at.UserError as error: print('UserError:', error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=SECONDS
    )
    assert "UserError: cannot connect to Ray at '127.0.0.1:1'" in done.stdout, done.stderr[-500:]


@pytest.mark.slow
def test_a_ray_that_does_not_start_gets_one_clear_line(tmp_path: Path) -> None:
    """The paths of its sockets have 107 bytes at most: here the folder for them is too deep."""
    deep = tmp_path / ("deep" * 30)
    deep.mkdir()
    words = [
        "run",
        "search_spaces.digits:sgd",
        "--out",
        str(tmp_path / "study"),
        "--trials",
        "1",
        "--backend",
        "ray",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "autotune", *words, "--tracking-uri", "off"],
        env={**os.environ, "RAY_TMPDIR": str(deep)},
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == main.BROKEN, done.stderr[-2000:]
    (said,) = [line for line in done.stderr.splitlines() if line.startswith("autotune: ")]
    assert "the study could not go on: Ray does not start on this machine: " in said
    assert "path length" in said
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "study").exists()
