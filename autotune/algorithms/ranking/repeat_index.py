"""Incrementally maintained view of a study with repeats, for what decides during the search.

A trial that was run again has the mean time of its runs (`repeats.with_mean_times`,
`racing.for_pruning`). A report changes only its own trial, so all trials are visited only when a
repeat has ended.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from autotune.algorithms.ranking import racing
from autotune.algorithms.ranking.repeats import RACE, config_from_scratch, with_mean_times
from autotune.algorithms.ranking.trial_index import Others, TrialIndex
from autotune.trial import Target, Trial


class RepeatIndex:
    """Index over `trials`, which the study's loop owns and changes; `note` every change.

    With `raced`, pruners and controllers see no trial that is faster than the validated ones
    (`racing.for_pruning`).
    """

    def __init__(self, trials: Mapping[int, Trial], target: Target, raced: bool) -> None:
        self._trials = trials
        self._target = target
        self._raced = raced
        self._races: dict[int, Trial] = {}
        self._spent = 0
        self._means: dict[int, Trial] = {}
        self._shown: dict[int, Trial] = {}
        self._ahead: dict[int, Trial] = {}  # faster than the validated ones
        self._trial_index: TrialIndex | None = None
        for trial in trials.values():
            self._count(None, trial)

    def note(self, before: Trial | None, now: Trial) -> None:
        """Trial `before` has become `now`, which is in the trials already."""
        self._count(before, now)
        if self._trial_index is None:
            return
        if now.repeats is not None:
            if now.ended or (before is not None and before.ended):
                self._trial_index = None
        elif now.number in self._again:
            self._trial_index = None
        else:
            old, new = self._shown.get(now.number), self._inserted(now)
            self._trial_index.note(old, new)

    def _count(self, before: Trial | None, now: Trial) -> None:
        self._spent += racing.cost(now) - (racing.cost(before) if before is not None else 0)
        if now.kind == RACE:
            self._races[now.number] = now

    def _inserted(self, now: Trial) -> Trial:
        """The searched trial as pruners and controllers see it."""
        new = racing.limited(now, self._outcome)
        self._means[now.number], self._shown[now.number] = now, new
        self._ahead.pop(now.number, None)
        if new is not now:
            self._ahead[now.number] = now
        return new

    # --- queries ------------------------------------------------------------------------------

    def means(self) -> Collection[Trial]:
        """`repeats.with_mean_times` of the trials."""
        self._known()
        return self._means.values()

    def others(self, trial: Trial) -> Others:
        """All searched trials but one, for a pruner or a controller."""
        return self._known().others(trial)

    def better(self, trial: Trial) -> int:
        """`TrialIndex.better` by the means of runs."""
        return self._known().better(trial)

    def leader(self) -> Trial | None:
        """`racing.race_leader` of `means`."""
        trial_index = self._known()
        usual = trial_index.usual()
        ahead = [t for t in self._ahead.values() if t.hardware == usual]
        return min(ahead, key=lambda t: (t.seconds, t.number), default=trial_index.leader())

    def due(self, share: float) -> Trial | None:
        """`racing.due` of the trials."""
        leader, races = self.leader(), list(self._races.values())
        if leader is None or self._deterministic:
            return None
        if not racing.affordable(leader, races, self._means, self._spent, share):
            return None
        everyone = list(self._trials.values()) if leader.origin is not None else ()
        return leader if config_from_scratch(leader, everyone) is not None else None

    def _known(self) -> TrialIndex:
        if self._trial_index is None:
            self._trial_index = self._made()
        return self._trial_index

    def _made(self) -> TrialIndex:
        trials = list(self._trials.values())
        self._again = {t.repeats for t in trials if t.repeats is not None}
        known = with_mean_times(trials, self._target)
        outcome = racing.race_outcome(known, trials, self._target)
        self._deterministic = outcome.deterministic
        self._outcome = outcome if self._raced else racing.NO_RACES
        self._means, self._shown, self._ahead = {}, {}, {}
        for trial in known:
            self._inserted(trial)
        return TrialIndex(self._shown, self._target)
