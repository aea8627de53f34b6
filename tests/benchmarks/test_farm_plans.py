"""The farm with measured steps: its networks, its table, and how pairs of studies are compared."""

from __future__ import annotations

import importlib
import math
from types import ModuleType
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.usefixtures("script")  # makes the modules importable


def module(name: str) -> ModuleType:
    return importlib.import_module(name)


@pytest.mark.parametrize("task", ["digits-deep", "signals-windows"])
def test_a_network_trained_alone_is_the_farms(task: str) -> None:
    """By SGD and by LARS, over two milestones."""
    farm, networks, alone = module("farm"), module("_networks"), module("_alone")
    own = next(one for one in farm.tasks() if one.name == task)
    for trust in (0.0, 0.3):
        plan = networks.Plan(np.full(6, 0.1), 0.9, 1e-3, trust, 32, [3, 6], 6)
        found = []
        for kind in (networks.Farm, alone.Alone):
            made = kind(own._load(), own.widths)
            network = made.plant(plan, 1)
            measured = [made.measured(network, i) for i in range(2)]
            found.append((measured, network.flat.numpy()))
        assert found[1][0] == pytest.approx(np.array(found[0][0]), abs=2e-3)
        np.testing.assert_allclose(found[1][1], found[0][1], atol=1e-4)


def test_the_table_of_plans() -> None:
    speeds = module("plan_speeds")
    table, usual = speeds.Speeds.read(), speeds.DEFAULT
    own = [row for row in table.rows if row["plan"] == usual]
    assert [row["batch_size"] for row in own] == [16, 64, 256]
    steps = [table.step(usual, row["batch_size"]) for row in own]
    assert steps == [row["seconds"] for row in own]
    assert table.step(usual, 128) == pytest.approx(math.sqrt(steps[1] * steps[2]))
    half = {**usual, "precision": "fp16"}
    last = {**usual, "channels_last": True}
    both = table.step({**last, "precision": "fp16"}, 64)
    assert both / table.step(last, 64) == pytest.approx(table.step(half, 64) / steps[1])
    compiled = {**usual, "compile": True}
    assert table.setup(compiled) > 1 > table.setup(usual) == 0
    for plan in ({**compiled, "precision": "fp16", "activation_checkpoint_mode": "full"}, compiled):
        assert table.step(plan, 64) > 0
    fastest = table.fastest(64)
    assert all(table.step(fastest, 64) <= table.step(plan, 64) for plan in speeds.every_plan())
    assert table.step(fastest, 64) < steps[1] / 2


def test_a_probe_trains_nothing_and_a_trial_does() -> None:
    plans = module("_farm_plans")
    problem = plans.problem(0)
    config = {**problem.config({**plans.BASELINE, **plans.DEFAULT})}
    trial = problem.curve(config, 3)
    probe = problem.curve({**config, "milestone": problem.samples // 8}, 3)
    assert {point.metrics.get(plans.METRIC) for point in probe.points[1:]} == {0.0}
    assert trial.points[1].metrics[plans.METRIC] > 0.1
    rates = [curve.points[-1].step / curve.points[-1].seconds for curve in (trial, probe)]
    assert rates[0] == pytest.approx(rates[1], rel=0.1)
    assert trial.points[-1].seconds > plans.LIMIT
    fast = problem.curve({**config, **problem.fastest}, 3)
    assert fast.points[-1].step > 1.5 * trial.points[-1].step  # as long, and as many samples more
    play, usual = problem.study(), {**config, "compile": False}
    compiled = {**config, "compile": True}
    setups = [play(one, 3).setup_seconds for one in (usual, compiled, compiled)]
    assert setups[1] > setups[2] > setups[0] == plans.SETUP


def row(side: str, pair: int, found: list[tuple[float, float]], probes: float = 0.0) -> Any:
    own = {"side": side, "pair": pair, "task": "t", "found": found, "trials": 3}
    return {**own, "probe_seconds": probes, "plan": "the default is kept, as so"}


def test_the_levels_of_a_study(capsys: pytest.CaptureFixture[str]) -> None:
    pairs = module("_two_stages_farm")
    one = row("one", 0, [(10.0, 8.0), (50.0, 4.0)])
    assert pairs.reached_at(one, 8.0, 100.0) == 10.0
    assert pairs.reached_at(one, 4.0, 100.0) == 50.0
    assert pairs.reached_at(one, 3.9, 100.0) == 100.0
    assert [pairs.value_at(one, at, 30.0) for at in (5.0, 10.0, 60.0)] == [30.0, 8.0, 4.0]
    assert pairs.usual([one, row("one", 1, [])], 100.0, 30.0) == {"t": 17.0}
    pairs.show([one, row("two", 0, [(25.0, 4.0)], probes=5.0)], 100.0, 30.0)
    said = capsys.readouterr().out
    assert "seconds of two / one: 0.50 (95 % 0.50 to 0.50), less in 1, more in 0" in said
    assert "best at the end, two / one: 1.00" in said
    assert "probes 5.0%" in said
    assert [met for met, _ in pairs.aims([one, row("two", 0, [(25.0, 4.0)], 5.0)], 100.0)] == [
        False,  # 5 % is not below it
        True,
    ]
    late = [one, row("two", 0, [(40.0, 4.0)], probes=4.9)]
    assert pairs.aims(late, 100.0) == [
        (True, "probes take 4.9% of the search (aim: below 5%)"),
        (False, "seconds to within 25 % of the best over one stage's 0.80 (aim: 0.67)"),
    ]
    assert pairs.aims([one], 100.0) == []
