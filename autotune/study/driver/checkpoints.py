"""A study's checkpoints: when one is saved, and which ones stay."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from autotune.algorithms import beginnings
from autotune.algorithms.ranking.best import by_result
from autotune.algorithms.ranking.finalists import finalists, next_to_confirm
from autotune.algorithms.ranking.repeats import PROBE
from autotune.storage import retention
from autotune.study.driver.state import StudyState, warn
from autotune.trial import Checkpoint, Saved, State, Target, Trial

RACED = 5
"""How many checkpoints stay at least while leaders are raced and may fall back: of the trials that
should be the fastest when they are run again, and of those that were the fastest themselves."""


def fork_interval(state: StudyState) -> float:
    """Seconds between checkpoints that the controller wants to fork from; infinite for none."""
    interval: float = getattr(state.settings.controller, "checkpoint_interval", math.inf)
    return interval


def restarts(state: StudyState) -> bool:
    """Whether the controller starts forks from where the fork before them began."""
    return getattr(state.settings.controller, "restarts", False)


def began_with(trial: Trial | None) -> Checkpoint | None:
    """The checkpoint from which a fork began; None for any other trial."""
    return trial.origin.checkpoint if trial is not None and trial.origin is not None else None


def due(state: StudyState, trial: Trial, pending: bool) -> bool:
    """Whether a checkpoint is due: by the failure policy, for others, or as a new best state.

    Others fork it, or begin from it as they begin alike.

    `pending`: one is still being written; only a new best one is worth the wait for it.
    """
    if _is_new_best(state, trial):
        return not retention.is_saved(trial)
    if pending:
        return False
    if _begins_others(state, trial):
        return not retention.is_saved(trial)
    nothing_to_fork = trial.kind != "trial" or state.count >= state.settings.trials
    interval = math.inf if nothing_to_fork else fork_interval(state)
    policy = state.settings.experiment.failure
    return retention.is_due(trial, policy, interval, str(state.target.clock))


def _begins_others(state: StudyState, trial: Trial) -> bool:
    """Whether others may begin from the trial's state, and from no checkpoint that is there."""
    how = state.settings.shared_beginnings
    if how is None or not beginnings.due(trial, (), how) or state.sharing is None:
        return False
    return beginnings.due(trial, state.beginnings(), how)


def _is_new_best(state: StudyState, trial: Trial) -> bool:
    """Without a value: whether the last report counts, and the trial is among the best with it."""
    target = state.target
    if target.timed or target.counted(trial) is not trial.reports[-1]:
        return False
    return _is_best(state, trial, target.end_of(trial))


def wanted_at_end(state: StudyState, trial: Trial, ended: State, reason: str) -> bool:
    """Whether a trial that ends so saves its state: to be resumed, or as one of the best."""
    resumable = replace(trial, state=ended, reason=reason).resumable
    keep = resumable or _is_best(state, trial, ended)
    if not resumable and not state.target.timed:
        keep = keep and state.target.counted(trial) is trial.reports[-1]  # the best one is saved
    return keep and not retention.is_saved(trial)


def _is_best(state: StudyState, trial: Trial, ended: State) -> bool:
    """Whether a trial that ends so is one of the best on its kind of hardware."""
    done = replace(trial, state=ended)
    if trial.repeats is not None or trial.kind == PROBE or not done.succeeded:
        return False
    found = state.better(done)
    if _raced(state):  # a fast trial falls behind those with races, until it has some
        found = min(found, state.trial_index.better(done))
    return found < _count(state)


def _count(state: StudyState) -> int:
    """The number of best trials whose checkpoints stay.

    While leaders are raced it includes those that would lead if the leaders fell back, and until
    the finalists are confirmed all of these: each may turn out to be the best.
    """
    settings = state.settings
    asked = settings.experiment.failure.keep_checkpoints
    raced = RACED if _raced(state) else 0
    return max(asked, raced, settings.top if _to_confirm(state) else 0)


def _raced(state: StudyState) -> bool:
    """Whether leaders may still be run again."""
    return bool(state.settings.racing) and _searching(state)


