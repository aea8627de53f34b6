"""The picture at all widths, failures in words, lines, notebooks, and which of them is shown."""

from __future__ import annotations

import builtins
import os
import pty
import sys
import time
import types
from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
from rich.console import Console
from shown_study import (
    METRIC,
    ON,
    ON_RANK_1,
    REASON,
    TRACEBACK,
    Script,
    ended,
    experiment,
    first_half,
    second_half,
    started,
)

import autotune as at
from autotune.backends.simulator import SimPool
from autotune.errors import StudyError
from autotune.study.display import shown
from autotune.study.display.failures import Failures
from autotune.study.display.lines import lines as printed
from autotune.study.display.picture import Picture
from autotune.study.options import StudyOptions
from autotune.trial import (
    Clock,
    Event,
    FailurePolicy,
    Interrupted,
    Report,
    Reported,
    Started,
    Suggested,
)

OPTIONS = StudyOptions(trials=12)
REST = "batch_size=64  momentum=0.9  optimizer=sgd"


def drawn(picture: Picture, width: int, height: int = 24) -> list[str]:
    console = Console(file=StringIO(), width=width, height=height)
    console.print(picture)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert len(lines) < height
    assert all(len(line) <= width for line in lines)
    return [line.rstrip() for line in lines]


def played(picture: Picture, script: Script, events: list[Event]) -> Picture:
    picture.clock = script.clock
    script.play(picture.note, events)
    return picture


# --- the picture ----------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [60, 80, 140])
def test_trial_state_seconds_metric_and_best_are_whole(width: int) -> None:
    lines = drawn(played(Picture("digits", experiment().target, 12), Script(), first_half()), width)
    head = next(n for n, line in enumerate(lines) if line.startswith("trial "))
    assert lines[head].split()[:5] == ["trial", "state", "seconds", METRIC, "best"]
    assert lines[head].endswith("configuration") == (width > 60)
    found = {line.split()[0]: line.split() for line in lines[head + 1 :]}
    assert found["0"][:6] == ["0", "baseline", "reached", "37.2", "0.9712", "0.9712"]
    assert found["1"][:5] == ["1", "censored", "38.0", "0.9312", "0.9312"]
    assert found["4"][:6] == ["4", "running", "00:14", "-", "-", "-"]
    assert found["6"][:5] == ["6", "race", "of", "2", "running"]


def test_a_narrow_terminal_still_shows_each_trial() -> None:
    lines = drawn(played(Picture("digits", experiment().target, 12), Script(), first_half()), 30)
    assert [line[0] for line in lines[-7:]] == list("4563210")


def test_more_trials_than_lines_and_a_long_metric() -> None:
    metric = "validation_accuracy_top1_of_the_average"
    events = [event for n in range(40) for event in started(n, float(n))]
    picture = played(Picture("digits", experiment(metric).target, 50), Script(), events)
    lines = drawn(picture, 80, 20)
    assert lines[-1] == "and 25 more"
    assert sum("running" in line for line in lines) == 15
    assert "  validation_accu…  best  configuration" in lines[2]


def test_the_headline_breaks_between_its_parts() -> None:
    picture = played(Picture("digits", experiment().target, 12), Script(), first_half())
    lines = drawn(picture, 50)
    assert lines[0] == "digits: 4/12 trials ·"
    assert lines[1] == "2 reached, 1 censored, 1 failed · spent 02:28 ·"
    assert lines[2] == "about 02:32 to go"


def test_the_time_to_go_does_not_count_what_an_earlier_driver_did() -> None:
    """Four trials in 76 s; then another driver, which starts 1000 s later, needs 10 s for one."""
    script = Script()
    script.play(lambda event, trials: None, first_half())
    picture = Picture("digits", experiment().target, 12, clock=script.clock)
    resumed: list[Event] = [
        Interrupted(n, "driver restarted", broke=False, at=1000.0) for n in (4, 5, 6)
    ]
    script.play(picture.note, [*resumed, Started(4, 0.0, ON, 1000.0)])
    assert not any("to go" in part for part in picture.headline(picture.trials))
    script.play(picture.note, [ended(4, 1010.0, "CENSORED", "capped", 1.0)])
    assert picture.headline(picture.trials)[-1] == "about 01:10 to go"


