"""Trials on warm worker groups of a Ray cluster, as many as fit, also as it grows.

What the pool does with the groups is `groups/pool.py`; here are the cluster and its changes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ray
from ray.util.metrics import Gauge

from autotune.backends.groups.pool import WorkerPool
from autotune.backends.groups.resources import fit, resolve_scaling
from autotune.backends.groups.turns import Group
from autotune.backends.monitoring import NAMES, Figure
from autotune.backends.protocol import Signal
from autotune.backends.ray.actors import Actors
from autotune.backends.ray.cluster import (
    cluster_errors,
    connect,
    endpoints,
    node_resources,
    nodes,
    room_for_trials,
)
from autotune.backends.ray.health import HeadLost, Nodes, Watch, unreachable
from autotune.backends.recipe_modules import pickled
from autotune.errors import StudyError
from autotune.trial.failure import FailurePolicy
from autotune.trial.scaling import Scaling


class RayPool(WorkerPool):
    """Runs trials on warm worker groups of a Ray cluster, as many as fit, also as it grows.

    Args:
        train: the trainer.
        scaling: workers of one trial; `max_concurrent_trials` bounds the number of groups.
        hang_timeout: seconds without an answer from every rank after which a group is ended.
        address: a running cluster's address; None starts Ray on this machine, unless this process
            is connected already.

    Attributes:
        scaling: with what was left to the cluster decided.
        decided: the decision about GPUs, in one line; empty where there was none to make.

    Raises:
        UserError: no cluster at the address, one on which a trial can never fit, or a trainer that
            cannot be sent to workers.
    """

    def __init__(
        self,
        train: Callable[[dict[str, Any]], Any],
        scaling: Scaling,
        *,
        hang_timeout: float = FailurePolicy.hang_timeout,
        address: str | None = None,
    ) -> None:
        sent = pickled(train, ray.cloudpickle)
        self._owns_ray = connect(address)
        try:
            scaling, self.decided = resolve_scaling(scaling, room_for_trials())
            fit(scaling, node_resources())
            super().__init__(Actors(sent, scaling), scaling, hang_timeout)
            self._gauges: dict[str, Gauge] = {}
            self._nodes = nodes()
            self._head_lost = False
            self._grow()
            head = ray.get_runtime_context().gcs_address
            self._watch = Watch(nodes, head, self._inbox.put, self._nodes)
        except BaseException:  # nobody could close it, and the next study would find it connected
            self._leave_ray()
            raise

    def wait(self, timeout: float | None) -> Signal | None:
        with cluster_errors():
            return super().wait(timeout)

    def close(self) -> None:
        self._watch.close()
        if self._head_lost:  # no cluster is left that could end them
            self._groups.groups.clear()
            self._owns_ray = False
            return
        super().close()
        self._leave_ray()

    def _leave_ray(self) -> None:
        if self._owns_ray:
            self._owns_ray = False
            ray.shutdown()

    def _call(self, group: Group, method: str, *arguments: Any) -> None:
        with cluster_errors():
            super()._call(group, method, *arguments)

    # --- the cluster ----------------------------------------------------------------------------

    def _grow(self) -> None:
        self._groups.grow([dict(node.resources) for node in self._nodes])

    def _changed(self, change: Any) -> None:
        """Use the nodes that there are now; without a head, leave while the study can be resumed.

        Groups whose node is gone wait until another one, or a new one, has resources for them.
        """
        assert isinstance(change, HeadLost | Nodes)
        if isinstance(change, HeadLost):
            self._head_lost = True
            silent = f"has not answered for {change.seconds:.0f} s"
            raise StudyError(f"Ray's head at {change.address} {silent}: resume on another cluster")
        self._nodes = change.nodes
        self._grow()

    def _lost(self, nodes: set[str]) -> list[str]:
        return unreachable(self._nodes, nodes)

    # --- monitoring -----------------------------------------------------------------------------

    def observe(self, figures: Sequence[Figure]) -> None:
        """Show figures on Ray's metrics endpoint, under their names with `ray_` before them."""
        for figure in figures:
            if figure.name not in self._gauges:
                about, labels = NAMES[figure.name], tuple(figure.labels)
                self._gauges[figure.name] = Gauge(figure.name, about, labels)
            self._gauges[figure.name].set(figure.value, dict(figure.labels))

    def endpoints(self) -> list[str]:
        """Where the cluster's nodes serve their metrics, as host:port."""
        return endpoints()
