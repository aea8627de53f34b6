"""What a person sees of a study that runs: a live display, or plain lines."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from autotune.algorithms.ranking.best import best as best_trial
from autotune.algorithms.ranking.best import nearest
from autotune.algorithms.ranking.repeats import confirming, searched
from autotune.evaluation.summary import counts
from autotune.study.display.trial_text import configuration, name_of, number
from autotune.study.experiment import Experiment
from autotune.trial import Ended, Event, Interrupted, Started, Target, Trial
from autotune.trial.plain_text import plain_text
from autotune.trial.wording import came_to, outcome, shown

if TYPE_CHECKING:
    from autotune.study.options import Watch

_ROWS = 30  # running trials that are shown


@contextlib.contextmanager
def progress(experiment: Experiment, trials: int, plain: bool = False) -> Iterator[Watch]:
    """A watch for `run`: a live display on a terminal, a plain line an event otherwise.

    It is `plain` as well where the trainer runs in this process, whose prints, and whose debugger,
    have the terminal.

    A study goes on where its output cannot be written any more.
    """
    console = Console(file=sys.stderr, markup=False, emoji=False)
    view = _Progress(experiment.target, trials)
    if plain or not console.is_terminal:

        def lines(event: Event, all_trials: Mapping[int, Trial]) -> None:
            with contextlib.suppress(OSError):
                _print_event(event, all_trials, experiment.target)

        yield lines
        return
    with Live(get_renderable=view.render, console=console, refresh_per_second=4) as live:

        def watch(event: Event, all_trials: Mapping[int, Trial]) -> None:
            view.source = all_trials
            if isinstance(event, Ended) and event.error:
                with contextlib.suppress(OSError):
                    live.console.print(_failure(event), highlight=False)

        yield watch


@dataclass
class _Progress:
    target: Target
    total: int
    source: Mapping[int, Trial] = field(default_factory=dict)
    begin: float = field(default_factory=time.monotonic)

    @property
    def trials(self) -> tuple[Trial, ...]:
        """The trials as they are now; made for each picture and not for each event."""
        return tuple(dict(self.source).values())  # a copy first: another thread adds to it

    def render(self) -> Group:
        trials = self.trials
        running = [t for t in trials if t.placed]
        table = Table(box=None, padding=(0, 2, 0, 0))
        for name in ("running", "seconds", self.target.metric, "best", "configuration"):
            table.add_column(name, justify="left", no_wrap=True)
        for trial in running[:_ROWS]:
            last = trial.reports[-1].metrics.get(self.target.metric) if trial.reports else None
            table.add_row(
                name_of(trial),
                f"{trial.seconds:.1f}",
                number(last),
                number(self.target.best(trial)),
                configuration(trial),
            )
        more = [Text(f"and {len(running) - _ROWS} more")] if len(running) > _ROWS else []
        return Group(Text(self.headline(trials)), table, *more)

    def headline(self, trials: tuple[Trial, ...]) -> str:
        own = searched(trials)
        ended, confirmed = [t for t in own if t.ended], confirming(trials)
        elapsed = time.monotonic() - self.begin
        left = elapsed / len(ended) * max(self.total - len(ended), 0) if ended else None
        parts = [
            f"{len(ended)}/{self.total} trials",
            ", ".join(f"{n} {s.lower()}" for s, n in counts(own).items() if n),
            f"{sum(t.ended for t in confirmed)} confirmations" if confirmed else "",
            self.leading(trials),
            f"spent {sum(t.spent_seconds for t in trials):.0f} s",
            "starting workers" if left is None else f"about {left:.0f} s to go" if left else "",
        ]
        return " · ".join(p for p in parts if p)

    def leading(self, trials: tuple[Trial, ...]) -> str:
        """The best trial, or the one that came nearest."""
        best = best_trial(trials, self.target)
        if best is not None:
            return f"best {shown(self.target, self.target.result(best))} (trial {best.number})"
        none = "target not reached yet" if self.target.timed else "none completed yet"
        near = came_to(self.target, nearest(trials, self.target))
        return f"{none}, {near}" if near else none


def _print_event(event: Event, trials: Mapping[int, Trial], target: Target) -> None:
    trial = trials[event.trial]
    at = f"{event.at:8.1f} s  {name_of(trial):<12}"
    match event:
        case Started():
            again = f" again from step {trial.checkpoint.step}" if trial.checkpoint else ""
            if trial.origin is not None and trial.attempts == 1:
                again = f" at step {trial.origin.checkpoint.step}"
            _line(f"{at} started{again}: {configuration(trial)}")
        case Interrupted():
            smaller = f", microbatch {event.microbatch} from here on" if event.microbatch else ""
            _line(f"{at} broke off: {event.reason}{smaller}")
            if event.error:
                _line(event.error)
        case Ended():
            detail = f" ({event.detail})" if event.detail else ""
            _line(f"{at} {outcome(trial, target)}{detail}")
            if event.error:
                _line(_failure(event))


def _failure(event: Ended) -> str:
    return f"trial {event.trial} failed:\n{event.error}"


def _line(text: str) -> None:
    print(plain_text(text), file=sys.stderr, flush=True)
