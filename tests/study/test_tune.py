"""`tune`, and what a script that is run again says of the study before."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from sims import METRIC, lines, racing, simulate

import autotune as at
from autotune.backends.simulator import SimCurve, SimPoint, SimPool
from autotune.study import source
from autotune.study.manifest import Manifest

SPACE = {"rate": at.Float(0.01, 1), "depth": 3}


def train_toy(config: dict[str, Any]) -> float:
    """Stands for a function; what it returns, the simulator says."""
    return float(config["rate"])


def endless(config: dict[str, Any]) -> Iterator[at.Milestone]:
    """Stands for a generator, which may never end."""
    yield at.Milestone(0, dict)


def returned(config: Mapping[str, Any], seed: int) -> SimCurve:
    return SimCurve([], returned=SimPoint(1, config["depth"], {METRIC: config["rate"]}))


def tuned(**settings: Any) -> at.StudyResult:
    usual = {
        "metric": METRIC,
        "target": 0.3,
        "limit": 60,
        "trials": 4,
        "tracking_uri": "off",
    }
    given = {"train": train_toy, "space": SPACE, "pool": SimPool(returned, 1), **usual, **settings}
    return at.tune(given.pop("train"), given.pop("space"), **given)


@pytest.fixture(autouse=True)
def here(fast_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(fast_path)
    return fast_path


def test_it_is_an_experiment_and_its_run(capsys: pytest.CaptureFixture[str]) -> None:
    result = tuned(sampler="random", seed=2, baseline={"rate": 0.2}, clock="wall")
    assert str(result.folder) == "studies/train_toy"
    assert len(result.trials) == 4
    assert [t.config["depth"] for t in result.trials] == [3] * 4
    assert result.target == at.Target(METRIC, 0.3, limit=60, clock="wall")
    assert result.best is not None
    assert (result.best_value, result.best_config) == (3.0, result.best.config)
    manifest = Manifest.read(result.folder)
    assert (manifest.name, manifest.options.sampler, manifest.options.seed) == (
        *("train_toy", "random", 2),
    )
    assert manifest.baseline == {"rate": 0.2}
    assert "begins" not in capsys.readouterr().err


def test_without_a_target_it_is_the_best_metric() -> None:
    result = tuned(target=None, limit=None, configs=[{"rate": 0.4}, {"rate": 0.7}], trials=2)
    assert [t.state for t in result.trials] == [at.State.COMPLETED] * 2
    assert (result.best_value, result.best_config) == (0.7, {"rate": 0.7, "depth": 3})
    least = tuned(target=None, limit=None, configs=[{"rate": 0.4}, {"rate": 0.7}], mode="min")
    assert least.best_value is not None
    assert least.best_value <= 0.4


def test_nothing_reached_has_no_best() -> None:
    result = tuned(target=2.0, name="never")
    assert (result.best, result.best_value, result.best_config) == (None, None, None)


class Trainer:
    def __call__(self, config: dict[str, Any]) -> float:
        return 1.0


@pytest.mark.parametrize(
    ("train", "name"),
    [(partial(train_toy), "train_toy"), (lambda config: 1.0, "study"), (Trainer(), "Trainer")],
)
def test_a_study_has_the_name_of_its_function(train: Callable[..., Any], name: str) -> None:
    assert tuned(train=train, trials=1).folder == Path("studies") / name


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"trails": 3}, "unknown argument of tune 'trails'; did you mean 'trials'?\n"),
        ({"direction": "maximize"}, "unknown argument of tune 'direction'; did you mean 'mode'?\n"),
        (
            {"target": 60, "limit": None},
            "tune target=60 is the val_accuracy to reach and needs limit=SECONDS; without target= "
            "the best val_accuracy is searched\n",
        ),
        ({"target": 60, "limit": None, "clock": "steps"}, "tune target=60 is the val_accuracy to "),
        ({"sampler": "tpee"}, "unknown sampler 'tpee'; did you mean 'tpe'?"),
        ({"target": "high"}, "tune target must be a value of 'val_accuracy' but got 'high'"),
        ({"limit": 0}, "Target limit must be more than 0 seconds but got 0"),
        ({"metric": "rmse", "target": None}, "Target"),
        ({"train": endless, "target": None, "limit": None}, "Experiment target has no limit"),
        ({"space": [1]}, "tune space must be a dict or a SearchSpace but got [1]"),
        (
            {"space": {"rate": [0.1, 0.2]}},
            "tune space 'rate' is [0.1, 0.2]: at.Choice([0.1, 0.2]) tries each, "
            "at.Fixed([0.1, 0.2]) passes it on",
        ),
        (
            {"space": {"rate": FloatDistribution(1e-4, 0.1, log=True)}},
            "tune space 'rate' is FloatDistribution(high=0.1, log=True, low=0.0001, step=None): "
            "use at.Float(0.0001, 0.1, log=True)",
        ),
        ({"space": {"rate": train_toy}}, "the search space's rate: "),
        ({"name": "a b"}, "Experiment name must be letters"),
        ({"baseline": {"rat": 1}}, "Experiment baseline: unknown parameter 'rat'"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_no_folder(
    settings: dict[str, Any], says: str, here: Path
) -> None:
    with pytest.raises(at.UserError) as error:
        tuned(**settings)
    assert f"{error.value}\n".startswith(says)
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (FloatDistribution(0, 1), "at.Float(0.0, 1.0)"),
        (IntDistribution(1, 10, step=3), "at.Int(1, 10, step=3)"),
        (IntDistribution(1, 10, log=True), "at.Int(1, 10, log=True)"),
        (CategoricalDistribution(["a", 2]), "at.Choice(['a', 2])"),
    ],
)
def test_a_distribution_of_optuna_is_named_as_ours(theirs: Any, ours: str) -> None:
    with pytest.raises(at.UserError, match=f": use {re.escape(ours)}$"):
        at.SearchSpace({"x": theirs})


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("Uniform", "unknown autotune attribute 'Uniform'; did you mean 'Float'?"),
        ("Targt", "unknown autotune attribute 'Targt'; did you mean 'Target'?"),
        ("__wrapped__", "module 'autotune' has no attribute '__wrapped__'"),
    ],
)
def test_a_mistyped_name_of_the_package_has_the_nearest_one(name: str, says: str) -> None:
    with pytest.raises(AttributeError, match=f"^{re.escape(says)}$"):
        getattr(at, name)


def test_an_argument_of_another_value_is_named_with_it() -> None:
    space = at.SearchSpace({"rate": SPACE["rate"]})
    experiment = at.Experiment("x", train_toy, space, at.Target(METRIC, limit=5))
    for wrong, says in (
        ("direction", "unknown argument of run 'direction': it is the 'mode' of the Target"),
        ("baseline", "unknown argument of run 'baseline': it is the 'baseline' of the Experiment"),
        ("n_trials", "unknown argument of run 'n_trials'; did you mean 'trials'?"),
    ):
        with pytest.raises(at.UserError, match=f"^{re.escape(says)}$"):
            at.run(experiment, **{wrong: 1})


@pytest.mark.parametrize(
    ("settings", "seconds"),
    [
        ({}, 86_400),
        ({"train": endless}, 600),
        ({"workers": 2}, 600),
        ({"scaling": at.Scaling(num_workers=2)}, 600),
        ({"failure": at.FailurePolicy(hang_timeout=5)}, 5),
    ],
)
def test_a_function_on_one_rank_may_take_its_time(settings: dict[str, Any], seconds: float) -> None:
    """It has no milestones by which one could see that it hangs."""
    folder = tuned(trials=1, **settings).folder
    assert Manifest.read(folder).failure["hang_timeout"] == seconds


def test_a_mistake_does_not_show_how_a_study_is_run() -> None:
    def nothing(config: Mapping[str, Any], seed: int) -> SimCurve:
        return SimCurve([])

    with pytest.raises(at.UserError, match="never reported") as error:
        tuned(pool=SimPool(nothing, 1))
    assert [entry.name for entry in error.traceback][-2:] == ["tune", "called"]


def test_editors_see_every_argument() -> None:
    names = inspect.signature(at.tune).parameters
    assert {"metric", "limit_steps", "baseline", "sampler", "out"} <= names.keys()
    assert {f.name for f in fields(at.Target)} - {"value"} <= names.keys()  # that is `target`
    assert {f.name for f in fields(at.Experiment)} <= names.keys()
    assert "settings" not in names


def test_limits_are_the_experiments() -> None:
    result = tuned(limits=[at.Limit(METRIC, 0.5)], configs=[{"rate": 0.7}, {"rate": 0.4}], trials=2)
    assert [t.state for t in result.trials] == [at.State.INFEASIBLE, at.State.REACHED]
    assert Manifest.read(result.folder).limits == [at.Limit(METRIC, 0.5)]


def test_a_script_that_is_run_again_begins_a_new_study(
    capsys: pytest.CaptureFixture[str],
) -> None:
    places = []
    for _ in range(3):
        places.append(str(tuned().folder))
        said = capsys.readouterr().err
    assert places == ["studies/train_toy", "studies/train_toy-2", "studies/train_toy-3"]
    assert said == (
        "studies/train_toy-2: 4 of 4 trials were done; this run begins studies/train_toy-3 "
        "(out='studies/train_toy-2' goes on with that one)\n"
    )
    for wrong in ({"sampler": "tpee"}, {"trials": 0}, {"pruner": "asha(x=1)"}):
        with pytest.raises(at.UserError):
            tuned(**wrong)
        assert "begins" not in capsys.readouterr().err
    more = tuned(out="studies/train_toy-2", trials=6)
    assert len(more.trials) == 6
    assert capsys.readouterr().err == "studies/train_toy-2: 4 of 6 trials were done\n"
    Path("studies/train_toy-3/experiment.json").write_text("{")
    assert str(tuned().folder) == "studies/train_toy-4"
    assert "studies/train_toy-3 holds a study; this run begins" in capsys.readouterr().err


# --- a trainer that has changed -------------------------------------------------------------------

SOURCE = """
import math
from functools import wraps

