"""What MLflow's process remembers of a long study: what it needs, and not what it has shown."""

from __future__ import annotations

import json
import math
from pathlib import Path

import planned
import pytest
from sims import METRIC, lines, racing, simulate

from autotune.backends.simulator import SimCurve, SimPoint
from autotune.cli import main
from autotune.evaluation.export import replay
from autotune.storage import journal
from autotune.storage.journal import JOURNAL, Closed, Opened
from autotune.tracking import backup
from autotune.tracking.projection import Projection
from autotune.tracking.run_content import MetricPoint, outcome, read_study_info
from autotune.trial import Report, Trial, fold
from search_spaces import digits
from trainers import image

MANY = {f"metric_{i}": float(i) for i in range(40)}


def curve(config: dict[str, float], seed: int) -> SimCurve:
    """Its best is neither the first report nor the last, and some reports lack the metric."""

    def metrics(t: int) -> dict[str, float]:
        value = config["rate"] * (t if t < 30 else 60 - t) / 10
        return MANY | ({METRIC: value if t != 7 else math.nan} if t % 2 else {})

    return SimCurve([SimPoint(10 * t, float(t), metrics(t)) for t in range(1, 60)])


@pytest.mark.parametrize("pruner", ["none", "slower_than_best"])
def test_shown_metrics_are_forgotten_and_every_outcome_stays(fast_path: Path, pruner: str) -> None:
    rates = [0.3, 5.0, 0.1, 0.2]
    simulate(racing(rates), fast_path, 6, curve, workers=2, pruner=pruner)
    projected_runs = Projection(read_study_info(fast_path))
    points = 0
    most = 0
    for line in (fast_path / JOURNAL).read_bytes().splitlines(keepends=True):
        points += sum(len(new) for new in projected_runs.take(line).values())
        most = max(most, sum(_kept(trial) for trial in projected_runs.trials.values()))
    whole = fold([e for e in journal.read(fast_path) if not isinstance(e, Opened | Closed)])
    reports: list[Report] = [r for t in whole.values() for r in t.reports]
    assert points >= len(reports) * len(MANY)
    for number, trial in whole.items():
        copy, target = projected_runs.trials[number], projected_runs.study.target
        known, now = outcome(trial, target), outcome(copy, target)
        assert known.keys() == now.keys()
        for key, value in known.items():
            assert now[key] == value or math.isnan(value)
        assert (copy.state, copy.reason, copy.seconds) == (trial.state, trial.reason, trial.seconds)
        assert len(copy.reports) <= 2
    assert most <= 2 * 59 + 2 * 6  # two trials that run, at one metric a report, and ends


def test_an_older_journal_with_values_that_are_refused_now_is_shown(fast_path: Path) -> None:
    """A milestone's step had no bound, and no database holds more than 63 bits."""
    simulate(racing([1.0]), fast_path, 1)
    rows = lines(fast_path)
    rows[0]["version"] = 2
    last = [row for row in rows if row["event"] == "reported"][-1]
    last["report"]["step"] = 2**70
    change = {"lr_factor": "nan", "batch_size": 64.0, "momentum": -1}
    rows.insert(-2, {"event": "changed", "trial": 0, "step": 2**70, "change": change})
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (fast_path / JOURNAL).write_text(text)
    projection = Projection(read_study_info(fast_path))
    taken = [projection.take(line) for line in text.encode().splitlines()]
    steps = [p.step for points in taken for own in points.values() for p in own]
    assert max(steps) == 2**63 - 1
    assert backup.trials_in(text.encode().splitlines(), fast_path)[0].ended
    for command in ("status", "best", "report"):
        assert main.main([command, str(fast_path)]) == main.DONE
    assert main.main(["export", str(fast_path), "--to", str(fast_path / "out")]) == main.DONE


def _kept(trial: Trial) -> int:
    return sum(len(report.metrics) for report in trial.reports)


def test_the_plan_of_each_trial_is_in_its_run_and_in_its_export(fast_path: Path) -> None:
    """As the trainer reads it: what of its configuration differs from the plan without a key."""
    study, out = fast_path / "study", fast_path / "out"
    points = [SimPoint(64 * t, float(t), {"val_accuracy": t / 10}) for t in range(10)]
    made = digits.plans()
    result = simulate(
        made, study, 6, lambda config, seed: SimCurve(points), workers=2, stages="off"
    )
    projected = Projection(read_study_info(study))
    for line in (study / JOURNAL).read_bytes().splitlines(keepends=True):
        projected.take(line)
    shown = [projected.content(t.number, True).tags["autotune.plan"] for t in result.trials]
    assert shown == [str(image.read_settings(t.config).training.plan) for t in result.trials]
    assert shown[0] == "default"
    number = next(i for i, plan in enumerate(shown) if plan != "default")
    asked = ["export", str(study), "--trial", str(number), "--to", str(out)]
    assert main.main(asked) == main.DONE
    assert json.loads((out / "trial.json").read_text())["plan"] == shown[number]
    assert f"Plan: {shown[number]}." in (out / "README.md").read_text()
    assert replay.read(out).trial.number == number


def test_probes_have_runs_of_their_own_and_no_result(fast_path: Path) -> None:
    result = planned.study(fast_path, 3)
    projected, points = Projection(read_study_info(fast_path)), list[MetricPoint]()
    for line in (fast_path / JOURNAL).read_bytes().splitlines(keepends=True):
        points += projected.take(line).get(3, [])
    assert result.trials[3].kind == "probe"
    content = projected.content(3, True)
    assert content.name == "probe-0003"
    assert content.tags["autotune.kind"] == "probe"
    assert content.tags["autotune.reason"] == "probed"
    assert content.params["precision"] == "fp32"
    keys = {point.key for point in points}
    assert {"seconds_per_sample", "clock/setup", "clock/train", "samples_per_second"} <= keys
    assert not keys & {"censored_at_seconds", "time_to_target_seconds", "speedup_vs_baseline"}


def test_a_trainer_without_plans_has_none_to_show(fast_path: Path) -> None:
    simulate(racing([1.0]), fast_path, 1)
    projected = Projection(read_study_info(fast_path))
    for line in (fast_path / JOURNAL).read_bytes().splitlines(keepends=True):
        projected.take(line)
    assert "autotune.plan" not in projected.content(0, True).tags
