"""The result of a study: its trials, the best of them, confirmed times, tables."""

from __future__ import annotations

import html
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.algorithms.ranking.best import Ranked, confirmed_gain, confirmed_speedup, ranking
from autotune.algorithms.ranking.best import best as best_trial
from autotune.algorithms.ranking.best import nearest as nearest_trial
from autotune.algorithms.ranking.confirmation import Confirmation, compared_runs, confirmations
from autotune.algorithms.ranking.difference import Difference
from autotune.algorithms.ranking.repeats import as_ranked, searched
from autotune.algorithms.ranking.speedup import Speedup
from autotune.errors import UserError
from autotune.storage import journal
from autotune.storage.journal import Closed, Entry, Opened
from autotune.study.manifest import Manifest
from autotune.study.rows import html_row, rows
from autotune.trial import (
    Config,
    Event,
    Limit,
    Report,
    Reported,
    State,
    Suggested,
    Target,
    Trial,
    fold,
    wording,
)

if TYPE_CHECKING:
    import pandas as pd

_MOST_ROWS = 10  # in a notebook


@dataclass(frozen=True)
class StudyResult:
    """A study's trials as its journal has them.

    `ended` is why the driver ended: `done`, `budget` or `interrupted` (`run` itself raises
    `KeyboardInterrupt` then, and a folder's result says it). What follows from the trials
    is computed once.
    """

    folder: Path
    target: Target
    trials: tuple[Trial, ...] = field(repr=False)
    ended: str = "done"
    _again: Callable[..., StudyResult] | None = field(default=None, repr=False, compare=False)

    @cached_property
    def best(self) -> Trial | None:
        """The best trial, as `algorithms.ranking.best` defines it for everything that shows one.

        The configuration with the least confirmed mean time; before any is confirmed, the fastest
        on the hardware that most trials ran on, by the mean of its runs. Its `seconds` are those
        of its first run, which may owe something to luck. Where the target has no value it is the
        one with the best metric; None where no trial has come to the target or to its end.
        """
        return best_trial(self.trials, self.target)

    @property
    def best_config(self) -> Config | None:
        """The configuration of the best trial."""
        return self.best.config if self.best is not None else None

    @property
    def best_value(self) -> float | None:
        """What the best trial came to: its metric or, if the target has a value, its time to that.

        The time is in seconds, or in steps on a clock that counts them. The value is that of one
        run, which may owe something to luck; see `confirmed`.
        """
        best = self.best
        if best is None:
            return None
        return best.seconds if self.target.timed else self.target.best(best)

    @cached_property
    def nearest(self) -> Trial | None:
        """The trial whose metric came nearest to the target so far, reached or not."""
        return nearest_trial(self.searched, self.target)

    @cached_property
    def ranking(self) -> tuple[Ranked, ...]:
        """The searched trials, the best first, with their ranks."""
        return ranking(self.trials, self.target)

    @cached_property
    def confirmed(self) -> tuple[Confirmation, ...]:
        """The configurations run again on fresh seeds, the best first: the times to quote."""
        return confirmations(self.trials, self.target)

    def confirmation(self, trial: Trial | None) -> Confirmation | None:
        """The confirmation of the trial, or None if it has none yet."""
        number = trial.number if trial is not None else None
        return next((c for c in self.confirmed if c.number == number), None)

    def confirm(self, repeats: int = 5, top: int = 3) -> StudyResult:
        """Run the `top` best configurations and the baseline again, on `repeats` fresh seeds each.

        The runs take turns, each alone on the hardware; earlier confirmations count.

        Raises:
            UserError: the result was read from a folder and so has no trainer.
        """
        if self._again is None:
            raise UserError(
                "a result read from a folder has no trainer: run autotune confirm "
                f"{self.folder}, or the script that began the study again"
            )
        return self._again(repeats=repeats, top=top)

    @property
    def baseline(self) -> Trial | None:
        """The trial of the baseline configuration, if the experiment has one."""
        return next((t for t in self.trials if t.kind == "baseline"), None)

    @property
    def speedup(self) -> float | None:
        """Baseline's time to target over the best trial's, not yet confirmed.

        Each is the time that ranks it: the mean of its runs in the search, where there are several
        (`compared_runs`), without what disturbed them. Where the target has no value there is a
        `gain` in its place.
        """
        pair = self._compared
        if pair is None or any(t.state is not State.REACHED or t.seconds <= 0 for t in pair):
            return None
        best, baseline = pair
        return baseline.seconds / best.seconds if baseline.hardware == best.hardware else None

    @cached_property
    def _compared(self) -> tuple[Trial, Trial] | None:
        """The runs by which the best trial is compared with the baseline."""
        best, baseline = self.best, self.baseline
        if best is None or baseline is None:
            return None
        trials, target = self.trials, self.target
        return as_ranked(best, trials, target), as_ranked(baseline, trials, target)

    @property
    def compared_runs(self) -> str:
        """How many runs `speedup` or `gain` compares, in words; empty if there is none of them.

        "one run each", or for example "the mean of 2 runs against one run".
        """
        if self.best is None or self.baseline is None:
            return ""
        return compared_runs(self.best, self.baseline, self.trials, self.target)

    @property
    def confirmed_speedup(self) -> float | None:
        """Baseline's confirmed time over the best configuration's; None until both are confirmed.

        The times are geometric means: see `speedup_of_confirmed`.
        """
        found = self.speedup_of_confirmed
        return found.ratio if found is not None else None

    @cached_property
    def speedup_of_confirmed(self) -> Speedup | None:
        """The confirmed speedup with the runs that it is taken over."""
        return confirmed_speedup(self.trials, self.target)

    @property
    def gain(self) -> float | None:
        """By how much the best trial's metric is better than the baseline's, not yet confirmed.

        None where the target has a value: then there is a `speedup`.
        """
        if self._compared is None or self.target.timed:
            return None
        own, other = (self.target.result(trial) for trial in self._compared)
        return other - own if own is not None and other is not None else None

    @cached_property
    def gain_of_confirmed(self) -> Difference | None:
        """By how much its confirmed mean metric is better, with an interval."""
        return confirmed_gain(self.trials, self.target)

    @property
    def spent_seconds(self) -> float:
        """Worker-group seconds that all trials have cost together, repeats included."""
        return sum(t.spent_seconds for t in self.trials)

    @property
    def searched(self) -> tuple[Trial, ...]:
        """The trials of the search: all but those that repeat another one."""
        return tuple(searched(self.trials))

    @cached_property
    def limits(self) -> Sequence[Limit]:
        """The study's limits, as its folder has them; none where that has no manifest."""
        try:
            manifest = Manifest.existing(self.folder)
        except UserError:  # damaged: who needs it will say so
            return ()
        return manifest.limits if manifest is not None else ()

    def ranked(self) -> list[Trial]:
        """The searched trials, the best first: those of `ranking`."""
        return [entry.trial for entry in self.ranking]

    def __str__(self) -> str:
        target, best = self.target, self.best
        leading = wording.lead(target, best) if best is not None else self.none_yet()
        to = f"the best to {wording.aim(target)}" if target.timed else wording.goal(target)
        return f"{self.folder}: {len(self.searched)} trials, {to}: {leading}"

    def none_yet(self) -> str:
        """That there is no best trial, and which one came nearest."""
        near = wording.came_to(self.target, self.nearest)
        return f"none yet ({near})" if near else "none yet"

    def _repr_html_(self) -> str:
        """The best trials with their confirmations, as a small table for a notebook."""
        name = wording.result_name(self.target)
        names = ("trial", name, "confirmed", "state", "reason", "configuration")
        head = "".join(f"<th style='text-align:left'>{name}</th>" for name in names)
        again = {c.number: c for c in self.confirmed}
        ranked = self.ranked()[:_MOST_ROWS]
        body = "".join(html_row(t, again.get(t.number), self.target) for t in ranked)
        aim = html.escape(wording.goal(self.target))
        left = len(self.searched) - _MOST_ROWS
        more = f"<p>and {left} more: <code>to_frame()</code></p>" if left > 0 else ""
        ratio = (self.confirmed_speedup or self.speedup) if self.best != self.baseline else None
        kind = "confirmed" if self.confirmed_speedup else f"{self.compared_runs}, not confirmed"
        fast = f"; {ratio:.2f} times faster than the baseline ({kind})" if ratio else ""
        if self.target.timed and self.best is None and self.nearest is not None:
            fast = f"; {html.escape(wording.came_to(self.target, self.nearest))}"
        title = f"<b>{aim}: {len(self.searched)} trials{fast}</b>"
        return f"{title}<table><tr>{head}</tr>{body}</table>{more}"

    def to_frame(self) -> pd.DataFrame:
        """A table with one row a trial: state, reason, times, point and configuration as columns.

        The columns are those of `autotune trials DIR --csv`.
        """
        import pandas as pd

        return pd.DataFrame(rows(self.trials, self.ranking, self.target, self.limits))


