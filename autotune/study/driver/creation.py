"""New trials of a search, as they are written down: the given configurations and the suggested."""

from __future__ import annotations

from autotune.algorithms.ranking.repeats import CONFIRM
from autotune.errors import UserError
from autotune.storage.codec import plain
from autotune.study.driver import sharing
from autotune.study.driver.state import StudyState
from autotune.trial import Config, Params, Trial


def given(state: StudyState) -> Trial:
    """The next of the baseline and the given configurations, as a new trial."""
    experiment = state.settings.experiment
    config, params = experiment.space.complete(experiment.given()[state.count])
    kind = "baseline" if experiment.baseline is not None and not state.trials else "trial"
    return add(state, config, kind, params, None)


def add(
    state: StudyState, config: Config, kind: str, params: Params | None, ask: int | None
) -> Trial:
    """A new trial of the configuration; in a replay, with its next seed, a confirmation.

    Where beginnings are shared it begins from another trial's checkpoint, if one is the same up to
    there.

    Raises:
        UserError: the journal could not give the configuration back.
    """
    try:
        kept = plain(config)
    except (ValueError, TypeError) as error:
        raise UserError(f"trial {state.next_number} cannot be written down: {error}") from None
    if state.settings.seeds:
        return state.add(kept, kind=CONFIRM, seed=state.settings.seeds[state.next_number], ask=ask)
    how = state.sharing
    if how is None:
        return state.add(kept, kind=kind, params=params, ask=ask)
    came = sharing.origin_for(state, kept)
    trial = state.add(kept, kind=kind, params=params, ask=ask, seed=how.seed, origin=came)
    return sharing.judged(state, trial)
