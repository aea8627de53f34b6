"""The tables of `run`, `confirm`, `trials` and `list`, as terminals of 80 and 140 columns get them.

`RENEW_SNAPSHOTS=1` writes `snapshots/` anew.
"""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import made_studies as made
import pytest
from rich.cells import cell_len
from sims import METRIC, learning, racing, simulate, wide
from snapshots import check
from terminals import printed

import autotune as at
from autotune.backends.simulator import SimCurve, SimPoint
from autotune.cli import final, main
from autotune.cli.columns import MIDDLE, Column, table
from autotune.study.manifest import Manifest
from autotune.study.result import StudyResult
from autotune.trial import State

SNAPSHOTS = Path(__file__).with_name("snapshots")
WIDTHS = (80, 140)
NOON = 1_560_600_000  # on 15 June 2019


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """No colours, and the width that the terminal itself says."""
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.delenv("COLUMNS", raising=False)


def manifest_of(result: StudyResult) -> Manifest:
    return Manifest(name="toy", study_id="1", target=result.target)


def ended(result: StudyResult, columns: int) -> str:
    return printed(columns, lambda out: final.print_result(result, manifest_of(result), out))


def checked(text: str, name: str, columns: int) -> None:
    """The text is as its file has it, and no line is wider than the terminal."""
    assert max(map(cell_len, text.splitlines())) <= columns
    check(text, SNAPSHOTS / f"{name}_{columns}.txt")


def fails(config: Mapping[str, Any], seed: int) -> SimCurve:
    """As `learning`; the sixth trial of the seed raises."""
    whole = learning(config, seed)
    if config["batch_size"] != 32:
        return whole
    return SimCurve(whole.points[:3], end="FileNotFoundError: /data/images/train/0001.jpg " * 3)


def metric_only(config: Mapping[str, Any], seed: int) -> SimCurve:
    points = [SimPoint(t, float(t), {METRIC: config["rate"] * (1 - 0.8**t)}) for t in range(13)]
    return SimCurve(points)


