"""The study's loop: the work of one driver, from the first suggestion to the last trial's end.

The path of one suggestion: `fill` finds room on the pool; `create` takes the sampler's point, which
another thread computes, and writes it down as a trial; `launch.start` gives it to a worker group.
At every milestone `progress` writes the report down, `decisions.verdict` says whether the trial
ends, and all ranks stop or continue. The next suggestion is made from what has ended.

The path of one fork: at a milestone of trial 5 the controller returns `Fork(3, params)`. Trial 3's
last checkpoint is copied for the next trial, say 9. `Suggested(9, origin=...)` is written down,
which also says that trial 5 ends `exploited`. Trial 5's group stops and, idle again, takes the
first trial that waits for one: trial 9, which starts from its checkpoint as a trial does that has
lost a worker.

A trial gets its number when it is written down (`StudyState.add`). What waits for a worker group
has been written down; what is still computed is an ask of the sampler, with a number of its own.

Other modules do the rest: `creation`, `probing`, `recovery` of interrupted attempts, `forking`, ...
"""

from __future__ import annotations

import math

from autotune.algorithms.ranking.repeats import all_failed
from autotune.algorithms.samplers import Sampler
from autotune.backends.protocol import (
    Finished,
    Measured,
    Progress,
    Raised,
    Signal,
    Stopped,
    WorkerFailed,
)
from autotune.errors import StudyError, UserError
from autotune.storage import retention
from autotune.storage.journal import VERSION, Closed, Opened
from autotune.study.driver import (
    checkpoints,
    creation,
    decisions,
    forking,
    limits,
    recovery,
    replication,
)
from autotune.study.driver.calls import checked_point
from autotune.study.driver.idle import IdleWait
from autotune.study.driver.launch import start
from autotune.study.driver.probing import Probing
from autotune.study.driver.signals import interrupts
from autotune.study.driver.state import StudyState, warn
from autotune.study.driver.suggester import Suggester
from autotune.trial import (
    BUDGET,
    INTERRUPTED,
    INTERRUPTED_REASONS,
    Changed,
    Config,
    Fork,
    Reported,
    State,
    Stop,
    Trial,
)


