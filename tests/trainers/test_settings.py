from __future__ import annotations

from typing import Any

import pytest

from autotune.schedules import Constant, Cosine, Linear, Piecewise, Stages, warmed
from trainers import language
from trainers.readers import shown
from trainers.settings import KEYS, OPTIONS, TAKES, read_settings

GOOD: dict[str, Any] = {"data": "digits", "model": "mlp", "lr": 0.1}
DIPS = Stages((0.1, 0.1001), (Constant(32), Linear(32, 0), Constant(64)))


def test_numbers_become_schedules_and_the_rest_defaults() -> None:
    settings = read_settings({**GOOD, "weight_decay": Linear(0.0, 1.0)})
    assert settings.training.lr(0.5) == 0.1
    assert settings.training.batch_size(1.0) == 128
    assert settings.training.options["weight_decay"](0.5) == 0.5
    assert settings.training.options["momentum"](0.0) == 0.9
    assert settings.training.state is None
    assert settings.augment == frozenset()


def test_names_may_be_in_any_case() -> None:
    training = read_settings({**GOOD, "model": "MLP", "optimizer": "LARS"}).training
    assert (training.optimizer, training.precision) == ("lars", "fp32")
    assert read_settings({**GOOD, "model": "MLP"}) == read_settings(GOOD)


def test_an_unknown_key_is_named_with_the_nearest_right_one_and_all_that_are_allowed() -> None:
    with pytest.raises(
        ValueError, match=r"unknown key 'batchsize'.*'batch_size'.*allowed: "
    ) as caught:
        read_settings({**GOOD, "batchsize": 3})
    assert all(key in str(caught.value) for key in (*KEYS, *OPTIONS))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("key", ["data", "model", "lr"])
def test_a_required_key_is_missed(key: str) -> None:
    with pytest.raises(ValueError, match=f"{key} is missing"):
        read_settings({k: v for k, v in GOOD.items() if k != key})


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("data", "mnist", "one of digits, fashion_mnist, cifar10, folder, synthetic"),
        ("model", "vgg", "one of mlp, resnet8, resnet18, resnet50"),
        ("optimizer", "adam", "one of sgd, adamw, nadamw, lars, lamb, muon, adafactor, sched"),
        ("precision", "fp8", "one of fp32, tf32, bf16, fp16"),
        ("lr", -0.1, "a number at least 0"),
        ("lr", "0.1", "a number at least 0"),
        ("lr", float("nan"), "a number at least 0"),
        ("lr", Linear(0.1, -0.1), "a number at least 0, but it goes down to -0.1, got linear"),
        ("lr", Piecewise((0.401,), (0.1, -0.1, 0.1)), r"but value 2 of 3 \(at 40.1%\) is -0.1"),
        ("lr", lambda x: 0.1 - 0.2 * x, "a number at least 0 at every progress, also at 0.55"),
        ("beta2", Linear(0.9, 1.0), "less than 1, but it goes up to 1, got linear 0.9 -> 1"),
        ("label_smoothing", Linear(0.1, -0.1), "but it goes down to -0.1"),
        ("horizon", Linear(1, 2), "a number more than 0"),
        ("momentum", 1.0, "a number at least 0 and less than 1"),
        ("batch_size", 0, "a whole number at least 1"),
        ("batch_size", 12.5, "a whole number at least 1"),
        ("batch_size", True, "a whole number at least 1"),
        ("batch_size", DIPS, r"a number at least 1, but stage 2 of 3 \(10-10.01%\) goes down to 0"),
        ("image_size", 7.5, "a whole number at least 1"),
        ("image_size", 4, "8 all along for model 'mlp', which takes one size only"),
        ("image_size", Linear(4, 8), "8 all along .*, but it goes down to 4, got linear 4 -> 8"),
        ("val_image_size", 16, "8 all along for model 'mlp'"),
        ("horizon", 0, "a number more than 0"),
        ("label_smoothing", 1, "less than 1"),
        ("augment", "crop+mirror", "'none', or some of crop, flip, cutout joined by '\\+'"),
        ("augment", "crop+crop", "joined by"),
        ("channels_last", 1, "True or False"),
        ("seed", -1, "a whole number at least 0"),
        ("state", 3, "what this trainer's milestone gave"),
        ("milestone", 0, "a whole number at least 1"),
        ("lr", Cosine, "a number at least 0 at every progress, also at 0"),
        ("lr", lambda x: "0.1", "a number at least 0 at every progress, also at 0"),
        ("batch_size", lambda x: None, "a number at least 1 at every progress, also at 0"),
    ],
)
def test_a_wrong_value_gets_one_clear_line(key: str, value: Any, allowed: str) -> None:
    optimizer = "adamw" if key == "beta2" else "sgd"
    if key == "optimizer":
        optimizer = value
    with pytest.raises(ValueError, match=f"^{key} must be .*{allowed}") as caught:
        read_settings({**GOOD, "optimizer": optimizer, key: value})
    assert shown(value) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("optimizer", "key"),
    [("adamw", "momentum"), ("sgd", "trust_coefficient"), ("lamb", "nesterov")],
)
def test_an_option_of_another_optimizer_is_refused(optimizer: str, key: str) -> None:
    with pytest.raises(ValueError, match=f"{key} is given but optimizer {optimizer!r}"):
        read_settings({**GOOD, "optimizer": optimizer, key: 0.5})


