"""One rank of a worker group: it owns the trainer's generator and the trial's clock.

A rank runs its trainer from milestone to milestone and then returns an `Answer`, so that it does
nothing without the driver's decision: what stops on one rank stops on all. It does not know who has
started it. Torch is imported if the trainer needs it, or if there are other ranks to talk to.
"""

from __future__ import annotations

import bdb
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import BrokenExecutor, Future
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import cloudpickle

from autotune.backends.protocol import Launch
from autotune.backends.worker import cpu_wait, gpu_memory, reporting
from autotune.backends.worker.diagnostics import free_frames, from_trainer, out_of_memory
from autotune.backends.worker.late_reports import Awaited, Later, promised
from autotune.backends.worker.messages import Answer, Kind, Place, Rendezvous, Written
from autotune.backends.worker.own_process import OwnProcess
from autotune.backends.worker.reported import check_milestone, evaluated, measured, returned_metrics
from autotune.backends.worker.torch_import import mentions_torch
from autotune.errors import text_of
from autotune.storage.remote import is_gone
from autotune.trial import Change, Checkpoint, Clock, Metrics, Milestone
from autotune.trial.trainer import said

if TYPE_CHECKING:
    from autotune.backends.worker.checkpoint_io import Writer

_RETRY_SECONDS, _RETRY_SHARE = 30.0, 0.1  # for a store to answer; share of the group's time-out