def load_study(folder: str | Path) -> StudyResult:
    """The result of a study by its folder: of one that has ended, was interrupted, or still runs.

    Nothing is started and nothing is written. It cannot `confirm`: `autotune confirm DIR` does. Its
    `ended` is `running` where no driver has ended the study, also where one was killed.

    Args:
        folder: the study folder, such as `studies/digits`.

    Raises:
        UserError: there is no study, or its manifest or journal is damaged.
    """
    folder = Path(folder)
    return read(folder, Manifest.read(folder).target)


def read(folder: Path, target: Target, metrics: Collection[str] | None = None) -> StudyResult:
    """The result of a study folder as its journal has it, whether or not a driver is running.

    Args:
        metrics: only these metrics of the reports are kept; None: all. Reports are most of the
            memory that the result of a long study takes.

    Raises:
        UserError: there is no journal, or it is damaged before its last line.
    """
    return of_entries(folder, target, journal.entries(folder), metrics)


def of_entries(
    folder: Path, target: Target, entries: Iterable[Entry], metrics: Collection[str] | None = None
) -> StudyResult:
    """The result of the study in the folder by the entries of its journal; see `read`."""
    ended = "running"

    def events() -> Iterator[Event]:
        nonlocal ended
        for entry in entries:
            ended = entry.reason if isinstance(entry, Closed) else "running"
            if not isinstance(entry, Opened | Closed):
                yield entry if metrics is None else _only(metrics, entry)

    trials = tuple(fold(events()).values())
    return StudyResult(folder, target, trials, ended)


def _only(metrics: Collection[str], event: Event) -> Event:
    """The event, without other metrics in its reports."""

    def kept(report: Report) -> Report:
        return replace(report, metrics={k: v for k, v in report.metrics.items() if k in metrics})

    if isinstance(event, Reported):
        return replace(event, report=kept(event.report))
    if isinstance(event, Suggested) and event.origin is not None:
        shared = tuple(kept(r) for r in event.origin.reports)
        return replace(event, origin=replace(event.origin, reports=shared))
    return event
