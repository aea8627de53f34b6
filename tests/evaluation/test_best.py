"""One definition of the best trial: everything that shows one names the same trial."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
from sims import METRIC, memory, racing

import autotune as at
from autotune.algorithms.ranking.best import by_expected_result, confirmed_speedup
from autotune.algorithms.ranking.finalists import finalists
from autotune.backends.simulator import SimCurve, SimPoint, SimPool
from autotune.cli import final, main
from autotune.evaluation import summary
from autotune.evaluation.comparison import ratios
from autotune.evaluation.comparison.sources import confirmed
from autotune.evaluation.export.export import choose
from autotune.storage import journal
from autotune.storage.journal import JOURNAL
from autotune.study import result
from autotune.study.manifest import Manifest
from autotune.tracking.projection import Projection
from autotune.tracking.run_content import read_study_info
from autotune.trial import Hardware, State, incumbent
from dashboards import tables
from dashboards.report import study_page

SLOW, FAST = Hardware("slow"), Hardware("fast")
SEEDS = (4, 11, 13, 18, 24, 52)  # in which other definitions name other trials


def noisy(config: Mapping[str, Any], seed: int) -> SimCurve:
    """Rate r takes 10 / r seconds times a factor of the seed; one run in six never gets there."""
    random = Random(f"noise {seed}")
    pace, misses = math.exp(0.6 * random.gauss(0, 1)), random.random() < 1 / 6
    most = 0.9 if misses else math.inf
    return SimCurve(
        [
            SimPoint(10 * t, t * pace / 10, {METRIC: min(config["rate"] * t / 100, most)})
            for t in range(1001)
        ]
    )


class Unequal(SimPool):
    """Every seventh trial runs on other hardware, in a tenth of the time."""

    def start(self, launch: Any) -> Hardware:
        super().start(launch)
        return FAST if launch.trial % 7 == 3 else SLOW


def study(folder: Path, seed: int) -> at.StudyResult:
    """A search with races, and confirmations of three finalists and the baseline."""
    rates = [1.0, 1.2, 1.4, 1.6]
    return at.run(
        racing(rates, limit=30), trials=14, out=folder, pool=Unequal(noisy, 1), seed=seed,
        sampler="random", pruner="none", racing=0.4, repeats=3, tracking_uri="off",
    )  # fmt: skip


def printed(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    assert main.main(arguments) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def first_in_table(found: at.StudyResult, folder: Path) -> int:
    out = io.StringIO()
    final.print_result(found, Manifest.read(folder), out)
    row = next(line.split() for line in out.getvalue().splitlines() if line.split()[:1] == ["1"])
    return int(row[1])


def projected(folder: Path) -> int:
    projection = Projection(read_study_info(folder))
    for line in (folder / JOURNAL).read_bytes().splitlines(keepends=True):
        projection.take(line)
    number: int = json.loads(projection.best_json())["trial"]
    return number


@pytest.mark.parametrize(
    "seed", [*SEEDS[:2], *(pytest.param(seed, marks=pytest.mark.slow) for seed in SEEDS[2:])]
)
def test_everything_names_the_same_best_trial(
    seed: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with memory() as place:
        folder = place / "study"
        done = study(folder, seed)
        compared = printed(
            ["compare", str(folder), "--json", "--allow", "hardware", "--allow", "sharing"], capsys
        )
        found = result.read(folder, done.target)
        rows = tables.leaderboard(found, confirmed(found, Manifest.read(folder)))
        names = {
            "StudyResult": done.best and done.best.number,
            "a result that was read": found.best and found.best.number,
            "ranked": found.ranked()[0].number,
            "best": printed(["best", str(folder), "--json"], capsys)["trial"],
            "status": printed(["status", str(folder), "--json"], capsys)["best"]["trial"],
            "compare": compared["rows"][0]["trial"],
            "the final table": first_in_table(found, folder),
            "the leaderboard": rows[0]["trial"],
            "MLflow": projected(folder),
            "export": choose(found, None).number,  # type: ignore[union-attr]
        }
        cards = " ".join(remark for _, _, remark in study_page(found, None).cards)
    assert len(set(names.values())) == 1, names
    assert f"trial {names['best']}" in cards or found.best is found.baseline
    order = [c.number for c in found.confirmed if c.tuned is not None]
    assert [r["trial"] for r in compared["rows"] if r["trial"] in order] == order


@cache
def definitions(seed: int) -> dict[str, int | None]:
    """Who is best by each of several plausible rules, in the study of this seed."""
    with memory() as place:
        found = study(place / "study", seed)
    medians = {
        c.number: c.median_seconds if c.median_seconds is not None else math.inf
        for c in found.confirmed
    }
    fastest = incumbent(found.searched)
    assert fastest is not None
    return {
        "the best": found.best.number if found.best is not None else None,
        "the fastest run on any hardware": fastest.number,
        "the least expected time": by_expected_result(found.trials, found.target)[0].number,
        "the least confirmed median": min(medians, key=lambda n: medians[n]),
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "rule",
    [
        "the fastest run on any hardware",
        "the least expected time",
        "the least confirmed median",
    ],
)
def test_the_studies_distinguish_other_definitions(rule: str) -> None:
    """Otherwise agreement in these studies would show nothing."""
    assert any(definitions(seed)[rule] != definitions(seed)["the best"] for seed in SEEDS)


def test_the_studies_have_races_misses_and_unequal_hardware() -> None:
    with memory() as place:
        found = study(place / "study", 13)
    assert {t.kind for t in found.trials} == {"baseline", "trial", "race", "confirm"}
    assert {t.hardware for t in found.trials} == {SLOW, FAST}
    again = [t for t in found.trials if t.repeats is not None]
    assert {t.state for t in again} == {State.REACHED, State.CENSORED}
    assert len(finalists(found.trials, found.target, 3)) == 4


def test_a_speedup_is_bootstrapped_once_and_for_the_pair_that_is_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[Any] = []
    interval = ratios.interval

    def counted(*arguments: Any) -> Any:
        calls.append(arguments)
        return interval(*arguments)

    monkeypatch.setattr(ratios, "interval", counted)
    with memory() as place:
        found = study(place / "study", 4)
        final.print_result(found, Manifest.read(place / "study"), io.StringIO())
        assert len(calls) == 1
        document = summary.summary(found, "x")
        assert len(calls) == 2
    once = confirmed_speedup(found.trials, found.target)
    assert once is not None
    assert document["confirmed_speedup_vs_baseline"] == once.ratio == found.confirmed_speedup
    assert document["confirmed_speedup_bound"] == once.bound


@pytest.mark.parametrize(
    "command",
    [
        ["status", "{}", "--json"],
        pytest.param(["trials", "{}"], marks=pytest.mark.slow),
        pytest.param(["list", "{}"], marks=pytest.mark.slow),
        pytest.param(["best", "{}", "--json"], marks=pytest.mark.slow),
        pytest.param(
            ["compare", "{}", "{}#1", "--allow", "hardware,sharing", "--json"],
            marks=pytest.mark.slow,
        ),
        ["compare", "{}", "--baseline", "trial:1", "--allow", "hardware,sharing", "--json"],
        ["report", "{}"],
        pytest.param(["export", "{}", "--to", "{}/exported"], marks=pytest.mark.slow),
    ],
    ids=lambda words: " ".join(words[:3]),
)
def test_a_command_reads_the_journal_once(
    command: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[Path] = []
    entries = journal.entries

    def counted(folder: Path) -> Any:
        reads.append(folder)
        return entries(folder)

    with memory() as place:
        folder = place / "study"
        study(folder, 4)
        monkeypatch.setattr(journal, "entries", counted)
        assert main.main([word.replace("{}", str(folder)) for word in command]) == 0
        assert reads == [folder]
