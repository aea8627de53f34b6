"""Configurations run again: races and disturbed trials during the search, confirmations after it.

`ranking.racing`, `ranking.disturbed` and `ranking.finalists` decide which configurations; here they
become trials, with seeds that make their times comparable.
"""

from __future__ import annotations

from collections.abc import Sequence

from autotune.algorithms.ranking.finalists import next_to_confirm
from autotune.algorithms.ranking.repeats import CONFIRM, RACE, config_from_scratch, confirming
from autotune.study.driver.settings import fresh_seed
from autotune.study.driver.state import StudyState
from autotune.trial import INTERRUPTED_REASONS, Trial


def runs_alone(trial: Trial) -> bool:
    """Whether the trial is to have the hardware for itself."""
    return trial.kind == CONFIRM and trial.repeats is not None


def waiting(state: StudyState) -> Trial | None:
    """The first trial that waits for a worker group, confirmations last: they run alone."""
    if not state.has_repeats:
        return state.trial_index.waiting()
    left = (t for t in state.trial_index.running() if not t.placed)
    return min(left, key=lambda t: (runs_alone(t), t.number), default=None)


def race(state: StudyState, searching: bool) -> Trial | None:
    """A new race of the leader, or of a disturbed trial, if one is due."""
    leader = (_race_due(state) if searching else None) or disturbed(state)
    if leader is None:
        return None
    seed = fresh_seed(state.settings.seed, state.next_number, state.all_trials())
    return _repeat(state, leader, RACE, seed)


def _race_due(state: StudyState) -> Trial | None:
    """The leader, if it is to be raced now: after what is given."""
    share = state.settings.racing
    if not share or state.given_left:
        return None
    return state.repeat_index.due(share) if state.trial_index.leader() is not None else None


def disturbed(state: StudyState) -> Trial | None:
    """The disturbed trial that is to be run again now, if there is one.

    While the study searches it waits until a trial has ended undisturbed: the machine is then quiet
    again.
    """
    settings = state.settings
    if not state.has_disturbed or not settings.search or settings.seeds:
        return None
    searching = state.count < settings.trials
    if searching and any(t.disturbed for t in state.trial_index.last_ended(1)):
        return None
    return state.repeat_index.to_run_again()


def finalist(state: StudyState) -> Trial | None:
    """The trial to be confirmed next, once all others have ended."""
    if not state.settings.repeats or state.trial_index.running():
        return None
    return next_to_confirm(
        state.all_trials(), state.target, state.settings.repeats, state.settings.top
    )


def confirm(state: StudyState, trial: Trial) -> Trial:
    """A new confirmation of the trial."""
    return _repeat(state, trial, CONFIRM, _round_seed(state, trial, state.all_trials()))


def _repeat(state: StudyState, trial: Trial, kind: str, seed: int) -> Trial:
    """A new trial that runs the configuration of `trial` again."""
    config = config_from_scratch(trial, state.all_trials())
    assert config is not None, "only what can be run again is chosen"
    return state.add(config, kind=kind, seed=seed, repeats=trial.number)


def _round_seed(state: StudyState, trial: Trial, trials: Sequence[Trial]) -> int:
    """The seed of the trial's next confirmation: in each round all candidates have the same.

    What they have in common (the order of the data) then does not decide which one is faster.
    """
    own = [
        t
        for t in confirming(trials)
        if t.repeats == trial.number and t.reason not in INTERRUPTED_REASONS
    ]
    used = [t for t in trials if t.kind != CONFIRM]
    return fresh_seed(state.settings.seed, f"round {len(own)}", [*used, *own])
