"""Running out of memory: what is tried next, what is remembered, and that a resume replays it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sims import METRIC, lines, simulate

import autotune as at
from autotune.backends.simulator import OUT_OF_MEMORY, SimCurve, SimPoint
from autotune.storage import journal
from autotune.storage.journal import JOURNAL
from autotune.study.driver.microbatch import fitting, halved, memory_keys
from autotune.trial import Change, Hardware, Interrupted, Started, State, Trial

GPU = Hardware("gpu", 2)


def trial(number: int = 0, *, microbatch: int | None = None, **config: Any) -> Trial:
    return Trial(number, {"batch_size": 64, **config}, hardware=GPU, microbatch=microbatch)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (trial(), 16),
        (trial(microbatch=16), 8),
        (trial(microbatch=2), 1),
        (trial(microbatch=1), None),
        (trial(batch_size=10), 3),  # 5 a rank in two passes
        (trial(batch_size=1), None),
        (trial(batch_size=at.Linear(64, 256)), 64),
        (replace(trial(), changes=((0, Change(batch_size=128)),)), 32),
        (replace(trial(), config={"batch_size": 64, "microbatch": 20}), 10),
        (Trial(0, {"microbatch": 20}, hardware=GPU), None),  # nobody knows of how many
        (Trial(0, {"batch_size": "large"}, hardware=GPU), None),
    ],
)
def test_a_forward_pass_is_halved_from_what_a_rank_really_had(
    found: Trial, expected: int | None
) -> None:
    assert halved(found) == expected


def test_a_given_microbatch_above_the_batch_is_not_halved_in_vain() -> None:
    given = Trial(0, {"batch_size": 64, "microbatch": 500}, hardware=GPU)
    assert halved(given) == 16


@pytest.mark.parametrize(
    ("keys", "ranks", "sizes"),
    [
        ({}, 2, [16, 8, 4, 2, 1]),
        ({"gradient_accumulation_steps": 4}, 2, [4, 2, 1]),
        ({"context_parallel_degree": 2}, 2, [32, 16, 8, 4, 2, 1]),
        ({"pipeline_parallel_degree": 2}, 2, [8, 4, 2, 1]),  # four passes without being asked
    ],
)
def test_every_halving_leaves_fewer_samples_in_a_pass(
    keys: dict[str, Any], ranks: int, sizes: list[int]
) -> None:
    """Of what the plan puts into it, which is not always the batch divided by the ranks."""
    from trainers import language

    config = {"text": "synthetic", "lr": 0.1, "batch_size": 64, **keys}
    tried: list[int] = []
    found = Trial(0, config, hardware=Hardware("gpu", ranks))
    while (smaller := halved(found, partial(language.train))) is not None:
        tried.append(smaller)
        found = replace(found, microbatch=smaller)
        assert language.pass_size({**config, "microbatch": smaller}, ranks) <= smaller
    assert tried == sizes


def test_what_fitted_is_used_for_comparable_trials_on_comparable_hardware() -> None:
    known = [
        trial(0, microbatch=8, model="large", lr=0.1),
        trial(1, microbatch=4, model="large", lr=0.2),
        trial(2, model="small"),
        trial(3, microbatch=1, model="small", image_size=at.Linear(8, 64)),
    ]
    keys = ("model", "image_size")

    def found(hardware: Hardware = GPU, **config: Any) -> int | None:
        return fitting(trial(9, **config), known, keys, hardware)

    assert found(model="large", lr=0.5) == 4
    assert found(model="small") is None
    assert found(model="large", batch_size=128) is None
    assert found(Hardware("gpu", 4), model="large") is None
    assert found(Hardware("other", 2), model="large") is None
    assert found(model="small", image_size=at.Cosine(64, 1)) == 1, "the greatest value counts"
    assert found(model="small", image_size=32) is None


def test_trainers_name_their_keys_also_through_a_partial() -> None:
    from trainers import image, language

    def plain(config: dict[str, Any]) -> None: ...

    assert memory_keys(plain) == ()
    assert memory_keys(partial(image.train)) == image.train.memory_keys  # type: ignore[attr-defined]
    assert "sequence_length" in memory_keys(language.train)


def test_the_trainers_keys_are_keys_of_theirs() -> None:
    from trainers import image, language, settings, training

    common = {*training.TRAINING, *training.OPTIONS}
    assert {*memory_keys(image.train)} <= {*settings.KEYS, *common}
    assert {*memory_keys(language.train)} <= {*language.KEYS, *common}


# --- whole studies, on a virtual clock ----------------------------------------------------------


def hungry_train(config: dict[str, Any]) -> Any:
    """Stands for a trainer that adds up gradients."""


hungry_train.memory_keys = ("size",)  # type: ignore[attr-defined]
FITS = 32


def hungry(config: Mapping[str, Any], seed: int) -> SimCurve:
    """Runs out of memory after three seconds where a forward pass is of more than 32 / size."""
    passed = min(config.get("microbatch") or config["batch_size"], config["batch_size"])
    fits = passed * config["size"] <= FITS
    points = [SimPoint(10 * t, float(t), {METRIC: t / 10}) for t in range(101 if fits else 4)]
    return SimCurve(points, "finished" if fits else OUT_OF_MEMORY)


def hungry_experiment(train: Any = hungry_train, **options: Any) -> at.Experiment:
    space = at.SearchSpace(
        {"batch_size": at.Int(1, 256, power_of_two=True), "size": at.Choice([1, 2, 64])}
    )
    given = [
        {"batch_size": 128, "size": 1},
        {"batch_size": 128, "size": 1},
        {"batch_size": 128, "size": 2},
        {"batch_size": 4, "size": 64},
        {"batch_size": 16, "size": 1},
        {"batch_size": 4, "size": 64},
    ]
    target = at.Target(METRIC, 1.0, limit=50)
    options = {"failure": at.FailurePolicy(checkpoint_interval=2, max_retries=0), **options}
    return at.Experiment(
        "hungry", train, space, target, baseline=given[0], configs=given[1:], **options
    )


@pytest.fixture(scope="module")
def studied(tmp_path_factory: pytest.TempPathFactory) -> at.StudyResult:
    folder = tmp_path_factory.mktemp("hungry")
    return simulate(hungry_experiment(), folder, 6, hungry)


def test_the_microbatch_is_halved_until_it_fits(studied: at.StudyResult) -> None:
    first, _, third = studied.trials[:3]
    assert (first.state, first.microbatch, first.attempts, first.retries) == (
        State.REACHED,
        32,
        3,
        0,
    )
    assert first.config["batch_size"] == 128, "the global batch is what the trial is about"
    assert (third.state, third.microbatch, third.attempts) == (State.REACHED, 16, 4)


def test_a_trial_goes_on_from_its_checkpoint(studied: at.StudyResult) -> None:
    events = [e for e in journal.read(studied.folder) if isinstance(e, Interrupted)]
    assert [(e.trial, e.microbatch, e.broke) for e in events][:2] == [
        (0, 64, False),
        (0, 32, False),
    ]
    first = studied.trials[0]
    assert first.lost_seconds == pytest.approx(1.0 + 1.0), "from 3 s back to 2 s, twice"
    assert first.seconds == 10.0


def test_what_fits_is_used_at_once_by_the_next_trial(studied: at.StudyResult) -> None:
    second = studied.trials[1]
    assert (second.microbatch, second.attempts, second.lost_seconds) == (32, 1, 0.0)
    started = [e for e in journal.read(studied.folder) if isinstance(e, Started) and e.trial == 1]
    assert [e.microbatch for e in started] == [32]
    assert studied.trials[4].microbatch is None, "what has always fitted is not limited"


def test_where_one_sample_does_not_fit_the_trial_is_infeasible(studied: at.StudyResult) -> None:
    fourth, last = studied.trials[3], studied.trials[5]
    assert (fourth.state, fourth.reason) == (State.INFEASIBLE, "out of memory")
    assert (fourth.microbatch, fourth.attempts) == (1, 3)
    assert (last.state, last.attempts) == (State.INFEASIBLE, 1), "it begins with a microbatch of 1"


def test_a_trainer_that_does_not_add_up_gradients_is_infeasible_at_once(fast_path: Path) -> None:
    def plain(config: dict[str, Any]) -> Any: ...

    result = simulate(hungry_experiment(plain), fast_path, 2, hungry)
    assert [(t.state, t.attempts, t.microbatch) for t in result.trials] == [
        (State.INFEASIBLE, 1, None)
    ] * 2


def test_a_resumed_study_replays_it(studied: at.StudyResult, fast_path: Path) -> None:
    """Cut off after any line, it ends as it would have."""
    written = (studied.folder / JOURNAL).read_bytes().splitlines(keepends=True)
    whole = [(t.number, t.state, t.microbatch, t.seconds) for t in studied.trials]
    for cut in range(2, len(written), 3):
        folder = fast_path / str(cut)
        folder.mkdir()
        for name in ("experiment.json",):
            (folder / name).write_bytes((studied.folder / name).read_bytes())
        (folder / JOURNAL).write_bytes(b"".join(written[:cut]))
        again = simulate(hungry_experiment(), folder, 6, hungry)
        assert [(t.number, t.state, t.microbatch, t.seconds) for t in again.trials] == whole, cut
        assert lines(folder)[:cut] == lines(studied.folder)[:cut]


def test_the_microbatch_is_shown(studied: at.StudyResult) -> None:
    from autotune.tracking.run_content import tags

    assert tags(studied.trials[0], {})["autotune.microbatch"] == "32"
    assert "autotune.microbatch" not in tags(studied.trials[4], {})
    frame = studied.to_frame()
    assert frame["microbatch"].tolist()[:2] == [32, 32]


def test_a_trial_that_moves_to_other_hardware_does_not_start_over() -> None:
    own = trial(3, microbatch=8, batch_size=64)
    elsewhere = replace(own.hardware, device="another")
    assert fitting(own, [own], (), elsewhere) == 8
