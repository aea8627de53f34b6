"""Incrementally maintained index over all trials.

A study of 20,000 trials has a quarter of a million events, and a scan of all trials at each of them
would take longer and longer. A `TrialIndex` gives the fastest trial, the last ones that ended and
those that wait without a scan. Its results equal those of the plain functions of `autotune.trial`
over the same trials, so a resumed driver rebuilds it from the journal.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Mapping, Sequence
from typing import overload

from autotune.algorithms.ranking.repeats import PROBE
from autotune.trial import Hardware, State, Target, Trial

RECENT_LIMIT = 1000
"""Ranks are among so many of the trials that ended last, and all that run: enough to estimate a
share, with a bounded cost of a decision in a study of 20,000 trials.
"""
Key = tuple[float, ...]


class TrialIndex:
    """An index over `trials`, which its owner changes; `note` updates it after every change.

    `target` is what they are ranked by.

    `begun` has each trial as it was at its first report of the target's metric (the report that
    ends the set-up has none), `over` as it was when it ended, in that order. If a trial loses these
    reports or its end, the list is replaced; otherwise lists only grow, so that a reader can
    continue where it stopped.
    """

    def __init__(self, trials: Mapping[int, Trial], target: Target) -> None:
        self.trials = trials
        self._target = target
        self.begun: list[Trial] = []
        self.over: list[Trial] = []
        self._running: set[int] = set()
        self._waiting: set[int] = set()
        self._ended: list[Key] = []
        self._done: dict[Hardware, list[Key]] = {}
        self._ran: dict[Hardware, int] = {}
        self._first: dict[Hardware, int] = {}
        for trial in trials.values():
            self.note(None, trial)

    def note(self, before: Trial | None, now: Trial) -> None:
        """Update the index: trial `before` has become `now`, which is in `trials` already."""
        number = now.number
        (self._running.discard if now.ended else self._running.add)(number)
        (self._waiting.discard if now.ended or now.placed else self._waiting.add)(number)
        if _end(before) != _end(now):
            self._update_ended(before, now)
        had, has = self._measured(before), self._measured(now)
        if has and not had:
            self.begun.append(now)
        elif had and not has:
            self.begun = [t for t in self.begun if t.number != number]
        if _ran_on(before) != _ran_on(now):
            self._count(before, now)

    def _measured(self, trial: Trial | None) -> bool:
        """Whether the trial has reported the target's metric."""
        reports = trial.reports if trial is not None else ()
        return any(self._target.metric in report.metrics for report in reports)

    def _update_ended(self, before: Trial | None, now: Trial) -> None:
        if before is not None and before.ended:
            _remove(self._ended, (before.ended_at or 0.0, now.number))
            if before.succeeded:
                _remove(self._done[before.hardware], self._target.order(before))
            self.over = [t for t in self.over if t.number != now.number]
        if now.ended:
            insort(self._ended, (now.ended_at or 0.0, now.number))
            if now.succeeded:
                insort(self._done.setdefault(now.hardware, []), self._target.order(now))
            self.over.append(now)

    def _count(self, before: Trial | None, now: Trial) -> None:
        """Update the count of trials for each hardware."""
        old = _ran_on(before)
        if old is not None:
            self._ran[old] -= 1
            if self._first[old] == now.number:
                own = (n for n, t in self.trials.items() if t.attempts and t.hardware == old)
                self._first[old] = next(own, -1)
            if not self._ran[old]:
                del self._ran[old], self._first[old]
        self._ran[now.hardware] = self._ran.get(now.hardware, 0) + 1
        self._first[now.hardware] = min(self._first.get(now.hardware, now.number), now.number)

    # --- queries ------------------------------------------------------------------------------

    def waiting(self) -> Trial | None:
        """The first trial that has not ended and that no worker group runs."""
        return self.trials[min(self._waiting)] if self._waiting else None

    def running(self) -> list[Trial]:
        """The trials that have not ended, by number."""
        return [self.trials[number] for number in sorted(self._running)]

    def last_ended(self, count: int) -> list[Trial]:
        """The `count` trials that ended last, the first of them first."""
        return [self.trials[int(number)] for _, number in self._ended[-count:]]

    def fastest(self, hardware: Hardware | None = None, excluded: int = -1) -> Trial | None:
        """`trial.incumbent` of all trials but the one numbered `excluded`."""
        return self._first_done(hardware, excluded) if self._target.timed else None

    def better(self, trial: Trial) -> int:
        """How many trials that succeeded have a result as good as this trial's, on its hardware."""
        result = self._target.order(trial)[0]
        return bisect_right(self._done.get(trial.hardware, []), (result, math.inf))

    def leader(self) -> Trial | None:
        """`repeats.race_leader` of all trials: the best one on the usual hardware."""
        usual = self.usual()
        return self._first_done(usual) if usual is not None else None

    def _first_done(self, hardware: Hardware | None, excluded: int = -1) -> Trial | None:
        """The best of the trials that succeeded."""
        kinds = self._done.values() if hardware is None else [self._done.get(hardware, [])]
        firsts = (next((key for key in kind if key[-1] != excluded), None) for kind in kinds)
        best = min((key for key in firsts if key is not None), default=None)
        return self.trials[int(best[-1])] if best is not None else None

    def usual(self) -> Hardware | None:
        """`trial.usual_hardware` of all trials."""
        return max(self._ran, key=lambda h: (self._ran[h], -self._first[h]), default=None)

    def others(self, trial: Trial) -> Others:
        """All trials but one, for a pruner or a controller."""
        return Others(self, trial.number)


