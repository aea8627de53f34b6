"""Forks: a trial's worker group continues from another trial's checkpoint, as a new trial."""

from __future__ import annotations

from collections.abc import Iterable

from autotune.algorithms.ranking.lineage import origin
from autotune.errors import UserError
from autotune.storage import retention
from autotune.storage.checkpoint_files import copied
from autotune.storage.codec import plain
from autotune.study.driver import checkpoints
from autotune.study.driver.decisions import ask_controller, end
from autotune.study.driver.state import StudyState
from autotune.trial import DIVERGED, EXPLOITED, Checkpoint, Config, Fork, State, Stop, Trial


def fork(state: StudyState, trial: Trial, decision: Fork) -> bool:
    """Replace the trial by a new one that starts from the parent's checkpoint; whether it was.

    It is not where the study has no trial left, or given configurations are still to come.

    Raises:
        UserError: the parent has no checkpoint, or began with none, or the point is outside the
            space.
    """
    room = state.count < state.settings.trials and not state.given_left and not state.settings.seeds
    if not room or trial.repeats is not None:
        return False
    parent = state.trials.get(decision.parent)
    last = parent.checkpoint if parent is not None else None
    saved = checkpoints.began_with(parent) if decision.restart else last
    if parent is None or saved is None:
        rule = "did not begin with a checkpoint" if decision.restart else "has no checkpoint"
        raise UserError(f"the controller forks trial {decision.parent}, which {rule}")
    if decision.restart and not checkpoints.restarts(state):
        raise UserError("a controller that forks with restart=True needs an attribute restarts")
    config = _config(state, decision)
    checkpoint = own_copy(state, saved)
    if checkpoint is None:
        return False
    came = origin(parent, checkpoint, trial.number, decision.params)
    child = state.add(config, seed=parent.seed, origin=came)
    end_exploited(state, [child])
    state.pool.stop(trial.number, None)
    return True


def went_on(state: StudyState, trial: Trial, stop: Stop) -> bool:
    """Whether a fork has replaced a trial that diverged, if the controller restarts forks."""
    if stop.reason != DIVERGED or not checkpoints.restarts(state):
        return False
    decision = ask_controller(state, trial)
    return isinstance(decision, Fork) and fork(state, trial, decision)


def _config(state: StudyState, decision: Fork) -> Config:
    """The configuration of a fork; a UserError where its point is outside the space."""
    space = state.settings.experiment.space
    try:
        return plain(space.config(space.check(decision.params)))
    except ValueError as error:
        raise UserError(f"the controller forks trial {decision.parent}: {error}") from None


def own_copy(state: StudyState, checkpoint: Checkpoint) -> Checkpoint | None:
    """A copy of the checkpoint for the next trial; None if the checkpoint has been removed."""
    if not state.pool.realtime:  # on a virtual clock a checkpoint is no folder
        return checkpoint
    return copied(checkpoint, retention.place(state.checkpoint_root, state.next_number))


def end_exploited(state: StudyState, children: Iterable[Trial]) -> None:
    """End the trials that these forks have replaced."""
    for child in children:
        came = child.origin
        if came is None or came.replaces is None:
            continue
        replaced = state.trials[came.replaces]
        if not replaced.resumable:
            continue
        detail = f"went on as trial {child.number} from trial {came.parent}"
        stop = Stop(EXPLOITED, f"{detail} at step {came.checkpoint.step}")
        end(state, came.replaces, State.CENSORED, stop)
