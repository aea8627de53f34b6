"""Two real ranks with a limit on their memory: what one of them meets, all act on."""

from __future__ import annotations

from typing import Any

import pytest
from toys import METRIC, hungry

import autotune as at
from autotune.trial import Event, Interrupted, State

MIB = 8  # a sample; 200 MiB hold 16 of them and not 32


@pytest.fixture(scope="module")
def studied(tmp_path_factory: pytest.TempPathFactory) -> tuple[at.StudyResult, list[Event]]:
    """Rank 1 runs out of memory at step 300, then the same again, then one that never fits."""
    folder = tmp_path_factory.mktemp("memory")
    space = at.SearchSpace(
        {
            "batch_size": at.Int(2, 128, power_of_two=True),
            "mib": at.Choice([MIB, 400]),
            "from": at.Fixed(300),
            "limited": at.Fixed([1]),
            "log": at.Fixed(str(folder / "log")),
        }
    )
    given: list[dict[str, Any]] = [
        {"batch_size": 64, "mib": MIB},
        {"batch_size": 64, "mib": MIB},
        {"batch_size": 4, "mib": 400},
    ]
    made = at.Experiment(
        "memory",
        hungry,
        space,
        at.Target(METRIC, 0.8, limit=60),
        scaling=at.Scaling(num_workers=2),
        failure=at.FailurePolicy(hang_timeout=600, max_retries=0, checkpoint_interval=0),
        baseline=given[0],
        configs=given[1:],
    )
    events: list[Event] = []
    result = at.run(
        made,
        trials=3,
        out=folder / "study",
        backend="local",
        tracking_uri="off",
        sampler="random",
        pruner="none",
        watch=lambda event, trials: events.append(event),
    )
    return result, events


@pytest.mark.slow
def test_all_ranks_go_on_with_half_the_microbatch_from_the_checkpoint(studied: Any) -> None:
    result, _ = studied
    first = result.trials[0]
    assert (first.state, first.microbatch, first.attempts, first.retries) == (
        State.REACHED,
        16,
        2,
        0,
    ), first.error
    rows = [r.split(" ") for r in (result.folder.parent / "log").read_text().splitlines()]
    own = [(r[1], r[4], r[5]) for r in rows if r[0] == str(first.seed) and r[3] == "start"]
    assert sorted(own) == [
        ("0", "0", "None"),
        ("0", "100", "16"),
        ("1", "0", "None"),
        ("1", "100", "16"),
    ]


@pytest.mark.slow
def test_the_global_batch_stays(studied: Any) -> None:
    """Every sample of every step was added up, and none twice, before and after."""
    for trial in studied[0].trials[:2]:
        for report in trial.reports[1:]:
            if report.metrics:
                assert report.metrics["summed"] == 64 * report.step / 100


@pytest.mark.slow
def test_the_rank_that_waits_in_a_collective_does_not_hang(studied: Any) -> None:
    """Rank 0 waits for rank 1 in an all-reduce, of which nobody tells it that it never comes."""
    lost = next(e for e in studied[1] if isinstance(e, Interrupted))
    assert "out of memory" in lost.reason, "and not that it hung"
    assert not lost.broke


@pytest.mark.slow
def test_the_next_comparable_trial_begins_with_what_fits(studied: Any) -> None:
    second = studied[0].trials[1]
    assert (second.state, second.microbatch, second.attempts) == (State.REACHED, 16, 1)


@pytest.mark.slow
def test_where_one_sample_does_not_fit_the_trial_is_infeasible(studied: Any) -> None:
    third = studied[0].trials[2]
    assert (third.state, third.reason, third.microbatch) == (State.INFEASIBLE, "out of memory", 1)
    assert third.attempts == 2
    assert "can't allocate memory" in third.detail
    assert "rank 1:\nTraceback" in third.error
