"""What is built of a checkpoint is the model that was evaluated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from autotune.schedules import Linear
from trainers import image, language, model_file, trained_weights
from trainers.data.images import read_images
from trainers.data.text import load_text

CPU = torch.device("cpu")
IMAGES: dict[str, Any] = {"data": "digits", "lr": 0.1, "batch_size": 32, "milestone": 500}
NETWORKS = [
    {"model": "mlp", "width": 16},
    {"model": "resnet8", "width": 4, "image_size": Linear(4, 8)},
    {"model": "resnet8", "width": 4, "norm": "group", "channels_last": True},
]


def trained(milestones: Iterator[Any], count: int = 2) -> tuple[dict[str, float], dict[str, Any]]:
    """What a trainer says at a milestone, and its state there."""
    for _ in range(count):
        next(milestones)
    here = next(milestones)
    try:
        return here.evaluate(), here.state()
    finally:
        milestones.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("network", NETWORKS, ids=["mlp", "sizes", "group"])
def test_images(network: dict[str, Any]) -> None:
    config = {**IMAGES, **network, "seed": 3}
    metrics, state = trained(image.train(config))
    model, example = image.train.model(config, [state])  # type: ignore[attr-defined]
    assert not model.training
    assert example.shape == (2, 1, 8, 8)
    data = read_images("digits", None, CPU)
    with torch.no_grad():
        right = (model(data.val_x).argmax(1) == data.val_y).float().mean()
    assert float(right) == pytest.approx(metrics["val_accuracy"], abs=1e-6)
    assert 0 < metrics["val_accuracy"] < 1


@pytest.mark.parametrize("channels", [1, 3])
def test_what_transformers_have_before_their_first_convolution_is_no_image(
    channels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Class tokens (1, 1, width) and positions, as in timm's and torchvision's models."""

    class Transformer(nn.Module):
        def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
            super().__init__()
            self.class_token = nn.Parameter(torch.zeros(1, 1, 16))
            self.positions = nn.Parameter(torch.zeros(1, 2, 2, 16))
            self.patches = nn.Conv2d(shape[0], 16, 4, 4)
            self.head = nn.Linear(16, classes)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            patches = self.patches(x).permute(0, 2, 3, 1) + self.positions
            return self.head(patches.flatten(1, 2).mean(1) + self.class_token[:, 0])

    def made(name: str, shape: tuple[int, int, int], classes: int, *_: Any) -> nn.Module:
        return Transformer(shape, classes)

    monkeypatch.setattr(model_file, "make_model", made)
    known = Transformer((channels, 8, 8), 5)
    state = {"learner": {"model": known.state_dict()}}
    config = {**IMAGES, "data": "synthetic", "model": "resnet8", "image_size": 8}
    model, example = image.trained(config, [state])
    assert example.shape == (2, channels, 8, 8)
    x = torch.rand(2, channels, 8, 8)
    assert torch.equal(model(x), known(x))


def test_a_language_model() -> None:
    known = {"text": "synthetic", "tokens": "words", "layers": 1, "width": 16, "heads": 2}
    sizes = {"train_size": 2000, "val_size": 320, "sequence_length": 16, "milestone": 2000}
    config = {**known, **sizes, "lr": 0.05, "batch_size": 8, "optimizer": "adamw"}
    metrics, state = trained(language.train(config))
    model, example = language.train.model(config, [state])  # type: ignore[attr-defined]
    assert (example.shape, example.dtype) == ((2, 16), torch.int64)
    text = load_text("synthetic", None, "words", 8192, CPU)
    tokens = text.val[:321]
    with torch.no_grad():
        scores = model(tokens[:-1].view(20, 16)).flatten(0, 1)
    loss = torch.nn.functional.cross_entropy(scores, tokens[1:])
    assert float(loss) == pytest.approx(metrics["val_loss"], rel=1e-5)


def test_running_statistics_are_means_and_parameters_are_as_they_are() -> None:
    def state(mean: float, count: int) -> dict[str, Any]:
        known = {"weight": torch.tensor([0.1]), "mean": torch.tensor([mean])}
        return {"learner": {"model": {**known, "count": torch.tensor(count)}}}

    found = trained_weights.weights([state(1.0, 5), state(2.0, 5), state(6.0, 5)])
    assert found == {"weight": torch.tensor([0.1]), "mean": torch.tensor([3.0]), "count": 5}
    with pytest.raises(KeyError):
        trained_weights.weights([{"other": 1}])