def _searching(state: StudyState) -> bool:
    return state.count < state.settings.trials or bool(state.trial_index.running())


def _to_confirm(state: StudyState) -> bool:
    """Whether finalists will be confirmed, or have not had all their confirmations."""
    settings = state.settings
    if not settings.repeats:
        return False
    if _searching(state):
        return True
    return (
        next_to_confirm(state.all_trials(), state.target, settings.repeats, settings.top)
        is not None
    )


def saved(state: StudyState, trial: Trial, checkpoint: Checkpoint | None) -> None:
    """Write down a new checkpoint, and remove the last but one: the last may be damaged."""
    if checkpoint is None:
        return
    state.append(Saved(trial.number, checkpoint, state.elapsed()))
    now = state.trials[trial.number]
    first = began_with(trial) if restarts(state) else None
    others = {one.checkpoint.path for one in state.beginnings()}
    wanted = needed(now, state.target) | others | ({first.path} if first is not None else set())
    for path in needed(trial, state.target) - wanted:
        discard(state, path)


def needed(trial: Trial, target: Target) -> set[str]:
    """The paths of a running trial's checkpoints that stay: the last two, and that of its best."""
    found = (trial.checkpoint, trial.earlier, target.checkpoint(trial))
    return {checkpoint.path for checkpoint in found if checkpoint is not None}


def discard(state: StudyState, path: str) -> None:
    """Remove a checkpoint, once the disk has the event after which it is not needed any more."""
    state.journal.sync()
    retention.discard(path, state.checkpoint_root)


def sweep(state: StudyState) -> None:
    """Remove the checkpoints that do not stay (`kept`), but none that is still being written."""
    if not state.pool.realtime or not state.has_checkpoints:
        return
    state.journal.sync()
    numbers = kept(state.all_trials(), state.target, _count(state)) | state.final_saves
    if _raced(state):
        numbers |= fastest(state.all_trials(), state.target, RACED)
    if _to_confirm(state):
        final = finalists(state.all_trials(), state.target, state.settings.top)
        numbers |= {t.number for t in final}  # the baseline, too
    shared: dict[int, set[int]] = {}
    for one in state.beginnings():
        shared.setdefault(one.trial.number, set()).add(one.checkpoint.step)
    try:
        retention.sweep(state.checkpoint_root, {*numbers, *shared})
        _tidy(state, numbers - state.final_saves, shared)
    except OSError as error:  # the next trial's end sweeps again
        warn(f"checkpoints that are not needed could not be removed: {error}")


def _tidy(state: StudyState, numbers: Collection[int], shared: Mapping[int, set[int]]) -> None:
    """Leave of trials that ended only what is needed of them.

    Of those that completed it is the checkpoint of their best, and of all what others may begin
    from: `shared` has these steps.
    """
    for number in {*numbers, *shared} - state.final_saves:
        trial, steps = state.trials[number], set(shared.get(number, ()))
        if number in numbers:
            best = state.target.checkpoint(trial)
            if trial.state is State.COMPLETED and best is not None:
                steps.add(best.step)
            elif trial.resumable or state.settings.shared_beginnings is None:
                continue
            else:
                steps |= {c.step for c in (trial.checkpoint, trial.earlier) if c is not None}
        retention.tidy(state.checkpoint_root, number, steps)


def kept(trials: Sequence[Trial], target: Target, count: int) -> set[int]:
    """The numbers of the trials whose checkpoints stay.

    Those that can be resumed, and of those that have a checkpoint the `count` best: the rank is
    the one by which the study names its best trial.
    """
    resumable = {t.number for t in trials if t.resumable}
    best = [t.number for t in by_result(trials, target) if t.checkpoint is not None]
    return resumable | set(best[:count])


def fastest(trials: Sequence[Trial], target: Target, count: int) -> set[int]:
    """The numbers of the `count` trials with the best results of their own and a checkpoint."""
    own = [t for t in trials if t.repeats is None and t.kind != PROBE and t.succeeded]
    found = sorted((t for t in own if t.checkpoint is not None), key=target.order)
    return {t.number for t in found[:count]}