@pytest.fixture
def studies(fast_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of studies of every kind, one of them damaged."""
    monkeypatch.chdir(fast_path)
    folder = Path("studies")
    failed = simulate(wide(), folder / "digits", 14, fails, seed=2)
    assert {t.state for t in failed.trials} >= {State.REACHED, State.CENSORED, State.FAILED}
    simulate(racing([1.0, 2.0, 0.01]), folder / "racing", 4, seed=1, repeats=2, top=1)
    simulate(racing([0.01, 0.02]), folder / "a-study-whose-name-is-long-and-whose-end-counts-2", 2)
    metric = racing([0.3, 0.5], target=at.Target(METRIC, limit=10))
    simulate(metric, folder / "metric", 3, metric_only, pruner="bottom_at_same_time", seed=1)
    damaged = folder / "damaged"
    damaged.mkdir()
    (damaged / "experiment.json").write_text("{")
    for journal in folder.glob("*/journal.jsonl"):
        os.utime(journal, (NOON, NOON))
    return folder


# --- snapshots ------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", WIDTHS)
def test_the_final_table(columns: int) -> None:
    """Ten of 36, the best last; then what is confirmed, then the conclusion."""
    many = made.many(36)
    checked(ended(many, columns), "final_many", columns)
    checked(ended(made.confirmed(), columns), "final_confirmed", columns)
    confirmed = made.confirmed()
    text = printed(
        columns, lambda out: final.print_confirmed(confirmed, manifest_of(confirmed), out)
    )
    checked(text, "final_of_confirm", columns)
    missed = replace(many, trials=tuple(t for t in many.trials if t.state is State.CENSORED))
    checked(ended(missed, columns), "final_unreached", columns)


@pytest.mark.parametrize("columns", WIDTHS)
def test_the_commands_on_folders(studies: Path, columns: int) -> None:
    for words in (
        ["list"],
        ["trials", "studies/digits"],
        ["trials", "studies/metric"],
        ["status", "studies/digits"],
        ["status", "studies/racing"],
    ):
        text = printed(columns, lambda _, words=words: main.main(words))
        if words[0] == "status":  # it has no table: the terminal breaks its lines
            check(text, SNAPSHOTS / f"{'_'.join(words).replace('studies/', '')}_{columns}.txt")
        else:
            checked(text, "_".join(words).replace("studies/", ""), columns)


def test_a_process_finds_the_terminals_width(studies: Path) -> None:
    """And colours what it prints there, and only there."""
    command = [sys.executable, "-m", "autotune", "trials", "studies/digits"]
    environment = {**os.environ, "TERM": "xterm"}
    environment.pop("NO_COLOR", None)

    def run(out: io.TextIOBase) -> None:
        subprocess.run(command, stdout=out.fileno(), env=environment, check=True, timeout=600)

    text = printed(80, run)
    assert "\x1b[32m" in text
    plain = "".join(part.partition("m")[2] if i else part
                    for i, part in enumerate(text.split("\x1b[")))  # fmt: skip
    check(plain, SNAPSHOTS / "trials_digits_80.txt")
    piped = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
    assert "\x1b" not in piped.stdout
    assert max(map(len, piped.stdout.splitlines())) > 80


# --- what is cut, and what is not -----------------------------------------------------------------


@pytest.mark.parametrize("columns", [60, 79, 100, 160, 300])
def test_only_the_configuration_and_long_reasons_are_cut(columns: int) -> None:
    long = {f"a_long_name_{i}": 0.1234 for i in range(20)}
    reason = "FileNotFoundError: " + "日本語" * 40
    trials = (
        made.trial(0, 20.0, kind="baseline", point=long),
        made.trial(1234, 5.0, point=long),
        replace(made.failed(7), reason=reason),
        made.trial(8, 3.0, State.CENSORED, reason="slower_than_best", point=long),
        replace(made.trial(9, 0.0, State.RUNNING, reason="", point={"n": "\x1b[2J"}), reports=()),
    )
    text = ended(made.study(*trials), columns)
    lines = text[: text.index("\n\n")].splitlines()[2:]
    assert all(cell_len(line) <= columns for line in lines)
    assert len(lines) <= 2 * len(trials)
    for number, said in ((0, "20.00 s"), (1234, "5.00 s"), (8, "> 3.00 s"), (7, "-"), (9, "> 0")):
        (row,) = (line for line in lines if line.split()[1:2] == [str(number)])
        assert said in row
    for words in ("failed: F", "running", "slower_th", "\\x1b[2J", "3.0 s", "22.0 s", "0.92"):
        assert words in text
    assert "\x1b" not in text


def test_rows_are_one_line_or_two() -> None:
    columns = (Column("name", cut=MIDDLE), Column("n", right=True), Column("why"))
    row, why = "a-long-name-2", "because of this and of that"
    assert table(columns, [(row, "1", why)], 80) == [
        ("name           n  why",),
        (f"a-long-name-2  1  {why}",),
    ]
    assert table(columns, [(row, "1", why)], 30) == [
        ("name           n",),
        ("a-long-name-2  1", "      because of this and of…"),
    ]
    assert table(columns, [(row, "1", f"{why} and those")], 60) == [
        ("name           n  why",),
        ("a-long-name-2  1  because of this and of that and those",),
    ]
    assert table(columns, [(row, "1", why)], 40, lines=1) == [
        ("name        n  why",),
        ("a-lo…ame-2  1  because of this and of t…",),
    ]


@pytest.mark.parametrize("columns", [1, 20])
def test_no_terminal_is_too_narrow(columns: int) -> None:
    bare = made.study(made.trial(0, 20.0, point={}), replace(made.trial(1, 5.0), config={}))
    for result in (bare, made.confirmed()):
        assert "20.00 s" in ended(result, columns)


def test_ten_are_shown_and_the_rest_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    for count, more in ((10, None), (11, "1 more: autotune trials nowhere/toy")):
        result = made.many(count)
        final.print_result(result, manifest_of(result), sys.stdout)
        lines = capsys.readouterr().out.splitlines()[1:]
        if more is not None:
            assert lines.pop(0) == more
        assert lines.pop(0).startswith("rank  trial")
        shown = [line.split() for line in lines[: lines.index("")]]
        assert [row[1] for row in shown] == [str(t.number) for t in result.ranked()[:10][::-1]]


def test_confirm_prints_the_confirmed_only(
    fast_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where nothing is left to confirm; `resume` prints all."""
    monkeypatch.chdir(fast_path)
    simulate(racing([1.0, 2.0, 0.01]), Path("s"), 6, seed=1, repeats=2, top=1)
    for command, ranked in (["confirm", False], ["resume", True]):
        words = ["--repeats", "2", "--top", "1"] if command == "confirm" else []
        assert main.main([str(command), "s", *words]) == main.DONE
        out = capsys.readouterr().out
        assert ("rank  trial" in out) == ranked
        assert "run again on fresh seeds, each alone" in out
        assert "Best: trial " in out


# --- lists, CSV, JSON -----------------------------------------------------------------------------


def test_all_columns_as_csv_and_as_a_frame(
    studies: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["trials", "studies/digits", "--csv"]) == main.DONE
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    manifest = Manifest.read(studies / "digits")
    frame = at.study.result.read(studies / "digits", manifest.target).to_frame()
    assert list(rows[0]) == list(frame.columns)
    assert [int(row["trial"]) for row in rows] == list(range(14))
    best = min((row for row in rows if row["rank"]), key=lambda row: int(row["rank"]))
    assert (best["state"], best["kind"], best["rank"]) == ("REACHED", "trial", "1")
    assert float(best["result"]) == float(best["seconds"]) == min(frame.result.dropna())
    assert float(best["params.lr.peak"]) == frame["params.lr.peak"][int(best["trial"])]
    assert best["config.lr"].startswith("0-")
    failed = next(row for row in rows if row["state"] == "FAILED")
    assert (failed["rank"], failed["result"]) == ("", "")
    assert {"seed", "spent_seconds", f"best_{METRIC}", "reason", "disturbed"} <= rows[0].keys()
    assert main.main(["trials", "studies/digits", "--json"]) == main.DONE
    documents = json.loads(capsys.readouterr().out)
    assert [d["trial"] for d in documents] == list(range(14))
    assert documents[0]["params"]["lr.peak"] == 0.01
    assert main.main(["trials", "studies/digits", "--json", "--csv"]) == main.USER
    assert "--csv and --json exclude each other" in capsys.readouterr().err


def test_csv_has_no_formulas_and_keeps_lines_together(
    fast_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = ["=HYPERLINK(1)", "@sum", "+1x", "-O3", "-1", 'two\nlines, "quoted"', "café"]
    space = at.SearchSpace({"rate": at.Float(0.01, 100, log=True), "flag": at.Choice(texts)})
    given = [{"rate": 1.0, "flag": text} for text in texts]
    simulate(
        at.Experiment("f", lambda config: 1.0, space, at.Target(METRIC, 1.0, limit=50),
                      configs=given), fast_path, len(texts),
    )  # fmt: skip
    assert main.main(["trials", str(fast_path), "--csv"]) == main.DONE
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["params.flag"] for row in rows] == [
        *("'=HYPERLINK(1)", "'@sum", "'+1x", "'-O3", "-1", 'two\nlines, "quoted"', "café")
    ]


def test_a_list_is_one_line_a_study(studies: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["list"]) == main.DONE, "of the folder studies, if none is named"
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == ["study", "state", "trials", "when", "backend", "best"]
    names = sorted(place.name for place in studies.iterdir())
    assert [line.split()[0] for line in lines] == names
    assert lines[names.index("damaged")].endswith("line 1 column 2 (char 1)"), "whole in a pipe"
    assert "nearest: trial 1 came to 0.1" in lines[0]
    assert main.main(["list", "studies", "--json"]) == main.DONE
    documents = json.loads(capsys.readouterr().out)
    assert [Path(d["folder"]).name for d in documents] == names
    assert "cannot be read" in documents[names.index("damaged")]["fault"]
    assert main.main(["list", "studies/racing"]) == main.DONE
    assert len(capsys.readouterr().out.splitlines()) == 2
    shutil.rmtree("studies")
    assert main.main(["list"]) == main.USER
    assert (
        capsys.readouterr().err == "autotune: studies cannot be read: No such file or directory\n"
    )
