"""Weights of 8 bits: rounded after training, or rounded in every forward pass while training.

Of each output channel the weights are whole numbers from -128 to 127 times a scale, the largest
magnitude divided by 127.5, as torchao's symmetric fake quantisation has them. With `qat` the
forward pass uses the rounded weights and the backward pass takes the rounding for the identity
(Jacob et al. 2018, arXiv 1712.05877): torchao swaps linear layers for its own (the extra `lowbit`),
and convolutions are swapped here for ones with its rounding.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from trainers.models.images import Thinned
from trainers.readers import one_of
from trainers.technique import Knob

QUANTIZATIONS = ("none", "qat", "post_training")
KNOBS: Mapping[str, Knob] = {
    "quantization": Knob("none", one_of(QUANTIZATIONS), "both"),
}
_LOW, _HIGH = -128, 127
_LEAST = torch.finfo(torch.float32).eps  # of a scale


def quantized(weight: Tensor) -> tuple[Tensor, Tensor]:
    """A weight as int8 of its shape, and the scale of each output channel, float32 (channels,).

    >>> codes, scales = quantized(torch.tensor([[0.5, -1.0], [0.0, 0.0]]))
    >>> codes.tolist(), [round(x, 4) for x in scales.tolist()]
    ([[64, -128], [0, 0]], [0.0078, 0.0])
    """
    rows = weight.detach().to(torch.float32).flatten(1)
    scale = (rows.abs().amax(1) / ((_HIGH - _LOW) / 2)).clamp(min=_LEAST)
    codes = torch.round(rows * (1.0 / scale)[:, None]).clamp(_LOW, _HIGH)
    return codes.to(torch.int8).view(weight.shape), scale


def dequantized(codes: Tensor, scale: Tensor) -> Tensor:
    """The weight that `quantized` has rounded, float32."""
    return codes.to(torch.float32) * scale.view(-1, *(1,) * (codes.dim() - 1))


def rounded(weight: Tensor) -> Tensor:
    """A weight as it is once it has been quantised: float32 of its shape."""
    return dequantized(*quantized(weight))


def is_quantized(name: str, value: Tensor) -> bool:
    """Whether the tensor of a model's state is one that is quantised: those of layers are."""
    return name.endswith("weight") and value.dim() > 1 and value.is_floating_point()


class FakeQuantizedConv(nn.Conv2d):
    """A convolution with the weights that it will have once they are quantised."""

    thinned: bool
    weight_fake_quantizer: nn.Module

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight_fake_quantizer(self.weight.flatten(1)).view_as(self.weight)
        if not self.thinned:
            found: Tensor = self._conv_forward(x, weight, self.bias)
            return found
        down, across = self.stride
        return nn.functional.conv2d(x[:, :, ::down, ::across], weight)


def prepare(model: nn.Module) -> nn.Module:
    """The model, changed in place, whose linear and convolutional layers round their weights."""
    qat, torchao = _library("torchao.quantization.qat"), _library("torchao.quantization")
    config = qat.IntxFakeQuantizeConfig(torch.int8, "per_channel", is_symmetric=True)
    torchao.quantize_(model, qat.QATConfig(weight_config=config, step="prepare"))
    kind = getattr(qat, "IntxFakeQuantizer", None) or qat.FakeQuantizer
    for part in [m for m in model.modules() if type(m) in (nn.Conv2d, Thinned)]:
        thinned = type(part) is Thinned
        part.__class__ = FakeQuantizedConv
        part.thinned = thinned  # type: ignore[assignment]
        part.weight_fake_quantizer = kind(config)
    return model


def check(own: Mapping[str, Any], compile: bool | str) -> None:
    """Raise a ValueError, one line, where the library is missing, or the model is compiled."""
    if own["quantization"] != "qat":
        return
    if compile:
        raise ValueError(f"compile must be False with quantization 'qat', got {compile!r}")
    _library("torchao.quantization.qat")


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        needs = "needs the library torchao: pip install 'time-to-target[lowbit]'"
        raise ValueError(f"quantization 'qat' {needs}") from None
