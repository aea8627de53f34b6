"""A study that runs as one picture: what it waits for, its headline, its trials as a table."""

from __future__ import annotations

import textwrap
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from autotune.algorithms.ranking.best import best as best_trial
from autotune.algorithms.ranking.best import nearest
from autotune.algorithms.ranking.finalists import progress as confirmations
from autotune.algorithms.ranking.repeats import searched
from autotune.study.display.trial_text import COLOURS, configuration, name_of, number
from autotune.trial import STEPS, Event, Started, State, Target, Trial
from autotune.trial.wording import came_to, shown

_RECENT = 5  # trials that ended last
_LEAST = 12  # columns of a configuration; in a narrower one it says nothing


@dataclass
class Picture:
    """What a live display shows of a study; `note` takes in an event, another thread may draw.

    Args:
        name, target: the study's.
        total: the trials of the search.
        repeats, top: the confirmations after it.
        clock: seconds since any point in time.
    """

    name: str
    target: Target
    total: int
    repeats: int = 0
    top: int = 3
    clock: Callable[[], float] = time.monotonic
    _source: Mapping[int, Trial] = field(default_factory=dict)
    _waits_for: str = ""
    _waits_since: float = 0.0
    _over: bool = False
    _begin: float | None = None  # when the first trial of this driver started
    _before: int = 0  # trials that had ended then
    _ahead: float = 0.0  # of the clock: the study's time
    _spinner: Spinner = field(default_factory=lambda: Spinner("line"))

    # --- what happens -------------------------------------------------------------------------

    def wait_for(self, what: str) -> None:
        """Show what is waited for from now on: a beginning, until a trial starts, or the end."""
        self._waits_for, self._waits_since = what, self.clock()

    def note(self, event: Event, trials: Mapping[int, Trial]) -> None:
        """Take in an event; `trials` are those of the study, which change with every event."""
        self._source, self._ahead = trials, event.at - self.clock()
        if isinstance(event, Started):
            self._waits_for = ""
            if self._begin is None:
                self._begin, self._before = self.clock(), _ended(self.trials)

    def finish(self) -> None:
        """From now on show only what the study has come to."""
        self._over, self._waits_for = True, ""

    @property
    def trials(self) -> tuple[Trial, ...]:
        """The trials as they are now; made for each drawing and not for each event."""
        return tuple(dict(self._source).values())  # a copy first: another thread adds to it

    # --- what is drawn ------------------------------------------------------------------------

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        trials, above = self.trials, list[RenderableType]()
        if self._waits_for:
            waited = _duration(self.clock() - self._waits_since)
            self._spinner.update(text=Text(f"{self.name}: {self._waits_for}, {waited}"))
            above.append(self._spinner)
        if trials:
            above += [_cut(line) for line in _wrapped(self.headline(trials), options.max_width)]
            above.append(_cut(self.leading(trials)))
        yield from above
        if trials and not self._over:
            yield from self._table(trials, console, console.height - len(above) - 1)

    def headline(self, trials: Sequence[Trial]) -> list[str]:
        """How far the study is, in parts that stay in one line each."""
        own = searched(trials)
        ended = Counter(trial.state for trial in own if trial.ended)
        states = ", ".join(f"{ended[s]} {s.lower()}" for s in State if ended[s])
        spent = sum(trial.spent_seconds + self._since(trial) for trial in trials)
        parts = [
            f"{self.name}: {ended.total()}/{self.total} trials",
            states,
            self._confirmations(trials),
            f"spent {_duration(spent)}",
            self._to_go(ended.total()),
        ]
        return [part for part in parts if part]

    def leading(self, trials: Sequence[Trial]) -> str:
        """The best trial with its configuration, or the one that came nearest."""
        best = best_trial(trials, self.target)
        if best is not None:
            result = shown(self.target, self.target.result(best))
            return f"best {result} (trial {best.number})  {configuration(best)}"
        none = "target not reached yet" if self.target.timed else "none completed yet"
        near = came_to(self.target, nearest(trials, self.target))
        return f"{none}, {near}" if near else none

    def _confirmations(self, trials: Sequence[Trial]) -> str:
        if not self.repeats:
            return ""
        found = confirmations(trials, self.target, self.repeats, self.top, self.total)
        return f"{found.done}/{found.planned} confirmations" if found.planned else ""

    def _to_go(self, ended: int) -> str:
        now = ended - self._before  # those of an earlier driver took none of this one's time
        if self._over or self._waits_for or self._begin is None or now <= 0 or ended >= self.total:
            return ""
        left = (self.clock() - self._begin) / now * (self.total - ended)
        return f"about {_duration(left)} to go"

    def _table(self, trials: Sequence[Trial], console: Console, height: int) -> RenderResult:
        """The trials that run and, where there is room, those that ended last."""
        running = [trial for trial in trials if not trial.ended]
        ended = sorted((t for t in trials if t.ended), key=lambda t: t.ended_at or 0.0)
        room = max(height - 1, 1)
        last = ended[::-1][: max(min(_RECENT, room - len(running)), 0)]
        rows = running if len(running) <= room else running[: max(room - 1, 1)]
        fixed = console.measure(self._rows([*rows, *last], trials, configured=False)).maximum
        yield self._rows([*rows, *last], trials, configured=console.width - fixed >= _LEAST)
        if len(rows) < len(running):
            yield Text(f"and {len(running) - len(rows)} more")

    def _rows(self, rows: Sequence[Trial], trials: Sequence[Trial], configured: bool) -> Table:
        """A row for each trial of `rows`; only the configuration is cut where it is too wide."""
        metric, steps = self.target.metric, self.target.clock == STEPS
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
        table.add_column("trial", no_wrap=True)
        table.add_column("state", no_wrap=True)
        for name in ("steps" if steps else "seconds", metric, "best"):
            table.add_column(name, justify="right", no_wrap=True, max_width=16)
        if configured:
            table.add_column("configuration")
        for trial in rows:
            time = f"{trial.seconds:,.0f}" if steps else f"{trial.seconds:,.1f}"
            last = trial.reports[-1].metrics.get(metric) if trial.reports else None
            table.add_row(
                name_of(trial, trials),
                Text(self._state(trial), style=COLOURS[trial.state]),
                time if trial.reports else "-",
                number(last),
                number(self.target.best(trial)),
                *([_cut(configuration(trial, trials))] if configured else []),
            )
        return table

    def _state(self, trial: Trial) -> str:
        if trial.ended:
            return trial.state.lower()
        if not trial.placed:
            return "waiting"
        return f"running {_duration(trial.spent_seconds + self._since(trial))}"

    def _since(self, trial: Trial) -> float:
        """Seconds for which a worker group has run the trial since its last event."""
        now = self.clock() + self._ahead
        return max(now - trial.placed_since, 0.0) if trial.placed else 0.0


def _ended(trials: Sequence[Trial]) -> int:
    return sum(trial.ended for trial in searched(trials))


def _cut(text: str) -> Text:
    """A line that is cut where it is too long."""
    return Text(text, no_wrap=True, overflow="ellipsis")


def _wrapped(parts: Sequence[str], width: int) -> list[str]:
    """Parts of a sentence in as few lines as hold them, none of which is broken if it fits.

    >>> _wrapped(["3/20 trials", "2 reached, 1 failed", "spent 01:10"], 36)
    ['3/20 trials · 2 reached, 1 failed ·', 'spent 01:10']
    """
    joined = " · ".join(part.replace(" ", "\xa0") for part in parts).replace(" ·", "\xa0·")
    lines = textwrap.wrap(joined, width, break_on_hyphens=False)
    return [line.replace("\xa0", " ") for line in lines]


def _duration(seconds: float) -> str:
    """Seconds as a clock shows them.

    >>> _duration(42.4), _duration(200), _duration(8000)
    ('00:42', '03:20', '2:13:20')
    """
    return str(timedelta(seconds=int(seconds))).removeprefix("0:")
