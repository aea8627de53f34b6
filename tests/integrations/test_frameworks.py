"""The callbacks of Lightning's and Hugging Face's Trainers: a trial like any other."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from framework_training import train_with_framework
from ranks import Remote

import autotune as at
from autotune.backends.worker.messages import Answer
from autotune.study.recipes import load
from autotune.trial import Change, Checkpoint, State

NEEDS = {"lightning": "lightning", "huggingface": "transformers"}
FRAMEWORKS = [
    pytest.param(
        name,
        marks=pytest.mark.skipif(
            find_spec(package) is None, reason=f"needs pip install 'time-to-target[{name}]'"
        ),
    )
    for name, package in NEEDS.items()
]
both = pytest.mark.parametrize("framework", FRAMEWORKS)
PREFIX = {"lightning": "", "huggingface": "eval_"}
LOSS = {"lightning": "val_loss", "huggingface": "eval_loss"}
LR = at.Linear(0.1, 0.02)


@pytest.fixture(scope="module")
def shared() -> Iterator[Remote]:
    """One warm process for all trials, of both frameworks."""
    remote = Remote(train_with_framework, patience=600)
    yield remote
    remote.close()


def start(rank: Remote, framework: str, **config: Any) -> Answer:
    launch = {k: config.pop(k) for k in ("checkpoint",) if k in config}
    return rank.start({"framework": framework, "lr": LR, **config}, **launch)


def go(rank: Remote, change: Change | None = None, save: str | None = None) -> Answer:
    answer: Answer = rank("resume", change, save)
    return answer


def of(answer: Answer, framework: str, name: str) -> float:
    assert answer.metrics is not None, answer.error
    return answer.metrics[PREFIX[framework] + name]


def stop(rank: Remote) -> None:
    end = rank("stop", None)
    assert (end.kind, end.must_restart) == ("stopped", "")


@both
def test_every_validation_is_a_milestone(shared: Remote, framework: str) -> None:
    first = start(shared, framework, epochs=3)
    assert (first.kind, first.step, first.metrics) == ("milestone", 0, {}), first.error
    assert first.can_save
    made = [go(shared) for _ in range(3)]
    assert [m.step for m in made] == [64, 128, 192]
    assert {LOSS[framework], "train_loss"} <= set(made[0].metrics or {})
    lrs = [of(m, framework, "lr") for m in made]
    assert lrs == pytest.approx([LR(1 / 3), LR(2 / 3), LR(1.0)])
    end = go(shared)
    assert (end.kind, end.must_restart) == ("finished", "")


@both
def test_validation_is_off_the_training_clock(shared: Remote, framework: str) -> None:
    start(shared, framework, nap=0.05, eval_nap=0.1)
    clocks = [(go(shared).clock, shared.took) for _ in range(2)]
    stop(shared)
    for clock, seconds in clocks:  # four batches of each
        assert clock.train >= 0.2
        assert clock.eval >= 0.4
        assert clock.train + clock.eval < seconds


@pytest.mark.slow
@both
def test_a_stopped_trial_leaves_a_process_for_the_next(
    shared: Remote, framework: str, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    start(shared, framework, log=str(log), bars=True, workers=1)
    assert go(shared).step == 64
    stop(shared)
    if framework == "lightning":
        assert log.read_text().splitlines() == ["callback teardown fit", "module teardown fit"]
    start(shared, framework)
    assert go(shared).step == 64
    stop(shared)


@both
@pytest.mark.parametrize("eval_steps", [None, 3])
def test_a_restored_trial_goes_on_as_if_nothing_had_been(
    shared: Remote, framework: str, eval_steps: int | None, tmp_path: Path
) -> None:
    """Weights, momentum, schedule, dropout and the order of the data: to the last bit."""
    if framework == "lightning" and eval_steps:
        pytest.skip("Lightning does not go on within an epoch where it was, as its docs say")
    config = {"eval_steps": eval_steps}
    start(shared, framework, **config)
    whole = [go(shared) for _ in range(4)]
    stop(shared)
    start(shared, framework, **config)
    before = [go(shared) for _ in range(2)]
    assert shared("stop", str(tmp_path)).saved
    content = torch.load(tmp_path / "rank-0.pt", weights_only=True)
    assert content["step"] == before[-1].step
    checkpoint = Checkpoint(before[-1].step, str(tmp_path))
    again = start(shared, framework, checkpoint=checkpoint, **config)
    assert (again.kind, again.step, again.metrics) == ("milestone", content["step"], {}), (
        again.error
    )
    after = [go(shared) for _ in range(2)]
    stop(shared)
    for name in ("weights", "lr"):
        found = [of(m, framework, name) for m in (*before, *after)]
        assert found == [of(m, framework, name) for m in whole]
    assert [m.step for m in (*before, *after)] == [m.step for m in whole]


@both
def test_a_trial_that_forgets_its_checkpoint_is_reported(
    shared: Remote, framework: str, tmp_path: Path
) -> None:
    start(shared, framework)
    go(shared)
    assert shared("stop", str(tmp_path)).saved
    again = start(shared, framework, checkpoint=Checkpoint(64, str(tmp_path)), forgets=True)
    assert again.kind == "raised"
    assert again.reason.startswith("UserError: the trial resumes from a checkpoint: pass ")


@both
def test_a_controllers_change_is_followed(shared: Remote, framework: str) -> None:
    start(shared, framework)
    plain = [of(go(shared), framework, "lr") for _ in range(3)]
    stop(shared)
    start(shared, framework)
    go(shared)
    changed = of(go(shared, Change(lr_factor=0.5, momentum=0.8)), framework, "lr")
    later = go(shared)
    stop(shared)
    assert [changed, of(later, framework, "lr")] == pytest.approx([lr / 2 for lr in plain[1:]])
    assert of(later, framework, "momentum") == pytest.approx(0.8)


@both
def test_a_change_that_cannot_be_followed_is_one_clear_line(shared: Remote, framework: str) -> None:
    start(shared, framework)
    go(shared)
    answer = go(shared, Change(batch_size=32))
    assert answer.reason.startswith("UserError: a controller set batch_size to 32, but the frame")


@both
def test_metrics_are_chosen_and_named(shared: Remote, framework: str) -> None:
    start(shared, framework, metrics={"loss_there": LOSS[framework]}, every=2)
    answer = go(shared)
    stop(shared)
    assert answer.step == 128, "every second validation"
    assert set(answer.metrics or {}) == {"loss_there", "train_loss"}


@both
@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"metrics": ["val_los"]}, "unknown metric 'val_los'"),
        ({"metrics": "val_loss"}, "metrics must be a list of names or a dict, got 'val_loss'"),
        ({"every": 0}, "every must be a whole number of evaluations, at least 1, got 0"),
        ({"blind": True}, "AutotuneCallback reports "),
    ],
)
def test_mistakes_are_one_clear_line(
    shared: Remote, framework: str, config: dict[str, Any], says: str
) -> None:
    answer = start(shared, framework, **config)
    if answer.kind == "milestone":
        answer = go(shared)
    assert answer.kind == "raised"
    assert answer.reason.startswith(f"UserError: {says}")


@pytest.mark.parametrize("framework", FRAMEWORKS[1:])
def test_a_seed_that_is_not_the_trials_is_reported(shared: Remote, framework: str) -> None:
    answer = start(shared, framework, unseeded=True)
    assert "TrainingArguments has seed 42 and the trial 1: pass seed" in answer.reason


@pytest.mark.slow  # alone of the quick tests of this file it would import this framework's trainer
@pytest.mark.parametrize("framework", FRAMEWORKS[1:])
def test_a_report_waits_for_the_last_data_set(shared: Remote, framework: str) -> None:
    names = {"a": "eval_a_loss", "b": "eval_b_loss"}
    start(shared, framework, both=True, metrics=names, nap=0.05, eval_nap=0.1)
    answer = go(shared)
    stop(shared)
    assert set(answer.metrics or {}) == {"a", "b", "train_loss"}
    assert answer.clock.eval >= 0.8


# --- two ranks, in the real pool ----------------------------------------------------------------


def two_ranks(framework: str, configs: list[dict[str, Any]]) -> at.Experiment:
    space = at.SearchSpace(
        {
            "framework": at.Fixed(framework),
            "lr": at.Fixed(LR),
            "sound_batches": at.Choice([3, 10**6]),
            "lives": at.Choice([5, 10**6]),
            "apart": at.Choice([False, True]),
            "epochs": at.Fixed(3),
        }
    )
    target = at.Target(LOSS[framework], 0.0, mode="min", limit=60)
    scaling = at.Scaling(num_workers=2)
    policy = at.FailurePolicy(checkpoint_interval=0, max_retries=1)
    return at.Experiment(
        "framed",
        train_with_framework,
        space,
        target,
        scaling=scaling,
        failure=policy,
        configs=configs,
    )


@pytest.mark.slow
@both
def test_two_ranks_are_one_trial(framework: str, tmp_path: Path, ray_address: str) -> None:
    sound = {"sound_batches": 10**6, "lives": 10**6, "apart": False}
    faults = {"sound_batches": 3}, {}, {"lives": 5}, {"apart": True}
    configs = [sound, *({**sound, **fault} for fault in faults)]
    result = at.run(
        two_ranks(framework, configs),
        trials=5,
        out=tmp_path,
        sampler="random",
        pruner="none",
        tracking_uri="off",
    )
    whole, nan, warm, killed, apart = result.trials
    assert (whole.state, whole.reason) == (State.CENSORED, "finished"), whole.error
    assert (nan.state, nan.reason, nan.detail) == (State.CENSORED, "diverged", "train_loss is nan")
    assert (warm.state, warm.reason) == (State.CENSORED, "finished"), warm.error
    pid, threads = PREFIX[framework] + "pid", PREFIX[framework] + "threads"
    assert warm.reports[-1].metrics[pid] == whole.reports[-1].metrics[pid], "the same process"
    assert whole.reports[-1].metrics[threads] == 1
    assert (killed.reason, killed.attempts) == ("finished", 2), killed.error
    for trial in (whole, warm, killed):
        reports = [r for r in trial.reports if r.metrics]
        assert [r.step for r in reports] == [64, 128, 192]
        assert all(r.metrics[PREFIX[framework] + "apart"] == 0 for r in reports), "one model"
        assert reports[-1].metrics[PREFIX[framework] + "lr"] == pytest.approx(LR(1.0))
    assert apart.state is State.FAILED
    assert "sees 1 of this trial's 2 ranks, which would train apart" in apart.reason


EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.slow
@both
def test_the_example_reaches_its_target_on_two_ranks(
    framework: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where the trainer of Hugging Face makes a folder
    file = {"lightning": "lightning_digits.py", "huggingface": "huggingface_text.py"}[framework]
    made = load(f"{EXAMPLES / file}:experiment_two_ranks")
    result = at.run(made, trials=1, out="study", tracking_uri="off", backend="local")
    assert result.best is not None, result.trials[0].error or result.trials[0].reason
    assert result.best.reports[-1].metrics["val_accuracy"] >= made.target.value
    assert result.best.clock.eval > 0