class Others(Sequence[Trial]):
    """The indexed trials but one, by number; what the index knows needs no scan.

    A view of the index and not a copy: use it at once, and do not keep it.
    """

    def __init__(self, trial_index: TrialIndex, excluded: int) -> None:
        self.trial_index = trial_index
        self._excluded = excluded
        self._trials: tuple[Trial, ...] | None = None

    def fastest(self, hardware: Hardware | None = None) -> Trial | None:
        """`trial.incumbent` of these trials."""
        return self.trial_index.fastest(hardware, self._excluded)

    def recent(self, count: int) -> list[Trial]:
        """`recent` of these trials."""
        last = self.trial_index.last_ended(count + 1)
        ended = [t for t in last if t.number != self._excluded][-count:]
        return [*ended, *(t for t in self.trial_index.running() if t.number != self._excluded)]

    def __iter__(self) -> Iterator[Trial]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self.trial_index.trials) - (self._excluded in self.trial_index.trials)

    @overload
    def __getitem__(self, place: int) -> Trial: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Trial]: ...
    def __getitem__(self, place: int | slice) -> Trial | Sequence[Trial]:
        return self._all()[place]

    def _all(self) -> tuple[Trial, ...]:
        if self._trials is None:
            self._trials = tuple(
                t for n, t in self.trial_index.trials.items() if n != self._excluded
            )
        return self._trials


def recent(trials: Sequence[Trial], count: int) -> list[Trial]:
    """The `count` trials that ended last, and all that have not ended.

    A comparison with these has a bounded cost in a long study.
    """
    if isinstance(trials, Others):
        return trials.recent(count)
    ended = sorted((t for t in trials if t.ended), key=lambda t: (t.ended_at or 0.0, t.number))
    running = sorted((t for t in trials if not t.ended), key=lambda t: t.number)
    return [*ended[-count:], *running]


def failed_in_a_row(trials: Sequence[Trial], count: int) -> bool:
    """Whether the `count` trials that ended last have all FAILED; probes do not count."""
    compared = [t for t in trials if t.kind != PROBE]
    last = [t for t in recent(compared, count) if t.ended]
    return len(last) == count and all(t.state is State.FAILED for t in last)


def _end(trial: Trial | None) -> tuple[object, ...] | None:
    """When and how a trial has ended; None for one that has not."""
    if trial is None or not trial.ended:
        return None
    return trial.ended_at, trial.state, trial.seconds, trial.mean_result, trial.hardware


def _ran_on(trial: Trial | None) -> Hardware | None:
    return trial.hardware if trial is not None and trial.attempts else None


def _remove(keys: list[Key], key: Key) -> None:
    place = bisect_left(keys, key)
    assert keys[place] == key
    del keys[place]


def common_prefix_length(one: Sequence[Trial], other: Sequence[Trial]) -> int:
    """The number of trials that both sequences have in common at the start."""
    for i, (a, b) in enumerate(zip(one, other, strict=False)):
        if a is not b and a != b:
            return i
    return min(len(one), len(other))
