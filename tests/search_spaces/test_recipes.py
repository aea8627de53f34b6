"""Every recipe is complete, its baseline trains, and any of its points is a configuration."""

from __future__ import annotations

import doctest
import math
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pictures
import pytest
import torch

import search_spaces
from autotune import schedules
from autotune.algorithms.beginnings import shared_beginnings
from autotune.space.search_space import Choice, Float, Int, Parameter
from autotune.space.variants import searched_keys
from autotune.study.experiment import Experiment
from autotune.trial.plan_text import plan_keys, plan_text
from search_spaces import (
    cifar10,
    clicks,
    digits,
    fashion_mnist,
    identities,
    imagenet,
    images,
    shakespeare,
)
from trainers.communication.synchronization import KINDS
from trainers.image import train as image_train
from trainers.language import read_settings as read_language
from trainers.parallel.ranks import Ranks
from trainers.parallelize import data_ranks
from trainers.plan import MODEL_DEGREES

BESIDE = Path(__file__).parents[2].parent / "shared" / "data"
IMAGES = [
    getattr(module, name)
    for module in (digits, fashion_mnist, cifar10)
    for name in ("sgd", "lars", "lamb", "schedules")
]
NEWER = ("adamw", "nadamw", "muon", "schedulefree", "schedulefree_sgd", "optimizers")
MORE = [
    *(getattr(module, name) for module in (fashion_mnist, digits) for name in NEWER),
    *(shakespeare.nadamw, shakespeare.muon, shakespeare.schedulefree, shakespeare.optimizers),
    *(shakespeare.plans, shakespeare.averaging, digits.plans, identities.arcface),
    *(shakespeare.communication, digits.communication),
]
GPU_IMAGES = [
    getattr(module, f"gpu_{name}")
    for module in (fashion_mnist, cifar10)
    for name in ("sgd", "lars", "lamb", "schedules")
]
GPU_TEXTS = [
    *(shakespeare.gpu_adamw, shakespeare.gpu_lamb, shakespeare.gpu_schedules),
    shakespeare.gpu_plans,
]
TEXTS = [shakespeare.adamw, shakespeare.lamb, shakespeare.schedules]
GPUS = [*GPU_IMAGES, *GPU_TEXTS]
ON_IMAGENET = [imagenet.resnet50, imagenet.plans]
RECIPES = [*IMAGES, *TEXTS, *MORE, imagenet.resnet50_synthetic, clicks.generated, *GPUS]
SEARCHED = [*RECIPES, digits.small]
"""And one without a baseline, as a dense model would break its limit."""
FEW_STEPS: dict[str, dict[str, Any]] = {
    "trainers.image": {"train_size": 128, "val_size": 50, "batch_size": 32, "milestone": 128},
    "trainers.language": {"val_size": 256, "batch_size": 4, "milestone": 512},
    "trainers.retrieval": {"identities": 64, "unseen": 16, "batch_size": 32, "milestone": 128},
    "trainers.clicks": {"train_size": 2000, "val_size": 500, "batch_size": 64, "milestone": 512},
}
SLIM: dict[str, dict[str, Any]] = {  # a GPU's models, for a CPU
    "trainers.image": {"width": 4},
    "trainers.language": {"layers": 1, "width": 24, "sequence_length": 64},
}


def experiment(recipe: Callable[[], Experiment], monkeypatch: pytest.MonkeyPatch) -> Experiment:
    if "AUTOTUNE_DATA" not in os.environ and BESIDE.is_dir():
        monkeypatch.setenv("AUTOTUNE_DATA", str(BESIDE))
    try:
        return recipe()
    except FileNotFoundError as error:
        pytest.skip(str(error))


def read_settings(found: Experiment, config: dict[str, Any]) -> object:
    return sys.modules[found.train.__module__].read_settings(config)


def label(recipe: Callable[[], Experiment]) -> str:
    return f"{recipe.__module__.rpartition('.')[2]}-{recipe.__name__}"


def corner(parameter: Parameter, high: bool) -> object:
    match parameter:
        case Float(low=low, high=top) | Int(low=low, high=top):
            return top if high else low
        case Choice(options=options):
            return options[-1] if high else options[0]


def test_the_recipe_with_one_stable_phase_shares_beginnings() -> None:
    found = digits.warmup_stable_decay()
    assert found.baseline is not None
    config, params = found.space.complete(found.baseline)
    assert params is not None
    read_settings(found, config)
    assert shared_beginnings(found.space, 0) is not None
    assert shared_beginnings(digits.sgd().space, 0) is None


