"""Incrementally maintained view of a study with repeats, for what decides during the search.

A trial that was run again has the mean time of its runs (`repeats.with_mean_times`,
`racing.for_pruning`), and one that was disturbed is seen as `disturbed` says. A report changes only
its own trial, so all trials are visited only when a repeat has ended, or when it changes whether
most trials were disturbed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from autotune.algorithms.ranking import disturbed, racing
from autotune.algorithms.ranking.repeats import RACE, config_from_scratch, timed, with_mean_times
from autotune.algorithms.ranking.trial_index import Others, TrialIndex
from autotune.trial import Hardware, State, Target, Trial, is_spoilt, undisturbed


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
        self._ahead: dict[int, Trial] = {}  # shown as slower than they are
        self._only: dict[int, Trial] = {}  # `only_disturbed`, and of these, which came too late
        self._late: dict[int, Trial] = {}
        self._rerun: set[int] = set()
        self._candidates: set[int] = set()  # trials that succeeded or were run again
        self._repeats: set[int] = set()
        self._next: tuple[Hardware | None, Trial | None] | None = None  # of `racing.to_race`
        self._ended = self._ended_disturbed = 0
        self._mostly = False
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
            own = now if is_spoilt(now, self._target) else None
            old = self._shown.get(now.number)
            self._trial_index.note(old, self._inserted(undisturbed(now), own))
        if self._mostly != disturbed.mostly_disturbed(self._ended, self._ended_disturbed):
            self._trial_index = None

    def _count(self, before: Trial | None, now: Trial) -> None:
        self._spent += racing.cost(now) - (racing.cost(before) if before is not None else 0)
        if now.kind == RACE and now.repeats is not None:
            self._races[now.number] = now
            self._rerun.add(now.repeats)
        if now.repeats is not None:
            self._repeats.add(now.number)
            self._candidates.add(now.repeats)
        elif now.succeeded:
            self._candidates.add(now.number)
        if now.ended or now.number in self._candidates or now.repeats is not None:
            self._next = None
        for trial, sign in ((before, -1), (now, 1)):
            if trial is not None and trial.repeats is None and timed(trial):
                self._ended += sign
                self._ended_disturbed += sign * trial.disturbed

    def _inserted(self, now: Trial, own: Trial | None) -> Trial:
        """The searched trial as pruners and controllers see it; `own`, if it is only disturbed."""
        number = now.number
        new = now if own is None else disturbed.for_pruning(now, own, self._mostly)
        new = racing.limited(new, self._outcome)
        self._means[number], self._shown[number] = now, new
        for kept in (self._ahead, self._only, self._late):
            kept.pop(number, None)
        if new is not now and now.state is State.REACHED:
            self._ahead[number] = now
        if own is not None:
            self._only[number] = own
            if disturbed.came_too_late(own):
                self._late[number] = now
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
        """`repeats.race_leader` of `means`."""
        trial_index = self._known()
        usual = trial_index.usual()
        ahead = [t for t in self._ahead.values() if t.hardware == usual]
        shown = trial_index.leader()
        first = [*ahead, shown] if shown is not None else ahead
        return min(first, key=self._target.order, default=None)

    def due(self, share: float) -> Trial | None:
        """`racing.due` of the trials."""
        usual = self._known().usual()
        if self._deterministic:
            return None
        if self._next is None or self._next[0] != usual:
            known = [self._means[number] for number in sorted(self._candidates)]
            means = [t for t in known if t.hardware == usual]
            own = [self._trials[number] for number in sorted(self._candidates | self._repeats)]
            self._next = usual, racing.to_race(means, own, self._target)
        (_, leader), races = self._next, list(self._races.values())
        if leader is None:
            return None
        if not racing.affordable(leader, races, self._means, self._spent, share):
            return None
        return leader if self._from_scratch(leader) else None

    def to_run_again(self) -> Trial | None:
        """`disturbed.to_run_again` of the trials."""
        leader, left = self.leader(), self._only.keys() - self._rerun
        found = disturbed.choose(leader, self._late.values(), left, self._target)
        return found if found is not None and self._from_scratch(found) else None

    def _from_scratch(self, trial: Trial) -> bool:
        everyone = list(self._trials.values()) if trial.is_fork else ()
        return config_from_scratch(trial, everyone) is not None

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
        self._mostly = disturbed.mostly_disturbed(self._ended, self._ended_disturbed)
        self._means, self._shown, self._ahead = {}, {}, {}
        self._only, self._late = {}, {}
        only = disturbed.only_disturbed(trials, self._target)
        for trial in known:
            self._inserted(trial, only.get(trial.number))
        return TrialIndex(self._shown, self._target)
