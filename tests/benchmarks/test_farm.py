"""The farm's networks: trained together as if alone, right to the step, and never for nothing."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import autotune as at
from autotune.backends.simulator import SimPool
from autotune.trial import State
from trainers.optimizers import make_optimizer

FOLDER = str(Path(__file__).parents[2] / "benchmarks")
if FOLDER not in sys.path:
    sys.path.append(FOLDER)

import _networks as networks  # noqa: E402
import _signals as signals  # noqa: E402
import farm  # noqa: E402

SMALL = farm.Task("digits", "digits", 200, 0.0, 0, (16,), limit=128.0)
WINDOWS = farm.Task("signals-windows", "signals", 200, 0.3, 8, (16,), limit=128.0)
DEEP = farm.Task("digits-deep", "digits", 200, 0.0, 0, (16, 16), limit=128.0)


def point(**changes: Any) -> dict[str, Any]:
    given = {"lr.peak": 0.1, "lr.family": "cosine", "lr.warmup": 0.2, "momentum": 0.9}
    given |= {"weight_decay": 1e-3, "horizon": 0.5, "batch_size": 32, "optimizer": "sgd"}
    return given | changes


LARS = {"optimizer": "lars", "trust": 0.1, "lr.peak": 1.0}
ALL = [point(), point(**LARS), point(batch_size=256), point(batch_size=64, **LARS)]
ALL += [point(batch_size=2**n, momentum=0.1 * n) for n in range(4, 9)] * 2


# --- together and alone ---------------------------------------------------------------------------


@pytest.mark.parametrize("task", [SMALL, WINDOWS, DEEP], ids=lambda t: t.name)
def test_a_network_is_the_same_alone_and_among_others(task: farm.Task) -> None:
    crowd, space = task.farm(), task.space()
    plans = [task.plan(space.config(p)) for p in ALL]
    grown = [crowd.plant(plan, seed) for seed, plan in enumerate(plans)]
    for milestone in range(12):
        for network in grown:
            crowd.measured(network, milestone)
    for seed in (0, 1, 3, len(plans) - 1):
        own = task.farm()
        alone = own.plant(plans[seed], seed)
        own.measured(alone, 11)
        assert alone.found == grown[seed].found
        assert torch.equal(alone.flat, grown[seed].flat)


def test_another_seed_is_another_network() -> None:
    simulate, config = SMALL.simulate(), SMALL.space().config(point())
    curves = [simulate(config, 1), simulate(config, 2), SMALL.simulate(seed_offset=1)(config, 1)]
    first, second, offset = ([p.metrics["val_loss"] for p in c.points[:4]] for c in curves)
    assert first != second
    assert second == offset


# --- against torch's own --------------------------------------------------------------------------


class Reference(nn.Module):
    """The farm's network by torch's layers: windows are a convolution."""

    def __init__(self, task: farm.Task, flat: torch.Tensor) -> None:
        super().__init__()
        tensors = task.farm().layout.tensors(flat)
        self.window = task.window
        (first, bias), rest = tensors[:2], tensors[2:]
        if task.window:
            self.first: Any = nn.Conv1d(1, first.shape[1], task.window, task.window // 2)
            self.first.weight = nn.Parameter(first.T[:, None].clone())
        else:
            self.first = nn.Linear(*first.shape)
            self.first.weight = nn.Parameter(first.T.clone())
        self.first.bias = nn.Parameter(bias.clone())
        self.rest = nn.ModuleList()
        for weight, bias in zip(rest[::2], rest[1::2], strict=True):
            layer = nn.Linear(*weight.shape)
            layer.weight = nn.Parameter(weight.T.clone())
            layer.bias = nn.Parameter(bias.clone())
            self.rest.append(layer)

    def forward(self, whole: torch.Tensor) -> torch.Tensor:
        if self.window:
            hidden = self.first(whole[:, None]).transpose(1, 2).flatten(1)
        else:
            hidden = self.first(whole)
        for layer in self.rest:
            hidden = layer(F.relu(hidden))
        return hidden

    def flat(self) -> torch.Tensor:
        layers = [self.first, *self.rest]
        parts = [p for layer in layers for p in (layer.weight.flatten(1).T, layer.bias)]
        return torch.cat([p.detach().flatten() for p in parts])


def whole(data: signals.Data, window: int) -> torch.Tensor:
    """The samples from their windows, which overlap by half."""
    if not window:
        return data.inputs[:, 0]
    ends = data.inputs[:, 1:, window // 2 :].flatten(1)
    return torch.cat([data.inputs[:, 0], ends], dim=1)


@pytest.mark.parametrize("task", [SMALL, WINDOWS, DEEP], ids=lambda t: t.name)
@pytest.mark.parametrize("changes", [{}, {**LARS, "batch_size": 128}], ids=["sgd", "lars"])
def test_steps_are_those_of_torch_sgd_and_our_lars(
    task: farm.Task, changes: dict[str, Any]
) -> None:
    plan = task.plan(task.space().config(point(**changes)))
    own = task.farm()
    network = own.plant(plan, seed=7)
    model = Reference(task, network.flat)
    settings = {"momentum": plan.momentum, "weight_decay": plan.decay}
    if plan.trust:
        settings["trust_coefficient"] = plan.trust
    optimizer = make_optimizer("lars" if plan.trust else "sgd", model, lr=0.1, **settings)
    rng = np.random.default_rng(7)
    networks.initial(own.layout, rng)
    order = networks.batches(task.train, plan.batch, rng)
    inputs = whole(own.data, task.window)
    for rate in plan.rates[: plan.stops[15]]:
        rows = torch.from_numpy(next(order))
        for group in optimizer.param_groups:
            group["lr"] = float(rate)
        optimizer.zero_grad()
        F.cross_entropy(model(inputs[rows]), own.data.targets[rows]).backward()
        optimizer.step()
    before = network.flat
    own.measured(network, 15)
    assert (network.flat - before).abs().max() > 0.05  # it has learned something
    torch.testing.assert_close(network.flat, model.flat(), rtol=1e-5, atol=1e-5)


def test_batches_go_through_all_samples_before_any_comes_again() -> None:
    order = networks.batches(10, 4, np.random.default_rng(0))
    taken = np.concatenate([next(order) for _ in range(5)])
    assert sorted(taken[:10]) == sorted(taken[10:]) == list(range(10))
    assert taken[:10].tolist() != taken[10:].tolist()


# --- studies --------------------------------------------------------------------------------------


def study(folder: Path, task: farm.Task, simulate: Any, **options: Any) -> at.Result:
    target = at.Target(farm.METRIC, 0.85, limit=task.limit)
    experiment = at.Experiment("farm", lambda config: None, task.space(), target)
    given = {"trials": 20, "sampler": "random", "seed": 3, "tracking_uri": "off", **options}
    return at.run(experiment, pool=SimPool(simulate, 8), out=folder, **given)


def test_a_stopped_trial_costs_nothing_more(tmp_path: Path) -> None:
    crowd = SMALL.farm()
    result = study(tmp_path, SMALL, SMALL.simulate(farm=crowd), pruner="slower_than_best")
    reasons = {t.reason for t in result.trials}
    assert "capped" in reasons
    assert any(t.state is State.REACHED for t in result.trials)
    assert crowd.steps_made == sum(t.reports[-1].step for t in result.trials)


def test_the_same_study_twice(tmp_path: Path) -> None:
    first = study(tmp_path / "a", SMALL, SMALL.simulate())
    second = study(tmp_path / "b", SMALL, SMALL.simulate())
    assert first.trials == second.trials
    trial = first.trials[5]
    alone = SMALL.simulate()(trial.config, trial.seed).points
    assert [r.metrics for r in trial.reports] == [
        dict(p.metrics) for p in alone[: len(trial.reports)]
    ]


def test_a_network_that_diverges_leaves_the_others_alone() -> None:
    crowd, plan = DEEP.farm(), DEEP.plan(DEEP.space().config(point()))
    lost = crowd.plant(replace(plan, rates=plan.rates * 1e9), 1)
    kept = crowd.plant(plan, 1)
    for milestone in range(20):
        ends = [crowd.measured(network, milestone) for network in (lost, kept)]
    assert math.isnan(ends[0][1])
    assert 0 <= ends[0][0] <= 0.2  # an accuracy is a number all the same
    own = DEEP.farm()
    alone = own.plant(plan, 1)
    own.measured(alone, 19)
    assert kept.found == alone.found


def test_milestones_cover_the_limit() -> None:
    for batch_size in (16, 32, 64, 128, 256):
        task = farm.tasks()[0]
        plan = task.plan(task.space().config(point(batch_size=batch_size)))
        seconds = [stop * farm.step_seconds(batch_size) for stop in plan.stops]
        assert len(seconds) == 32
        assert seconds == sorted(set(seconds))
        assert seconds[-2] < task.limit <= seconds[-1]
        assert len(plan.rates) == plan.stops[-1]


# --- tasks ----------------------------------------------------------------------------------------


def test_every_task_has_its_numbers() -> None:
    tasks = {t.name: t for t in farm.tasks()}
    assert len(tasks) >= 6
    assert farm.KNOWN.keys() == tasks.keys()
    for task in tasks.values():
        assert task.space().check(task.best_point()) == task.best_point()
        assert 0 < task.best() < task.limit


@pytest.mark.slow
def test_few_random_configurations_reach_a_target() -> None:
    task = next(t for t in farm.tasks() if t.name == "digits-few")
    space = task.space()
    times = task.times([space.config(p) for p in space.sample(100, seed=5)], [5])
    assert 2 <= sum(math.isfinite(own[0]) for own in times) <= 10


@pytest.mark.slow
def test_the_best_known_point_is_fast() -> None:
    task = next(t for t in farm.tasks() if t.name == "digits-few")
    config = task.space().config(task.best_point())
    (times,) = task.times([config], range(3000, 3009))
    assert np.median(times) <= 1.3 * task.best()


def test_signals_are_shifted_templates_and_the_same_for_a_seed() -> None:
    first, classes = signals.signals(40, 0.3, seed=5)
    again, _ = signals.signals(40, 0.3, seed=5)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, signals.signals(40, 0.3, seed=6)[0])
    assert np.bincount(classes).tolist() == [4] * 10
    bare, _ = signals.signals(40, 0.0, seed=5)
    assert (np.abs(bare[:, [0, -1]]) == 0).all()  # what is not template is padding


def test_windows_overlap_by_half() -> None:
    data = WINDOWS.farm().data
    assert data.inputs.shape == (200, 9, 8)
    assert torch.equal(data.inputs[:, :-1, 4:], data.inputs[:, 1:, :4])