WIDTH = 3  # units

def again(train):
    @wraps(train)
    def called(config):
        return train(config)
    return called

class Model:
    def __call__(self, config):
        return helper(config)

def helper(config):
    return config["rate"] * WIDTH

def train(config):
    # this is how
    result = helper(config)
    return result

@again
def decorated(config):
    return helper(config)

result = math.sqrt(len("trials=20"))
"""


@pytest.fixture
def module(here: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], ModuleType]:
    """The module of `SOURCE` with one text replaced."""
    monkeypatch.syspath_prepend(str(here))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def written(before: str, after: str) -> ModuleType:
        assert before in SOURCE
        (here / "trainer_of_test.py").write_text(SOURCE.replace(before, after))
        sys.modules.pop("trainer_of_test", None)
        importlib.invalidate_caches()
        return importlib.import_module("trainer_of_test")

    return written


@pytest.mark.parametrize(
    ("before", "after", "is_another"),
    [
        ("WIDTH = 3", "WIDTH = 4", True),
        ('config["rate"] *', '2 * config["rate"] *', True),
        ("return result", "return result + 1", True),
        ("# units", "# of one layer", False),
        ("# this is how\n", "# so\n\n", False),
        ("trials=20", "trials=40", False),
    ],
)
def test_a_changed_source_is_another_one(
    module: Callable[[str, str], ModuleType], before: str, after: str, is_another: bool
) -> None:
    one = module("WIDTH", "WIDTH")
    sums = source.checksum(one.train), source.checksum(one.Model()), source.checksum(one.decorated)
    assert None not in sums
    assert source.checksum(partial(one.train, more=1)) == sums[0]
    two = module(before, after)
    assert (source.checksum(two.train) != sums[0]) == is_another
    shared = is_another and "result" not in before
    again = source.checksum(two.Model()), source.checksum(two.decorated)
    assert (again != sums[1:]) == shared


def test_what_has_no_source_is_not_compared() -> None:
    made: dict[str, Any] = {}
    exec("def train(config): return 1.0", made)
    assert source.checksum(made["train"]) is None
    assert source.checksum(lambda config: 1.0) is None
    assert source.checksum(len) is None


def test_going_on_with_a_changed_trainer_warns(
    module: Callable[[str, str], ModuleType], capsys: pytest.CaptureFixture[str]
) -> None:
    def go_on(trials: int, before: str, after: str) -> str:
        tuned(train=module(before, after).train, out="mine", trials=trials)
        return capsys.readouterr().err

    go_on(1, "WIDTH", "WIDTH")
    assert go_on(2, "# units", "") == "mine: 1 of 2 trials were done\n"
    for trials in (3, 4):
        assert go_on(trials, "WIDTH = 3", "WIDTH = 4").splitlines()[1] == (
            "warning: mine: the trainer trainer_of_test.train has changed since this study began: "
            "trials before and after cannot be compared; another folder (out) begins a new study"
        )
    assert "warning" not in go_on(5, "WIDTH", "WIDTH")


def test_a_study_without_a_result_gives_way_to_a_mended_trainer(
    module: Callable[[str, str], ModuleType], here: Path
) -> None:
    def nothing(config: Mapping[str, Any], seed: int) -> SimCurve:
        return SimCurve([])

    with pytest.raises(at.UserError, match="never reported"):
        tuned(train=module("return result", "").train, out="mine", pool=SimPool(nothing, 1))
    assert len(lines(here / "mine")) > 2
    assert len(tuned(train=module("WIDTH", "WIDTH").train, out="mine").trials) == 4
    assert [r["trial"] for r in lines(here / "mine") if r["event"] == "ended"] == [0, 1, 2, 3]


def failing(most: int) -> Callable[[Mapping[str, Any], int], SimCurve]:
    """Trials of which the first report the metric and then fail."""
    made: list[int] = []

    def curve(config: Mapping[str, Any], seed: int) -> SimCurve:
        made.append(seed)
        if len(made) > most:
            return returned(config, seed)
        return SimCurve([SimPoint(1, 1.0, {METRIC: 0.1})], "NameError: no name")

    return curve


def test_a_study_of_which_all_failed_gives_way_to_a_mended_trainer(
    module: Callable[[str, str], ModuleType], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):  # not before it is mended
        pool = SimPool(failing(9), 1)
        with pytest.raises(at.StudyError, match="every trial failed"):
            tuned(train=module("return result", "").train, out="mine", pool=pool)
    before = lines(here / "mine")
    capsys.readouterr()
    assert len(tuned(train=module("WIDTH", "WIDTH").train, out="mine").trials) == 4
    assert capsys.readouterr().err == (
        "mine: all 4 trials had failed, and what failed has changed since: the study begins anew "
        "(before: mine/failed-1)\n"
    )
    ended = [r for r in lines(here / "mine") if r["event"] == "ended"]
    assert [(r["trial"], r["state"] == "FAILED") for r in ended] == [(n, False) for n in range(4)]
    assert lines(here / "mine" / "failed-1") == before
    assert Manifest.read(here / "mine" / "failed-1").options.trials == 4


def test_failed_trials_beside_others_stay_and_are_named(
    module: Callable[[str, str], ModuleType], capsys: pytest.CaptureFixture[str]
) -> None:
    start = {"out": "mine", "baseline": {"rate": 0.2}}
    tuned(train=module("WIDTH", "WIDTH").train, pool=SimPool(failing(2), 1), **start)
    capsys.readouterr()
    tuned(train=module("WIDTH = 3", "WIDTH = 4").train, trials=5, **start)
    said = "and those that failed are not run again: 0 (the baseline), 1; another folder (out)"
    assert said in capsys.readouterr().err


def test_an_older_study_knows_no_source(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from autotune.storage import manifest

    simulate(racing([1.0]), here / "s", 1)
    content = manifest.read(here / "s")
    del content["train_source"]
    manifest.write(here / "s", content)
    simulate(racing([1.0]), here / "s", 2)
    assert capsys.readouterr().err == f"{here / 's'}: 1 of 2 trials were done\n"
    assert manifest.read(here / "s")["train_source"]


@pytest.mark.parametrize(
    ("given", "found"), [((20, 1437), 28740), ((0.5, 101), 50), ((0.001, 10), 1)]
)
def test_epochs_are_samples(given: tuple[float, int], found: int) -> None:
    assert at.epochs(*given) == found


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ((0, 10), "epochs count must be more than 0 but got 0"),
        (("2", 10), "epochs count must be more than 0 but got '2'"),
        ((2, 10.5), "epochs samples must be a whole number >= 1 but got 10.5"),
    ],
)
def test_epochs_of_nothing(given: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        at.epochs(*given)
