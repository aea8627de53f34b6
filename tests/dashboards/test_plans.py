"""What the report and the commands show of a study in two stages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import planned
import pytest
from sims import memory, racing, simulate

import autotune as at
from autotune.algorithms.ranking.repeats import probes
from autotune.cli import main
from dashboards import plans, report


@pytest.fixture(scope="module")
def study() -> Iterator[at.StudyResult]:
    with memory() as folder:
        yield planned.study(folder, 12)


def test_a_row_for_each_plan(study: at.StudyResult) -> None:
    (section,) = plans.sections(study)
    assert section.text.startswith("Fused True, precision bf16 is kept")
    assert [row["plan"] for row in section.rows] == [
        "precision bf16",
        "fused True",
        "shard_degree 2",
        "precision fp16",
        "fused True, precision bf16",
    ]
    last = section.rows[-1]
    assert last["verdict"] == "kept"
    assert last["low"] < last["times"] < last["high"]
    assert last["seconds"] == pytest.approx(1000 * 0.2 / 2.6 / 64, rel=0.05)
    assert "peak" not in section.columns  # nobody reports it


def test_the_report_has_it(study: at.StudyResult) -> None:
    page = report.study_html(study.folder)
    assert f"and {len(probes(study.trials))} probes" in page
    assert "precision fp16" in page


def test_a_study_without_probes_has_no_such_section(fast_path: Path) -> None:
    assert plans.sections(simulate(racing([1.0]), fast_path, 1)) == []


def test_the_commands_show_it(study: at.StudyResult, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(study.folder)
    assert main.main(["status", folder]) == main.DONE
    shown = capsys.readouterr().out
    assert "12 reached of 12" in shown
    assert "  plan: fused True, precision bf16 is kept, 2." in shown
    assert "    precision fp16: 0.11x (" in shown
    pareto = "Pareto set of seconds per sample (bytes are not known): fused True, precision bf16"
    assert f"    {pareto}\n" in shown
    assert f"{pareto}." in plans.sections(study)[0].text
    assert main.main(["trials", folder]) == main.DONE
    rows = [line for line in capsys.readouterr().out.splitlines() if " probe " in line]
    assert len(rows) == len(probes(study.trials))
    assert "the default plan" in rows[0]
    assert "precision bf16" in rows[1]
    assert main.main(["trials", folder, "--json"]) == main.DONE
    first = json.loads(capsys.readouterr().out)[1]
    assert first["kind"] == "probe"
    assert first["censored_at_seconds"] is None
    assert first["time_to_target_seconds"] is None
