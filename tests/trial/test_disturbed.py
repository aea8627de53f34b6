"""Trials that other processes slowed down: their share, the mark, and the time that is left."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.storage.journal import from_line, to_line
from autotune.trial import Clock, Hardware, Report, Reported, Trial, undisturbed


def trial(waited: float | None, trained: float = 10.0, **more: object) -> Trial:
    """A trial that has trained for so long, a tenth of it each time, and waited evenly."""
    reports = [
        Report(i, 0.1 * i * trained + 1.0, {"acc": 0.1 * i}, Clock(train=0.1 * i * trained),
               None if waited is None else 0.1 * i * waited)
        for i in range(11)
    ]  # fmt: skip
    return Trial(0, {}, reports=tuple(reports), seconds=trained + 1.0, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("waited", "trained", "share", "disturbed"),
    [
        (None, 10.0, None, False),
        (0.0, 10.0, 1.0, False),
        (1.9, 10.0, 0.81, False),
        (2.1, 10.0, 0.79, True),
        (9.0, 10.0, 0.1, True),
        (0.4, 1.0, 0.6, False),  # too short a wait to be measured well
        (0.6, 1.0, 0.4, True),
        (11.0, 10.0, 0.0, True),  # measured by another clock
    ],
)
def test_a_trial_is_disturbed_below_four_fifths_of_its_training(
    waited: float | None, trained: float, share: float | None, disturbed: bool
) -> None:
    seen = trial(waited, trained)
    assert seen.cpu_share == pytest.approx(share)
    assert seen.disturbed is disturbed


def test_without_training_there_is_no_share() -> None:
    assert Trial(0, {}).cpu_share is None
    assert trial(0.0, 0.0).cpu_share is None


@pytest.mark.parametrize(
    ("hardware", "disturbed"),
    [
        (Hardware(cpus_per_worker=0.5), False),
        (Hardware(gpus_per_worker=0.25), False),
        (Hardware(gpus_per_worker=2), True),
        (Hardware(shared=True), True),  # another study has the cores
    ],
)
def test_trials_that_share_a_core_as_the_recipe_says_are_not_disturbed(
    hardware: Hardware, disturbed: bool
) -> None:
    assert trial(5.0, hardware=hardware).disturbed is disturbed


def test_without_what_it_waited_a_trial_is_as_if_it_had_been_alone() -> None:
    slow = trial(5.0)
    alone = undisturbed(slow)
    assert alone.seconds == pytest.approx(6.0)
    assert [r.seconds for r in alone.reports] == pytest.approx([1 + 0.5 * i for i in range(11)])
    assert [r.metrics for r in alone.reports] == [r.metrics for r in slow.reports]
    assert (alone.clock, alone.state) == (slow.clock, slow.state)
    assert undisturbed(alone) is alone, "it has been taken off once"
    quiet = trial(0.5)
    assert undisturbed(quiet) is quiet


def test_the_journal_has_the_wait_only_where_it_was_measured() -> None:
    report = Report(3, 2.0, {"acc": 0.5}, Clock(train=2.0))
    line = to_line(Reported(0, report))
    assert "waited" not in line
    assert "slowed_by" not in line
    assert from_line(line) == Reported(0, report)
    measured = replace(report, waited=0.25, slowed_by="its GPU: too hot")
    line = to_line(Reported(0, measured))
    assert '"waited":0.25,"slowed_by":"its GPU: too hot"' in line
    assert from_line(line) == Reported(0, measured)
