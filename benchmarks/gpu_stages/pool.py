"""Worker groups on Ray: fractions of a GPU, whole ones of a kind, and who sees which."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

from gpu_stages.findings import Finding, Run, checked, measured, not_run
from gpu_stages.toys import by_name

NOSET = "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"
PATIENCE = 90.0  # seconds for a signal
NO_GPU = "99"  # a number that none has: Ray counts it, and torch finds nothing
STAND_IN = "T4"  # the kind that Ray is given for it
UNKNOWN = "T9"  # a kind that no GPU has


def on_ray(run: Run) -> Iterator[Finding]:
    """Groups of fractions, as many as fit and apart in memory; kinds of GPUs; who sees which."""
    try:
        import ray
    except ImportError:
        yield not_run("the Ray pool", "Ray is not installed")
        return
    from autotune.backends.groups.resources import KIND
    from autotune.trial.scaling import Scaling

    # NOSET as clusters for other work have it; without a GPU Ray counts one, to place by its kind.
    os.environ.update({NOSET: "1"} if run.on_gpu else {"CUDA_VISIBLE_DEVICES": NO_GPU})
    ray.init(
        num_cpus=4,
        num_gpus=1,
        resources=None if run.on_gpu else {f"{KIND}{STAND_IN}": 1},
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
    )
    try:
        share = 0.4 if run.on_gpu else 0
        scaling = Scaling(
            cpus_per_worker=1, gpus_per_worker=share, max_concurrent_trials=None if share else 2
        )
        yield from _with_pool(scaling, lambda pool: _fractions(run, pool))
        kind = _kind()
        whole = Scaling(cpus_per_worker=1, accelerator=kind, max_concurrent_trials=1)
        yield from _with_pool(whole, lambda pool: _trains(run, pool))
        if kind is None:
            yield not_run("an unknown kind of GPU", "Ray does not know the kind of this one")
            return
        line = _refused(Scaling(cpus_per_worker=1, accelerator=UNKNOWN))
        fine = f"allowed: {kind}" in line and "\n" not in line
        yield checked("an unknown kind of GPU is one line with those there are", fine, line)
    finally:
        ray.shutdown()


def _with_pool(scaling: Any, use: Callable[[Any], Iterator[Finding]]) -> Iterator[Finding]:
    from autotune.backends.ray.pool import RayPool

    pool = RayPool(by_name, scaling, hang_timeout=PATIENCE)
    try:
        yield from use(pool)
    finally:
        pool.close()


def _kind() -> str | None:
    """The kind of the GPU, as Ray names it, if it does."""
    from autotune.backends.groups.resources import KIND
    from autotune.backends.ray.cluster import node_resources

    names = [name for node in node_resources() for name in node if name.startswith(KIND)]
    return min(names).removeprefix(KIND) if names else None


def _refused(scaling: Any) -> str:
    """The line with which a pool refuses a scaling, or an empty text."""
    from autotune.backends.ray.pool import RayPool
    from autotune.errors import UserError

    try:
        RayPool(by_name, scaling).close()
    except UserError as error:
        return str(error)
    return ""


def _wait_for_groups(pool: Any, count: int) -> int:
    """Wait until so many groups are ready, as far as they come."""
    for _ in range(40):
        if pool.capacity() >= count:
            break
        pool.wait(1.0)
    return int(pool.capacity())


def _fractions(run: Run, pool: Any) -> Iterator[Finding]:
    from autotune.backends.protocol import Launch, Progress

    count = _wait_for_groups(pool, 2)
    yield checked("two groups of 0.4 fit on a GPU", count == 2, f"{count} are ready")
    for trial in range(count):
        pool.start(Launch(trial, {"trainer": "reduces"}, 1))
    signals = [pool.wait(PATIENCE) for _ in range(count)]
    fine = all(isinstance(signal, Progress) for signal in signals)
    yield checked(
        "both train", fine, "; ".join(str(s)[:200] for s in signals if s) if not fine else ""
    )
    if not run.on_gpu:
        return
    pool.stop(0, None)
    pool.wait(PATIENCE)
    pool.start(Launch(count, {"trainer": "takes memory", "share": 0.6}, 1))
    pool.wait(PATIENCE)
    pool.resume(count, None, None)
    greedy = pool.wait(PATIENCE)
    found = bool(getattr(greedy, "out_of_memory", False))
    yield checked("a trial cannot take more than its fraction", found, str(greedy)[:200])
    pool.resume(1, None, None)
    other = pool.wait(PATIENCE)
    yield checked("its neighbour trains on", isinstance(other, Progress), str(other)[:200])


def _trains(run: Run, pool: Any) -> Iterator[Finding]:
    from autotune.backends.protocol import Launch, Progress

    _wait_for_groups(pool, 1)
    hardware = pool.start(Launch(0, {"trainer": "sees"}, 1))
    pool.wait(PATIENCE)
    pool.resume(0, None, None)
    signal = pool.wait(PATIENCE)
    fine = isinstance(signal, Progress)
    asked = "a GPU" if pool.scaling.accelerator is None else f"a {pool.scaling.accelerator}"
    yield checked(f"a trial on {asked} reports", fine, "" if fine else str(signal)[:300])
    if isinstance(signal, Progress):
        seen = signal.report.metrics["gpus"]
        yield checked("it sees its own GPU only", seen == run.gpus, f"{seen:g} seen, {hardware}")
        yield measured("its first milestone after", signal.report.clock.total, "s")
