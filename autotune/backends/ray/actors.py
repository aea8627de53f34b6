"""The processes of a worker group as Ray actors: started, placed and ended."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from autotune.backends.ray.resources import needs
from autotune.backends.recipe_modules import is_recipe_file
from autotune.backends.worker.messages import Place
from autotune.backends.worker.process_settings import CUBLAS_WORKSPACE
from autotune.backends.worker.rank import Rank
from autotune.errors import UserError
from autotune.trial.scaling import Scaling

# Ray keeps what a trainer writes to its streams in two rotating files of so many bytes each; by
# itself it would keep all of it.
_LOGS = {"RAY_ROTATION_MAX_BYTES": str(64 * 2**20), "RAY_ROTATION_BACKUP_COUNT": "1"}

_VISIBLE = (
    "HIP_VISIBLE_DEVICES",
    "CUDA_VISIBLE_DEVICES",
)  # which GPUs torch uses, AMD's or NVIDIA's

# Where it is set on a node, Ray shows every worker all of the node's GPUs.
_ALL_GPUS = "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"


def pickled(train: Callable[[dict[str, Any]], Any]) -> bytes:
    """Serialize the trainer for the workers: a recipe file's module by value, others by name.

    Raises:
        UserError: it cannot be serialized.
    """
    module = sys.modules.get(train.__module__)
    if module is not None and is_recipe_file(module):
        ray.cloudpickle.register_pickle_by_value(module)
    try:
        pickled: bytes = ray.cloudpickle.dumps(train)
    except Exception as error:
        raise UserError(f"the trainer cannot be sent to workers: {error}") from None
    return pickled


# --- the processes of a group ---------------------------------------------------------------------


class _Worker(Rank):
    """A rank as a Ray actor, which also knows its node."""

    def locate(self, cores: int) -> Place:
        seen = (os.environ.get(name) for name in _VISIBLE)
        check_gpus([str(gpu) for gpu in ray.get_gpu_ids()], next(filter(None, seen), None))
        context = ray.get_runtime_context()
        return self.place(context.get_node_id(), ray.util.get_node_ip_address(), cores)


def check_gpus(given: Sequence[str], visible: str | None) -> None:
    """Check that a worker sees those GPUs that Ray has given to it, and no others.

    Raises:
        RuntimeError: it would train on those of another trial.
    """
    seen = [gpu for gpu in (visible or "").split(",") if gpu]
    if seen != [*given] and (given or seen):
        raise RuntimeError(
            f"Ray has given a worker the GPUs {', '.join(given) or 'none'}, but it "
            f"sees {visible!r} (CUDA_VISIBLE_DEVICES): something else sets it on this cluster"
        )


def reserve(scaling: Scaling, strategy: str, lost: Sequence[str] = ()) -> Any:
    """Request the resources of a group as a placement group, on none of the nodes `lost`."""
    bundles = [needs(scaling)] * scaling.num_workers
    if not lost:
        return placement_group(bundles, strategy=strategy)
    elsewhere = [{"ray.io/node-id": f"!in({','.join(lost)})"}] * scaling.num_workers
    return placement_group(bundles, strategy=strategy, bundle_label_selector=elsewhere)


def processes(placement: Any, scaling: Scaling, train: bytes) -> list[Any]:
    """Start the processes of one group, each in its part of the placement group."""
    actor = ray.remote(_Worker).options
    return [
        actor(
            num_cpus=scaling.cpus,
            num_gpus=scaling.gpus,
            max_restarts=0,
            scheduling_strategy=PlacementGroupSchedulingStrategy(
                placement, placement_group_bundle_index=rank
            ),
            runtime_env={"env_vars": _environment(scaling)},
        ).remote(train, sys.path, rank, scaling.num_workers)
        for rank in range(scaling.num_workers)
    ]


def _environment(scaling: Scaling) -> dict[str, str]:
    threads = str(max(int(scaling.cpus), 1))
    variables = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    own = dict([*_LOGS.items(), ("TORCHINDUCTOR_COMPILE_THREADS", threads), CUBLAS_WORKSPACE])
    variables |= {name: os.environ.get(name, value) for name, value in own.items()}
    variables[_ALL_GPUS] = ""
    if not scaling.gpus:
        variables["CUDA_VISIBLE_DEVICES"] = ""
    return variables


def terminate(actors: list[Any], waiting: list[Any], placement: Any, seconds: float) -> None:
    """Have the waiting ones close their trainer, for some seconds at most, then end all actors.

    Afterwards `placement` is released, if it is given. This runs on a thread of its own, as a
    trainer's `finally` may wait for a rank that is gone.
    """
    with contextlib.suppress(Exception):  # whatever goes wrong here, they are to be ended
        closing = [actor.stop.remote(None) for actor in waiting]
        if closing:
            ray.wait(closing, num_returns=len(closing), timeout=seconds)
    for actor in actors:
        with contextlib.suppress(Exception):
            ray.kill(actor, no_restart=True)
    if placement is not None:
        with contextlib.suppress(Exception):
            release_placement(placement)


def release_placement(placement: Any) -> None:
    """Return a placement group's resources to the cluster; what still runs there is ended."""
    remove_placement_group(placement)


def is_reserved(placement: Any) -> bool:
    """Whether the cluster has given a placement group its resources."""
    state: str = ray.util.placement_group_table(placement)["state"]
    return state == "CREATED"


def killed_for_memory(error: BaseException) -> bool:
    """Whether Ray killed the worker because its node was running out of memory."""
    return isinstance(error, ray.exceptions.OutOfMemoryError)
