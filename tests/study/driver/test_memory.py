"""What a trainer predicts not to fit is infeasible without being tried, and asked about once."""

from __future__ import annotations

import doctest
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sims import METRIC, simulate

import autotune as at
from autotune.backends.simulator import SimCurve, SimPoint, SimPool
from autotune.storage import journal
from autotune.study.driver import memory
from autotune.study.driver.memory import predictor
from autotune.trial import Started, State

HAS = 100
ASKED: list[tuple[int, int, int | None, int]] = []


def train(config: dict[str, Any]) -> Any:
    """Stands for a trainer that predicts its memory."""


def needs(config: Mapping[str, Any], ranks: int, has: int) -> int:
    """So many bytes a sample; a model of size 0 cannot be predicted."""
    ASKED.append((config["size"], ranks, config.get("microbatch"), has))
    if config["size"] == 7:
        raise ValueError("size must not be 7")
    return 60 // config["size"] if config["size"] < 1 else config["size"] * config["microbatch"]


train.memory_keys = ("size",)  # type: ignore[attr-defined]
train.memory = needs  # type: ignore[attr-defined]


def curve(config: Mapping[str, Any], seed: int) -> SimCurve:
    return SimCurve([SimPoint(10 * t, float(t), {METRIC: t / 10}) for t in range(11)])


def study(
    folder: Path, sizes: list[int], has: int | None = HAS, trainer: Any = train
) -> at.StudyResult:
    ASKED.clear()
    space = at.SearchSpace(
        {"batch_size": at.Choice([16, 32]), "size": at.Choice(sorted({0, *sizes}))}
    )
    given = [{"batch_size": 16 * (1 + i % 2), "size": size} for i, size in enumerate(sizes)]
    experiment = at.Experiment(
        "sized", trainer, space, at.Target(METRIC, 1.0, limit=50), baseline=given[0],
        configs=given[1:],
    )  # fmt: skip
    return simulate(experiment, folder, len(sizes), pool=SimPool(curve, 1, rank_memory=has))


def test_what_cannot_fit_is_not_tried(fast_path: Path) -> None:
    result = study(fast_path, [50, 118, 117, 1000])
    states = [(t.state, t.attempts) for t in result.trials]
    assert states == [
        (State.REACHED, 1),
        (State.INFEASIBLE, 0),
        (State.REACHED, 1),  # within what a prediction may be wrong by
        (State.INFEASIBLE, 0),
    ]
    last = result.trials[-1]
    assert last.reason == "out of memory"
    assert last.detail.startswith("a rank would need about")
    assert last.detail.endswith("it was not tried")
    started = [e.trial for e in journal.read(fast_path) if isinstance(e, Started)]
    assert started == [0, 2]


def test_it_is_asked_once_for_one_sample_of_trials_of_equal_memory(fast_path: Path) -> None:
    study(fast_path, [50, 50, 60, 60, 50])
    assert ASKED == [(50, 1, 1, HAS), (60, 1, 1, HAS)]


def test_what_cannot_be_predicted_is_tried(
    fast_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = study(fast_path, [50, 7, 0])
    assert [t.state for t in result.trials] == [State.REACHED] * 3
    said = capsys.readouterr().err
    assert "trial 2: its memory cannot be predicted (ZeroDivisionError: " in said
    assert "size must not be 7" not in said, "the trainer says it itself"


def test_without_memory_keys_every_configuration_is_asked_about(
    fast_path: Path,
) -> None:
    asked: list[tuple[int, int]] = []

    def plain(config: dict[str, Any]) -> Any:
        """Stands for a trainer that cannot divide its batch."""

    def memory(config: Mapping[str, Any], ranks: int, has: int) -> int:
        assert "microbatch" not in config
        asked.append((config["batch_size"], config["size"]))
        return int(config["size"]) * int(config["batch_size"])

    plain.memory = memory  # type: ignore[attr-defined]
    result = study(fast_path, [2, 9, 4, 5], trainer=plain)
    assert asked == [(16, 2), (32, 9), (16, 4), (32, 5)]
    states = [t.state for t in result.trials]
    assert states == [State.REACHED, State.INFEASIBLE, State.REACHED, State.INFEASIBLE]
    assert result.trials[1].detail.startswith("a rank would need about 0.0 MiB, and has")


@pytest.mark.parametrize("answer", ["4 GB", None, float("nan")])
def test_an_answer_that_is_no_number_of_bytes_is_no_prediction(
    fast_path: Path, answer: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    def wrong(config: dict[str, Any]) -> Any:
        """Stands for a trainer whose prediction is wrong."""

    wrong.memory = lambda config, ranks, has: answer  # type: ignore[attr-defined]
    result = study(fast_path, [50, 60], trainer=wrong)
    assert [t.state for t in result.trials] == [State.REACHED] * 2
    said = capsys.readouterr().err
    assert f"(TypeError: memory must return a number of bytes, got {answer!r})" in said


def test_what_is_no_function_is_no_prediction() -> None:
    def agent(config: dict[str, Any]) -> Any:
        """Stands for a trainer with a memory of its own, as of what an agent has seen."""

    agent.memory = [1, 2]  # type: ignore[attr-defined]
    assert predictor(agent) is None


def test_where_nobody_knows_the_memory_nothing_is_predicted(fast_path: Path) -> None:
    result = study(fast_path, [1000], None)
    assert result.trials[0].state is State.REACHED
    assert ASKED == []


def test_a_study_that_goes_on_keeps_what_was_decided(fast_path: Path) -> None:
    study(fast_path, [50, 1000])
    again = study(fast_path, [50, 1000], None)
    assert [t.state for t in again.trials] == [State.REACHED, State.INFEASIBLE]


@pytest.mark.slow
def test_real_workers_have_memory_and_the_language_trainer_is_asked(tmp_path: Path) -> None:
    from trainers import language

    fixed = {"text": "synthetic", "optimizer": "adamw", "layers": 1, "heads": 2, "val_size": 100}
    fixed |= {"train_size": 3000, "sequence_length": 32, "batch_size": 4, "milestone": 512}
    space = at.SearchSpace(
        {
            **{key: at.Fixed(value) for key, value in fixed.items()},
            "lr": at.Float(0.001, 0.1, log=True),
            "width": at.Choice([16, 2**18]),
        }
    )
    points = [{"lr": 0.01, "width": width} for width in (16, 2**18)]
    experiment = at.Experiment(
        "real", language.train, space, at.Target("val_loss", 3.0, limit=60.0, mode="min"),
        scaling=at.Scaling(num_workers=2), baseline=points[0], configs=points[1:],
    )  # fmt: skip
    options = {"backend": "local", "tracking_uri": "off", "out": tmp_path / "study"}
    result = at.run(experiment, trials=2, **options)
    first, last = result.trials
    assert first.attempts == 1
    assert (last.state, last.attempts) == (State.INFEASIBLE, 0)
    assert last.detail.startswith("a rank would need about")


def test_trainers_predict_also_through_a_partial() -> None:
    from trainers import image, language

    assert predictor(partial(image.train)) is image.memory
    assert predictor(language.train) is language.memory
    assert predictor(lambda config: None) is None


def test_examples() -> None:
    failed, tried = doctest.testmod(memory)
    assert tried
    assert not failed
