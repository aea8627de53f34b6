"""One rank of a worker group: it owns the trainer's generator and the trial's clock.

A rank runs its trainer from milestone to milestone and then returns an `Answer`, so that it does
nothing without the driver's decision: what stops on one rank stops on all. It knows torch, and not
Ray.
"""

from __future__ import annotations

import os
import socket
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import cloudpickle
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore

from autotune.backends.protocol import Launch
from autotune.backends.worker import (
    compiled,
    cpu_wait,
    diagnostics,
    gpu_memory,
    hardware_probe,
    isolation,
    process_group,
    process_settings,
    reporting,
)
from autotune.backends.worker.checkpoint_io import Writer, restored, retry_reading
from autotune.backends.worker.cpu_affinity import claim_cores
from autotune.backends.worker.diagnostics import free_frames, from_trainer, out_of_memory
from autotune.backends.worker.messages import Answer, Kind, Place, Rendezvous
from autotune.errors import text_of
from autotune.storage.remote import is_gone
from autotune.trial import Change, Checkpoint, Clock, Milestone

_RETRY_SECONDS, _RETRY_SHARE = 30.0, 0.1  # for a store to answer; share of the group's time-out


class Rank:
    """One warm process of a worker group.

    Args:
        train: the trainer, pickled by the driver of this study.
        path: the driver's `sys.path`, from which the trainer is imported.
        rank, world_size: this process's place in its group.
    """

    def __init__(self, train: bytes, path: list[str], rank: int, world_size: int) -> None:
        sys.path.extend(p for p in path if p not in sys.path)
        self._train: Callable[[dict[str, Any]], Any] = cloudpickle.loads(train)
        self._rank = rank
        self._world_size = world_size
        self._steps: reporting.Steps | None = None
        self._milestone: Milestone | None = None
        self._answered = 0.0
        self._restoring = False
        self._store: TCPStore | None = None

    # --- becoming a group ---------------------------------------------------------------------

    def place(self, node: str, host: str, cores: int) -> Place:
        """Claim `cores` cores of the node and find out what this process runs on."""
        compiled.share_cache()
        os.environ.setdefault(*process_settings.CUBLAS_WORKSPACE)
        self._cores = claim_cores(cores, near=hardware_probe.cores_near_gpus())
        self._machine = hardware_probe.probe(host)
        self._stacks, path = diagnostics.write_stacks_on_signal(node)
        return Place(node, host, os.getpid(), self._cores.numbers, self._machine, path)

    def serve(self, host: str) -> int:
        """Open, on rank 0, the store at which the group meets, and return its port.

        It listens at `host` only; by default it would on every interface.
        """
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host, 0), family=family)
        port = int(listening.getsockname()[1])
        self._store = TCPStore(
            host,
            port,
            self._world_size,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=listening.detach(),
        )
        return port

    def join(self, host: str, port: int, rendezvous: Rendezvous) -> None:
        """Join the process group at `host:port`, and take the snapshot to restore after trials."""
        if rendezvous.own_cores:
            isolation.set_cores(self._cores.numbers)
            torch.set_num_threads(len(self._cores.numbers))
        else:
            self._cores.release()
        interface = self._machine.interface or hardware_probe.interface_to(host)
        hardware_probe.use_interface("lo" if rendezvous.one_node else interface)
        seconds = rendezvous.timeout_seconds
        process_group.set_environment(self._rank, self._world_size, host, port, seconds)
        if self._store is None:
            self._store = TCPStore(host, port, self._world_size, is_master=False)
        self._gpus = rendezvous.gpus
        self._backend = process_group.backend(torch.cuda.is_available(), self._gpus)
        self._timeout = timedelta(seconds=seconds)
        self._group = 0
        gpu_share = gpu_memory.take(self._gpus)
        self._open_group()
        self._writer = Writer(self._rank)
        self._clean = isolation.snapshot(gpu_share)
        self._usual: isolation.ResourceUse | None = None

    def _open_group(self) -> None:
        assert self._store is not None
        self._group += 1
        dist.init_process_group(
            self._backend,
            store=PrefixStore(f"group-{self._group}", self._store),
            rank=self._rank,
            world_size=self._world_size,
            timeout=self._timeout,
        )

    # --- one trial ----------------------------------------------------------------------------

    def start(self, launch: Launch) -> Answer:
        """Start a trial and run it to its first milestone."""
        begin = time.perf_counter()
        clock = Clock()
        try:
            isolation.seed_all(launch.seed)
            config = {**launch.config, "seed": launch.seed}
            if launch.microbatch is not None:
                config["microbatch"] = launch.microbatch
            if launch.checkpoint is not None:
                self._restoring = True
                config["state"] = self._restored(launch.checkpoint)
                self._restoring = False
                clock = Clock(restore=time.perf_counter() - begin)
            self._start_step = launch.checkpoint.step if launch.checkpoint else 0
            self._waits = cpu_wait.WaitMeter(len(self._cores.numbers) or 1)
            self._milestone = None
            self._steps = reporting.steps(self._train, config)
            return self._advance(None, clock)
        except BaseException as error:
            return self._raised(error)

    def resume(self, change: Change | None, save: str | None) -> Answer:
        """Train to the next milestone, saving the present state first if a folder is given."""
        clock = Clock(decide=time.perf_counter() - self._answered)
        try:
            clock = self._save(save, clock)
            answer = self._advance(change, clock)
            saved, save_error = self._writer.taken()
            return replace(answer, saved=saved, save_error=save_error)
        except BaseException as error:
            return self._raised(error)

    def stop(self, save: str | None) -> Answer:
        """Close the trainer at its milestone, saving its state first if a folder is given."""
        saved, save_error = None, ""
        try:
            self._save(save, Clock(), blocking=True)
            saved, save_error = self._writer.taken() if save is not None else (None, "")
            return replace(self._finish("stopped"), saved=saved, save_error=save_error)
        except BaseException as error:
            answer = self._raised(error)
            return replace(answer, kind="stopped", saved=saved, save_error=save_error)

    def _advance(self, change: Change | None, clock: Clock) -> Answer:
        assert self._steps is not None
        before, begin = self._milestone, self._waits.begin()
        try:
            milestone = self._steps.send(change if before is not None else None)
        except StopIteration:
            return self._finish("finished")
        reporting.synchronize()
        trained = self._waits.end()
        _check(milestone, before)
        if milestone.step < self._start_step:
            raise ValueError(
                f"the trial continues at step {self._start_step} but the trainer's first milestone "
                f"is at {milestone.step}: it must begin from config['state']"
            )
        self._milestone, can_save = milestone, milestone.state is not None
        if before is None and milestone.step == self._start_step:
            clock = replace(clock, setup=trained - begin)
            return self._at_milestone(Answer("milestone", milestone.step, {}, clock, can_save))
        metrics = _metrics(milestone.evaluate())
        reporting.synchronize()
        paused = min(max(milestone.eval_seconds, 0.0), trained - begin)
        training = trained - begin - paused
        data = min(max(milestone.data_seconds, 0.0), training)
        evaluated = time.perf_counter() - trained + paused
        clock = replace(clock, data=data, train=training - data, eval=evaluated)
        wait = self._waits.waited(training, data)
        answer = Answer("milestone", milestone.step, metrics, clock, can_save, wait)
        return self._at_milestone(answer)

    def _at_milestone(self, answer: Answer) -> Answer:
        """Note when this rank began to wait for the driver."""
        self._answered = time.perf_counter()
        return answer

    def _save(self, folder: str | None, clock: Clock, blocking: bool = False) -> Clock:
        """Save this rank's state into `folder`; the clock with the time that the trial waited."""
        if folder is None or self._milestone is None or self._milestone.state is None:
            return clock
        begin = time.perf_counter()
        self._writer.save(self._milestone.state(), folder, blocking)
        return replace(clock, checkpoint=time.perf_counter() - begin)

    def _restored(self, saved: Checkpoint) -> dict[str, Any]:
        seconds = min(_RETRY_SECONDS, _RETRY_SHARE * self._timeout.total_seconds())
        state: dict[str, Any] = retry_reading(
            lambda: restored(saved.path, saved.sums), saved.path, seconds
        )
        return state

    # --- and its end --------------------------------------------------------------------------

    def _finish(self, kind: Kind) -> Answer:
        """Close the generator (its `finally` runs on every rank) and clean the process."""
        self._writer.cancel()
        if self._steps is not None:
            self._steps.close()
        self._steps = self._milestone = None
        return Answer(kind, must_restart=self._cleaned())

    def _cleaned(self) -> str:
        """Clean the process; why it must be replaced all the same, or an empty string.

        Nothing that goes wrong here is the trial's fault any more.
        """
        try:
            groups = len(dist.distributed_c10d._world.pg_map) if dist.is_initialized() else 0
            if groups != 1:  # the trial opened groups of its own, or closed ours
                if groups:
                    dist.destroy_process_group()
                self._open_group()
            isolation.restore(self._clean)
            self._usual = self._usual or isolation.resource_use()
            return isolation.leaked_resources(self._clean, self._usual)
        except Exception as error:
            return f"it cannot be cleaned: {type(error).__name__}: {text_of(error)}"

    def _raised(self, error: BaseException) -> Answer:
        """Describe an error of the trainer, or of reading the checkpoint that it starts from."""
        text = "".join(from_trainer(traceback.TracebackException.from_exception(error)).format())
        line = text_of(error).strip().partition("\n")[0][:300]
        memory, must_restart = out_of_memory(error), "the trainer raised"
        crowded = memory and gpu_memory.is_crowded(self._gpus)
        together = getattr(error, "on_all_ranks", "")  # of trainers whose ranks agree to raise
        if memory or together == "elsewhere":
            self._writer.cancel()
            self._steps = self._milestone = None
            free_frames(error)
            gpu_memory.give_back()
            if self._world_size == 1 or together:  # no rank waits: it goes on in this process
                must_restart = self._cleaned()
        restoring, self._restoring = self._restoring and not memory, False
        unreachable = restoring and isinstance(error, OSError) and not is_gone(error)
        return Answer(
            "raised",
            error=text.strip(),
            reason=f"{type(error).__name__}: {line}" if line else type(error).__name__,
            out_of_memory=memory,
            crowded=crowded,
            damaged=restoring and not unreachable,
            store_unreachable=unreachable,
            must_restart=must_restart,
        )


def _check(milestone: object, before: Milestone | None) -> None:
    if not isinstance(milestone, Milestone):
        raise TypeError(f"the trainer must yield autotune.Milestone but got {milestone!r:.80}")
    if not isinstance(milestone.step, int):
        raise TypeError(f"Milestone step must be a whole number but got {milestone.step!r}")
    if before is not None and milestone.step <= before.step:
        raise ValueError(
            f"Milestone step must grow but got {milestone.step} after {before.step}: "
            "it counts the samples seen so far by all ranks"
        )


def _metrics(values: object) -> dict[str, float]:
    if not isinstance(values, Mapping):
        raise TypeError(f"evaluate must return a dict of metrics but got {values!r:.80}")
    try:
        return {str(name): float(value) for name, value in values.items()}
    except (TypeError, ValueError) as error:
        raise TypeError(f"evaluate must return numbers: {error} in {values!r:.200}") from None
