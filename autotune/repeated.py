"""A study with repeats as those are shown it that stop and steer trials, event by event.

A trial that was run again stands as the median of its runs (`repeats.merged`, `racing.proven`). A
report changes that of no trial but its own, so all are only gone through when a repeat has ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autotune import racing
from autotune.ledger import Ledger, Others
from autotune.repeats import merged
from autotune.trial import Target, Trial


class Repeated:
    """The trials in `trials`, which the study's loop keeps; told of every change.

    `raced` says that trials are shown as races leave them: none is faster than what is proven.
    """

    def __init__(self, trials: Mapping[int, Trial], target: Target, raced: bool) -> None:
        self._trials = trials
        self._target = target
        self._raced = raced
        self._shown: dict[int, Trial] = {}
        self._ledger: Ledger | None = None

    def note(self, before: Trial | None, now: Trial) -> None:
        """Trial `before` has become `now`, which is in the trials already."""
        if self._ledger is None:
            return
        if now.repeats is not None:
            if now.ended or (before is not None and before.ended):
                self._ledger = None
        elif now.number in self._again:
            self._ledger = None
        else:
            old, new = self._shown.get(now.number), racing.held(now, self._proven)
            self._shown[now.number] = new
            self._ledger.note(old, new)

    def others(self, trial: Trial) -> Others:
        """All trials but one that were searched, for a pruner or a controller."""
        if self._ledger is None:
            self._ledger = self._made()
        return self._ledger.others(trial)

    def _made(self) -> Ledger:
        trials = list(self._trials.values())
        self._again = {t.repeats for t in trials if t.repeats is not None}
        known: Sequence[Trial] = merged(trials, self._target)
        self._proven = racing.best_proven(known, trials) if self._raced else {}
        self._shown = {t.number: racing.held(t, self._proven) for t in known}
        return Ledger(self._shown)