def test_a_trial_that_a_driver_left_is_no_failure(capsys: pytest.CaptureFixture[str]) -> None:
    script = Script()
    script.play(lambda event, trials: None, first_half())
    watch = printed(experiment().target, Failures(FailurePolicy()))
    script.play(watch, [Interrupted(4, "driver restarted", broke=False, at=1000.0)])
    words = capsys.readouterr().err.split()
    assert " ".join(words) == (
        "1000.0 s 4 was running when the study stopped; it starts again from the beginning"
    )


def test_steps_and_confirmations() -> None:
    target = at.Target(METRIC, 0.97, limit_steps=20_000, clock="steps")
    script = Script()
    script.play(lambda event, trials: None, [*first_half(), *second_half()])
    script.trials[4] = replace(script.trials[4], seconds=4700.0)
    picture = Picture("digits", target, 6, repeats=2, top=1, clock=script.clock)
    script.play(picture.note, started(7, 100.0, "confirm", repeats=4))
    assert "0/4 confirmations" in picture.headline(picture.trials)
    text = "\n".join(drawn(picture, 80))
    assert "state          steps  val_accuracy" in text
    assert "4               reached        4,700        0.9701  0.9701" in text
    assert "7 confirm of 4  running 00:00" in text


# --- failures -------------------------------------------------------------------------------------


def failing(
    *errors: str, reason: str = REASON, reports: bool = False, kinds: Sequence[str] = ()
) -> list[Any]:
    """What is said of trials that fail one after the other."""
    script, said = Script(), Failures(FailurePolicy(max_consecutive_failed_trials=2))
    found = []

    def watch(event: Event, trials: Any) -> None:
        found.append(said.of(event, trials))

    script.play(lambda event, trials: None, first_half() if reports else [])
    kinds = kinds or ["trial"] * len(errors)
    for number, (error, kind) in enumerate(zip(errors, kinds, strict=True), 10):
        script.play(lambda event, trials: None, started(number, 100.0 + number, kind))
        script.play(watch, [ended(number, 101.0 + number, "FAILED", reason, 0.0, error=error)])
    return found


def test_the_traceback_comes_first_and_once() -> None:
    first, second = failing(f"rank 0:\n{TRACEBACK}", f"rank 0:\n{TRACEBACK}")
    assert first == (TRACEBACK, "failed; the study goes on (2 failures in a row end it)")
    assert second == ("", f"failed: {REASON} (the traceback of trial 10); the study ends")


def test_failed_probes_end_no_study_and_are_not_between_two_failures() -> None:
    """As in the driver, which does not count them."""
    kinds = ["probe", "probe", "probe", "trial", "probe", "trial"]
    found = failing(*[f"rank 0:\n{TRACEBACK}"] * len(kinds), kinds=kinds)
    goes_on = "the study goes on"
    assert [line.rpartition("; ")[2] for _, line in found] == [
        *(goes_on, goes_on, goes_on, f"{goes_on} (2 failures in a row end it)", goes_on),
        "the study ends",
    ]


def test_a_failure_names_its_ranks_and_keeps_what_differs() -> None:
    two = f"rank 0:\nlost its partner\n\nranks 1, 3:\n{TRACEBACK}"
    assert failing(ON_RANK_1)[0][1].startswith("failed on rank 1; ")
    assert failing(two)[0][0] == two
    assert failing(two)[0][1].startswith("failed on ranks 0, 1, 3; ")


def test_a_mistake_of_the_user_needs_no_traceback() -> None:
    """Where nothing was ever reported the study ends with its line, which is not said twice."""
    reason = "UserError: no folder data/"
    assert failing(TRACEBACK, reason=reason) == [("", "")]
    (said,) = failing(TRACEBACK, reason=reason, reports=True)
    assert said[0] == ""
    assert said[1].startswith("failed: UserError: no folder data/; the study ")


# --- lines, notebooks -----------------------------------------------------------------------------


def test_lines_where_stderr_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with shown.shown(experiment(), OPTIONS, False) as display:
        display.starts("starting Ray")
        assert display.watch is not None
        Script().play(display.watch, [*first_half(), *second_half()])
        display.ends("ending workers")
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == ""
    assert lines[0] == "digits: starting Ray"
    assert lines[1] == "     0.0 s  0 baseline   started: lr=cosine 0.1 -> 0  " + REST
    assert "    40.0 s  0 baseline   reached val_accuracy 0.97 in 37.25 s, the best so far" in lines
    line = "failed on rank 1; the study goes on (5 failures in a row end it)"
    failed = lines.index(f"    61.0 s  3            {line}")
    assert lines[failed - 7 : failed] == ON_RANK_1.splitlines()
    assert lines[-1].endswith("reached val_accuracy 0.97 in 16.00 s; best: trial 4 in 8.00 s")