@pytest.mark.parametrize(
    ("optimizer", "key"),
    [("lars", "trust_max"), ("adamw", "eps"), ("lamb", "max_grad_norm"), ("sgd", "exclude")],
)
def test_a_schedule_for_what_stays_is_refused(optimizer: str, key: str) -> None:
    expected = f"^{key} must be one value all along, not a schedule, got linear 1 -> 10$"
    with pytest.raises(ValueError, match=expected):
        read_settings({**GOOD, "optimizer": optimizer, key: Linear(1, 10)})


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"sequence_length": 8}, "sequence_length is a key of trainers.language, which trainers.i"),
        (
            {"model": "resnet8", "image_size": Stages((0.5,), (Linear(8, 3), Constant(8)))},
            r"image_size must be at least 4, the total stride of resnet8 on images of 8, but "
            r"stage 1 of 2 \(0-50%\) goes down to 3, got 0-50%: linear 8 -> 3, 50-100%: constant 8",
        ),
        (
            {"model": "resnet50", "data": "synthetic", "image_size": Linear(8, 96)},
            "image_size must be at least 32, the total stride of resnet50 on images of 96, but it",
        ),
        (
            {"model": "resnet18", "val_image_size": 4},
            "val_image_size must be at least 8, the total stride of resnet18 on images of 8, got 4",
        ),
        (
            {"data": "synthetic", "image_size": Linear(8, 16)},
            "image_size must be one number for model 'mlp', which takes one size only, but it goes",
        ),
    ],
    ids=["of another trainer", "stage", "greatest", "evaluation", "mlp"],
)
def test_sizes_are_refused_with_their_stage(changed: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValueError, match=f"^{expected}") as error:
        read_settings({**GOOD, **changed})
    assert "\n" not in str(error.value)


TEXT: dict[str, Any] = {"text": "synthetic", "lr": 0.1}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"image_size": 8}, "image_size is a key of trainers.image, which trainers.language does"),
        ({"sequence_lenght": 8}, "unknown key 'sequence_lenght' .*did you mean 'sequence_length'"),
        ({"sequence_length": Linear(8, 0)}, "sequence_length must be .* it goes down to 0, got l"),
        ({"width": 20, "heads": 4}, "width must be a multiple of twice the heads, 8, got 20"),
        (
            {"tokens": "bytes"},
            "tokens must be one of characters, words, or the path of a tokenizer.json",
        ),
        ({"text": 3}, "text must be text, got 3"),
        ({"optimizer": "adamw", "momentum": 0.9}, "momentum is given but optimizer 'adamw'"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_the_language_trainer_refuses_them_too(changed: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValueError, match=f"^{expected}"):
        language.read_settings({**TEXT, **changed})


def test_cutout_is_not_for_folders() -> None:
    with pytest.raises(ValueError, match="augment must be without cutout"):
        read_settings({**GOOD, "data": "folder", "augment": "crop+cutout"})


def test_every_option_is_taken_by_some_optimizer() -> None:
    assert {key for taken in TAKES.values() for key in taken} == set(OPTIONS)


def test_a_warmed_schedule_may_start_at_zero() -> None:
    assert read_settings({**GOOD, "lr": warmed(Cosine(0.4, 0.0), 0.1)}).training.lr(0.0) == 0.0
