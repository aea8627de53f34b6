"""Shows a study that runs: a live table, a notebook's cell, or lines, as stderr is one or not."""

from __future__ import annotations

import builtins
import contextlib
import contextvars
import importlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from autotune.errors import StudyError
from autotune.study.display.failures import Failures
from autotune.study.display.lines import lines, say
from autotune.study.experiment import Experiment
from autotune.study.options import StudyOptions, Watch
from autotune.trial import Event, Trial

if TYPE_CHECKING:
    from autotune.study.display.picture import Picture

_PER_SECOND = 4  # drawings on a terminal
_CELL_SECONDS = 1.0  # between those in a notebook, each of which is saved with it
_CELL_SIZE = 110, 25  # columns and lines
_HTML = '<pre style="line-height: normal; overflow-x: auto">{code}</pre>'


@dataclass(frozen=True)
class Display:
    """Shows a study: its events, and what it waits for before the first and after the last."""

    watch: Watch | None
    starts: Callable[[str], None]
    ends: Callable[[str], None]


@contextlib.contextmanager
def shown(
    experiment: Experiment,
    options: StudyOptions,
    here: bool,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Display]:
    """Show the study on stderr while the context lasts, if its option `progress` says so.

    That is a live table on a terminal, one output that changes in a notebook, and lines otherwise.
    A study on a virtual clock is over at once, and shows nothing.

    Args:
        here: whether the trainer runs in this process. A terminal then gets lines: what the trainer
            prints, and its debugger, have it.
        clock: seconds since any point in time.
    """
    pool = options.pool
    if not options.progress or (pool is not None and not pool.realtime):
        with _quiet(Failures(experiment.failure)) as display:
            yield display
    elif in_notebook():
        with _cell(_picture(experiment, options, clock), Failures(experiment.failure)) as display:
            yield display
    elif not here and on_terminal():
        with _live(_picture(experiment, options, clock), Failures(experiment.failure)) as display:
            yield display
    else:
        watch = lines(experiment.target, Failures(experiment.failure))
        yield Display(watch, lambda what: say(f"{experiment.name}: {what}"), _nothing)


def _nothing(what: str) -> None:
    pass


def on_terminal() -> bool:
    """Whether stderr is a terminal that can be drawn on; asked without importing rich."""
    named = os.environ.get("TERM", "")
    return named.lower() not in ("dumb", "unknown") and bool(sys.stderr and sys.stderr.isatty())


def in_notebook() -> bool:
    """Whether this is a notebook's kernel, as rich tells it."""
    if not hasattr(builtins, "get_ipython"):
        return False
    from rich.console import Console

    return Console().is_jupyter


def _picture(experiment: Experiment, options: StudyOptions, clock: Callable[[], float]) -> Picture:
    from autotune.study.display.picture import Picture

    how = options.trials, options.repeats, options.top
    return Picture(experiment.name, experiment.target, *how, clock)


def _watch(picture: Picture, failures: Failures, write: Callable[[str], None]) -> Watch:
    def watch(event: Event, trials: Mapping[int, Trial]) -> None:
        picture.note(event, trials)
        if failed := failures.of(event, trials):
            traceback, line = failed
            write("\n".join(filter(None, (traceback, line and f"trial {event.trial} {line}"))))

    return watch


@contextlib.contextmanager
def _quiet(failures: Failures) -> Iterator[Display]:
    """Show nothing; the error that ends the study has the trainer's last traceback as a note."""
    last = ""

    def watch(event: Event, trials: Mapping[int, Trial]) -> None:
        nonlocal last
        if failed := failures.of(event, trials):
            last = failed[0] or last

    try:
        yield Display(watch, _nothing, _nothing)
    except StudyError as error:
        if last:
            error.add_note(last)
        raise


@contextlib.contextmanager
def _live(picture: Picture, failures: Failures) -> Iterator[Display]:
    from rich.live import Live
    from rich.text import Text

    from autotune.study.display.terminal import Terminal

    console = Terminal(
        file=sys.stderr, markup=False, emoji=False, highlight=False, get_time=picture.clock
    )
    live = Live(picture, console=console, refresh_per_second=_PER_SECOND)
    console.draws_with(live)

    def write(text: str) -> None:
        with contextlib.suppress(OSError):
            console.print(Text(text), soft_wrap=True)

    with live:
        try:
            yield Display(_watch(picture, failures, write), picture.wait_for, picture.wait_for)
        finally:
            picture.finish()
            live.transient = not picture.trials


@contextlib.contextmanager
def _cell(picture: Picture, failures: Failures) -> Iterator[Display]:
    handle = importlib.import_module("IPython.display").display(
        bundle(picture), raw=True, display_id=True
    )
    done = threading.Event()

    def keep() -> None:
        while not done.wait(_CELL_SECONDS):
            handle.update(bundle(picture), raw=True)

    # The context has the cell's identity, under which a front end takes what a thread displays.
    keeper = threading.Thread(target=contextvars.copy_context().run, args=(keep,), daemon=True)
    keeper.start()
    try:
        yield Display(_watch(picture, failures, say), picture.wait_for, picture.wait_for)
    finally:
        done.set()
        keeper.join()
        picture.finish()
        handle.update(bundle(picture), raw=True)


def bundle(picture: Picture) -> dict[str, Any]:
    """The picture for a notebook, by MIME type."""
    from io import StringIO

    from rich.console import Console

    width, height = _CELL_SIZE
    console = Console(file=StringIO(), record=True, width=width, height=height, force_jupyter=False)
    console.print(picture)
    html = console.export_html(inline_styles=True, code_format=_HTML, clear=False)
    return {"text/html": html, "text/plain": console.export_text()}
