from __future__ import annotations

import doctest
from types import ModuleType

import pytest
import torch

from trainers import knobs, loop, readers
from trainers.data import augment, stream, text
from trainers.models import flops, gpt
from trainers.models import images as models
from trainers.models.images import WIDTHS, Thinned, make_model
from trainers.parallel import ranks as distributed


def size(model: torch.nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("name", "parameters"), [("resnet18", 11_689_512), ("resnet50", 25_557_032)]
)
def test_the_imagenet_models_have_their_published_size(name: str, parameters: int) -> None:
    assert size(make_model(name, (3, 224, 224), 1000, None, "batch")) == parameters


@pytest.mark.parametrize("name", WIDTHS)
@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32), (3, 96, 96)])
def test_every_model_takes_every_image(name: str, norm: str, shape: tuple[int, int, int]) -> None:
    model = make_model(name, shape, 7, 4, norm)
    out = model(torch.randn(2, *shape))
    assert out.shape == (2, 7)
    out.sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_a_residual_block_starts_as_the_identity() -> None:
    block = make_model("resnet8", (1, 8, 8), 10, 4, "batch")[3]  # type: ignore[index]
    x = torch.rand(2, 4, 8, 8)
    torch.testing.assert_close(block(x), x)


@pytest.mark.parametrize("width", [2, 4, 16])
def test_channels_last_changes_no_gradient(width: int) -> None:
    """Narrow strided 1x1 convolutions broke the process's memory, or had wrong gradients."""
    torch.manual_seed(0)
    model, x = make_model("resnet8", (1, 8, 8), 10, width, "group"), torch.randn(32, 1, 8, 8)
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.5)

    def gradients(layout: torch.memory_format) -> list[torch.Tensor]:
        model.to(memory_format=layout).zero_grad()
        for _ in range(5):
            torch.nn.functional.log_softmax(model(x.to(memory_format=layout)), 1)[
                :, 0
            ].sum().backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    plain, last = gradients(torch.contiguous_format), gradients(torch.channels_last)
    for one, other in zip(plain, last, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)


def test_a_thinned_convolution_is_the_strided_one() -> None:
    made = Thinned(3, 5, 1, 2, bias=False)
    x = torch.randn(2, 3, 7, 8)
    wanted = torch.nn.functional.conv2d(x, made.weight, stride=2)
    torch.testing.assert_close(made(x), wanted)


MODULES = (augment, distributed, flops, gpt, knobs, loop, models, readers, stream, text)


@pytest.mark.parametrize("module", MODULES, ids=lambda m: m.__name__)
def test_examples_in_the_docstrings_hold(module: ModuleType) -> None:
    assert doctest.testmod(module).failed == 0
