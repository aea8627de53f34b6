"""Recovery of interrupted attempts: by a new driver, or after a worker or a rank has failed.

Each recovery is one `Interrupted` in the journal, after which the trial waits for a worker group
again, at its checkpoint.
"""

from __future__ import annotations

from autotune.backends.protocol import Raised, WorkerFailed
from autotune.errors import StudyError, UserError
from autotune.storage import checkpoint_files
from autotune.study.driver import decisions
from autotune.study.driver.checkpoints import discard
from autotune.study.driver.forking import end_exploited
from autotune.study.driver.microbatch import halved
from autotune.study.driver.replication import runs_alone
from autotune.study.driver.state import StudyState, warn
from autotune.trial import DRIVER_RESTARTED, Interrupted, State, Stop, Trial

_MOST_TRIES = 10  # to reach a checkpoint, before the study ends and can be resumed
MOST_ATTEMPTS = 20  # from then on a lost node counts as a retry: the trial may be the cause


def resume_trials(state: StudyState) -> None:
    """Resume the trials that an earlier driver left, or end those that their last report ends."""
    end_exploited(state, state.all_trials())
    if state.pool.realtime:
        _make_root(state)
    for trial in state.all_trials():
        if not trial.resumable:
            continue
        if not state.settings.search and not runs_alone(trial):  # a driver that searches resumes it
            decisions.interrupt(state, trial)
            continue
        verdict = decisions.verdict(state, trial)
        if verdict is not None and not trial.ended:
            decisions.end(state, trial.number, *verdict)
        elif trial.attempts or trial.ended:
            at = state.elapsed()
            state.append(Interrupted(trial.number, DRIVER_RESTARTED, broke=False, at=at))


def _make_root(state: StudyState) -> None:
    """Make the root of checkpoints, unless it lies elsewhere and has been written to.

    There it is missing because its mount is. In the study's own folder what is missing is lost.
    """
    own = not state.settings.checkpoints
    if own != state.has_checkpoints:
        return
    try:
        checkpoint_files.make_root(state.checkpoint_root)
    except OSError as error:
        warn(f"no checkpoints can be saved in {state.checkpoint_root}: {error.strerror}")


def broke(state: StudyState, trial: Trial, signal: WorkerFailed) -> None:
    """Retry with other workers, as often as the failure policy allows."""
    counts = not signal.node_lost or trial.attempts >= MOST_ATTEMPTS
    if signal.store_unreachable:
        _out_of_reach(state, trial, signal)
    elif not counts or trial.retries < state.settings.experiment.failure.max_retries:
        state.append(
            Interrupted(trial.number, signal.reason, signal.error, counts, state.elapsed())
        )
    else:
        stop = Stop(signal.reason, f"{trial.attempts} attempts")
        decisions.end(state, trial.number, State.FAILED, stop, signal.error)


def _out_of_reach(state: StudyState, trial: Trial, signal: WorkerFailed) -> None:
    """Try again where the checkpoint's store gives no answer; the trial loses nothing.

    Raises:
        StudyError: after the last try; the checkpoint stays, and the study can be resumed.
    """
    number, tries = trial.number, state.unreachable.get(trial.number, 0) + 1
    state.unreachable[number] = tries
    problem = f"trial {number}: its checkpoint cannot be reached ({signal.reason})"
    if tries >= _MOST_TRIES:
        advice = "resume the study when it can, or make its folder again if all in it is lost"
        raise StudyError(f"{problem}, tried {tries} times: {advice}")
    warn(f"{problem}: it is tried again")
    state.append(
        Interrupted(
            number, "checkpoint out of reach", signal.error, broke=False, at=state.elapsed()
        )
    )


def raised(state: StudyState, trial: Trial, signal: Raised) -> None:
    """Retry where the checkpoint or the memory is the cause; else end the trial.

    Raises:
        UserError: the trainer raised one, and no trial has ever reported anything: it cannot train.
    """
    if signal.damaged:
        _damaged(state, trial, signal)
    elif signal.out_of_memory:
        _out_of_memory(state, trial, signal)
    else:
        decisions.end(state, trial.number, State.FAILED, Stop(signal.reason), signal.error)
        kind, _, line = signal.reason.partition(": ")
        if kind == UserError.__name__ and not any(t.reports for t in state.all_trials()):
            raise UserError(line)


def _damaged(state: StudyState, trial: Trial, signal: Raised) -> None:
    """Retry from the checkpoint before; a fork without one cannot start and has failed."""
    checkpoint = trial.checkpoint
    if checkpoint is None or (trial.earlier is None and trial.is_fork):
        decisions.end(state, trial.number, State.FAILED, Stop(signal.reason), signal.error)
        return
    step = trial.earlier.step if trial.earlier is not None else 0
    problem = f"the checkpoint at step {checkpoint.step} cannot be used ({signal.reason})"
    warn(f"trial {trial.number}: {problem}: it goes on from step {step}")
    number, at, came = trial.number, state.elapsed(), trial.origin
    if came is not None and came.checkpoint == checkpoint:  # its copy is of the same file
        state.lost_beginning(came.parent, checkpoint.step)
    state.append(Interrupted(number, "checkpoint damaged", signal.reason, False, at, damaged=True))
    discard(state, checkpoint.path)


def _out_of_memory(state: StudyState, trial: Trial, signal: Raised) -> None:
    """Retry with half the microbatch on all ranks, or end where it cannot be halved."""
    number, reason = trial.number, "out of memory"
    train = state.settings.experiment.train
    smaller = halved(trial, train) if state.memory_keys else None
    if smaller is None:
        stop = Stop(reason, signal.reason)
        decisions.end(state, number, State.INFEASIBLE, stop, signal.error)
        return
    state.append(Interrupted(number, reason, broke=False, at=state.elapsed(), microbatch=smaller))