class Rank:
    """One warm process of a worker group.

    Args:
        train: the trainer, pickled by the driver of this study, or itself where this process is
            the driver's own.
        path: the driver's `sys.path`, from which the trainer is imported.
        rank, world_size: this process's place in its group.
        on_error: called with what the trainer raised, before anything of it is cleaned.
    """

    def __init__(
        self,
        train: bytes | Callable[[dict[str, Any]], Any],
        path: list[str],
        rank: int,
        world_size: int,
        on_error: Callable[[BaseException], object] | None = None,
    ) -> None:
        sys.path.extend(p for p in path if p not in sys.path)
        here = not isinstance(train, bytes)
        self._train: Callable[[dict[str, Any]], Any]
        self._train = cloudpickle.loads(train) if isinstance(train, bytes) else train
        pickled = train if isinstance(train, bytes) else b""
        needs_torch = world_size > 1 or mentions_torch(self._train, pickled)
        self._process = OwnProcess(rank, world_size, needs_torch, not here)
        self._here = here
        self._rank = rank
        self._world_size = world_size
        self._on_error = on_error
        self._made_writer: Writer | None = None
        self._steps: reporting.Steps | None = None
        self._milestone: Milestone | None = None
        self._later = Later()
        self._end: StopIteration | None = None
        self._answered = 0.0
        self._restoring = False

    def place(self, node: str, host: str, cores: int, gpus: float = 0) -> Place:
        """Claim `cores` cores of the node and find out what this process, with `gpus`, runs on."""
        return self._process.place(node, host, cores, gpus)

    def serve(self, host: str) -> int:
        """Open, on rank 0, the port at which the group meets; 0 on other ranks."""
        return self._process.serve(host)

    def join(self, host: str, port: int, rendezvous: Rendezvous) -> None:
        """Join the process group at `host:port`, and take the snapshot to restore after trials."""
        self._process.join(host, port, rendezvous)

    def leave(self) -> None:
        """Leave the group, in a process that lives on."""
        self._process.leave()

    def start(self, launch: Launch) -> Answer:
        """Start a trial and run it to its first milestone."""
        begin = time.perf_counter()
        clock = Clock()
        try:
            self._process.seed(launch.seed)
            config = {**launch.config, "seed": launch.seed}
            if launch.microbatch is not None:
                config["microbatch"] = launch.microbatch
            if launch.checkpoint is not None:
                self._restoring = True
                config["state"] = self._restored(launch.checkpoint)
                self._restoring = False
                clock = Clock(restore=time.perf_counter() - begin)
            self._start_step = launch.checkpoint.step if launch.checkpoint else 0
            self._metric = launch.metric
            self._evaluations = launch.evaluations
            cores = len(self._process.cores.numbers) or 1
            in_child = bool(said(self._train, "in_child", False))
            self._waits = cpu_wait.WaitMeter(cores, in_child=in_child)
            self._forget()
            self._steps = reporting.steps(self._train, config, self._waits.end)
            return self._advance(None, clock)
        except BaseException as error:
            return self._raised(error)

    def resume(self, change: Change | None, save: str | None) -> Answer:
        """Train to the next milestone, saving the present state first if a folder is given."""
        clock = Clock(decide=time.perf_counter() - self._answered)
        try:
            clock = self._save(save, clock)
            answer = self._advance(change, clock)
            saved, save_error = self._taken()
            return replace(answer, saved=saved, save_error=save_error)
        except BaseException as error:
            return self._raised(error)

    def measure(self) -> Answer:
        """Measure what the milestone can, unless the report is of an earlier one."""
        try:
            assert self._milestone is not None
            metrics = measured(self._milestone, self._later.reported is not None, self._train)
            return self._at_milestone(Answer("measured", self._milestone.step, metrics))
        except BaseException as error:
            return self._raised(error)

    def stop(self, save: str | None) -> Answer:
        """Close the trainer at its milestone, saving its state first if a folder is given."""
        saved, save_error = None, ""
        try:
            self._save(save, Clock(), blocking=True)
            saved, save_error = self._taken() if save is not None else (None, "")
            return replace(self._finish("stopped"), saved=saved, save_error=save_error)
        except BaseException as error:
            answer = self._raised(error)
            return replace(answer, kind="stopped", saved=saved, save_error=save_error)

    def _advance(self, change: Change | None, clock: Clock) -> Answer:
        assert self._steps is not None
        before, begin = self._milestone, self._waits.begin()
        if self._end is not None:
            return self._returned(self._end.value, begin, clock)
        try:
            milestone = self._steps.send(change if before is not None else None)
        except StopIteration as end:
            last, self._end = self._later.take(None), end
            return self._at_milestone(last) if last else self._returned(end.value, begin, clock)
        reporting.synchronize()
        trained = self._waits.end()
        check_milestone(milestone, before)
        if milestone.step < self._start_step:
            raise ValueError(
                f"the trial continues at step {self._start_step} but the trainer's first report is "
                f"at {milestone.step}: it must begin from config['state']"
            )
        self._milestone, can_save = milestone, milestone.state is not None
        if before is None and reporting.ends_setup(milestone, self._start_step):
            clock = replace(clock, setup=trained - begin)
            return self._at_milestone(Answer("milestone", milestone.step, {}, clock, can_save))
        earlier = self._later.take(milestone.step)
        found = self._evaluate(milestone)
        late = earlier is not None or isinstance(found, Future)
        metrics = None if late else evaluated(found)
        kept = self._kept(milestone) if late else None
        reporting.synchronize()
        paused = min(max(milestone.eval_seconds, 0.0), trained - begin)
        training = trained - begin - paused
        data = min(max(milestone.data_seconds, 0.0), training)
        evaluation = time.perf_counter() - trained + paused
        clock = replace(clock, data=data, train=training - data, eval=evaluation)
        wait = self._waits.waited(training, data)
        answer = Answer("milestone", milestone.step, metrics, clock, can_save, wait)
        if late:
            self._later.awaited = Awaited(answer, promised(found), kept)
            answer = earlier or Answer("milestone", milestone.step)
        return self._at_milestone(answer)

    def _evaluate(self, milestone: Milestone) -> Metrics | Future[Any]:
        """The milestone's metrics; none once as many were evaluated as the launch asks for."""
        if self._evaluations is None:
            return milestone.evaluate()
        self._evaluations -= 1
        return milestone.evaluate() if self._evaluations >= 0 else {}

    def _at_milestone(self, answer: Answer) -> Answer:
        """Note when this rank began to wait for the driver."""
        self._answered = time.perf_counter()
        return answer

    def _save(self, folder: str | None, clock: Clock, blocking: bool = False) -> Clock:
        """Save this rank's state into `folder`; the clock with the time that the trial waited."""
        reported, self._later.reported = self._later.reported, None
        if folder is None or self._milestone is None or self._milestone.state is None:
            return clock
        begin = time.perf_counter()
        if reported is not None:
            self._writer().save(reported.state, folder, blocking, kept=True)
        else:
            self._writer().save(self._milestone.state(), folder, blocking)
        return replace(clock, checkpoint=time.perf_counter() - begin)

    def _kept(self, milestone: Milestone) -> Mapping[str, Any] | None:
        """A copy of the milestone's state, to be saved if its report asks for it."""
        return None if milestone.state is None else self._writer().kept(milestone.state())

    def _writer(self) -> Writer:
        """What writes checkpoints, with torch."""
        from autotune.backends.worker.checkpoint_io import Writer

        self._made_writer = self._made_writer or Writer(self._rank)
        return self._made_writer

    def _taken(self) -> tuple[Written | None, str]:
        """What has been saved since the last answer, or why it could not be."""
        return self._made_writer.taken() if self._made_writer is not None else (None, "")

    def _cancel_writing(self) -> None:
        if self._made_writer is not None:
            self._made_writer.cancel()

    def _restored(self, saved: Checkpoint) -> dict[str, Any]:
        from autotune.backends.worker.checkpoint_io import restored, retry_reading

        seconds = min(_RETRY_SECONDS, _RETRY_SHARE * self._process.seconds)
        state: dict[str, Any]
        state = retry_reading(lambda: restored(saved.path, saved.sums), saved.path, seconds)
        return state

    def _returned(self, end: object, begin: float, clock: Clock) -> Answer:
        """The trainer came to its own end; what a function returned is its last report."""
        reporting.synchronize()
        last = self._start_step if self._milestone is None else self._milestone.step
        metrics, returned, wait = None, "", None
        if isinstance(end, reporting.Returned):
            took = end.at - begin
            paused = min(end.eval_seconds, took)
            clock = replace(clock, train=took - paused, eval=paused)
            wait = self._waits.waited(took - paused, 0.0)
            metrics, returned = returned_metrics(end.value, self._metric)
        answer = self._finish("finished")
        return replace(
            answer, step=last + 1, metrics=metrics, clock=clock, wait=wait, returned=returned
        )

    def _finish(self, kind: Kind) -> Answer:
        """Close the generator (its `finally` runs on every rank) and clean the process."""
        self._cancel_writing()
        if self._steps is not None:
            self._steps.close()
        self._forget()
        return Answer(kind, must_restart=self._process.cleaned())

    def _forget(self) -> None:
        """Let go of the trial's generator, and of what its milestones hold."""
        self._steps = self._milestone = self._end = None
        self._later = Later()

    def _raised(self, error: BaseException) -> Answer:
        """Describe an error of the trainer, or of reading the checkpoint that it starts from."""
        if self._here:
            self._raised_here(error)
        text = "".join(from_trainer(traceback.TracebackException.from_exception(error)).format())
        line = text_of(error).strip().partition("\n")[0][:300]
        memory, must_restart = out_of_memory(error), "the trainer raised"
        crowded = memory and gpu_memory.is_crowded(self._process.gpus)
        together = getattr(error, "on_all_ranks", "")  # of trainers whose ranks agree to raise
        if memory or together == "elsewhere":
            self._cancel_writing()
            self._forget()
            free_frames(error)
            gpu_memory.give_back()
            if self._world_size == 1 or together:  # no rank waits: it goes on in this process
                must_restart = self._process.cleaned(failed=True)
        elif self._here:
            must_restart = self._finish("raised").must_restart
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
            helper_died=isinstance(error, BrokenExecutor),
        )

    def _raised_here(self, error: BaseException) -> None:
        """Let the user look at the error; who interrupts the trainer means the study."""
        if isinstance(error, KeyboardInterrupt | bdb.BdbQuit):
            self._finish("stopped")
            raise KeyboardInterrupt from None
        if self._on_error is not None and not self._restoring:
            self._on_error(error)
