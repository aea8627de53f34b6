"""The book of a study: what one driver knows of its trials, and the only way to write of them."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

from autotune.algorithms.ranking.repeat_index import RepeatIndex
from autotune.algorithms.ranking.repeats import searched
from autotune.algorithms.ranking.trial_index import Ledger
from autotune.backends.protocol import Pool
from autotune.storage.checkpoint_files import OWN
from autotune.storage.journal import Closed, Journal, Opened
from autotune.study.driver.microbatch import memory_keys
from autotune.study.driver.plan import Plan, Watch
from autotune.trial import Event, Suggested, Trial, after, fold


class Book:
    """One driver's record of a study. `trials` is its only state; it says what the journal says.

    `count` is how many of the plan's trials there are: repeats are on top of it. `checkpoints` is
    the folder or URL that they lie in, and `any_saved` says whether there has been one; `unread`
    counts how often in a row a trial's was out of reach; `saving` are the trials that have ended
    and still write theirs.
    """

    def __init__(
        self, plan: Plan, folder: Path, journal: Journal, pool: Pool, watch: Watch | None
    ) -> None:
        self.plan = plan
        self.target = plan.experiment.target
        self.journal = journal
        self.pool = pool
        self.watch = watch
        self.memory_keys = memory_keys(plan.experiment.train)
        self.checkpoints = plan.checkpoints or str(folder.absolute() / OWN)
        self._opened = pool.now()
        self._begin = pool.now() - max((e.at for e in journal.entries), default=0.0)
        events = [e for e in journal.entries if not isinstance(e, Opened | Closed)]
        self.trials = fold(events)
        self.count = len(searched(list(self.trials.values())))
        self.ledger = Ledger(self.trials)
        self.shown = RepeatIndex(self.trials, self.target, bool(plan.racing))
        self.unread: dict[int, int] = {}
        self.saving: set[int] = set()
        self.any_saved = any(t.checkpoint is not None for t in self.trials.values())
        journal.entries.clear()  # all that they say is in `trials`

    # --- writing ------------------------------------------------------------------------------

    def record(self, event: Event) -> None:
        """Write the event down; `written` before acting on it makes resume a replay."""
        self.journal.append(event)
        before = self.trials.get(event.trial)
        now = self.trials[event.trial] = after(before, event)
        self.ledger.note(before, now)
        self.shown.note(before, now)
        self.count += isinstance(event, Suggested) and event.repeats is None
        self.any_saved = self.any_saved or now.checkpoint is not None
        if self.watch is not None:
            with contextlib.suppress(OSError):  # nobody looks any more: no reason to stop
                self.watch(event, self.trials)

    @property
    def written(self) -> Pool:
        """The pool, to be told something because of events that are on disk by then."""
        self.journal.sync()
        return self.pool

    def at(self) -> float:
        """Seconds since the study began, the time in which earlier drivers worked included."""
        return round(self.pool.now() - self._begin, 6)

    def over(self) -> float:
        """The share of the search that is over: of its trials, or of this driver's time if more."""
        plan = self.plan
        trials = self.count / plan.trials
        if plan.time_limit is None:
            return trials
        return max(trials, (self.pool.now() - self._opened) / plan.time_limit)

    # --- reading ------------------------------------------------------------------------------

    def everyone(self) -> list[Trial]:
        """All trials, in the order of their numbers."""
        return list(self.trials.values())

    @property
    def repeated(self) -> bool:
        """Whether there are repeats, which are part of what they repeat."""
        return self.count < len(self.trials)

    def standing(self) -> Collection[Trial]:
        """The trials as all that decides sees them: repeats are part of what they repeat."""
        return self.shown.means() if self.repeated else self.trials.values()

    def others(self, trial: Trial) -> Sequence[Trial]:
        """All trials but this one, as what decides on it sees them."""
        return (self.shown if self.repeated else self.ledger).others(trial)


def warn(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr)
