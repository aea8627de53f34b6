"""The process of a rank: its cores, torch, the process group, what is put back between trials."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from dataclasses import replace

from autotune.backends.worker import (
    compiled,
    diagnostics,
    gpu_memory,
    hardware_probe,
    isolation,
    process_settings,
    reporting,
)
from autotune.backends.worker.cpu_affinity import bind, claim_cores
from autotune.backends.worker.messages import Place, Rendezvous
from autotune.backends.worker.process_group import ProcessGroup
from autotune.backends.worker.torch_import import when_imported
from autotune.errors import text_of


class OwnProcess:
    """What a rank makes of its process, and restores after each trial.

    Args:
        rank, world_size: its place in the group.
        needs_torch: whether torch is imported before the first trial; else if somebody imports it.
        replaceable: whether the process can be replaced: not where it is the driver's own.

    Attributes:
        clean: the state to restore, since `join`.
        usual: what the process used after its first trial that did not fail.
        gpus: of this rank.
        seconds: the limit of collectives.
    """

    clean: isolation.Snapshot

    def __init__(self, rank: int, world_size: int, needs_torch: bool, replaceable: bool) -> None:
        self.usual: isolation.ResourceUse | None = None
        self.gpus = 0.0
        self.seconds = float("inf")
        self._needs_torch, self._replaceable = needs_torch, replaceable
        self._group = ProcessGroup(rank, world_size)
        self._seed: int | None = None
        self._threads = 0
        self._ran = False
        self._forget_torch: Callable[[], None] = lambda: None

    def place(self, node: str, host: str, cores: int, gpus: float) -> Place:
        """Claim `cores` cores of the node and find out what this process, with `gpus`, runs on."""
        compiled.share_cache()
        os.environ.setdefault(*process_settings.CUBLAS_WORKSPACE)
        self._needs_torch = self._needs_torch or gpus > 0
        self.cores = claim_cores(cores, near=hardware_probe.cores_near_gpus() if gpus else ())
        self._machine = hardware_probe.probe(host, gpus)
        self._stacks, path = diagnostics.write_stacks_on_signal(node)
        return Place(node, host, os.getpid(), self.cores.numbers, self._machine, path)

    def serve(self, host: str) -> int:
        """Open, on rank 0, the port at which the group meets; 0 on other ranks."""
        return self._group.serve(host)

    def join(self, host: str, port: int, rendezvous: Rendezvous) -> None:
        """Join the process group at `host:port`, and take the snapshot to restore after trials."""
        if rendezvous.own_cores:
            bind(self.cores.numbers, whole=self._replaceable)
            self._threads = len(self.cores.numbers)
        else:
            self.cores.release()
        interface = self._machine.interface or hardware_probe.interface_to(host)
        if rendezvous.one_node:
            interface = hardware_probe.interface_of("127.0.0.1")
        hardware_probe.use_interface(interface)
        self.gpus, self.seconds = rendezvous.gpus, rendezvous.timeout_seconds
        self._group.meet(host, port, self.gpus, self.seconds)
        if self._needs_torch:
            import torch  # noqa: F401
        self.clean = isolation.snapshot()
        self._forget_torch = when_imported(self._with_torch)

    def _with_torch(self) -> None:
        """Prepare torch, which is there now: threads, GPUs, the process group, what is put back."""
        import torch

        from autotune.backends.worker import torch_state

        if self._threads:
            torch.set_num_threads(self._threads)
        gpu_share = gpu_memory.take(self.gpus)
        self._group.open()
        self.clean = replace(self.clean, gpu_share=gpu_share, torch=torch_state.read())
        if self._seed is not None:  # the trial that runs has imported it
            torch.manual_seed(self._seed)

    def seed(self, seed: int) -> None:
        """Seed all generators for a trial."""
        self._seed = seed
        isolation.seed_all(seed)

    def cleaned(self, failed: bool = False) -> str:
        """Clean the process; why it must be replaced all the same, or an empty string.

        Nothing that goes wrong here is the trial's fault any more. What it uses after a trial that
        has `failed` is not its usual: the trial may have ended before any library was loaded.
        """
        if self._replaceable and (left := reporting.left_running()):
            return left  # it would change what is put back
        try:
            self._group.put_back()
            isolation.restore(self.clean)
            if not self._ran:  # what the first trial imported stays: it need not be looked through
                gc.freeze()
                self._ran = True
            if not self._replaceable:
                return ""
            usual = self.usual or isolation.resource_use()
            self.usual = self.usual if failed else usual
            return isolation.leaked_resources(self.clean, usual)
        except Exception as error:
            return f"it cannot be cleaned: {type(error).__name__}: {text_of(error)}"

    def leave(self) -> None:
        """Give back what other processes may use, in a process that lives on."""
        self._forget_torch()
        self._group.close()
        self.cores.release()
        gc.unfreeze()
