"""Texts of trainers that are no texts, or far too long: all that shows the journal takes them."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from sims import lines, race, racing, simulate, toy_train

import autotune as at
from autotune.backends.simulator import SimCurve
from autotune.cli import final, main
from autotune.cli.console import study_in
from autotune.storage import journal
from autotune.storage.journal import JOURNAL
from autotune.trial import Config, Ended, State
from dashboards.report import write_study

NASTY = "FileNotFoundError: \x1b[31mcaf\udce9.jpg\x1b[0m\x00 \x1b]0;title\x07 [/red] [bold]"
PLAIN = "FileNotFoundError: caf\\udce9.jpg\\x00 \\x1b]0;title\\x07 [/red] [bold]"
LONG = f"first line\n{'x' * 5_000_000}\nlast line"


def fails(end: str) -> Callable[[Config, int], SimCurve]:
    """The curves of trials of which the one with rate 2 raises."""

    def curve(config: Config, seed: int) -> SimCurve:
        whole = race(config, seed)
        return whole if config["rate"] != 2.0 else SimCurve(whole.points[:3], end=end)

    return curve


def printed(folder: Path) -> str:
    """The final table as a UTF-8 terminal gets it."""
    out = io.TextIOWrapper(io.BytesIO(), "utf-8")
    manifest, result = study_in(folder)
    final.print_result(result, manifest, out)
    out.flush()
    return out.buffer.getvalue().decode()


@pytest.mark.parametrize("older", [False, True], ids=["now", "older"])
def test_an_exceptions_text_that_is_none_stops_nothing(
    fast_path: Path, older: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where an older journal has it as it came."""
    simulate(racing([1.0, 2.0, 3.0]), fast_path, 3, fails(NASTY))
    rows = lines(fast_path)
    (ended,) = [row for row in rows if row["event"] == "ended" and row["state"] == "FAILED"]
    assert (ended["reason"], ended["error"]) == (PLAIN, PLAIN)
    if older:
        ended["reason"] = ended["error"] = NASTY
        (fast_path / JOURNAL).write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert PLAIN in "".join(line.strip() for line in printed(fast_path).splitlines())
    write_study(fast_path, fast_path / "report.html")
    assert "caf\\udce9.jpg" in (fast_path / "report.html").read_text("utf-8")
    for command in ("status", "best"):
        assert main.main([command, str(fast_path)]) == main.DONE
    assert "\x1b" not in "".join(capsys.readouterr())


def test_what_is_not_utf_8_in_a_configuration_is_shown(
    fast_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The trainer gets it as it is."""
    files = ["caf\udce9.jpg", "\x1b[2J[/x].jpg"]
    space = at.SearchSpace({"rate": at.Float(0.01, 100, log=True), "file": at.Choice(files)})
    given = [{"rate": 1.0, "file": file} for file in files]
    target = at.Target("val_accuracy", 1.0, limit=50)
    made = at.Experiment("f", toy_train, space, target, baseline=given[0], configs=given[1:])
    result = simulate(made, fast_path, 2)
    assert [t.config["file"] for t in result.trials] == files
    shown = printed(fast_path)
    assert "file=caf\\udce9.jpg" in shown
    assert "file=\\x1b[2J[/x].jpg" in shown
    write_study(fast_path, fast_path / "report.html")
    assert main.main(["best", str(fast_path)]) == main.DONE
    assert "\x1b" not in capsys.readouterr().out


def test_a_long_error_is_whole_in_a_file_and_short_in_the_journal(fast_path: Path) -> None:
    simulate(racing([1.0, 2.0, 3.0]), fast_path, 3, fails(LONG))
    assert (fast_path / JOURNAL).stat().st_size < 200_000
    (error,) = [e.error for e in journal.read(fast_path) if isinstance(e, Ended) and e.error]
    assert len(error) == 40_000
    assert error.startswith("first line\nxxx")
    assert error.endswith("xxx\nlast line")
    assert "characters left out; all of it is in errors/trial-0001-attempt-1.txt ...]" in error
    assert (fast_path / "errors" / "trial-0001-attempt-1.txt").read_text() == LONG


def test_a_long_error_whose_file_cannot_be_written_costs_nothing_else(fast_path: Path) -> None:
    folder = fast_path / "study"
    folder.mkdir()
    (folder / "errors").write_text("no folder")
    result = simulate(racing([1.0, 2.0, 3.0]), folder, 3, fails(LONG))
    states = [t.state for t in result.trials]
    assert states == [State.REACHED, State.FAILED, State.REACHED]
    assert "errors/trial-0001-attempt-1.txt cannot be written: " in result.trials[1].error


def test_mlflow_shows_texts_of_older_journals(fast_path: Path, empty_store: Path) -> None:
    from autotune.tracking.cursor import Cursor
    from autotune.tracking.mirror import CURSOR, default_uri
    from autotune.tracking.mlflow_store import MlflowStore
    from autotune.tracking.sync import Copier

    simulate(racing([1.0, 2.0, 3.0]), fast_path, 3, fails("ValueError"))
    text = (fast_path / JOURNAL).read_text()
    nasty = json.dumps(NASTY)[1:-1]
    (fast_path / JOURNAL).write_text(text.replace("ValueError", nasty))
    shutil.copy(empty_store, fast_path / "mlflow.db")
    uri, said = default_uri(fast_path), list[str]()
    copier = Copier(
        fast_path,
        lambda facts: MlflowStore(uri, facts, fast_path / "artifacts", said.append),
        Cursor(fast_path / CURSOR, "default"),
        said.append,
    )
    copier.catch_up(over=True)
    assert said == []
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    found = client.search_runs([client.get_experiment_by_name("racing").experiment_id])
    shown = {run.info.run_name: run.data.tags["autotune.reason"] for run in found}
    assert shown["trial-0001"] == PLAIN
    assert len(shown) == 4
