"""The study's loop: what one driver does, from the first suggestion to the last trial's end.

The path of one suggestion: `fill` finds room on the pool; `create` takes the sampler's point, which
is computed beside the loop, and writes it down as a trial; `start` gives it to a worker group. At
every milestone `progress` writes the report down, `judge` looks at the trial, and all ranks are
told to go on or to stop. What has ended is in `trials`, which the next suggestion is made from.

The path of one fork: at a milestone of trial 5 the controller says `Fork(3, params)`. Trial 3's
last checkpoint is copied for trial 9, the next number. `Suggested(9, origin=...)` is written down,
which also says that trial 5 ends `exploited`. Trial 5's group is told to stop and, idle again,
takes the first trial that waits for one: trial 9, which starts from its checkpoint as a trial does
that has lost a worker.
"""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import math
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from autotune import keeping, racing
from autotune.errors import StudyError, UserError, unknown
from autotune.experiment import Experiment
from autotune.ledger import Ledger
from autotune.likeness import stamped
from autotune.lineage import copied, origin
from autotune.memory import fitting, halved, memory_keys
from autotune.pools import Broke, Finished, Launch, Pool, Progress, Raised, Signal, Stopped
from autotune.pruners import Pruner
from autotune.repeats import (
    CONFIRM,
    RACE,
    again,
    confirming,
    merged,
    next_to_confirm,
    searched,
)
from autotune.samplers import Sampler
from autotune.trackers.journal import Closed, Journal, Opened, plain
from autotune.trial import (
    CUT,
    Change,
    Changed,
    Checkpoint,
    Config,
    Ended,
    Event,
    Fork,
    Lost,
    Params,
    Reported,
    Saved,
    Started,
    State,
    Stop,
    Suggested,
    Target,
    Trial,
    after,
    diverged,
    fold,
)

MOST_ATTEMPTS = 20  # from then on a lost node is a retry: the trial may be what takes them down
Controller = Callable[[Trial, Sequence[Trial], Target], Change | Fork | None]
Rule = TypeVar("Rule")
Watch = Callable[[Event, Mapping[int, Trial]], None]


@dataclass(frozen=True)
class Plan:
    """What a driver has to do: the experiment, how much of it, and who decides.

    `seeds`, if given, are those of its trials, one for each, and make them confirmations. When
    the `trials` of the search are done, the `top` best configurations and the baseline are run
    `repeats` times again. Without `search` that is all there is to do. `racing` is the share of
    the search that goes into races. `checkpoints` is the folder or URL of checkpoints, if they are
    not in the study folder. With `mix_hardware` times on unequal hardware are ranked together.
    """

    experiment: Experiment
    trials: int
    time_limit: float | None
    seed: int
    pruner: Pruner
    controller: Controller | None
    seeds: Sequence[int] = ()
    repeats: int = 0
    top: int = 3
    search: bool = True
    racing: float = 0.0
    checkpoints: str = ""
    mix_hardware: bool = False


def judge(
    trial: Trial, others: Sequence[Trial], target: Target, pruner: Pruner
) -> tuple[State, Stop] | None:
    """How the trial ends after its last report, or None if it goes on.

    A baseline is measured to its end, and so is a repeat: only the target's limit censors it.
    """
    if not trial.reports:
        return None
    bad = diverged(trial.reports[-1].metrics)
    if bad:
        value = trial.reports[-1].metrics[bad]
        return State.CENSORED, Stop("diverged", f"{bad} is {value}")
    if trial.seconds < target.limit and target.met(trial.reports):
        return State.REACHED, Stop("target", f"{target.metric} {target.best(trial):.6g}")
    if trial.seconds >= target.limit:
        return State.CENSORED, Stop("limit", f"{trial.seconds:.2f} of {target.limit:g} s spent")
    if _runs_to_its_end(trial):
        return None
    stop = _ruled("pruner", pruner, trial, others, target)
    return (State.CENSORED, stop) if stop is not None else None


