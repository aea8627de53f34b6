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

What leaves the straight path has modules of its own: `recovery` of what broke off, `forking`,
and `repeating` when configurations are run again.
"""

from __future__ import annotations

import math
from dataclasses import replace

from autotune.algorithms.ranking.hardware import began_on, like, stamped
from autotune.algorithms.samplers import Sampler
from autotune.backends.protocol import Broke, Finished, Launch, Progress, Raised, Signal, Stopped
from autotune.errors import StudyError, UserError
from autotune.storage import retention
from autotune.storage.codec import plain
from autotune.storage.journal import Closed, Opened
from autotune.study.driver import checkpoints, forking, recovery, replication
from autotune.study.driver.decisions import (
    abandon,
    check_metric,
    end,
    judge,
    ruled,
    runs_to_its_end,
)
from autotune.study.driver.microbatch import fitting
from autotune.study.driver.plan import trial_seed
from autotune.study.driver.signals import interrupts
from autotune.study.driver.state import Book, warn
from autotune.study.driver.suggester import Suggester
from autotune.trial import (
    Change,
    Changed,
    Config,
    Fork,
    Hardware,
    Params,
    Reported,
    Started,
    State,
    Stop,
    Suggested,
    Trial,
)


class Loop:
    """One driver's work on a study, all of whose state is in `book`."""

    def __init__(self, book: Book, sampler: Sampler) -> None:
        self.book = book
        self.plan = book.plan
        self.pool = book.pool
        self.suggester = Suggester(sampler, book.pool)
        self.interruptions = 0
        limit = book.plan.time_limit
        self._deadline = book.pool.now() + limit if limit is not None else None

    def run(self) -> str:
        """Work until nothing is left to do; returns why it ended. Everything is written down."""
        with interrupts(self):
            return self._run()

    def _run(self) -> str:
        book, reason = self.book, "error"
        book.journal.write(Opened(self.plan.experiment.name, book.at()))
        try:
            recovery.take_up(book)
            self.work()
            reason = self.conclude()
        except KeyboardInterrupt:
            reason = "interrupted"
            abandon(book)
            raise
        except (UserError, StudyError) as error:
            reason = str(error)
            abandon(book)
            raise
        finally:
            self.suggester.close()
            book.journal.write(Closed(reason, book.at()))
        return reason

    def work(self) -> None:
        while True:
            self.fill()
            if not self.pool.busy() and not self.wanting():
                return
            signal = self.book.written.wait(self.patience())
            if self.interruptions > 1:
                raise KeyboardInterrupt
            if signal is not None:
                self.handle(signal)

    def conclude(self) -> str:
        """End what waited to be started again when time ran out; why the driver leaves."""
        why = self.leaving()
        for trial in [t for t in self.book.trials.values() if not t.ended]:
            end(self.book, trial.number, State.CENSORED, Stop(why))
        checkpoints.sweep(self.book)  # what was saved as a trial ended came after its own sweep
        ended = self.book.everyone()
        if ended and all(t.state is State.FAILED for t in ended) and not why:
            raise StudyError(f"every trial failed; the last: {ended[-1].reason}")
        complete = self.book.count >= self.plan.trials or self.suggester.exhausted
        cut = any(t.reason in ("interrupted", "budget") for t in ended)
        return "done" if complete and not cut else why or "done"

    # --- starting -----------------------------------------------------------------------------

    def leaving(self) -> str:
        """Why nothing more is started: `interrupted`, `budget`, or an empty string."""
        if self.interruptions:
            return "interrupted"
        late = self._deadline is not None and self.pool.now() >= self._deadline
        return "budget" if late else ""

    def patience(self) -> float | None:
        """Seconds until the time limit, or None: the pool itself watches for hanging workers."""
        if self._deadline is None or self.leaving():
            return None
        return max(self._deadline - self.pool.now(), 0.0)

    def wanting(self) -> bool:
        """Whether there is something left to start."""
        if self.leaving():
            return False
        left = self.searching or replication.waiting(self.book) is not None
        return left or replication.finalist(self.book) is not None

    @property
    def searching(self) -> bool:
        """Whether there are trials left to suggest."""
        more = self.book.count < self.plan.trials and not self.suggester.exhausted
        return self.plan.search and more

    def fill(self) -> None:
        """Start trials while the pool has room: broken-off ones first, then new ones."""
        while self.wanting() and self.pool.capacity() > 0:
            trial = self.next()
            if trial is None:
                return
            if not trial.ended:
                self.start(trial)
        self.prepare()

    def prepare(self) -> None:
        """Have suggestions computed ahead; not where forks or a race may take their numbers.

        A race is waited for: nothing more is asked ahead until a worker group has taken it.
        """
        plan, book, given = self.plan, self.book, len(self.plan.experiment.given())
        if not self.suggester.slow or checkpoints.may_fork(book) or book.count < given:
            return
        if self.wanting() and self.searching and replication.due(book) is None:
            self.suggester.ahead(len(book.trials), book.standing, plan.trials - book.count)

    def next(self) -> Trial | None:
        """What is to be started now; None if something else must come first."""
        trial = replication.waiting(self.book)
        if trial is not None and not replication.alone(trial):
            return trial
        if self.searching:
            return self.race() or self.create()
        if self.pool.busy():
            return None
        finalist = replication.finalist(self.book)
        return replication.confirm(self.book, finalist) if finalist is not None else trial

    def race(self) -> Trial | None:
        """A race of the leader, if one is due.

        Not while a suggestion waits for the next number, nor before what is given has begun.
        """
        given = self.book.count < len(self.plan.experiment.given())
        return None if given or self.suggester.pending else replication.race(self.book)

    def create(self) -> Trial | None:
        """The next trial: the baseline, a given configuration, or a suggestion once it is ready."""
        number, experiment = len(self.book.trials), self.plan.experiment
        given = experiment.given()
        kind = "baseline" if experiment.baseline is not None and number == 0 else "trial"
        params: Params | None
        config: Config
        fault = ""
        if self.book.count < len(given):
            config, params = experiment.space.complete(given[self.book.count])
        else:
            params = self.suggester.take(number, self.book.standing())
            if params is None:
                return None
            try:
                config = experiment.space.config(params)
            except ValueError as error:  # schedules that do not fit together at this point
                config, fault = dict(params), str(error)
        seed = trial_seed(self.plan.seed, number)
        if self.plan.seeds:
            kind, params, seed = "confirm", None, self.plan.seeds[number]
        return self.written_down(Suggested(number, config, params, kind, seed), fault)

    def written_down(self, event: Suggested, fault: str) -> Trial:
        """The trial that is suggested; with a `fault` there is no configuration at its point."""
        number = event.trial
        try:
            config = plain(event.config)
        except (ValueError, TypeError) as error:
            raise UserError(f"trial {number} cannot be written down: {error}") from None
        self.book.record(replace(event, config=config, at=self.book.at()))
        if fault:
            end(self.book, number, State.INFEASIBLE, Stop("no configuration", fault))
        return self.book.trials[number]

    def start(self, trial: Trial) -> None:
        """Give the trial to a worker group, unless it breaks a constraint."""
        broken = self.plan.experiment.space.broken(trial.config)
        if broken:
            end(self.book, trial.number, State.INFEASIBLE, Stop("constraint", broken))
            return
        alike = like(trial, self.book.trials)
        launch = Launch(
            trial.number,
            trial.config,
            trial.seed,
            self.book.target.clock,
            trial.checkpoint,
            trial.saved_clock,
            self.fitting(trial, alike),
            alike,
        )
        ran, began = self.book.written.start(launch), began_on(trial, self.book.trials)
        hardware = stamped(ran, began, self.book.plan.mix_hardware)
        at = self.book.at()
        waited = at - trial.waiting_since
        self.book.record(Started(trial.number, waited, hardware, at, launch.microbatch))

    def fitting(self, trial: Trial, alike: Hardware | None) -> int | None:
        """The microbatch to start with, from what trials like it have met."""
        keys = self.book.memory_keys
        if not keys:
            return None
        hardware = self.pool.next_hardware(alike)
        return fitting(trial, self.book.trials.values(), keys, hardware)

    # --- what comes back ----------------------------------------------------------------------

    def handle(self, signal: Signal) -> None:
        """Act on what a trial's worker group says."""
        trial = self.book.trials[signal.trial]
        match signal:
            case Stopped(saved=saved):
                self.book.saving.discard(trial.number)
                checkpoints.saved(self.book, trial, saved)
            case _ if trial.ended:
                return
            case Progress():
                self.progress(signal)
            case Finished():
                stop = Stop("finished", "the trainer came to its end")
                end(self.book, trial.number, State.CENSORED, stop)
            case Raised():
                recovery.raised(self.book, trial, signal)
            case Broke():
                recovery.broke(self.book, trial, signal)

    def progress(self, signal: Progress) -> None:
        """Write the report down, judge the trial, and answer its ranks."""
        book, number = self.book, signal.trial
        book.unread.pop(number, None)
        checkpoints.saved(book, book.trials[number], signal.saved)
        if signal.unsaved:
            warn(f"trial {number}: a checkpoint could not be written: {signal.unsaved}")
        book.record(Reported(number, signal.report, book.at()))
        trial = book.trials[number]
        check_metric(trial, book.target, ended=False)
        others = () if runs_to_its_end(trial) else book.others(trial)
        verdict = judge(trial, others, book.target, self.plan.pruner)
        if verdict is None and self.leaving():
            verdict = State.CENSORED, Stop(self.leaving())
        if verdict is None:
            self.go_on(trial, signal)
            return
        state, stop = verdict
        save = signal.can_save and checkpoints.wanted_at_end(book, trial, state, stop.reason)
        if save:
            book.saving.add(number)
        end(book, number, state, stop)
        book.written.stop(number, retention.path(book.checkpoints, trial) if save else None)

    def go_on(self, trial: Trial, signal: Progress) -> None:
        """Let the trial go on, as its controller says."""
        book = self.book
        if not signal.can_save and math.isfinite(checkpoints.forks_every(book)):
            raise UserError(
                "the controller forks trials, but the trainer's milestones have no state"
            )
        decision = self.controlled(trial)
        if isinstance(decision, Fork):  # a suggestion that is being computed has the next number
            if not self.suggester.pending and forking.fork(book, trial, decision):
                return
            decision = None
        if decision is not None:
            book.record(Changed(trial.number, trial.reports[-1].step, decision, book.at()))
        save = signal.can_save and not signal.saving and checkpoints.due(book, trial)
        path = retention.path(book.checkpoints, trial) if save else None
        book.written.resume(trial.number, decision, path)

    def controlled(self, trial: Trial) -> Change | Fork | None:
        """What the controller decides; it sees a trial that repeats a baseline as one."""
        if self.plan.controller is None:
            return None
        again = self.book.trials.get(trial.repeats) if trial.repeats is not None else None
        baseline = again is not None and again.kind == "baseline"
        seen = replace(trial, kind="baseline") if baseline else trial
        others = self.book.others(trial)
        return ruled("controller", self.plan.controller, seen, others, self.book.target)
