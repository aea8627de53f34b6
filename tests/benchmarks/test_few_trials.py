"""`few_trials.py`: its arithmetic, its peers, and that no task is among its own sources."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import autotune as at
from autotune.algorithms.experience.canonical import CanonicalSpace
from autotune.algorithms.experience.known_task import MARKS
from autotune.errors import UserError


def altered(data: Path, **arrays: Any) -> Path:
    """The table with other arrays."""
    with np.load(data) as read:
        kept = {name: read[name] for name in read.files}
    file = data.parent / f"altered-{len(list(data.parent.iterdir()))}.npz"
    np.savez(file, **{**kept, **arrays})
    return file


# --- a task is never among its own sources --------------------------------------------------------


def test_own_sources_by_name_and_by_content(module: Any, data: Path) -> None:
    sources, problems = module("sources"), module("problems")
    under_test = problems.recorded_task(str(data), 0)
    known = sources.of_table(str(data), 40)
    assert sources.own_sources(under_test, known) == {"11": "the same name"}
    with np.load(data) as read:
        percent, rates = read["val_accuracy"], read["cfg_learning_rate"]
    # Other names, another unit, rounded, and only some of the configurations.
    hidden = altered(
        data,
        tasks=np.array(["a", "b", "c"]),
        val_accuracy=np.round(percent / 100, 4),
        cfg_learning_rate=[float(f"{rate:.3g}") for rate in rates],
    )
    known = sources.of_table(str(hidden), 40)
    assert sources.own_sources(under_test, known) == {"a": "equal curves"}
    family = altered(data, tasks=np.array(["lcbench-11", "111", "x"]))
    assert list(sources.own_sources(under_test, sources.of_table(str(family), 40))) == [
        "lcbench-11"
    ]


def test_a_given_source_with_the_task_ends_with_2(
    run: Callable[..., int], data: Path, capsys: Any
) -> None:
    hidden = altered(data, tasks=np.array(["a", "b", "c"]))
    for source, name, why in ((data, "11", "the same name"), (hidden, "a", "equal curves")):
        assert run("--data", data, "--source", source) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert f"--source {source}: its task '{name}' is '11'" in error
        assert why in error


@pytest.mark.parametrize(("name", "why"), [("digits-2", "the same name"), ("a", "equal curves")])
def test_a_given_source_of_real_training_has_no_task_of_its_data_set(
    module: Any, data: Path, monkeypatch: pytest.MonkeyPatch, name: str, why: str
) -> None:
    """It is known by the studies of the data set that are shipped."""
    real, sources = module("real"), module("sources")
    alike = replace(sources.of_table(str(data), 60)[0], name="small-digits-sgd")
    monkeypatch.setattr(sources, "shipped", lambda: [alike])
    named = altered(data, tasks=np.array([name, "b", "c"]))
    options = argparse.Namespace(source=str(named), source_trials=40, quick=False)
    with pytest.raises(UserError, match=f"its task '{name}' is 'digits', .*{why}"):
        real.known_for("digits", options, {})
    if name == "a":
        assert [t.name for t in real.known_for("fashion_mnist", options, {})] == ["a", "b", "c"]


def test_a_default_source_leaves_the_task_out_and_says_so(
    module: Any, data: Path, capsys: Any
) -> None:
    sources, problems = module("sources"), module("problems")
    known = sources.of_table(str(data), 40)
    left = sources.checked(problems.recorded_task(str(data), 1), known, None)
    assert [task.name for task in left] == ["11", "33"]
    assert capsys.readouterr().out == "22: 22 is left out of its sources (the same name)\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--data", "absent.npz"), "absent.npz: not a table of curves"),
        (("--data", "empty.npz"), "empty.npz: not a table of curves"),
        (("--data", "cut.npz"), "cut.npz: not a table of curves"),
        (("--workers", "0"), "--workers must be at least 1, but got 0"),
        (("--spends", "3", "0"), "--spends must be at least 1, but got 0"),
        (("--seeds", "0"), "--seeds must be at least 1, but got 0"),
        (
            ("--problem", "shipped", "--source", "shipped", "--target", "both"),
            "--target must be quantile with --problem shipped, whose tasks have a target of their "
            "own",
        ),
        ((), "--problem recorded needs --data"),
        (
            ("--problem", "farm", "--source", "absent.npz"),
            "--source must be others with --problem farm, whose tasks know those of its other "
            "family, but got 'absent.npz'",
        ),
        (
            ("--problem", "shipped", "--source", "others"),
            "--source must be shipped with --problem shipped, whose tasks know the others on "
            "other data, but got 'others'",
        ),
        (("--rows", "randon"), "unknown row 'randon'; there are: random; tpe"),
        (("--merge", "absent.json"), "--merge absent.json: not a file of --json"),
    ],
)
def test_bad_input_is_one_line(
    run: Callable[..., int],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: Any,
    arguments: tuple[str, ...],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty.npz").touch()
    Path("cut.npz").write_bytes(b"PK")
    source = () if {"--merge", "--source"} & {*arguments} else ("--source", "others")
    assert run(*arguments, *source) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert said in error


def test_a_table_without_its_keys_is_told(module: Any, tmp_path: Path) -> None:
    np.savez(tmp_path / "other.npz", time=np.zeros(3))
    with pytest.raises(UserError, match="needs val_accuracy, cfg_batch_size"):
        module("problems").table(str(tmp_path / "other.npz"))


# --- problems and known tasks ---------------------------------------------------------------------


def test_targets_and_their_best(module: Any, data: Path) -> None:
    problems = module("problems")
    table = problems.table(str(data))
    for kind in problems.TARGETS:
        case = problems.recorded_case(str(data), 2, kind)
        value, limit = case.problem.target.value, case.problem.target.limit
        times = problems.first_times(table.accuracy[2], table.seconds[2], value, limit)
        assert case.problem.best == times.min() < limit
        assert case.problem.judge(case.known_best) == case.problem.best
        if kind == "baseline":  # it reaches its own last value
            assert math.isfinite(case.problem.judge(case.problem.baseline))


def test_first_times_end_before_the_limit(module: Any) -> None:
    accuracy = np.array([[0.1, 0.9, 0.5], [0.1, 0.2, 0.9], [0.1, 0.2, 0.3]])
    seconds = np.array([[1.0, 2.0, 3.0]] * 3)
    found = module("problems").first_times(accuracy, seconds, 0.9, 3.0)
    assert found.tolist() == [2.0, math.inf, math.inf]


def test_a_known_task_has_the_best_until_each_mark(module: Any, data: Path) -> None:
    task = module("problems").recorded_task(str(data), 0)
    table = module("problems").table(str(data))
    limit = float(np.median(table.seconds[0][:, -1]))
    for row in (0, 7):
        seen = table.seconds[0][row] <= MARKS[-1] * limit
        assert task.curves[row][-1] == table.accuracy[0][row][seen].max()
        assert np.isnan(task.curves[row][MARKS * limit < table.seconds[0][row][0]]).all()
    assert task.points[3]["lr"] == table.points[3]["learning_rate"]


def test_wrong_experience(module: Any, data: Path) -> None:
    sources, problems = module("sources"), module("problems")
    task = problems.recorded_task(str(data), 0)
    space = CanonicalSpace(problems.recorded_case(str(data), 0, "quantile").problem.space)
    turned = sources.reversed_task(task, space)
    for old, new in zip(task.points, turned.points, strict=True):
        assert old["lr"] * new["lr"] == pytest.approx(1e-4 * 1e-1)
        assert new["effective_lr"] == pytest.approx(new["lr"] / (1 - new["momentum"]))
    mixed = sources.permuted_task(task, 0)
    assert list(mixed.points) != list(task.points)
    assert sorted(map(repr, mixed.points)) == sorted(map(repr, task.points))
    assert mixed.times is task.times


# --- studies --------------------------------------------------------------------------------------


def test_optuna_is_told_the_time_and_stops_at_the_target(
    module: Any, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import optuna

    studies: list[Any] = []
    create = optuna.create_study
    monkeypatch.setattr(
        optuna, "create_study", lambda **given: studies.append(create(**given)) or studies[-1]
    )
    problem = module("problems").recorded_case(str(data), 1, "quantile").problem
    leaders, begun = module("peers").optuna_study(problem, 0, 1e6, 2, 60)
    (study,) = studies
    assert begun == len(study.trials) == 60
    states = optuna.trial.TrialState
    reached = [t for t in study.trials if t.state is states.COMPLETE]
    assert [t.value for t in reached] == [
        problem.judge(problem.space.config(t.params)) for t in reached
    ]
    assert problem.judge(leaders[-1][1]) == min(t.value for t in reached)
    stopped = [t for t in study.trials if t not in reached]
    assert {t.state for t in stopped} == {states.PRUNED}
    for trial in reached + stopped:  # lower is better for it, so it is told -accuracy
        assert all(-90 <= told <= 0 for told in trial.intermediate_values.values())


def test_the_policy_and_the_new_default_know_the_same_tasks_and_published_settings(
    module: Any, data: Path
) -> None:
    rows, problems, sources = (module(name) for name in ("rows", "problems", "sources"))
    known = sources.of_table(str(data), 40)[1:]
    case = problems.recorded_case(str(data), 0, "quantile")
    study = rows.Study(case, 0, 1, known, None, {})
    default = rows.experienced(study, "right", None, rows.KNOWN_FIRST)
    policy = rows._policy(study, None)
    real = module("real")
    experiment = at.Experiment("x", lambda config: None, case.problem.space, case.problem.target)
    trained = real.sampler_of(real.NEW, experiment, known, 0)
    for sampler in (default, policy._known, trained):
        assert [task.name for task in sampler._tasks] == ["22", "33"]
        assert len(sampler._published) >= 10


def test_a_shipped_study_is_a_table_that_knows_none_of_its_own_data(module: Any) -> None:
    shipped = module("shipped")
    names = [task.name for task in shipped.tasks()]
    for name in ("farm-digits", "small-shakespeare-adamw", "lcbench-3945"):
        number = names.index(name)
        case, table = shipped.case(number), shipped.Table(shipped.tasks()[number])
        target = case.problem.target.value
        assert not {"effective_lr", "lr.final"} & case.problem.space.entries.keys()
        for row in range(0, len(table.points), 7):
            config = table.params(table.points[row])
            nearest = table.nearest(config)  # or one that differs only in what is not searched
            assert table._unit(table.points[nearest]) == table._unit(table.points[row])
            points = table.simulate(config, 0).points
            metrics = [point.metrics["val_accuracy"] for point in points]
            assert all(value < target for value in metrics[:-1])
            assert (metrics[-1] >= target) == math.isfinite(table.times[nearest])
            if math.isfinite(table.times[nearest]):
                assert points[-1].seconds == case.problem.judge(config)
        assert case.problem.judge(case.known_best) == case.problem.best < 1
        known = {task.name for task in shipped.on_other_data(shipped.tasks()[number])}
        unlike = {task.name for task in shipped.unlike(shipped.tasks()[number])}
        own = name.partition("-")[0]
        assert unlike == {one for one in known if not one.startswith(own)}
        rows = module("rows")
        assert set(rows.not_run((*rows.ROWS, *rows.VARIANTS), [], based=False)) >= {*rows.BASED}
        alone = "digits" if "digits" in name else "shakespeare" if "shake" in name else name
        assert known == {one.name for one in shipped.shipped() if alone not in one.name}


def test_a_problem_with_several_optimizers_is_a_table_of_their_trials(module: Any) -> None:
    found = module("optimizers")
    names = [task.name for task in found.tasks()]
    assert {"farm-digits", "small-digits", "small-fashion_mnist", "small-shakespeare"} < {*names}
    for name, optimizers in (("farm-signals", 3), ("small-shakespeare", 5)):
        number = names.index(name)
        case, table = found.case(number), found.OptimizersTable(found.tasks()[number])
        space = case.problem.space
        assert len(space.parameters()["optimizer"].options) == optimizers
        for row in range(0, len(table.points), 7):
            config = space.config(space.check(table.params(table.points[row])))
            nearest = table.points[table.nearest(config)]
            for key in ("optimizer", "lr", "batch_size", "epochs"):
                assert nearest[key] == table.points[row][key]
        baseline = case.problem.baseline
        assert baseline["optimizer"] == ("sgd" if optimizers == 3 else "adamw")
        assert case.problem.best < case.problem.judge(baseline) <= 1, "it is slow, and arrives"
        assert case.problem.judge(space.config(case.known_best)) == case.problem.best


@pytest.mark.slow
def test_rows_of_a_tiny_table(
    few: ModuleType, run: Callable[..., int], data: Path, tmp_path: Path, capsys: Any
) -> None:
    rows = "random;the new default;Optuna TPE + Hyperband, time;posterior, reversed;the ceiling"
    common = ("--data", data, "--source", "others", "--tasks", 1, "--workers", 1)
    files = [tmp_path / f"seed{seed}.json" for seed in range(2)]
    for seed, file in enumerate(files):
        own = rows if seed == 0 else "random"
        given = ("--rows", own, "--first-seed", seed, "--processes", 1, "--json", file)
        assert run(*common, *given) in (0, 1)
    found = json.loads(files[0].read_text())["runs"]
    assert [one["row"] for one in found] == [name for name in few.rows.ROWS if name in rows]
    for one in found:
        after = [one["seconds"][f"{spend}"] for spend in few.rows.SPENDS]
        assert after == sorted(after, reverse=True)
        assert one["best"] <= after[-1] <= after[0] <= one["limit"]
        assert 0 < one["trials"] <= few.rows.MOST_TRIALS
    assert found[-1]["row"] == "the ceiling"
    assert set(found[-1]["seconds"].values()) == {found[-1]["best"]}
    capsys.readouterr()
    run("--merge", *files)
    assert "1 worker, 1 tasks, 2 studies a row" in capsys.readouterr().out  # of the first row
    assert run("--merge", files[0], files[0]) == 2
    assert "is there twice" in capsys.readouterr().err


def test_variants_of_the_own_search_run_only_if_they_are_named(module: Any, data: Path) -> None:
    rows = module("rows")
    assert not rows.VARIANTS.keys() & rows.ROWS.keys()
    case = module("problems").recorded_case(str(data), 0, "quantile")
    study = rows.Study(case, 0, 1, [], None, {}, (20,))
    found = [rows.measured(study, name) for name in (rows.OWN, *rows.VARIANTS, rows.OWN)]
    leaders = [one["seconds"] for one in found]
    assert leaders[0] == leaders[-1]
    trials = [one["trials"] for one in found]
    assert trials[0] == trials[-1]
    assert len({*trials}) > 1 or len({str(one) for one in leaders}) > 1


def test_with_virtual_seconds_training_is_real_and_steps_are_counted(module: Any) -> None:
    from search_spaces.digits import sgd

    experiment = sgd()
    config = experiment.space.config(experiment.baseline or {})
    trained = module("real")._trained(experiment, config, 0)
    start, first = next(trained), next(trained)
    trained.close()
    assert (start.step, start.seconds) == (0, 0.0)
    of_step, of_sample = module("real").COSTS["digits"]
    assert first.seconds == pytest.approx(first.step * (of_sample + of_step / 64))
    assert 0.1 < first.metrics["val_accuracy"] < 1
