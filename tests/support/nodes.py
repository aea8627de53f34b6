"""A Ray cluster of several nodes on this machine, whose nodes come and are killed.

Each node is a `ray start` of its own, with processes, a folder and an environment of its own. The
head has no CPUs, as on many clusters: it holds drivers, and no trial.
"""

from __future__ import annotations

import contextlib
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

import psutil
from heads import ROOT, START_SECONDS, free_ports

QUIET = {
    "OMP_NUM_THREADS": "1",
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_raylet_start_wait_time_s": str(int(START_SECONDS)),  # on a machine that is busy
}


@dataclass(frozen=True)
class Node:
    """One node: the `ray start --block` that all of its processes descend from."""

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

    def add(self, cpus: int = 1, env: Mapping[str, str] = {}) -> Node:
        """Another node; returns once it has joined."""
        log = self.folder / f"node-{len(self.nodes)}"
        command = [f"--address={self.address}", f"--num-cpus={cpus}"]
        node = _ray_start(command, log, env)
        self.nodes.append(node)
        return node

    def settle(self) -> None:
        """End all nodes but the head."""
        while self.nodes:
            self.nodes.pop().kill()


@contextlib.contextmanager
def cluster(cpus: int = 0) -> Iterator[Cluster]:
    """A head, with so many CPUs; everything that was started ends with it."""
    folder = Path(tempfile.mkdtemp(prefix="nodes", dir="/tmp"))  # Ray's sockets need a short path
    port, client = free_ports(2)
    ports = [f"--port={port}", f"--ray-client-server-port={client}", "--include-dashboard=false"]
    command = ["--head", *ports, f"--temp-dir={folder / 'ray'}", f"--num-cpus={cpus}"]
    made = Cluster(f"127.0.0.1:{port}", folder, _ray_start(command, folder / "head", {}))
    try:
        yield made
    finally:
        made.settle()
        made.head.kill()
        shutil.rmtree(folder, ignore_errors=True)


def environment(more: Mapping[str, str] = {}) -> dict[str, str]:
    """The environment of nodes and of the drivers that use them."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "MLFLOW_"))}
    paths = [str(ROOT), str(ROOT / "tests" / "support"), os.environ.get("PYTHONPATH", "")]
    return {**kept, **QUIET, "PYTHONPATH": os.pathsep.join(p for p in paths if p), **more}


def _ray_start(words: Sequence[str], log: Path, env: Mapping[str, str]) -> Node:
    command = [
        *(sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *words),
        *("--node-ip-address=127.0.0.1", "--object-store-memory=80000000"),
        "--disable-usage-stats",
    ]
    with open(log, "wb") as out:
        process = subprocess.Popen(
            command, env=environment(env), stdout=out, stderr=out, start_new_session=True
        )
    node, end = Node(process, log), time.monotonic() + START_SECONDS
    while b"Ray runtime started" not in log.read_bytes():
        if process.poll() is not None or time.monotonic() > end:
            node.kill()
            raise AssertionError(f"no Ray node: {log.read_text()[-2000:]}")
        time.sleep(0.1)
    return node
