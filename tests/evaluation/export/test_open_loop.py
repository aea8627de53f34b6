"""The path that a controller took, as schedules, trains the same to the last bit."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from sims import METRIC, toy_train

import autotune as at
from autotune.backends.simulator import SimCurve, SimPoint, SimPool
from autotune.evaluation.export import export, replay
from autotune.evaluation.export.open_loop import open_loop
from autotune.schedules import (
    Constant,
    Cosine,
    Effective,
    Following,
    Linear,
    Piecewise,
    Spliced,
    Stages,
    Until,
    warmed,
)
from autotune.storage.codec import decode_config, encode
from autotune.trial import KNOBS, Change, Fork, Report, Target, Trial
from trainers.image import train

BASE = {"data": "digits", "model": "mlp", "width": 16, "batch_size": 48, "milestone": 300}
GROWS = Linear(32, 96)
FALLS = Linear(0.9, 0.7)


def trained(
    config: dict[str, Any], milestones: int, change: Callable[[int], Change | None]
) -> Trial:
    """A trial of so many milestones with `change(number)` made at each."""
    torch.set_num_threads(1)
    reports, changes, made = list[Report](), list[tuple[int, Change]](), None
    running = train({**config, "seed": 3})
    for number in range(milestones):
        milestone = running.send(made)
        reports.append(Report(milestone.step, float(number), dict(milestone.evaluate())))
        made = change(number)
        if made is not None:
            changes.append((milestone.step, made))
    running.close()
    return Trial(0, config, reports=tuple(reports), changes=tuple(changes))


def lasting(trial: Trial, turned: set[int]) -> list[dict[str, float]]:
    """Its metrics but for the times, the knobs where they were turned, and progress."""
    rows = []
    for report in trial.reports:
        left_out = {"samples_per_second", "flops_per_second", "progress"}
        left_out |= {*KNOBS} if report.step in turned else set()
        rows.append({k: v for k, v in report.metrics.items() if k not in left_out})
    return rows


CASES: dict[str, tuple[dict[str, Any], Callable[[int], Change | None]]] = {
    "from the start": ({"lr": 0.1, "horizon": 4}, lambda n: Change(0.7) if n in (0, 2) else None),
    "a schedule": (
        {"lr": warmed(Cosine(0.2, 0.0), 0.1), "horizon": 3},
        lambda n: Change(1.3) if n % 2 else None,
    ),
    "beyond the horizon": (
        {"lr": Cosine(0.2, 0.01), "weight_decay": Linear(0.01, 0.0), "horizon": 0.37},
        lambda n: Change(1.1),
    ),
    "a batch size and a momentum that are set": (
        {"lr": Cosine(0.2, 0.01), "momentum": 0.9, "horizon": 3},
        lambda n: {1: Change(0.9, 64), 3: Change(momentum=0.5), 4: Change(1.1, 32, 0.8)}.get(n),
    ),
    "ones that were scheduled, and what depends on them": (
        {
            "lr": Effective(Following(Cosine(0.02, 0.002), GROWS, 0.5, 64), FALLS),
            "batch_size": GROWS,
            "momentum": FALLS,
            "horizon": 1.1,
        },
        lambda n: {2: Change(0.9, 64), 4: Change(momentum=0.5), 7: Change(1.2, 80)}.get(n),
    ),
}


@pytest.mark.parametrize(("config", "change"), CASES.values(), ids=CASES)
def test_the_path_trains_the_same_bit_for_bit(
    config: dict[str, Any], change: Callable[[int], Change | None]
) -> None:
    closed = trained({**BASE, **config}, 9, change)
    assert closed.changes
    path = open_loop(closed)
    assert path is not None
    path = {k: decode_config(encode(v)) for k, v in path.items()}  # as its export has it
    opened = trained(path, 9, lambda n: None)
    turned = {step for step, _ in closed.changes}
    assert [r.step for r in opened.reports] == [r.step for r in closed.reports]
    assert lasting(opened, turned) == lasting(closed, turned)
    without = trained({**BASE, **config}, 9, lambda n: None)
    assert lasting(without, turned) != lasting(closed, turned)


def made(config: dict[str, Any], *changes: Change, progress: float | None = 0.25) -> Trial:
    """A trial with a change at each of its milestones, `progress` apart."""
    metrics = {} if progress is None else {"progress": progress}
    reports = [Report(i, 0.0, {k: i * v for k, v in metrics.items()}) for i in range(len(changes))]
    return Trial(0, config, reports=tuple(reports), changes=tuple(enumerate(changes)))


def test_what_the_path_looks_like() -> None:
    path = open_loop(made({"lr": 0.5, "momentum": FALLS}, Change(), Change(0.5), Change(2.0)))
    assert path == {
        "lr": Following(Constant(0.5), Piecewise((0.25, 0.5), (1, 0.5, 1), "constant"), 1, 1),
        "momentum": FALLS,
    }
    config = {"lr": 0.5, "beta1": FALLS, "batch_size": 8, "horizon": 2, "of": {"x": FALLS}}
    path = open_loop(made(config, Change(), Change(batch_size=4, momentum=0.5), progress=1.0))
    assert path == {
        "lr": 0.5,
        "beta1": Until(Stages((0.5,), (FALLS, Constant(0.7))), (0.5,), (0.5,)),
        "batch_size": Piecewise((0.5,), (8, 4), "constant"),
        "horizon": 4.0,
        "of": {"x": Stages((0.5,), (FALLS, Constant(0.7)))},
    }


@pytest.mark.parametrize(
    "trial",
    [
        Trial(0, {"lr": 0.1}),
        made({"lr": 0.1}, Change(0.5), progress=None),
        made({"opt": {"lr": 0.1}}, Change(0.5)),
        made({"lr": "auto"}, Change(0.5)),
        made({"lr": 0.1}, Change(batch_size=8)),
        made({"lr": 0.1}, Change(), Change(0.5), progress=1.0),
    ],
    ids=["unchanged", "no progress", "nested", "no number", "no such knob", "no horizon"],
)
def test_what_cannot_be_written_as_schedules(trial: Trial) -> None:
    assert open_loop(trial) is None


# --- forks whose knobs were turned ----------------------------------------------------------------


class Both:
    """Turns the learning rate of trial 0, lets trial 1 give way to its copy, and turns that too."""

    checkpoint_interval = 1.0

    def __call__(
        self, trial: Trial, others: Sequence[Trial], target: Target
    ) -> Change | Fork | None:
        step = trial.reports[-1].step
        if (trial.number, step) in {(0, 1), (2, 6)}:
            return Change(0.5)
        return Fork(0, {"lr": 0.2}) if (trial.number, step) == (1, 4) else None


def going(config: Mapping[str, Any], seed: int, point: SimPoint) -> SimCurve:
    """A milestone a second, ten in a horizon; trial 0 is a little ahead of the others."""
    metrics = [{METRIC: step / 100, "progress": step / 10} for step in range(20)]
    late = 0.1 if config["lr"] == 0.3 else 0.0
    return SimCurve([SimPoint(step, step + late, metrics[step]) for step in range(point.step, 20)])


def test_a_fork_whose_knobs_were_turned_is_exported_as_one_line_with_the_path_in_it(
    fast_path: Path,
) -> None:
    space = at.SearchSpace({"lr": at.Float(0.01, 1.0)})
    made = at.Experiment(
        "both", toy_train, space, Target(METRIC, 0.09, limit=50), configs=[{"lr": 0.4}, {"lr": 0.3}]
    )
    pool = SimPool(lambda c, seed: going(c, seed, SimPoint(0, 0.0, {})), 2, go_on=going)
    rules = {"sampler": "random", "pruner": "none", "controller": Both(), "tracking_uri": "off"}
    result = at.run(made, trials=3, out=fast_path / "s", pool=pool, **rules)
    child = result.trials[2]
    assert child.origin is not None
    assert child.changes == ((1, Change(0.5)), (6, Change(0.5)))
    fork = child.origin.checkpoint.step
    document = export.export(result, child, fast_path / "out")
    assert document["changes"] == []
    assert [row["step"] for row in document["turned"]] == [1, 6]
    assert [part["from_step"] for part in document["lineage"]] == [0, fork]
    lr = replay.read(fast_path / "out").trial.config["lr"]
    assert json.loads((fast_path / "out" / "schedules.json").read_text())
    for step in range(10):
        base = 0.4 if step < fork else 0.2
        assert lr(step / 10) == base * 0.5 ** ((step >= 1) + (step >= 6))
    exported = replay.read(fast_path / "out")
    assert (exported.turned, exported.forks) == ({1, 6}, (fork,))


@pytest.mark.parametrize("outlived", [False, True])
def test_a_line_of_descent_is_turned_where_all_its_parts_follow_the_knob_that_is_set(
    outlived: bool,
) -> None:
    batches = Linear(32, 64)
    parts = tuple(Following(Constant(lr), batches, 1.0, 32) for lr in (0.1, 0.2))
    config = {"lr": Spliced((0.5,), parts), "batch_size": batches, "horizon": 3}
    places = (0.25, 1.5 if outlived else 0.75)
    reports = tuple(Report(i, float(i), {"progress": at}) for i, at in enumerate(places))
    turned = Trial(0, config, reports=reports, changes=((1, Change(batch_size=128)),))
    found = open_loop(turned)
    assert found is not None
    times = 2 if outlived else 1
    assert found["horizon"] == 3 * times
    for x in (0.0, 0.3, 0.6, 0.7):
        assert found["lr"](x / times) == config["lr"](x)
    assert found["lr"](places[1] / times) == 0.2 * 128 / 32
    other = (parts[0], Following(Constant(0.2), Linear(16, 64), 1.0, 32))
    own = Trial(
        0,
        {**config, "lr": Spliced((0.5,), other)},
        reports=reports,
        changes=((1, Change(batch_size=128)),),
    )
    assert open_loop(own) is None