class Loop:
    """One driver's work on a study, whose trials are all in `state`."""

    def __init__(self, state: StudyState, sampler: Sampler) -> None:
        self.state = state
        self.settings = state.settings
        self.pool = state.pool
        self.suggester = Suggester(sampler, state.pool)
        self.probing = Probing.of(state, sampler)
        self.interruptions = 0
        self._await_idle = IdleWait(self.settings.wait_idle, self.settings.look, warn)
        limit = self.settings.time_limit
        self._deadline = self.pool.now() + limit if limit is not None else None

    def run(self) -> str:
        """Work until nothing is left to do; returns why it ended. Everything is written down."""
        with interrupts(self):
            return self._run()

    def _run(self) -> str:
        state, reason = self.state, "error"
        state.journal.write(Opened(self.settings.experiment.name, state.elapsed(), VERSION))
        try:
            recovery.resume_trials(state)
            self.work()
            reason = self.conclude()
        except KeyboardInterrupt:
            reason = INTERRUPTED
            decisions.interrupt_all(state)
            raise
        except (UserError, StudyError) as error:
            reason = str(error)
            decisions.interrupt_all(state)
            raise
        finally:
            self.suggester.close()
            state.journal.write(Closed(reason, state.elapsed()))
        return reason

    def work(self) -> None:
        """Start trials and handle what they signal, until there is nothing more to start."""
        while True:
            self.fill()
            if not self.pool.busy() and not self.has_work():
                return
            signal = self.pool.wait(self.wait_seconds())
            if self.interruptions > 1:
                raise KeyboardInterrupt
            if signal is not None:
                self.handle(signal)

    def conclude(self) -> str:
        """End the trials that still wait for a group; returns why the driver stops."""
        why, left = self.stop_reason(), self.left()
        for trial in [t for t in self.state.trials.values() if not t.ended]:
            decisions.end(self.state, trial.number, State.CENSORED, Stop(why or "not needed"))
        checkpoints.sweep(self.state)  # a trial's last checkpoint may come after its own sweep
        ended = list(self.state.compared.values())
        if all_failed(ended) and not why:
            raise StudyError(f"every trial failed; the last: {ended[-1].reason}")
        decisions.check_numbers(ended, self.state.target.metric)
        interrupted = any(t.reason in INTERRUPTED_REASONS for t in self.state.all_trials())
        return why if why and (left or interrupted) else "done"

    # --- starting -----------------------------------------------------------------------------

    def stop_reason(self) -> str:
        """Why nothing more is started: `interrupted`, `budget`, or an empty string."""
        if self.interruptions:
            return INTERRUPTED
        late = self._deadline is not None and self.pool.now() >= self._deadline
        return BUDGET if late else ""

    def wait_seconds(self) -> float | None:
        """Seconds until the time limit, or None: the pool itself watches for hanging workers."""
        if self._deadline is None or self.stop_reason():
            return None
        return max(self._deadline - self.pool.now(), 0.0)

    def has_work(self) -> bool:
        """Whether there is something to start now."""
        return not self.stop_reason() and self.left()

    def left(self) -> bool:
        """Whether anything is left to search, to run again or to confirm."""
        kinds = replication.waiting, replication.disturbed, replication.finalist
        return self.searching or any(left(self.state) is not None for left in kinds)

    @property
    def searching(self) -> bool:
        """Whether there are trials left to suggest."""
        more = self.state.count < self.settings.trials and not self.suggester.exhausted
        return self.settings.search and more

    def fill(self) -> None:
        """Start trials while the pool has room: interrupted ones first, then new ones."""
        while self.has_work() and self.pool.capacity() > 0:
            trial = self.next()
            if trial is None:
                return
            if not trial.ended:
                start(self.state, trial)
        self.suggest_ahead()

    def suggest_ahead(self) -> None:
        """Have a slow sampler asked while all groups train."""
        state = self.state
        if self.suggester.slow and self.searching and not state.given_left and self.has_work():
            left = self.settings.trials - state.count
            self.suggester.ahead(state.next_ask, state.with_mean_times, left)

    def next(self) -> Trial | None:
        """The trial to start now; None where one must be waited for."""
        trial = replication.waiting(self.state)
        if trial is not None and not replication.runs_alone(trial):
            return trial
        if self.searching and self.probing is not None and self.probing.left():
            return None if self.pool.busy() else self.probing.trial()
        again = replication.race(self.state, self.searching)
        if again is not None or self.searching:
            return again or self.create()
        if self.pool.busy():
            return None
        finalist = replication.finalist(self.state) if trial is None else None
        if trial is None and finalist is None:
            return None
        self._await_idle(self.stop_reason)
        if self.stop_reason():  # it came while the study waited
            return None
        return trial if finalist is None else replication.confirm(self.state, finalist)

    def create(self) -> Trial | None:
        """A new trial: the baseline, a given configuration, or a suggestion once it is ready."""
        state, experiment = self.state, self.settings.experiment
        if state.given_left:
            return creation.given(state)
        suggestion = self.suggester.take(state.next_ask, state.with_mean_times())
        if suggestion is None:
            return None
        params = checked_point(experiment.space, suggestion.params)
        config: Config = dict(params)
        fault = ""
        try:
            config = experiment.space.config(params)
        except ValueError as error:  # schedules that do not fit together at this point
            fault = str(error)
        trial = creation.add(state, config, "trial", params, suggestion.ask)
        if fault:
            decisions.end(state, trial.number, State.INFEASIBLE, Stop("no configuration", fault))
        return state.trials[trial.number]

    # --- what comes back ----------------------------------------------------------------------

    def handle(self, signal: Signal) -> None:
        """Act on a signal of a trial's worker group."""
        state, trial = self.state, self.state.trials[signal.trial]
        match signal:
            case Stopped():
                state.final_saves.discard(trial.number)
                self.saved(signal)
            case _ if trial.ended:
                return
            case Progress():
                self.progress(signal)
            case Measured():
                self.report(limits.completed(state, signal))
            case Finished():
                decisions.finish(state, trial, signal)
            case Raised():
                recovery.raised(state, trial, signal)
            case WorkerFailed():
                recovery.broke(state, trial, signal)

    def progress(self, signal: Progress) -> None:
        """Take a checkpoint that has been written, and the report once it is complete."""
        state, number = self.state, signal.trial
        state.unreachable.pop(number, None)
        self.saved(signal)
        if signal.report is None:
            self.go_on(number)
        elif not limits.asked(state, signal):
            self.report(signal)

    def saved(self, signal: Progress | Stopped) -> None:
        """Keep the checkpoint that has been written, or say why there is none: each reason once."""
        state, number = self.state, signal.trial
        checkpoints.saved(state, state.trials[number], signal.saved)
        if error := signal.save_error:
            state.warn_once(f"trial {number}: no checkpoint: {error}", about=error)

    def report(self, signal: Progress) -> None:
        """Write the report down, and stop or resume the trial's ranks."""
        state, number = self.state, signal.trial
        assert signal.report is not None, "complete by now"
        state.append(Reported(number, signal.report, state.elapsed()))
        trial = state.trials[number]
        decisions.check_metric(trial, state.target, ended=False)
        decisions.warn_of_setup(state, trial)
        decision = decisions.verdict(state, trial)
        if decision is None and self.stop_reason():
            decision = State.CENSORED, Stop(self.stop_reason())
        if decision is None:
            self.resume(trial, signal)
        elif not forking.went_on(state, trial, decision[1]):
            ended, stop = decision
            self.stop(trial, signal, ended, decisions.said_late(stop, trial.reports[-1]))

    def go_on(self, number: int) -> None:
        """Let a trial train whose report comes at its next milestone, unless the study stops."""
        why = self.stop_reason()
        if why:
            decisions.end(self.state, number, State.CENSORED, Stop(why))
            self.pool.stop(number, None)
        else:
            self.pool.resume(number, None, None)

    def stop(self, trial: Trial, signal: Progress, ended: State, stop: Stop) -> None:
        """End the trial, and have its ranks save their state if it is wanted."""
        state = self.state
        save = signal.can_save and checkpoints.wanted_at_end(state, trial, ended, stop.reason)
        if save:
            state.final_saves.add(trial.number)
        decisions.end(state, trial.number, ended, stop)
        path = retention.path(state.checkpoint_root, trial) if save else None
        self.pool.stop(trial.number, path)

    def resume(self, trial: Trial, signal: Progress) -> None:
        """Let the trial continue as the controller decides, or a fork in its place."""
        state = self.state
        if not signal.can_save and math.isfinite(checkpoints.fork_interval(state)):
            raise UserError(
                "the controller forks trials, but the trainer's milestones have no state"
            )
        decision = decisions.ask_controller(state, trial)
        if isinstance(decision, Fork):
            if forking.fork(state, trial, decision):
                return
            decision = None
        if decision is not None:
            at = trial.reports[-1].decided_at
            state.append(Changed(trial.number, at, decision, state.elapsed()))
        save = signal.can_save and checkpoints.due(state, trial, signal.save_pending)
        path = retention.path(state.checkpoint_root, trial) if save else None
        self.pool.resume(trial.number, decision, path)