@pytest.mark.parametrize("recipe", RECIPES, ids=label)
def test_a_recipe_is_complete(
    recipe: Callable[[], Experiment], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = experiment(recipe, monkeypatch)
    assert found.name.rpartition("-")[2] == label(recipe).replace("_", "-").rpartition("-")[2] or (
        found.name == "synthetic-resnet50"
    )
    assert found.baseline is not None
    config, params = found.space.complete(found.baseline)
    assert params is not None, "the baseline is to be a point of the space"
    read_settings(found, config)
    searched = searched_keys(found.space.parameters())
    assert {"lr", "batch_size", "horizon"} <= searched
    if recipe is not clicks.generated:  # whose rows are not to move where they are not touched
        assert "weight_decay" in searched
        assert searched & {"momentum", "beta1"}
    assert found.canonical == {"horizon": "epochs"}


@pytest.mark.parametrize("recipe", SEARCHED, ids=label)
@pytest.mark.parametrize("high", [False, True])
def test_the_corners_of_the_space_are_configurations(
    recipe: Callable[[], Experiment], high: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = experiment(recipe, monkeypatch)
    read_settings(found, found.space.config(found.space.suggest(lambda name, p: corner(p, high))))


@pytest.mark.parametrize("recipe", SEARCHED, ids=label)
def test_any_point_is_a_configuration_of_its_own(
    recipe: Callable[[], Experiment], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = experiment(recipe, monkeypatch)
    points = found.space.sample(25, seed=7)
    for point in points:
        read_settings(found, found.space.config(point))
    assert found.space.duplicates(points) == []


@pytest.mark.parametrize("recipe", SEARCHED, ids=label)
def test_the_baseline_or_a_corner_trains(
    recipe: Callable[[], Experiment], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = experiment(recipe, monkeypatch)
    config = found.space.config(found.space.suggest(lambda name, p: corner(p, high=True)))
    if found.baseline is not None:
        config, _ = found.space.complete(found.baseline)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    module = found.train.__module__
    slim = SLIM[module] if recipe in GPUS else {}
    trainer = found.train({**config, **FEW_STEPS[module], **slim})
    first, second = next(trainer).evaluate(), next(trainer).evaluate()
    trainer.close()
    torch.set_num_threads(threads)
    assert found.target.metric in second
    assert math.isfinite(second["train_loss"])
    assert second["val_loss"] != first["val_loss"]


def test_a_plan_of_every_family_runs_before_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    found = experiment(shakespeare.plans, monkeypatch)
    plans = []
    for given in found.given():
        config, params = found.space.complete(given)
        assert params is not None, "a point of the space"
        plans.append(read_language(config).training.plan)
        plans[-1].degrees(2)
    families = [(p.shards, *(getattr(p, name) > 1 for name in MODEL_DEGREES)) for p in plans]
    assert [sum(family) for family in families] == [0, 1, 1, 1, 1]
    assert len({*families}) == 5


def test_every_kind_of_synchronization_of_two_ranks_runs_before_the_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found, kinds, peaks = experiment(shakespeare.averaging, monkeypatch), [], []
    for given in found.given():
        config, params = found.space.complete(given)
        assert params is not None, "a point of the space"
        training = read_language(config).training
        kinds.append(training.synchronization.kind)
        peaks.append(max(training.lr(progress / 20) for progress in range(21)))
    assert {*kinds} == {*KINDS} - {"hierarchical"}
    assert len(kinds) == len({*kinds})
    assert peaks[kinds.index("bounded_staleness")] < min(peaks[:-1])


@pytest.mark.parametrize("recipe", GPUS, ids=label)
def test_a_recipe_for_a_gpu_asks_for_one_and_uses_it(
    recipe: Callable[[], Experiment], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = experiment(recipe, monkeypatch)
    assert (found.scaling.num_workers, found.scaling.gpus_per_worker) == (1, 1)
    config, _ = found.space.complete(found.baseline or {})
    assert config["precision"] == "bf16"
    assert config.get("model", "resnet18") == "resnet18"
    assert config.get("channels_last", True)
    small = getattr(sys.modules[recipe.__module__], recipe.__name__.removeprefix("gpu_"))
    easier = experiment(small, monkeypatch).target
    assert found.target.metric == easier.metric
    better = found.target.value - easier.value
    assert (better < 0) if found.target.mode == "min" else (better > 0)


@pytest.mark.parametrize("recipe", [*IMAGES[4:], *TEXTS, *GPUS, *ON_IMAGENET], ids=label)
def test_missing_data_is_reported_before_anything_starts(
    recipe: Callable[[], Experiment], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AUTOTUNE_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"is missing; put it there"):
        recipe()


def own_images() -> Experiment:
    with tempfile.TemporaryDirectory() as data:
        return images.folder(pictures.write(Path(data, "pets"), {"cat": 30, "dog": 30}), "resnet8")


COUPLED = [r for r in RECIPES if not r.__name__.endswith(("schedules", "resnet50_synthetic"))]


@pytest.mark.parametrize("recipe", [*COUPLED, digits.small, own_images], ids=label)
def test_the_learning_rate_follows_the_batch_size_from_the_baselines(
    recipe: Callable[[], Experiment], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the linear rule for SGD, by the square root for the adaptive ones."""
    found = experiment(recipe, monkeypatch)
    linear = ("sgd", "lars", "schedulefree_sgd")
    for point in found.space.sample(30 if recipe.__name__ == "optimizers" else 3):
        config = found.space.config(point)
        doubled = found.space.config({**point, "batch_size": 2 * point["batch_size"]})
        factor = 2.0 if config["optimizer"] in linear else math.sqrt(2)
        assert doubled["lr"](0.7) == pytest.approx(factor * config["lr"](0.7))
    if found.baseline is None:
        return
    baseline = found.space.complete(found.baseline)[0]
    peak = next(v for k, v in found.baseline.items() if k.endswith(".peak"))
    assert schedules.extremes(baseline["lr"])[1] == pytest.approx(peak)


@pytest.mark.parametrize("recipe", [digits.optimizers, shakespeare.optimizers], ids=label)
def test_each_optimizer_is_searched_in_a_range_of_its_own(
    recipe: Callable[[], Experiment], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = experiment(recipe, monkeypatch)
    seen = {}
    for point in found.space.sample(100):
        seen[point["optimizer"]] = config = found.space.config(point)
        assert {name.partition(":")[2].partition(".")[0] for name in point if ":" in name} == {
            point["optimizer"]
        }
        read_settings(found, config)
    assert len(seen) >= 4
    baselines = [getattr(sys.modules[recipe.__module__], n)() for n in ("adamw", "schedulefree")]
    for alone in baselines:
        wanted = alone.space.complete(alone.baseline)[0]
        assert wanted["optimizer"] in seen
        assert wanted.keys() == seen[wanted["optimizer"]].keys()


@pytest.mark.parametrize("recipe", ON_IMAGENET, ids=label)
def test_imagenet_tries_the_record_runs_first(
    recipe: Callable[[], Experiment], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for part in ("train", "val"):
        (tmp_path / "imagenet" / part).mkdir(parents=True)
    monkeypatch.setenv("AUTOTUNE_DATA", str(tmp_path))
    found = recipe()
    configs = [found.space.complete(given)[0] for given in found.given()]
    assert len(configs) == 5
    assert configs[0]["batch_size"](0.5) == 8192
    moxing = configs[3]
    assert moxing["batch_size"](0.0) == 32768
    assert moxing["data"] == "folder"
    for config in configs:
        read_settings(found, config)
        for knob in ("lr", "batch_size", "image_size", "momentum"):
            assert isinstance(config[knob], schedules.Schedule)
        plan = plan_text(config, found.train.plan_keys)
        assert plan == "default"
        assert config["channels_last"]


def test_every_plan_of_imagenet_is_one_for_eight_ranks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for part in ("train", "val"):
        (tmp_path / "imagenet" / part).mkdir(parents=True)
    monkeypatch.setenv("AUTOTUNE_DATA", str(tmp_path))
    space = imagenet.plans().space
    ranks = Ranks(0, imagenet.plans().scaling.num_workers, torch.device("cpu"))
    seen = set()
    for point in space.sample(200, seed=7):
        config = space.config(point)
        plan = sys.modules["trainers.image"].read_settings(config).training.plan
        data_ranks(plan, ranks)
        seen |= {(key, getattr(plan, key)) for key in plan_keys(image_train) if key in config}
    searched = {(key, o) for key, e in imagenet._PLANS.items() for o in e.options}
    assert {pair for pair in searched if pair[0] != "channels_last"} <= seen


def test_without_imagenet_the_recipe_names_the_one_that_runs_anywhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AUTOTUNE_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="imagenet:resnet50_synthetic") as caught:
        imagenet.resnet50()
    assert "\n" not in str(caught.value)


def test_a_record_run_goes_through_all_its_stages_on_synthetic_images() -> None:
    """AIACC's 28 epochs of 16 images, batches a 2048th of its own, images half as large."""
    found = imagenet.resnet50_synthetic()
    config, _ = found.space.complete(found.configs[-1])
    batch_size = schedules.scaled(config["batch_size"], 1 / 8)
    few = {"train_size": 16, "val_size": 8, "milestone": 64, "batch_size": batch_size}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    trainer = found.train({**config, **few})
    metrics = [next(trainer).evaluate() for _ in range(8)]
    trainer.close()
    torch.set_num_threads(threads)
    assert [m["progress"] for m in metrics] == pytest.approx([i / 7 for i in range(8)])
    assert [m["image_size"] for m in metrics] == [48, 48, 48, 48, 64, 64, 112, 144]
    assert [m["batch_size"] for m in metrics] == [16] * 7 + [8]
    for knob in ("lr", "momentum"):
        assert [m[knob] for m in metrics] == [config[knob](m["progress"]) for m in metrics]
    assert all(math.isfinite(m["train_loss"]) for m in metrics[1:])


def test_the_example_of_deriving_holds() -> None:
    assert doctest.testmod(search_spaces).failed == 0
