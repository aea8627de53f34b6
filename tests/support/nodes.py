"""A Ray cluster of several nodes on this machine, whose nodes come and are killed.

Each node has processes and an environment of its own, those of `ray start` that trials need. The
head has no CPUs unless it is given some, as on many clusters: it holds drivers, and no trial.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from heads import ROOT, START_SECONDS, free_ports

QUIET = {
    "OMP_NUM_THREADS": "1",
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_prestart_worker_first_driver": "0",  # groups start processes of their own
    "RAY_agent_register_timeout_ms": str(int(1000 * START_SECONDS)),
    "RAY_raylet_start_wait_time_s": str(int(START_SECONDS)),  # on a machine that is busy
}

_PORTS = (  # chosen beforehand: for ports that its agents choose, a raylet waits 15 s and no longer
    "node_manager_port",
    "metrics_agent_port",
    "metrics_export_port",
    "runtime_env_agent_port",
    "dashboard_agent_listen_port",
)


@dataclass(frozen=True)
class Node:
    """One node: the process that all others of it descend from."""

    process: subprocess.Popen[bytes]
    log: Path

    def kill(self) -> None:
        """SIGKILL of everything that runs on the node, as when a machine loses its power."""
        with contextlib.suppress(psutil.NoSuchProcess):
            top = psutil.Process(self.process.pid)
            family = [top, *top.children(recursive=True)]
            for one in family:  # nobody is to see another one's end and tell of it
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.send_signal(signal.SIGSTOP)
            family = [*family, *(c for c in top.children(recursive=True) if c not in family)]
            for one in family:
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()
            psutil.wait_procs(family[1:], timeout=30)
        self.process.wait()


@dataclass
class Cluster:
    """A running head, and the nodes that have been added since. `address` is the head's."""

    address: str
    folder: Path
    head: Node
    nodes: list[Node] = field(default_factory=list)

    def add(
        self, cpus: int = 1, env: Mapping[str, str] = {}, within: Sequence[str] = (), **about: Any
    ) -> Node:
        """Another node; returns once it has joined. `within` as for `cluster`."""
        log = self.folder / f"node-{len(self.nodes)}"
        node = _start(log, env, within, num_cpus=cpus, gcs_address=self.address, **about)
        self.nodes.append(node)
        return node

    def settle(self) -> None:
        """End all nodes but the head."""
        while self.nodes:
            self.nodes.pop().kill()


@contextlib.contextmanager
def cluster(
    cpus: int = 0, within: Sequence[str] = (), env: Mapping[str, str] = {}, **more: Any
) -> Iterator[Cluster]:
    """A head, with so many CPUs; everything that was started ends with it.

    `within` is a command that starts another one, say in a network of its own; `env` what the
    head's environment has besides.
    """
    folder = Path(tempfile.mkdtemp(prefix="nodes", dir="/tmp"))  # Ray's sockets need a short path
    (port,) = free_ports(1)
    about = {"num_cpus": cpus, "gcs_server_port": port, "temp_dir": str(folder / "ray")}
    head = _start(folder / "head", env, within, **about, **more)
    made = Cluster(head.log.read_text().rpartition("up at ")[2].strip(), folder, head)
    try:
        yield made
    finally:
        made.settle()
        made.head.kill()
        shutil.rmtree(folder, ignore_errors=True)


def environment(more: Mapping[str, str] = {}) -> dict[str, str]:
    """The environment of nodes and of the drivers that use them.

    Ray refuses GPUs that are only declared where others are hidden.
    """
    left_out = ("RAY_", "MLFLOW_", "CUDA_VISIBLE_DEVICES")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(left_out)}
    paths = [str(ROOT), str(ROOT / "tests" / "support"), os.environ.get("PYTHONPATH", "")]
    return {**kept, **QUIET, "PYTHONPATH": os.pathsep.join(p for p in paths if p), **more}


def _start(log: Path, env: Mapping[str, str], within: Sequence[str], **about: Any) -> Node:
    """A node that is up. A raylet gives itself 15 s to start; on a busy machine it tries again."""
    own = environment({"TMPDIR": str(log.parent), **env})  # with locks of cores of its own
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end:
        with open(log, "wb") as out:
            command = [*within, sys.executable, __file__, json.dumps(about)]
            process = subprocess.Popen(
                command, env=own, stdout=out, stderr=out, start_new_session=True
            )
        node = Node(process, log)
        if _comes_up(node, end):
            return node
        node.kill()
    raise AssertionError(f"no Ray node: {log.read_text()[-2000:]}")


def _comes_up(node: Node, end: float) -> bool:
    """Wait until the node is up; False once one of its processes has died instead."""
    while b"up at " not in node.log.read_bytes():
        if node.process.poll() is not None or time.monotonic() > end:
            return False
        with contextlib.suppress(psutil.NoSuchProcess):
            below = psutil.Process(node.process.pid).children()
            if any(c.status() == psutil.STATUS_ZOMBIE for c in below):
                return False
        time.sleep(0.1)
    return True


def main(about: dict[str, Any]) -> None:
    """Be a node, as `ray start --block` is, with only the processes that trials need."""
    from ray._private.node import Node as RayNode
    from ray._private.parameter import RayParams

    head = "gcs_address" not in about
    few = {"include_log_monitor": False, "no_monitor": True, "include_dashboard": False}
    if not head:
        about["redis_address"] = about["gcs_address"]
    ports = dict(zip(_PORTS, free_ports(len(_PORTS)), strict=True))
    about |= {"object_store_memory": 80_000_000, "min_worker_port": 0, "max_worker_port": 0}
    params = RayParams(**few, **about, **ports)
    node = RayNode(params, head=head, shutdown_at_exit=True, spawn_reaper=False)
    print(f"up at {node.gcs_address}", flush=True)
    starter = os.getppid()
    while os.getppid() == starter:  # whose end, also by a signal, is this node's
        time.sleep(1.0)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
