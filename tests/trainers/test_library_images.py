"""Image models of libraries: units, sizes, and that they train as our own do."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn

from trainers import image
from trainers.models import library
from trainers.models.blocks import blocks
from trainers.models.images import make_model
from trainers.models.library_images import check_sizes, flops

UNITS = {
    "timm:resnet18": {"BasicBlock": 8},
    "timm:convnext_atto": {"ConvNeXtBlock": 12},
    "timm:vit_tiny_patch16_224": {"Block": 12},
    "timm:test_vit": {"Block": 6},
    "timm:efficientnet_lite0": {"DepthwiseSeparableConv": 1, "InvertedResidual": 15},
    "torchvision:resnet18": {"BasicBlock": 8},
    "torchvision:mobilenet_v3_small": {"InvertedResidual": 11},
    "torchvision:efficientnet_b0": {"MBConv": 16},
    "torchvision:convnext_tiny": {"CNBlock": 18},
    "torchvision:vit_b_32": {"EncoderBlock": 12},
    "torchvision:swin_t": {"SwinTransformerBlock": 12},
    "torchvision:densenet121": {"_DenseLayer": 58},
    "torchvision:googlenet": {"Inception": 9},
    "torchvision:squeezenet1_1": {"Fire": 8},
    "torchvision:vgg11": {"Conv2d": 8, "Linear": 3},
}


@pytest.mark.parametrize("name", UNITS)
@pytest.mark.parametrize("channels", [1, 3])
def test_an_image_model_has_the_classes_and_channels_of_the_data(name: str, channels: int) -> None:
    pytest.importorskip(name.partition(":")[0])
    with torch.device("meta"):
        model = make_model(name, (channels, 64, 64), 7, None, "batch")
        assert Counter(type(unit).__name__ for unit in blocks(model)) == UNITS[name]
        check_sizes(model, name, channels, 7, [64])
        assert model.training
        assert model(torch.randn(2, channels, 64, 64)).shape == (2, 7)
        assert flops(model, 64) > 1e6


RANDOM = (
    *("timm:efficientnet_b0", "timm:convnext_atto", "timm:test_vit"),
    *("torchvision:efficientnet_b0", "torchvision:mobilenet_v3_small", "torchvision:swin_t"),
)


@pytest.mark.parametrize("name", RANDOM)
def test_an_image_model_draws_no_random_numbers_in_a_step(name: str) -> None:
    pytest.importorskip(name.partition(":")[0])
    model = make_model(name, (3, 64, 64), 7, None, "batch")
    before = torch.get_rng_state()
    model(torch.full((2, 3, 64, 64), 0.5)).square().sum().backward()
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("name", "size", "says"),
    [
        ("timm:vit_tiny_patch16_224", 32, "does not take images of 32 pixels a side"),
        ("torchvision:vit_b_32", 32, "does not take images of 32 pixels a side"),
        ("torchvision:vgg11", 16, "does not take images of 16 pixels a side"),
    ],
)
def test_a_size_that_a_model_does_not_take_is_one_line(name: str, size: int, says: str) -> None:
    pytest.importorskip(name.partition(":")[0])
    model = make_model(name, (3, 64, 64), 7, None, "batch")
    with pytest.raises(ValueError, match=says) as refused:
        check_sizes(model, name, 3, 7, [64, size])
    assert "\n" not in str(refused.value)


def test_what_gives_no_scores_of_classes_is_refused() -> None:
    with pytest.raises(ValueError, match="gives no scores of classes alone"):
        check_sizes(nn.Flatten(), "timm:other", 3, 10, [4])


def test_what_cannot_be_counted_is_not_reported(
    record: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torchvision")

    class Numbers(nn.Module):
        """A model that computes with the numbers of its input."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(192, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x.flatten(1) * float(x.mean()))

    assert math.isnan(flops(Numbers(), 8))
    monkeypatch.setattr(image, "make_model", lambda *given: Numbers())
    config = {"data": "synthetic", "model": SMALL["torchvision"], "image_size": 8, "lr": 0.01}
    sizes = {"train_size": 64, "val_size": 32, "batch_size": 16, "milestone": 32}
    metrics = record({**config, **sizes}, 1)["metrics"][-1]
    assert "flops_per_second" not in metrics
    assert metrics["samples_per_second"] > 0


SMALL = {"timm": "timm:test_resnet", "torchvision": "torchvision:squeezenet1_1"}


@pytest.mark.parametrize("name", library.IMAGES)
def test_an_image_model_trains_goes_on_and_is_made_again(name: str, record: Any, same: Any) -> None:
    pytest.importorskip(name)
    sizes = {"train_size": 64, "val_size": 32, "batch_size": 16, "milestone": 32, "lr": 0.01}
    config = {"data": "synthetic", "model": SMALL[name], "image_size": 32, **sizes}
    whole = record(config, 3, save_at=1)
    rest = record({**config, "state": whole["state"]}, 2)
    assert same(rest["final"], whole["final"])
    model, example = image.train.model(config, [whole["final"]])  # type: ignore[attr-defined]
    assert not model.training
    assert model(example).shape == (2, 10)


@pytest.mark.slow
def test_a_sharded_and_recomputed_image_model_trains_as_copies_do(
    on_two_ranks: Any, apart: Any
) -> None:
    """One with batch normalisation, whose statistics are those of each rank's images."""
    pytest.importorskip("timm")
    sizes = {"train_size": 64, "val_size": 32, "batch_size": 16, "milestone": 32, "lr": 0.01}
    config = {"data": "synthetic", "model": SMALL["timm"], "image_size": 32, **sizes}
    plan = {"data_parallel_shard_degree": 2, "activation_checkpoint_mode": "full"}
    plain, other = (on_two_ranks({**config, **keys}, 2) for keys in ({}, plan))
    for one, two in zip(plain, other, strict=True):
        assert "error" not in two, two
        assert two["metrics"][-1]["val_loss"] == pytest.approx(one["metrics"][-1]["val_loss"], 1e-4)
