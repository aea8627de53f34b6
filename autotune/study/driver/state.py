"""What one driver knows of a study, and the only way to write events down."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.algorithms import beginnings
from autotune.algorithms.beginnings import Beginning, SharedBeginnings
from autotune.algorithms.ranking.repeat_index import RepeatIndex
from autotune.algorithms.ranking.repeats import PROBE, searched
from autotune.algorithms.ranking.trial_index import TrialIndex
from autotune.backends.protocol import Pool, Progress
from autotune.storage import long_text
from autotune.storage.checkpoint_files import OWN
from autotune.storage.journal import Closed, Journal, Opened
from autotune.study.driver.calls import called
from autotune.study.driver.durable_pool import DurablePool
from autotune.study.driver.microbatch import memory_keys
from autotune.study.driver.settings import StudySettings, trial_seed
from autotune.study.options import Watch
from autotune.trial import (
    Changed,
    Config,
    Ended,
    Event,
    Interrupted,
    Origin,
    Params,
    Reported,
    Suggested,
    Trial,
    after,
    fold,
)
from autotune.trial.plain_text import plain_text


class StudyState:
    """The state of one driver: `trials`, folded from the journal, and what follows from them.

    Attributes:
        pool: where trials run; it flushes the journal before it acts.
        compared: the trials without probes, which are all that decisions see.
        count: the trials so far that `trials` of the settings counts; repeats are on top of it.
        checkpoint_root: the folder or URL of the study's checkpoints.
        has_checkpoints: whether any trial has had one.
        has_disturbed: whether any trial was disturbed at some time.
        predicted: bytes that a rank needs for one sample, by what determines them (`memory`).
        unreachable: how often in a row the checkpoint of a trial could not be reached.
        measuring: the milestones whose reports wait for what is measured of the model, by trial.
        final_saves: trials that have ended, and whose last checkpoint is still being written.
        gone: checkpoints, as trial and step, that others cannot begin from: removed or damaged.
    """

    def __init__(
        self,
        settings: StudySettings,
        folder: Path,
        journal: Journal,
        pool: Pool,
        watch: Watch | None,
    ) -> None:
        self.settings = settings
        self.target = settings.experiment.target
        self.journal = journal
        self.pool = DurablePool(pool, journal)
        self.watch = watch
        self._folder = folder
        self.memory_keys = memory_keys(settings.experiment.train)
        self.checkpoint_root = settings.checkpoints or str(folder.absolute() / OWN)
        self._begin = pool.now() - max((e.at for e in journal.entries), default=0.0)
        events = [e for e in journal.entries if not isinstance(e, Opened | Closed)]
        self.trials = fold(events)
        self.compared = {n: t for n, t in self.trials.items() if t.kind != PROBE}
        self.count = len(searched(list(self.trials.values())))
        self.trial_index = TrialIndex(self.compared, self.target)
        self.repeat_index = RepeatIndex(self.compared, self.target, bool(settings.racing))
        self.predicted: dict[str, int | None] = {}
        self.unreachable: dict[int, int] = {}
        self.final_saves: set[int] = set()
        self.measuring: dict[int, Progress] = {}
        self.gone: set[tuple[int, int]] = set()
        self._beginnings: list[Beginning] | None = None
        self._warnings: set[str] = set()
        self.has_checkpoints = any(t.checkpoint is not None for t in self.trials.values())
        self.has_disturbed = any(t.disturbed for t in self.compared.values())
        self._asks = max((t.ask + 1 for t in self.trials.values() if t.ask is not None), default=0)
        journal.entries.clear()  # `trials` has all that they say

    # --- writing ------------------------------------------------------------------------------

    def append(self, event: Event) -> None:
        """Append the event to the journal, and bring the trials up to date with it."""
        before = self.trials.get(event.trial)
        if isinstance(event, Interrupted | Ended) and before is not None:
            self.measuring.pop(event.trial, None)
            name = f"trial-{event.trial:04d}-attempt-{before.attempts}"
            event = replace(event, error=long_text.kept(self._folder, name, event.error))
        self.journal.append(event)
        now = self.trials[event.trial] = after(before, event)
        if not isinstance(event, Reported | Changed):
            self._beginnings = None
        self.has_checkpoints = self.has_checkpoints or now.checkpoint is not None
        if now.kind != PROBE:
            self._note(event, before, now)
        watch, self.watch = self.watch, None  # one that fails is not called again
        if watch is not None:
            called("watch", (), _watched, watch, event, self.trials)
            self.watch = watch

    def _note(self, event: Event, before: Trial | None, now: Trial) -> None:
        """Bring what decides up to date with a trial that is no probe."""
        self.compared[now.number] = now
        self.trial_index.note(before, now)
        self.repeat_index.note(before, now)
        self.has_disturbed = self.has_disturbed or now.disturbed
        if isinstance(event, Suggested):
            self.count += event.repeats is None
            self._asks = max(self._asks, -1 if event.ask is None else event.ask + 1)

    def add(
        self,
        config: Config,
        *,
        kind: str = "trial",
        params: Params | None = None,
        seed: int | None = None,
        ask: int | None = None,
        origin: Origin | None = None,
        repeats: int | None = None,
    ) -> Trial:
        """Write a new trial down; this gives it its number, and its seed unless it has one."""
        number = self.next_number
        seed = trial_seed(self.settings.seed, number) if seed is None else seed
        self.append(
            Suggested(number, config, params, kind, seed, self.elapsed(), origin, repeats, ask)
        )
        return self.trials[number]

    def warn_once(self, text: str, about: str = "") -> None:
        """Print a warning to stderr, the first time only: one of this text, or about this."""
        if (about or text) not in self._warnings:
            self._warnings.add(about or text)
            warn(text)

    # --- reading ------------------------------------------------------------------------------

    @property
    def next_number(self) -> int:
        """The number of the trial that is written down next."""
        return len(self.trials)

    @property
    def next_ask(self) -> int:
        """The least number for the sampler's next ask: above all asks that were written down.

        It is never below the number of trials: so journals of version 1, which numbered asks by
        trials, are resumed with the points that they would have had.
        """
        return max(self.next_number, self._asks)

    def elapsed(self) -> float:
        """Seconds since the study began, the time in which earlier drivers worked included."""
        return round(self.pool.now() - self._begin, 6)

    @property
    def given_left(self) -> bool:
        """Whether given configurations are still to be written down, which come before all else."""
        return self.count < len(self.settings.experiment.given())

    def all_trials(self) -> list[Trial]:
        """All trials, in the order of their numbers."""
        return list(self.trials.values())

    @property
    def has_repeats(self) -> bool:
        """Whether some trials run the configuration of another one again."""
        return self.count < len(self.compared)

    @property
    def _adjusted(self) -> bool:
        """Whether trials are seen otherwise than as they were."""
        return self.has_repeats or self.has_disturbed

    def with_mean_times(self) -> Collection[Trial]:
        """The searched trials, each with the mean time of its runs, as samplers see them."""
        return self.repeat_index.means() if self._adjusted else self.compared.values()

    @property
    def sharing(self) -> SharedBeginnings | None:
        """How new trials share beginnings; None where they do not, or there are none to come."""
        how = self.settings.shared_beginnings
        if how is None or not self.settings.search or self.count >= self.settings.trials:
            return None
        return how if beginnings.can_share(self.compared.values(), how) else None

    def beginnings(self) -> list[Beginning]:
        """The checkpoints from which new trials may begin."""
        how = self.sharing
        if how is None:
            return []
        if self._beginnings is None:
            self._beginnings = beginnings.kept(self.compared.values(), how, self.gone)
        return self._beginnings

    def lost_beginning(self, trial: int, step: int) -> None:
        """Note that a trial's checkpoint has been removed, or is damaged."""
        self.gone.add((trial, step))
        self._beginnings = None

    def better(self, trial: Trial) -> int:
        """How many trials have a result as good as this trial's, on its kind of hardware."""
        return (self.repeat_index if self.has_repeats else self.trial_index).better(trial)

    def others(self, trial: Trial) -> Sequence[Trial]:
        """All trials but this one, as pruners and controllers see them."""
        return (self.repeat_index if self._adjusted else self.trial_index).others(trial)


def _watched(watch: Callable[..., Any], event: Event, trials: Mapping[int, Trial]) -> Any:
    with contextlib.suppress(OSError):  # a closed terminal is no reason to stop
        return watch(event, trials)
    return None


def say(text: str) -> None:
    """Print a line to stderr."""
    print(plain_text(text), file=sys.stderr, flush=True)


def warn(text: str) -> None:
    """Print a warning to stderr."""
    print(f"warning: {plain_text(text)}", file=sys.stderr)
