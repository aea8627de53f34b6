"""The processes of a worker group as Ray actors: started, placed and ended."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from autotune.backends.groups.environment import environment
from autotune.backends.groups.resources import needs
from autotune.backends.groups.turns import NodeOutOfMemory
from autotune.backends.worker.messages import Place
from autotune.backends.worker.rank import Rank
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


# --- the processes of a group ---------------------------------------------------------------------


class _Worker(Rank):
    """A rank as a Ray actor, which also knows its node."""

    def locate(self, cores: int, gpus: float) -> Place:
        seen = (os.environ.get(name) for name in _VISIBLE)
        check_gpus([str(gpu) for gpu in ray.get_gpu_ids()], next(filter(None, seen), None))
        context = ray.get_runtime_context()
        return self.place(context.get_node_id(), ray.util.get_node_ip_address(), cores, gpus)


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
    logs = {name: os.environ.get(name, value) for name, value in _LOGS.items()}
    return {**environment(scaling), **logs, _ALL_GPUS: ""}


def release_placement(placement: Any) -> None:
    """Return a placement group's resources to the cluster; what still runs there is ended."""
    remove_placement_group(placement)


def is_reserved(placement: Any) -> bool:
    """Whether the cluster has given a placement group its resources."""
    state: str = ray.util.placement_group_table(placement)["state"]
    return state == "CREATED"


class Actors:
    """The processes of worker groups as Ray actors, in placement groups (`Processes`).

    Args:
        train: the trainer, pickled.
        scaling: workers of one trial.
    """

    def __init__(self, train: bytes, scaling: Scaling) -> None:
        self._train, self._scaling = train, scaling

    def reserve(self, strategy: str, lost: Sequence[str] = ()) -> Any:
        return reserve(self._scaling, strategy, lost)

    def is_reserved(self, placement: Any) -> bool:
        return is_reserved(placement)

    def release(self, placement: Any) -> None:
        release_placement(placement)

    def start(self, placement: Any) -> list[Any]:
        return processes(placement, self._scaling, self._train)

    def call(self, process: Any, method: str, *arguments: Any) -> Future[Any]:
        answer: Future[Any] = Future()
        called: Future[Any] = getattr(process, method).remote(*arguments).future()
        called.add_done_callback(lambda call: _copy(call, answer))
        return answer

    def kill(self, process: Any) -> None:
        ray.kill(process, no_restart=True)


def _copy(call: Future[Any], answer: Future[Any]) -> None:
    """Complete `answer` as `call` was; an error of Ray's that says that memory ran out is ours."""
    error = call.exception()
    if isinstance(error, ray.exceptions.OutOfMemoryError):
        answer.set_exception(NodeOutOfMemory(str(error)))
    elif error is not None:
        answer.set_exception(error)
    else:
        answer.set_result(call.result())
