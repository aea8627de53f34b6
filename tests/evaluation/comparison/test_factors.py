"""A speedup is so much by fewer samples, and so much by faster ones."""

from __future__ import annotations

import doctest
from dataclasses import replace

import made_studies as made
import pytest

from autotune.evaluation.comparison import factors
from autotune.evaluation.comparison.factors import Factors, of_row, of_trials
from autotune.evaluation.comparison.model import Candidate, Row, Run
from autotune.evaluation.comparison.table import compare
from autotune.trial import Report, State, Target, Trial


def run(number: int, samples: int, seconds: float, **more: object) -> Trial:
    reports = (Report(samples, seconds, {made.TARGET.metric: 1.0}),)
    return replace(made.trial(number, seconds), reports=reports, **more)


def test_examples() -> None:
    failed, tried = doctest.testmod(factors)
    assert tried
    assert not failed


@pytest.mark.parametrize(
    ("few", "fast", "says"),
    [
        (3.0, 1.5, "3.00 times by fewer samples, 1.50 times by faster ones"),
        (1.001, 2.0, "as many samples, 2.00 times by faster ones"),
        (2.0, 0.5, "2.00 times by fewer samples, 0.50 times by slower ones"),
        (0.25, 0.999, "0.25 times by more samples, as many a second"),
    ],
)
def test_it_is_said_in_words(few: float, fast: float, says: str) -> None:
    assert str(Factors(few, fast)) == says


def test_single_runs_are_compared_by_their_samples_and_seconds() -> None:
    baseline, trial = run(0, 2000, 20.0), run(1, 500, 2.5)
    found = of_trials(trial, baseline, made.TARGET)
    assert found is not None
    assert (found.fewer, found.faster) == (4.0, 2.0)
    assert found.fewer * found.faster == baseline.seconds / trial.seconds


def test_what_cannot_be_compared_has_no_factors() -> None:
    baseline, trial = run(0, 2000, 20.0), run(1, 500, 2.5)
    stopped = replace(trial, state=State.CENSORED)
    elsewhere = replace(trial, hardware=replace(trial.hardware, device="another"))
    in_steps = Target("val_accuracy", 0.9, clock="steps", limit_steps=50)
    metric = Target("val_accuracy", limit=50.0)
    assert of_trials(stopped, baseline, made.TARGET) is None
    assert of_trials(elsewhere, baseline, made.TARGET) is None
    assert of_trials(baseline, baseline, made.TARGET) is None
    assert of_trials(trial, baseline, in_steps) is None
    assert of_trials(trial, baseline, metric) is None


def test_a_row_of_a_comparison_has_both_or_neither() -> None:
    def candidate(name: str, seconds: float, rate: float | None) -> Candidate:
        runs = tuple(Run(f"{name}{i}", seconds, True, samples_per_second=rate) for i in range(3))
        return Candidate(name, name, "confirmed", runs)

    table = compare([candidate("slow", 10.0, 100.0), candidate("fast", 2.0, 200.0)], "slow")
    found = of_row(table.row("fast"))
    assert found is not None
    assert (found.fewer, found.faster) == (pytest.approx(2.5), pytest.approx(2.0))
    assert of_row(table.row("slow")) is None
    unknown = compare([candidate("slow", 10.0, None), candidate("fast", 2.0, 200.0)], "slow")
    rows: tuple[Row, ...] = unknown.rows
    assert [of_row(row) for row in rows] == [None, None]
