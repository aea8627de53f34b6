"""Shared beginnings: a new trial that begins from another's checkpoint.

What it begins from is decided in `algorithms.beginnings`. Its own copy of the checkpoint is there
before the trial is written down, and it starts as a trial does that has lost a worker. A trial that
another one trains the beginning of at this moment does not wait for it: it takes what has been
saved so far.
"""

from __future__ import annotations

from autotune.algorithms.beginnings import Beginning, beginning_for
from autotune.algorithms.ranking.hardware import trial_fingerprint
from autotune.algorithms.ranking.lineage import origin
from autotune.study.driver import decisions
from autotune.study.driver.forking import own_copy
from autotune.study.driver.state import StudyState
from autotune.trial import STEPS, Config, Origin, Trial


def origin_for(state: StudyState, config: Config) -> Origin | None:
    """Where the next trial begins, if it has this configuration; None for the first step.

    A checkpoint that has been removed, by an earlier driver whose search was over, counts as gone.
    """
    usable = [one for one in state.beginnings() if _is_comparable(state, one)]
    while (one := beginning_for(config, usable)) is not None:
        checkpoint = own_copy(state, one.checkpoint)
        if checkpoint is not None:
            return origin(state.trials[one.trial.number], checkpoint, None)
        state.lost_beginning(one.trial.number, one.checkpoint.step)
        usable = [other for other in usable if other.checkpoint != one.checkpoint]
    return None


def _is_comparable(state: StudyState, one: Beginning) -> bool:
    """Whether the trial would go on where the time of the checkpoint is comparable."""
    began = one.checkpoint.hardware
    if began is None or state.settings.mix_hardware or state.target.clock == STEPS:
        return True
    ran = state.pool.next_hardware(began.now)
    return trial_fingerprint(ran, began) == began


def judged(state: StudyState, trial: Trial) -> Trial:
    """The new trial, ended at once if the reports that it shares end it."""
    if trial.origin is None:
        return trial
    verdict = decisions.verdict(state, trial)
    if verdict is not None:
        decisions.end(state, trial.number, *verdict)
    return state.trials[trial.number]
