"""`autotune try`: two milestones in this process, and once more from the state at the first."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import autotune as at
from autotune.cli import main
from autotune.errors import UserError
from autotune.evaluation.differences import differences
from autotune.evaluation.trial_run import TrainerError, try_recipe

SOURCE = """
from concurrent.futures import Future
import torch
import autotune as at

def train(config):
    state = config.get("state") or {"step": 0, "w": torch.zeros(3), "rng": torch.get_rng_state()}
    step, w = state["step"], state["w"]
    if config["how"] != "forgets":
        torch.set_rng_state(state["rng"])
    def milestone():
        s, saved = step, {"step": step, "w": w, "rng": torch.get_rng_state()}
        metrics = {"accuracy": s / 1000}
        later = Future()
        later.set_result(metrics)
        state = None if config["how"] == "stateless" else lambda: saved
        return at.Milestone(s, lambda: later if config["how"] == "later" else metrics, state)
    yield milestone()
    for _ in range(1 if config["how"] == "short" else 9):
        step, w = step + 100, w + torch.randn(3)
        if config["how"] == "raises" and step > 100:
            raise RuntimeError("bad thing")
        yield milestone()

def recipe(how="good", metric="accuracy", **options):
    space = at.SearchSpace({"x": at.Float(0, 1), "how": at.Fixed(how)})
    return at.Experiment("tried", train, space, at.Target(metric, 0.9, limit=60), **options)

def good(): return recipe()
def forgets(): return recipe("forgets")
def raises(): return recipe("raises")
def typo(): return recipe(metric="acuracy")
"""
MADE: dict[str, Any] = {}
exec(SOURCE, MADE)


def tried(how: str = "good", trials: int = 20, **options: Any) -> dict[str, Any]:
    checks = try_recipe(MADE["recipe"](how, **options), trials=trials)
    return {check.name: (check.ok, check.says) for check in checks}


@pytest.mark.parametrize("how", ["good", "later"])
def test_a_good_trainer_passes_every_check(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from autotune.backends.local import machine

    monkeypatch.setattr(machine, "resources", lambda: {"CPU": 4.0, "GPU": 0.0})
    found = tried(how, scaling=at.Scaling(max_concurrent_trials=2))
    assert found["metric"] == (True, "accuracy 0.1 at 100 samples, 0.2 at 200 samples")
    assert found["state"] == (True, "restored bit for bit: at step 200 as without a restart")
    assert found["set-up"][0] is True
    assert "s of training" in found["step 200"][1]
    assert "MiB at most" in found["memory"][1]
    assert found["study"][1].startswith("20 trials, 2 at once: ")
    assert found["cores"][1] == "2 of 4 used by 2 trials at once, 2 idle"
    assert "GPUs" not in found


@pytest.mark.parametrize(
    ("how", "ok", "says"),
    [
        ("forgets", False, "not the same at step 200 after a restart from 100: state['w'], "),
        ("stateless", None, "the milestones have no state"),
        ("short", None, "the trainer came to its end at step 100"),
    ],
)
def test_a_state_that_is_not_brought_back_is_named(how: str, ok: bool | None, says: str) -> None:
    found = tried(how)["state"]
    assert found[0] is ok
    assert found[1].startswith(says)


def test_one_of_several_ranks_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    from autotune.backends.local import machine

    monkeypatch.setattr(machine, "resources", lambda: {"CPU": 2.0, "GPU": 0.0})
    assert tried(scaling=at.Scaling(2))["ranks"][1] == "one was tried, and a trial has 2"
    assert "of 3 workers" in tried(scaling=at.Scaling(3))["machine"][1]


def test_what_the_trainer_raised_can_be_looked_at() -> None:
    seen: list[BaseException] = []
    with pytest.raises(TrainerError, match="the trainer raised RuntimeError: bad thing") as raised:
        try_recipe(MADE["recipe"]("raises"), on_error=seen.append)
    assert raised.value.trace.startswith("Traceback")
    assert str(seen[0]) == "bad thing"


def test_a_function_that_reports_is_tried_as_well() -> None:
    def train(config: dict[str, Any]) -> None:
        at.report(0, {})
        for step in (1, 2, 3):
            at.report(step, {"accuracy": step / 10})

    space, target = at.SearchSpace({"x": at.Float(0, 1)}), at.Target("accuracy", 1, limit=5)
    found = {c.name: c.says for c in try_recipe(at.Experiment("tried", train, space, target))}
    assert found["metric"] == "accuracy 0.1 at 1 samples, 0.2 at 2 samples"


def test_a_function_that_returns_its_metric_is_tried_as_well() -> None:
    space = at.SearchSpace({"x": at.Float(0, 1)})

    def found(train: Any) -> dict[str, str]:
        made = at.Experiment("tried", train, space, at.Target("accuracy"))
        return {c.name: c.says for c in try_recipe(made, trials=4)}

    def both(config: dict[str, Any]) -> dict[str, float]:
        at.report(10, {"accuracy": 0.25})
        return {"accuracy": 0.5}

    assert found(lambda config: 0.5)["metric"] == "accuracy 0.5 at its end"
    assert found(both)["metric"] == "accuracy 0.25 at 10 samples, 0.5 at its end"
    assert "0 s at most" in found(both)["study"]
    for value, says in ((None, "the trainer returned None and never"), ({"acc": 1}, "'accuracy'")):
        with pytest.raises(UserError, match=says):
            found(lambda config, value=value: value)


@pytest.mark.parametrize(
    ("recipe", "code", "says"),
    [
        ("good", 0, ""),
        ("forgets", 4, ""),
        ("recipe --with how=forgets", 4, ""),
        ("recipe --with hw=forgets", 2, "unknown argument (--with) 'hw'; did you mean 'how'?"),
        ("raises", 4, "RuntimeError: bad thing\nautotune: the trainer raised RuntimeError: bad th"),
        ("typo", 2, "autotune: unknown target metric 'acuracy'; did you mean 'accuracy'?"),
        ("missing", 2, "missing"),
    ],
)
def test_the_command(
    recipe: str, code: int, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tried.py").write_text(SOURCE)
    name, *more = recipe.split()
    assert main.main(["try", f"{tmp_path / 'tried.py'}:{name}", *more, "--json"]) == code
    out, err = capsys.readouterr()
    assert says in err
    if out:
        checks = {c["name"]: c["ok"] for c in json.loads(out)["checks"]}
        assert checks["state"] is (recipe == "good")


def same(a: Any, b: Any) -> list[str]:
    return differences({"a": a}, {"a": b})


def test_states_are_compared_bit_for_bit() -> None:
    assert same(torch.tensor(math.nan), torch.tensor(math.nan)) == []
    assert same(torch.tensor(0.0), torch.tensor(-0.0)) == ["state['a']"]
    assert same([1, {"b": math.nan}], [1, {"b": math.nan}]) == []
    assert same([1, {"b": 1}], [1, {"b": 1.0}]) == ["state['a'][1]['b']"]
    assert same((1,), (1, 2)) == ["the length of state['a']"]
    assert same({"x": 1}, {}) == ["the keys of state['a']"]
    assert same(torch.zeros(2, dtype=torch.bool), torch.zeros(2, dtype=torch.bool)) == []
