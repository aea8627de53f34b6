"""Every recipe is complete, and its baseline trains."""

from __future__ import annotations

import doctest
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import search_spaces
from autotune.experiment import Experiment
from autotune.space import Choice, Float, Int, Parameter
from search_spaces import cifar10, digits, fashion_mnist
from trainers.image import train
from trainers.settings import read_settings

BESIDE = Path(__file__).parents[2].parent / "shared" / "data"
RECIPES = [
    getattr(module, name)
    for module in (digits, fashion_mnist, cifar10)
    for name in ("sgd", "lars", "lamb")
]


def experiment(recipe: Callable[[], Experiment], monkeypatch: pytest.MonkeyPatch) -> Experiment:
    if "AUTOTUNE_DATA" not in os.environ and BESIDE.is_dir():
        monkeypatch.setenv("AUTOTUNE_DATA", str(BESIDE))
    try:
        return recipe()
    except FileNotFoundError as error:
        pytest.skip(str(error))


def label(recipe: Callable[[], Experiment]) -> str:
    return f"{recipe.__module__.rpartition('.')[2]}-{recipe.__name__}"


def corner(parameter: Parameter, high: bool) -> object:
    match parameter:
        case Float(low=low, high=top) | Int(low=low, high=top):
            return top if high else low
        case Choice(options=options):
            return options[-1] if high else options[0]


@pytest.mark.parametrize("recipe", RECIPES, ids=label)
def test_a_recipe_is_complete(
    recipe: Callable[[], Experiment], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = experiment(recipe, monkeypatch)
    assert found.name == f"{label(recipe)}"
    assert found.train is train
    assert found.baseline is not None
    assert found.scaling.num_workers == 2
    config, params = found.space.complete(found.baseline)
    assert params is not None, "the baseline is to be a point of the space"
    read_settings(config)
    searched = {name.partition(".")[0] for name in found.space.parameters()}
    assert {"lr", "batch_size", "weight_decay", "horizon"} <= searched
    assert searched & {"momentum", "beta1"}


@pytest.mark.parametrize("recipe", RECIPES, ids=label)
@pytest.mark.parametrize("high", [False, True])
def test_the_corners_of_the_space_are_configurations(
    recipe: Callable[[], Experiment], high: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = experiment(recipe, monkeypatch).space
    read_settings(space.config(space.suggest(lambda name, p: corner(p, high))))


@pytest.mark.parametrize("recipe", RECIPES, ids=label)
def test_the_baseline_trains(
    recipe: Callable[[], Experiment], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = experiment(recipe, monkeypatch)
    config, _ = found.space.complete(found.baseline or {})
    small = {"train_size": 128, "val_size": 50, "batch_size": 32, "milestone": 128}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    trainer = train({**config, **small})
    first, second = next(trainer).evaluate(), next(trainer).evaluate()
    trainer.close()
    torch.set_num_threads(threads)
    assert found.target.metric in second
    assert second["train_loss"] < 4
    assert first["val_loss"] < 2.5


@pytest.mark.parametrize("recipe", RECIPES[3:], ids=label)
def test_missing_data_is_told_before_anything_starts(
    recipe: Callable[[], Experiment], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AUTOTUNE_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"is missing; put it there"):
        recipe()


def test_the_example_of_deriving_holds() -> None:
    assert doctest.testmod(search_spaces).failed == 0