def _runs_to_its_end(trial: Trial) -> bool:
    """Whether no pruner may stop the trial: it is there to be measured."""
    return trial.kind == "baseline" or trial.repeats is not None


def trial_seed(seed: int, number: int | str) -> int:
    """The seed of a trial: a function of the study's seed and the trial's number, below 2**31."""
    digest = hashlib.sha256(f"{seed}/{number}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def fresh_seed(seed: int, number: int | str, trials: Iterable[Trial]) -> int:
    """The seed of a repeat: as `trial_seed`, but one that none of these trials has had."""
    used, made, more = {t.seed for t in trials}, trial_seed(seed, number), 0
    while made in used:
        more += 1
        made = trial_seed(seed, f"{number}/{more}")
    return made


class Suggester:
    """Computes one suggestion at a time beside the loop, and wakes it when it is ready."""

    def __init__(self, sampler: Sampler, pool: Pool) -> None:
        self._sampler = sampler
        self._pool = pool
        self._beside = ThreadPoolExecutor(1, "suggest") if pool.realtime else None
        self._pending: Future[Params | None] | None = None
        self.exhausted = False

    @property
    def pending(self) -> bool:
        """Whether a suggestion has been asked for and not been taken yet."""
        return self._pending is not None

    def take(self, number: int, trials: Collection[Trial]) -> Params | None:
        """The suggestion for trial `number`, or None while it is being computed.

        None as well once the sampler is `exhausted`, that is, has nothing left to propose.
        """
        if self._pending is None:
            self._pending = self._submit(number, tuple(trials))
        if not self._pending.done():
            return None
        done, self._pending = self._pending, None
        error = done.exception()
        if error is not None:
            raise StudyError(f"the sampler failed: {type(error).__name__}: {error}") from error
        self.exhausted = done.result() is None
        return done.result()

    def _submit(self, number: int, trials: Sequence[Trial]) -> Future[Params | None]:
        if self._beside is not None:
            future = self._beside.submit(self._sampler.ask, number, trials)
            future.add_done_callback(lambda _: self._pool.wake())
            return future
        at_once: Future[Params | None] = Future()
        try:
            at_once.set_result(self._sampler.ask(number, trials))
        except Exception as error:
            at_once.set_exception(error)
        return at_once

    def close(self) -> None:
        if self._beside is not None:
            self._beside.shutdown(wait=False, cancel_futures=True)


class Loop:
    """One driver's work on a study. `trials` is its only state; it says what the journal says."""

    def __init__(
        self,
        plan: Plan,
        folder: Path,
        journal: Journal,
        pool: Pool,
        sampler: Sampler,
        watch: Watch | None,
    ) -> None:
        self.plan = plan
        self.target = plan.experiment.target
        self.journal = journal
        self.pool = pool
        self.suggester = Suggester(sampler, pool)
        self.watch = watch
        self.memory_keys = memory_keys(plan.experiment.train)
        self.checkpoints = plan.checkpoints or str(folder.absolute() / "checkpoints")
        self.interruptions = 0
        self._begin = pool.now() - max((e.at for e in journal.entries), default=0.0)
        self._deadline = pool.now() + plan.time_limit if plan.time_limit is not None else None
        events = [e for e in journal.entries if not isinstance(e, Opened | Closed)]
        self.trials = fold(events)
        self.count = len(searched(list(self.trials.values())))  # repeats are on top of it
        self.ledger = Ledger(self.trials)
        self._saved = any(t.checkpoint is not None for t in self.trials.values())
        journal.entries.clear()  # all that they say is in `trials`

    def run(self) -> str:
        """Work until nothing is left to do; returns why it ended. Everything is written down."""
        with _interrupts(self):
            return self._run()

    def _run(self) -> str:
        self.journal.write(Opened(self.plan.experiment.name, self.at()))
        reason = "error"
        try:
            self.take_up()
            self.work()
            reason = self.conclude()
        except KeyboardInterrupt:
            reason = "interrupted"
            self.abandon()
            raise
        except (UserError, StudyError) as error:
            reason = str(error)
            self.abandon()
            raise
        finally:
            self.suggester.close()
            self.journal.write(Closed(reason, self.at()))
        return reason

    def work(self) -> None:
        while True:
            self.fill()
            if not self.pool.busy() and not self.wanting():
                return
            signal = self.written.wait(self.patience())
            if self.interruptions > 1:
                raise KeyboardInterrupt
            if signal is not None:
                self.handle(signal)

    def conclude(self) -> str:
        """End what waited to be started again when time ran out; why the driver leaves."""
        why = self.leaving()
        for trial in [t for t in self.trials.values() if not t.ended]:
            self.end(trial.number, State.CENSORED, Stop(why))
        ended = list(self.trials.values())
        if ended and all(t.state is State.FAILED for t in ended) and not why:
            raise StudyError(f"every trial failed; the last: {ended[-1].reason}")
        complete = self.count >= self.plan.trials or self.suggester.exhausted
        cut = any(t.reason in ("interrupted", "budget") for t in self.trials.values())
        return "done" if complete and not cut else why or "done"

    def take_up(self) -> None:
        """Judge and take up again what an earlier driver left running or interrupted."""
        self.end_exploited(list(self.trials.values()))
        for trial in list(self.trials.values()):
            if not trial.goes_on:
                continue
            if not self.plan.search and trial.repeats is None:  # left for a driver that searches
                self.interrupted(trial)
                continue
            verdict = judge(trial, self.others(trial), self.target, self.plan.pruner)
            if verdict is not None and not trial.ended:
                self.end(trial.number, *verdict)
            elif trial.attempts or trial.ended:
                self.record(Lost(trial.number, "driver restarted", broke=False, at=self.at()))

    # --- starting -----------------------------------------------------------------------------

    def leaving(self) -> str:
        """Why nothing more is started: `interrupted`, `budget`, or an empty string."""
        if self.interruptions:
            return "interrupted"
        late = self._deadline is not None and self.pool.now() >= self._deadline
        return "budget" if late else ""

    def wanting(self) -> bool:
        """Whether there is something left to start."""
        return not self.leaving() and (
            self.searching or self.waiting() is not None or self.finalist() is not None
        )

    @property
    def searching(self) -> bool:
        """Whether there are trials left to suggest."""
        more = self.count < self.plan.trials and not self.suggester.exhausted
        return self.plan.search and more

    def waiting(self) -> Trial | None:
        """The first trial that has no worker group, because its last one broke off.

        Confirmations come last: they run alone.
        """
        if not self.repeated:
            return self.ledger.waiting()
        waiting = (t for t in self.ledger.running() if not t.placed)
        return min(waiting, key=lambda t: (_alone(t), t.number), default=None)

    def finalist(self) -> Trial | None:
        """The trial to be confirmed next, once all others have ended."""
        if not self.plan.repeats or self.searching or self.ledger.running():
            return None
        everyone = list(self.trials.values())
        return next_to_confirm(everyone, self.target, self.plan.repeats, self.plan.top)

    def fill(self) -> None:
        """Start trials while the pool has room: broken-off ones first, then new ones."""
        while self.wanting() and self.pool.capacity() > 0:
            trial = self.next()
            if trial is None:
                return
            if not trial.ended:
                self.start(trial)

    def next(self) -> Trial | None:
        """What is to be started now; None if something else must come first."""
        trial = self.waiting()
        if trial is not None and not _alone(trial):
            return trial
        if self.searching:
            return self.race() or self.create()
        if self.pool.busy():
            return None
        finalist = self.finalist()
        return self.repeat(finalist, CONFIRM) if finalist is not None else trial

    def race(self) -> Trial | None:
        """A race of the leader, if one is due; not while a suggestion waits for the next number."""
        if not self.plan.racing or self.suggester.pending:
            return None
        leading = racing.due(list(self.trials.values()), self.target, self.plan.racing)
        return self.repeat(leading, RACE) if leading is not None else None

    def repeat(self, trial: Trial, kind: str) -> Trial:
        """A new trial that runs the configuration of `trial` again on a fresh seed."""
        everyone = list(self.trials.values())
        number, config = len(everyone), again(trial, everyone)
        assert config is not None, "only what can be run again is chosen"
        if kind == CONFIRM:
            seed = self.round_seed(trial, everyone)
        else:
            seed = fresh_seed(self.plan.seed, number, everyone)
        event = Suggested(number, config, None, kind, seed, self.at(), repeats=trial.number)
        self.record(event)
        return self.trials[number]

    def round_seed(self, trial: Trial, everyone: Sequence[Trial]) -> int:
        """The seed of the trial's next confirmation: in each round all candidates have the same.

        What they have in common (the order of the data) then says nothing of which is faster.
        """
        own = [t for t in confirming(everyone) if t.repeats == trial.number and t.reason not in CUT]
        used = [t for t in everyone if t.kind != CONFIRM]
        return fresh_seed(self.plan.seed, f"round {len(own)}", [*used, *own])

    def create(self) -> Trial | None:
        """The next trial: the baseline, a given configuration, or a suggestion once it is ready."""
        number, count, experiment = len(self.trials), self.count, self.plan.experiment
        given = experiment.given()
        kind = "baseline" if experiment.baseline is not None and number == 0 else "trial"
        params: Params | None
        fault = ""
        if count < len(given):
            config, params = experiment.space.complete(given[count])
        else:
            params = self.suggester.take(number, self.standing())
            if params is None:
                return None
            try:
                config = experiment.space.config(params)
            except ValueError as error:  # schedules that do not fit together at this point
                config, fault = dict(params), str(error)
        seed = trial_seed(self.plan.seed, number)
        if self.plan.seeds:
            kind, params, seed = "confirm", None, self.plan.seeds[number]
        try:
            config = plain(config)
        except (ValueError, TypeError) as error:
            raise UserError(f"trial {number} cannot be written down: {error}") from None
        self.record(Suggested(number, config, params, kind, seed, self.at()))
        if fault:
            self.end(number, State.INFEASIBLE, Stop("no configuration", fault))
        return self.trials[number]

    def start(self, trial: Trial) -> None:
        broken = self.plan.experiment.space.broken(trial.config)
        if broken:
            self.end(trial.number, State.INFEASIBLE, Stop("constraint", broken))
            return
        launch = Launch(
            trial.number,
            trial.config,
            trial.seed,
            self.target.clock,
            trial.checkpoint,
            trial.saved_clock,
            self.fitting(trial),
        )
        ran, origin = self.written.start(launch), trial.origin
        parent = self.trials[origin.parent] if origin is not None else None
        hardware = stamped(ran, trial, parent, self.plan.mix_hardware)
        at = self.at()
        waited = at - trial.waiting_since
        self.record(Started(trial.number, waited, hardware, at, launch.microbatch))

    def fitting(self, trial: Trial) -> int | None:
        """The microbatch to start with, from what trials like it have met."""
        if not self.memory_keys:
            return None
        return fitting(trial, self.trials.values(), self.memory_keys, self.pool.next_hardware())

    # --- what comes back ----------------------------------------------------------------------

    def handle(self, signal: Signal) -> None:
        trial = self.trials[signal.trial]
        match signal:
            case Stopped(saved=saved):
                self.saved(trial, saved)
            case _ if trial.ended:
                return
            case Progress():
                self.progress(signal)
            case Finished():
                self.end(
                    trial.number, State.CENSORED, Stop("finished", "the trainer came to its end")
                )
            case Raised(damaged=True):
                self.damaged(trial, signal)
            case Raised(out_of_memory=True):
                self.out_of_memory(trial, signal)
            case Raised(error=error, reason=reason):
                self.end(trial.number, State.FAILED, Stop(reason), error)
            case Broke():
                self.broke(trial, signal)

    def progress(self, signal: Progress) -> None:
        """Write the report down, judge the trial, and answer its ranks."""
        number, report = signal.trial, signal.report
        self.saved(self.trials[number], signal.saved)
        if signal.unsaved:
            _warn(f"trial {number}: a checkpoint could not be written: {signal.unsaved}")
        self.record(Reported(number, report, self.at()))
        trial = self.trials[number]
        _check_metric(trial, self.target, ended=False)
        others = () if _runs_to_its_end(trial) else self.others(trial)
        verdict = judge(trial, others, self.target, self.plan.pruner)
        if verdict is None and self.leaving():
            verdict = State.CENSORED, Stop(self.leaving())
        if verdict is None:
            self.go_on(trial, signal)
            return
        state, stop = verdict
        keep = stop.reason == "interrupted" or self.is_best(trial, state)
        save = keep and signal.can_save and not keeping.is_saved(trial)
        self.end(number, state, stop)
        self.written.stop(number, keeping.path(self.checkpoints, trial) if save else None)

    def go_on(self, trial: Trial, signal: Progress) -> None:
        if not signal.can_save and math.isfinite(self.forks_every):
            raise UserError(
                "the controller forks trials, but the trainer's milestones have no state"
            )
        decision: Change | Fork | None = None
        if self.plan.controller is not None:
            others, seen = self.others(trial), self.as_its_own(trial)
            decision = _ruled("controller", self.plan.controller, seen, others, self.target)
        if isinstance(decision, Fork):
            if self.fork(trial, decision):
                return
            decision = None
        if decision is not None:
            self.record(Changed(trial.number, trial.reports[-1].step, decision, self.at()))
        save = signal.can_save and not signal.saving and self.due(trial)
        path = keeping.path(self.checkpoints, trial) if save else None
        self.written.resume(trial.number, decision, path)

    def as_its_own(self, trial: Trial) -> Trial:
        """The trial as its controller sees it: what repeats a baseline is treated as one."""
        again = self.trials.get(trial.repeats) if trial.repeats is not None else None
        baseline = again is not None and again.kind == "baseline"
        return replace(trial, kind="baseline") if baseline else trial

    def due(self, trial: Trial) -> bool:
        """Whether a checkpoint is due: by the failure policy, or for a controller that forks."""
        nothing_to_fork = trial.kind != "trial" or self.count >= self.plan.trials
        every = math.inf if nothing_to_fork else self.forks_every
        return keeping.is_due(trial, self.plan.experiment.failure, every, self.target.clock)

    @property
    def forks_every(self) -> float:
        """Seconds between checkpoints that the controller wants to fork from; infinite for none."""
        every: float = getattr(self.plan.controller, "checkpoint_interval", math.inf)
        return every

    def fork(self, trial: Trial, fork: Fork) -> bool:
        """Let the trial's group go on from another's checkpoint as a new trial, if one is left.

        Given configurations come first, and so does a suggestion that is being computed: it has the
        next number.
        """
        number = len(self.trials)
        first = len(self.plan.experiment.given())
        room = first <= self.count < self.plan.trials and not self.plan.seeds
        if not room or trial.repeats is not None or self.suggester.pending:
            return False
        parent = self.trials.get(fork.parent)
        if parent is None or parent.checkpoint is None:
            raise UserError(f"the controller forks trial {fork.parent}, which has no checkpoint")
        config, own = self.forked(fork), parent.checkpoint
        if self.pool.realtime:  # on a virtual clock a checkpoint is no folder
            found = copied(parent.checkpoint, keeping.place(self.checkpoints, number))
            if found is None:
                return False
            own = found
        came = origin(parent, own, trial.number, fork.params)
        self.record(Suggested(number, config, None, "trial", parent.seed, self.at(), came))
        self.end_exploited([self.trials[number]])
        self.written.stop(trial.number, None)
        return True

    def forked(self, fork: Fork) -> Config:
        """The configuration of a fork.

        Raises:
            UserError: the controller gave a point that is none of the space's.
        """
        space = self.plan.experiment.space
        try:
            return plain(space.config(space.check(fork.params)))
        except ValueError as error:
            raise UserError(f"the controller forks trial {fork.parent}: {error}") from None

    def end_exploited(self, children: Iterable[Trial]) -> None:
        """End the trials whose place these have taken."""
        for child in children:
            came = child.origin
            if came is None:
                continue
            replaced = self.trials[came.replaces]
            if replaced.ended and replaced.reason != "interrupted":
                continue
            said = f"went on as trial {child.number} from trial {came.parent}"
            stop = Stop("exploited", f"{said} at step {came.checkpoint.step}")
            self.end(came.replaces, State.CENSORED, stop)

    def saved(self, trial: Trial, checkpoint: Checkpoint | None) -> None:
        """Write down a new checkpoint, then remove the last but one: the last may be damaged."""
        if checkpoint is None:
            return
        self.record(Saved(trial.number, checkpoint, self.at()))
        old, now = trial.earlier, self.trials[trial.number]
        if old is not None and old.path not in {c.path for c in (now.earlier, now.checkpoint) if c}:
            self.discard(old.path)

    def discard(self, path: str) -> None:
        """Remove a checkpoint, once it is on disk that it is not needed any more."""
        self.journal.sync()
        keeping.discard(path, self.checkpoints)

    def damaged(self, trial: Trial, signal: Raised) -> None:
        """Go on from the checkpoint before; a fork that has none is nothing without its parent."""
        checkpoint = trial.checkpoint
        if checkpoint is None or (trial.earlier is None and trial.origin is not None):
            self.end(trial.number, State.FAILED, Stop(signal.reason), signal.error)
            return
        step = trial.earlier.step if trial.earlier is not None else 0
        said = f"the checkpoint at step {checkpoint.step} cannot be used ({signal.reason})"
        _warn(f"trial {trial.number}: {said}: it goes on from step {step}")
        number, at = trial.number, self.at()
        self.record(Lost(number, "checkpoint damaged", signal.reason, False, at, damaged=True))
        self.discard(checkpoint.path)

    def out_of_memory(self, trial: Trial, signal: Raised) -> None:
        """Go on with half the microbatch on all ranks, or end where none is left."""
        number, reason = trial.number, "out of memory"
        smaller = halved(trial) if self.memory_keys else None
        if smaller is None:
            self.end(number, State.INFEASIBLE, Stop(reason, signal.reason), signal.error)
            return
        self.record(Lost(number, reason, broke=False, at=self.at(), microbatch=smaller))

    def broke(self, trial: Trial, signal: Broke) -> None:
        counts = not signal.node_lost or trial.attempts >= MOST_ATTEMPTS
        if not counts or trial.retries < self.plan.experiment.failure.max_retries:
            self.record(Lost(trial.number, signal.reason, signal.error, counts, self.at()))
        else:
            stop = Stop(signal.reason, f"{trial.attempts} attempts")
            self.end(trial.number, State.FAILED, stop, signal.error)

    def end(self, number: int, state: State, stop: Stop, error: str = "") -> None:
        trial = self.trials[number]
        seconds, at = trial.seconds, self.at()
        self.record(Ended(number, state, stop.reason, seconds, stop.detail, error, at))
        if state is State.CENSORED and stop.reason not in (*CUT, "diverged"):
            _check_metric(trial, self.target, ended=True)
        self.sweep()
        limit = self.plan.experiment.failure.max_consecutive_failed_trials
        last = self.ledger.last_ended(limit)
        if len(last) == limit and all(t.state is State.FAILED for t in last):
            raise StudyError(f"{limit} trials failed in a row; the last: {stop.reason}")

    # --- small things -------------------------------------------------------------------------

    def record(self, event: Event) -> None:
        """Write the event down; `written` before acting on it makes resume a replay."""
        self.journal.append(event)
        before = self.trials.get(event.trial)
        now = self.trials[event.trial] = after(before, event)
        self.ledger.note(before, now)
        self.count += isinstance(event, Suggested) and event.repeats is None
        self._saved = self._saved or now.checkpoint is not None
        if self.watch is not None:
            with contextlib.suppress(OSError):  # nobody looks any more: no reason to stop
                self.watch(event, self.trials)

    @property
    def written(self) -> Pool:
        """The pool, to be told something because of events that are on disk by then."""
        self.journal.sync()
        return self.pool

    def at(self) -> float:
        return round(self.pool.now() - self._begin, 6)

    @property
    def repeated(self) -> bool:
        """Whether there are repeats, which are part of what they repeat."""
        return self.count < len(self.trials)

    def standing(self) -> Collection[Trial]:
        """The trials as all that decides sees them: repeats are part of what they repeat."""
        everyone = self.trials.values()
        return merged(list(everyone), self.target) if self.repeated else everyone

    def others(self, trial: Trial) -> Sequence[Trial]:
        if not self.repeated:
            return self.ledger.others(trial)
        shown = racing.proven if self.plan.racing else merged
        everyone = shown(list(self.trials.values()), self.target)
        return [t for t in everyone if t.number != trial.number]

    def is_best(self, trial: Trial, state: State) -> bool:
        if trial.repeats is not None or state is not State.REACHED:
            return False
        count = self.plan.experiment.failure.keep_checkpoints
        return keeping.is_among_best(trial, self.others(trial), state, count)

    def sweep(self) -> None:
        """Remove the checkpoints of ended trials, but the best ones' and those to be resumed."""
        if not self.pool.realtime or not self._saved:
            return
        running = [t for t in self.trials.values() if t.repeats is not None and t.goes_on]
        count = self.plan.experiment.failure.keep_checkpoints
        self.journal.sync()
        try:
            keeping.sweep(self.checkpoints, [*self.standing(), *running], count)
        except OSError as error:  # it is swept again when the next trial ends
            _warn(f"checkpoints that are not needed could not be removed: {error}")

    def patience(self) -> float | None:
        """Seconds until the time limit, or None: the pool itself watches for hanging workers."""
        if self._deadline is None or self.leaving():
            return None
        return max(self._deadline - self.pool.now(), 0.0)

    def abandon(self) -> None:
        """Mark what runs as interrupted, to be taken up again from its last checkpoint."""
        for trial in list(self.trials.values()):
            self.interrupted(trial)

    def interrupted(self, trial: Trial) -> None:
        if not trial.ended:
            end = Ended(trial.number, State.CENSORED, "interrupted", trial.seconds, at=self.at())
            self.record(end)


def _alone(trial: Trial) -> bool:
    """Whether the trial is to have the hardware for itself."""
    return trial.kind == CONFIRM and trial.repeats is not None


@contextlib.contextmanager
def _interrupts(loop: Loop) -> Iterator[None]:
    """SIGINT and SIGTERM once: checkpoint what runs and leave; twice: leave at once.

    The loop itself leaves, between two events, so that none is half written down. A third signal
    breaks off whatever it is that does not return.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: object) -> None:
        loop.interruptions += 1
        if loop.interruptions > 2:
            raise KeyboardInterrupt
        loop.pool.wake()

    before = {s: signal.signal(s, interrupt) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _warn(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr)


def _ruled(
    what: str,
    rule: Callable[[Trial, Sequence[Trial], Target], Rule],
    trial: Trial,
    others: Sequence[Trial],
    target: Target,
) -> Rule:
    """What a pruner or controller decides; its own errors become one line that names the place."""
    try:
        return rule(trial, others, target)
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{frame.filename}:{frame.lineno}"
        raise UserError(f"the {what} raised {type(error).__name__} at {place}: {error}") from error


def _check_metric(trial: Trial, target: Target, ended: bool) -> None:
    """Tell a metric that is never reported: at once if it is a near miss, else at a trial's end."""
    told = any(target.metric in report.metrics for report in reversed(trial.reports))
    if told or len(trial.reports) < 2:
        return
    names = {name for report in trial.reports for name in report.metrics}
    if ended or difflib.get_close_matches(target.metric, names, n=1, cutoff=0.87):
        if not names:
            raise UserError(f"the trainer never reported any metric, so not {target.metric!r}")
        raise UserError(unknown("target metric", target.metric, names))
