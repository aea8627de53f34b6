from __future__ import annotations

from typing import Any

import pytest

from autotune.schedules import Cosine, Linear, warmed
from trainers.settings import KEYS, OPTIONS, TAKES, read_settings

GOOD: dict[str, Any] = {"data": "digits", "model": "mlp", "lr": 0.1}


def test_numbers_become_schedules_and_the_rest_defaults() -> None:
    settings = read_settings({**GOOD, "weight_decay": Linear(0.0, 1.0)})
    assert settings.lr(0.5) == 0.1
    assert settings.batch_size(1.0) == 128
    assert settings.options["weight_decay"](0.5) == 0.5
    assert settings.options["momentum"](0.0) == 0.9
    assert settings.state is None
    assert settings.augment == frozenset()


def test_an_unknown_key_is_named_with_the_nearest_right_one_and_all_that_are_allowed() -> None:
    with pytest.raises(
        ValueError, match=r"unknown key 'batchsize'.*'batch_size'.*allowed: "
    ) as told:
        read_settings({**GOOD, "batchsize": 3})
    assert all(key in str(told.value) for key in (*KEYS, *OPTIONS))
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("key", ["data", "model", "lr"])
def test_a_required_key_is_missed(key: str) -> None:
    with pytest.raises(ValueError, match=f"{key} is missing"):
        read_settings({k: v for k, v in GOOD.items() if k != key})


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("data", "mnist", "one of digits, fashion_mnist, cifar10, folder, synthetic"),
        ("model", "vgg", "one of mlp, resnet8, resnet18, resnet50"),
        ("optimizer", "adam", "one of sgd, adamw, lars, lamb"),
        ("precision", "fp8", "one of fp32, bf16, fp16"),
        ("lr", -0.1, "a number at least 0"),
        ("lr", "0.1", "a number at least 0"),
        ("lr", float("nan"), "a number at least 0"),
        ("lr", Linear(0.1, -0.1), "at every progress, also at 0.55"),
        ("momentum", 1.0, "a number at least 0 and less than 1"),
        ("batch_size", 0, "a whole number at least 1"),
        ("batch_size", 12.5, "a whole number at least 1"),
        ("batch_size", True, "a whole number at least 1"),
        ("batch_size", Linear(4, 0), "a number at least 1 at every progress"),
        ("horizon", 0, "a number more than 0"),
        ("label_smoothing", 1, "less than 1"),
        ("augment", "crop+mirror", "'none', or some of crop, flip, cutout joined by '\\+'"),
        ("augment", "crop+crop", "joined by"),
        ("channels_last", 1, "True or False"),
        ("seed", -1, "a whole number at least 0"),
        ("state", 3, "what this trainer's milestone gave"),
        ("milestone", 0, "a whole number at least 1"),
    ],
)
def test_a_wrong_value_is_told_in_one_line(key: str, value: Any, allowed: str) -> None:
    with pytest.raises(ValueError, match=f"^{key} must be .*{allowed}") as told:
        read_settings({**GOOD, key: value})
    assert repr(value) in str(told.value)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("optimizer", "key"),
    [("adamw", "momentum"), ("sgd", "trust_coefficient"), ("lamb", "nesterov")],
)
def test_an_option_of_another_optimizer_is_refused(optimizer: str, key: str) -> None:
    with pytest.raises(ValueError, match=f"{key} is given but optimizer {optimizer!r}"):
        read_settings({**GOOD, "optimizer": optimizer, key: 0.5})


def test_cutout_is_not_for_folders() -> None:
    with pytest.raises(ValueError, match="augment must be without cutout"):
        read_settings({**GOOD, "data": "folder", "augment": "crop+cutout"})


def test_every_option_is_taken_by_some_optimizer() -> None:
    assert {key for taken in TAKES.values() for key in taken} == set(OPTIONS)


def test_a_warmed_schedule_may_start_at_zero() -> None:
    assert read_settings({**GOOD, "lr": warmed(Cosine(0.4, 0.0), 0.1)}).lr(0.0) == 0.0
