"""Image classifiers: a multi-layer perceptron and residual networks from 8x8 to 224x224 inputs."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from trainers.models.flops import per_image
from trainers.models.library import named
from trainers.models.library_images import image_model

Norm = Callable[[int], nn.Module]


def _group_norm(channels: int) -> nn.Module:
    return nn.GroupNorm(max(g for g in (8, 4, 2, 1) if channels % g == 0), channels)


NORMS: dict[str, Norm] = {
    "batch": nn.BatchNorm2d,
    "group": _group_norm,
}

_VECTOR = 16  # numbers of 32 bits, AVX-512's


class Thinned(nn.Conv2d):
    """A strided 1x1 convolution, computed with stride 1 over the pixels that it reads.

    Channels last, with fewer inputs than a vector holds, oneDNN's own writes past its memory when
    it computes the weights' gradient (its issue 6035), on processors with AVX2 at least.
    """

    def forward(self, x: Tensor) -> Tensor:
        down, across = self.stride
        return nn.functional.conv2d(x[:, :, ::down, ::across], self.weight)


def _conv(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Conv2d:
    kind = Thinned if size == 1 and stride > 1 and inputs < _VECTOR else nn.Conv2d
    conv = kind(inputs, outputs, size, stride, padding=size // 2, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    return conv


class Block(nn.Module):
    """A residual block, two 3x3 convolutions, or 1x1-3x3-1x1 with the stride in the 3x3 (v1.5).

    The last normalisation starts at scale 0, so that the block starts as the identity
    (Goyal et al. 2017, arXiv 1706.02677).
    """

    def __init__(self, inputs: int, width: int, stride: int, norm: Norm, expansion: int) -> None:
        super().__init__()
        outputs = width * expansion
        if expansion == 1:
            convs = [_conv(inputs, width, 3, stride), _conv(width, width, 3)]
        else:
            convs = [
                _conv(inputs, width, 1),
                _conv(width, width, 3, stride),
                _conv(width, outputs, 1),
            ]
        layers: list[nn.Module] = []
        for conv in convs:
            layers += [conv, norm(conv.out_channels), nn.ReLU(inplace=True)]
        self.body = nn.Sequential(*layers[:-1])
        nn.init.zeros_(self.body[-1].weight)  # type: ignore[arg-type]
        self.skip: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.skip = nn.Sequential(_conv(inputs, outputs, 1, stride), norm(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.skip(x))


LARGE = 64
"""The stem of a residual network reduces images with more pixels a side fourfold."""


def _stem(channels: int, width: int, size: int, norm: Norm) -> list[nn.Module]:
    if size <= LARGE:
        return [_conv(channels, width, 3), norm(width), nn.ReLU(inplace=True)]
    first = [_conv(channels, width, 7, stride=2), norm(width), nn.ReLU(inplace=True)]
    return [*first, nn.MaxPool2d(3, stride=2, padding=1)]


class Chain(nn.Sequential):
    """A model of layers one after another.

    torch.compile traces this `forward` as a whole. It does not trace the loop of nn.Sequential, and
    compiles the calls of its layers one by one, if at all.
    """

    def forward(self, x: Tensor) -> Tensor:
        for layer in self:
            x = layer(x)
        return x

    def units(self) -> list[nn.Module]:
        """The residual blocks, or the linear layers of a perceptron."""
        blocks = [layer for layer in self if isinstance(layer, Block)]
        return [*blocks] or [layer for layer in self if isinstance(layer, nn.Linear)]

    def flops(self, size: int) -> float:
        """Of training on one image of so many pixels a side: `trainers.models.flops.per_image`.

        >>> mlp((1, 8, 8), 10, 32).flops(8)
        20352.0
        """
        return per_image(self, size)


def resnet(
    shape: tuple[int, int, int], classes: int, width: int, blocks: tuple[int, ...], norm: Norm
) -> nn.Sequential:
    """A residual network with one stage per entry of `blocks`; bottlenecks from 16 blocks on.

    Inputs up to 64 pixels keep their resolution through the stem; larger ones are reduced
    fourfold, as for ImageNet (He et al. 2015, arXiv 1512.03385).
    """
    expansion = 4 if sum(blocks) >= 16 else 1
    layers, inputs = _stem(shape[0], width, shape[1], norm), width
    for stage, count in enumerate(blocks):
        for i in range(count):
            stride = 2 if stage > 0 and i == 0 else 1
            layers.append(Block(inputs, width * 2**stage, stride, norm, expansion))
            inputs = width * 2**stage * expansion
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes)]
    return Chain(*layers)


def mlp(shape: tuple[int, int, int], classes: int, width: int) -> nn.Sequential:
    """Two hidden layers of `width` units."""
    inputs = shape[0] * shape[1] * shape[2]
    return Chain(
        nn.Flatten(),
        nn.Linear(inputs, width),
        nn.ReLU(inplace=True),
        nn.Linear(width, width),
        nn.ReLU(inplace=True),
        nn.Linear(width, classes),
    )


BLOCKS: dict[str, tuple[int, ...]] = {
    "resnet8": (1, 1, 1),
    "resnet18": (2, 2, 2, 2),
    "resnet50": (3, 4, 6, 3),
}
WIDTHS: dict[str, int] = {"mlp": 128, "resnet8": 16, "resnet18": 64, "resnet50": 64}


def stride_of(name: str, shape: tuple[int, int, int]) -> int:
    """The total stride of a model, which is the smallest image size that it supports.

    1 for a model of a library, which says itself what it takes once it is made.

    Args:
        shape: of the images at full size, which choose the stem.

    >>> stride_of("resnet8", (1, 28, 28)), stride_of("resnet50", (3, 224, 224))
    (4, 32)
    """
    if name == "mlp" or named(name):
        return 1
    stem = 1 if shape[1] <= LARGE else 4
    return int(stem * 2 ** (len(BLOCKS[name]) - 1))


def make_model(
    name: str, shape: tuple[int, int, int], classes: int, width: int | None, norm: str
) -> nn.Module:
    """The model `name` of `WIDTHS` or of a library for images of `shape` (channels, height, width).

    Args:
        width: units of a hidden layer, or channels of the first stage; None for the usual one.
        norm: a name of `NORMS`; a perceptron has none. Models of libraries have their own.

    Raises:
        ValueError: the library is not installed, or does not make such a model; one line.

    >>> sum(p.numel() for p in make_model("mlp", (1, 8, 8), 10, 32, "batch").parameters())
    3466
    """
    if named(name):
        return image_model(name, shape, classes)
    width = WIDTHS[name] if width is None else width
    if name == "mlp":
        return mlp(shape, classes, width)
    return resnet(shape, classes, width, BLOCKS[name], NORMS[norm])