def test_a_disturbed_trial_that_is_run_again_is_not_called_a_race(
    capsys: pytest.CaptureFixture[str],
) -> None:
    waited = Report(100, 17.0, {METRIC: 0.98}, Clock(train=17.0), waited=9.0)
    events = [
        *started(2, 0.0),
        Reported(2, waited, 17.0),
        ended(2, 17.0, "REACHED", "target", 17.0),
        *started(6, 18.0, "race", repeats=2),
    ]
    script = Script()
    with shown.shown(experiment(), OPTIONS, False) as display:
        assert display.watch is not None
        script.play(display.watch, events)
    lines = capsys.readouterr().err.splitlines()
    assert "    18.0 s  6 repeat of 2 started: again, as trial 2 was disturbed, seed 6" in lines
    picture = Picture("digits", experiment().target, 12, clock=script.clock)
    script.play(picture.note, started(7, 20.0, "race", repeats=2))
    text = "\n".join(drawn(picture, 140))
    assert "6 repeat of 2  " in text
    assert "again, as trial 2 was disturbed, seed 6" in text
    assert "7 race of 2 " in text, "the next one is that of a leader"


def test_a_trial_without_a_configuration_to_show_only_started(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with shown.shown(experiment(), OPTIONS, False) as display:
        assert display.watch is not None
        Script().play(
            display.watch, [Suggested(0, {}, {}, "trial", 0, 0.0), Started(0, 0.0, ON, 0.0)]
        )
    assert capsys.readouterr().err.splitlines()[-1] == "     0.0 s  0            started"


class ZMQInteractiveShell:
    """The name by which a notebook's kernel is known."""


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """What a notebook's output shows one after the other."""
    shows: list[dict[str, str]] = []

    class Handle:
        def update(self, bundle: dict[str, str], raw: bool) -> None:
            assert raw
            shows.append(bundle)

    def display(bundle: dict[str, str], raw: bool, display_id: bool) -> Handle:
        assert raw
        assert display_id
        assert not shows, "one output"
        shows.append(bundle)
        return Handle()

    module = types.ModuleType("IPython.display")
    module.display = display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", module)
    monkeypatch.setattr(builtins, "get_ipython", ZMQInteractiveShell, raising=False)
    return shows


def test_a_notebook_has_one_output_that_changes(
    notebook: list[dict[str, str]],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shown, "_CELL_SECONDS", 0.01)
    script = Script()
    with shown.shown(experiment(), OPTIONS, True, script.clock) as display:
        display.starts("starting Ray")
        assert display.watch is not None
        script.play(display.watch, first_half())
        before = len(notebook)
        while len(notebook) < before + 2:
            time.sleep(0.001)
        assert "failed on rank 1; the study goes on" in capsys.readouterr().err
    assert "4            running" in notebook[-2]["text/plain"]
    assert notebook[-2]["text/html"].startswith("<pre")
    assert ">reached " in notebook[-2]["text/html"]
    last = notebook[-1]["text/plain"].splitlines()
    assert last[0] == "digits: 4/12 trials · 2 reached, 1 censored, 1 failed · spent 02:28"
    assert last[1].startswith("best 17.00 s (trial 2)  lr=cosine 0.3 -> 0")
    assert len(last) == 2


# --- where it is shown ----------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"progress": False}, {"pool": SimPool(None)}], ids=str)  # type: ignore[arg-type]
def test_nothing_is_shown_but_the_error_has_the_traceback(
    options: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:

    def study() -> None:
        with shown.shown(experiment(), replace(OPTIONS, **options), False) as display:
            assert display.watch is not None
            Script().play(display.watch, first_half())
            raise StudyError("every trial failed")

    with pytest.raises(StudyError) as raised:
        study()
    assert raised.value.__notes__ == [ON_RANK_1]
    assert capsys.readouterr() == ("", "")


def test_what_can_be_drawn_on(monkeypatch: pytest.MonkeyPatch) -> None:
    master, slave = pty.openpty()
    with os.fdopen(master, "rb"), os.fdopen(slave, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        found = {}
        for name in ("xterm", "dumb"):
            monkeypatch.setenv("TERM", name)
            found[name] = shown.on_terminal()
        monkeypatch.setattr(sys, "stderr", StringIO())
        monkeypatch.setenv("TERM", "xterm")
        assert (found, shown.on_terminal()) == ({"xterm": True, "dumb": False}, False)
