"""A study with repeats as those are shown it that search, stop and steer, event by event.

A trial that was run again stands by the mean of its runs (`repeats.merged`, `racing.proven`). A
report changes that of no trial but its own, so all are only gone through when a repeat has ended.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from autotune.algorithms.ranking import racing
from autotune.algorithms.ranking.repeats import RACE, again, merged
from autotune.algorithms.ranking.trial_index import Others, TrialIndex
from autotune.trial import Target, Trial


class Repeated:
    """The trials in `trials`, which the study's loop keeps; told of every change.

    `raced` says that those who stop others are shown trials as races leave them: none is faster
    than what is proven.
    """

    def __init__(self, trials: Mapping[int, Trial], target: Target, raced: bool) -> None:
        self._trials = trials
        self._target = target
        self._raced = raced
        self._races: dict[int, Trial] = {}
        self._spent = 0
        self._stands: dict[int, Trial] = {}
        self._shown: dict[int, Trial] = {}
        self._ahead: dict[int, Trial] = {}  # faster than what is proven
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
            old, new = self._shown.get(now.number), self._sorted_in(now)
            self._trial_index.note(old, new)

    def _count(self, before: Trial | None, now: Trial) -> None:
        self._spent += racing.cost(now) - (racing.cost(before) if before is not None else 0)
        if now.kind == RACE:
            self._races[now.number] = now

    def _sorted_in(self, now: Trial) -> Trial:
        """The searched trial as it is shown."""
        new = racing.held(now, self._proof)
        self._stands[now.number], self._shown[now.number] = now, new
        self._ahead.pop(now.number, None)
        if new is not now:
            self._ahead[now.number] = now
        return new

    # --- what it knows ------------------------------------------------------------------------

    def standing(self) -> Collection[Trial]:
        """`repeats.merged` of the trials."""
        self._known()
        return self._stands.values()

    def others(self, trial: Trial) -> Others:
        """All trials but one that were searched, for a pruner or a controller."""
        return self._known().others(trial)

    def leader(self) -> Trial | None:
        """`trial.leader` of those that `standing` has."""
        trial_index = self._known()
        usual = trial_index.usual()
        ahead = [t for t in self._ahead.values() if t.hardware == usual]
        return min(ahead, key=lambda t: (t.seconds, t.number), default=trial_index.leader())

    def due(self, share: float) -> Trial | None:
        """`racing.due` of the trials."""
        best, races = self.leader(), list(self._races.values())
        if best is None or self._certain:
            return None
        if not racing.affordable(best, races, self._stands, self._spent, share):
            return None
        everyone = list(self._trials.values()) if best.origin is not None else ()
        return best if again(best, everyone) is not None else None

    def _known(self) -> TrialIndex:
        if self._trial_index is None:
            self._trial_index = self._made()
        return self._trial_index

    def _made(self) -> TrialIndex:
        trials = list(self._trials.values())
        self._again = {t.repeats for t in trials if t.repeats is not None}
        known = merged(trials, self._target)
        proof = racing.proof_of(known, trials)
        self._certain = proof.certain
        self._proof = proof if self._raced else racing.NOTHING
        self._stands, self._shown, self._ahead = {}, {}, {}
        for trial in known:
            self._sorted_in(trial)
        return TrialIndex(self._shown)
