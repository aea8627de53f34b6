"""The Ray cluster: connecting to it, and its nodes."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import ray
from ray._private import ray_constants

from autotune.backends.ray.health import Node
from autotune.errors import StudyError, UserError

_ENDS_WITHIN = 60.0  # seconds until a process that was killed is gone
_LOCAL = {"include_dashboard": False, "object_store_memory": 256 * 2**20}


def try_out() -> list[dict[str, float]]:
    """Start Ray on this machine and run one task; the resources of each node."""
    owns = connect(None)
    try:
        found = node_resources()
        ray.get(ray.remote(lambda: None).remote(), timeout=60)
    finally:
        if owns:
            ray.shutdown()
    return found


def connect(address: str | None) -> bool:
    """Connect to Ray; returns whether this process started it and must shut it down.

    Raises:
        UserError: no cluster at the address.
        StudyError: Ray does not start on this machine.
    """
    if ray.is_initialized():
        return False
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # trials are what is timed: 15 by default
    options: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if address is None:
        _start(options)
        return True
    try:
        _reach(address)
        ray.init(address=address, **options)
    except (ConnectionError, ValueError, RuntimeError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise UserError(f"cannot connect to Ray at {address!r}: {reason}") from None
    return True


def _start(options: Mapping[str, Any]) -> None:
    """Start Ray on this machine; once again where a busy machine did not start it in time.

    Raises:
        StudyError: it does not start.
    """
    for again in (True, False):
        before = _processes()
        try:
            with _on_loopback(), _without_hangups():
                ray.init(address="local", **options, **_LOCAL)
            return
        except Exception as error:  # of its own processes, sockets, folders: no one kind of error
            ray.shutdown()
            left = _processes() - before  # they would take cores, memory and ports
            for process in left:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            psutil.wait_procs(left, timeout=_ENDS_WITHIN)
            reason = str(error).strip().partition("\n")[0]
            if not again or not _is_late(error):
                raise StudyError(f"Ray does not start on this machine: {reason}") from error


def _is_late(error: Exception) -> bool:
    """Whether Ray gave up waiting for a process of its own."""
    found = re.search(r"timed? ?out", str(error), re.IGNORECASE)
    return found is not None or isinstance(error, TimeoutError)


def _processes() -> set[psutil.Process]:
    """The processes of Ray that this one has started."""
    program = str(Path(ray.__file__).parent)
    found = set()
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if any(program in word for word in child.cmdline()):
                found.add(child)
    return found


@contextlib.contextmanager
def _without_hangups() -> Iterator[None]:
    """Have processes that are started within outlive a closed terminal.

    The signal comes to all processes of a terminal. They end when the driver does, which has
    checkpoints to save before. They inherit what this thread blocks; it gets the signal afterwards.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _on_loopback() -> Iterator[None]:
    """Have Ray that is started within serve this machine only; by itself it listens everywhere.

    The switch is Ray's own, off by default only where a firewall would ask the user. For a cluster
    that others can reach, start one, or set the variable to 1.
    """
    name = ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR
    if name in os.environ:
        yield
        return
    before = ray_constants.ENABLE_RAY_CLUSTER
    os.environ[name], ray_constants.ENABLE_RAY_CLUSTER = "0", False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before
        del os.environ[name]


def _reach(address: str) -> None:
    """Raise a ConnectionError at once if nothing answers: Ray would retry for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if port.isdigit():
        try:
            socket.create_connection((host, int(port)), timeout=10).close()
        except (OSError, OverflowError) as error:
            raise ConnectionError(error) from None


def node_resources() -> list[dict[str, float]]:
    """The resources of each node."""
    return [dict(node.resources) for node in nodes()]


def room_for_trials() -> list[dict[str, float]]:
    """The resources of each node; beside idle GPUs without the CPUs that somebody holds.

    That may be the job whose driver this is: a trial that wanted them as well would wait for ever.
    """
    free = ray._private.state.available_resources_per_node()
    found = []
    for node in nodes():
        total = dict(node.resources)
        now = free.get(node.name, total)
        if total.get("GPU", 0.0) and now.get("GPU", 0.0) >= total["GPU"]:
            total["CPU"] = now.get("CPU", 0.0)
        found.append(total)
    return found


def nodes() -> tuple[Node, ...]:
    """The nodes that are alive, in the order of their names."""
    alive = (node for node in ray.nodes() if node["Alive"])
    found = (
        Node(
            node["NodeID"],
            node["NodeManagerAddress"],
            node["NodeManagerPort"],
            tuple(sorted(node["Resources"].items())),
        )
        for node in alive
    )
    return tuple(sorted(found, key=lambda node: node.name))


def endpoints() -> list[str]:
    """Addresses at which the nodes serve their metrics, as host:port."""
    alive = [node for node in ray.nodes() if node["Alive"] and node["MetricsExportPort"]]
    return [f"{node['NodeManagerAddress']}:{node['MetricsExportPort']}" for node in alive]


@contextlib.contextmanager
def cluster_errors() -> Iterator[None]:
    """Turn Ray's own errors into a StudyError: the cluster is gone, and the study can resume."""
    try:
        yield
    except ray.exceptions.RayError as error:
        reason = str(error).strip().partition("\n")[0]
        raise StudyError(f"Ray: {type(error).__name__}: {reason}") from error
