"""Image models of timm and torchvision: the classes and channels of the data, no dropout."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from trainers.models.flops import per_image
from trainers.models.library import imported, offline, one_line, split, without_dropout

Shape = tuple[int, int, int]


def image_model(name: str, shape: Shape, classes: int) -> nn.Module:
    """The model `LIBRARY:NAME` with new weights.

    Args:
        shape: channels, height and width of the images; a model of one size is made for these.

    Raises:
        ValueError: the library is not installed, or cannot make it so; one line.
    """
    library, own = split(name)
    module = imported(
        "torchvision.models" if library == "torchvision" else "timm", f"model {name!r}"
    )
    make = _torchvision if library == "torchvision" else _timm
    try:
        with offline():
            return without_dropout(make(module, own, shape, classes))
    except Exception as error:  # of the library
        size = "x".join(map(str, shape))
        what = f"model {name!r} cannot be made for images of {size}"
        raise ValueError(f"{what}: {one_line(error)}") from None


def _timm(timm: Any, name: str, shape: Shape, classes: int) -> nn.Module:
    sizes: dict[str, Any] = {}
    if getattr(timm.models.get_pretrained_cfg(name), "fixed_input_size", False):
        sizes["img_size"] = shape[1]
    made: nn.Module = timm.create_model(
        name, pretrained=False, num_classes=classes, in_chans=shape[0], **sizes
    )
    return made


_OPTIONS: Mapping[str, Callable[[int], dict[str, Any]]] = {
    "vit_": lambda size: {"image_size": size},
    "maxvit_": lambda size: {"input_size": (size, size)},
    "googlenet": lambda size: {"aux_logits": False, "init_weights": True},
    "inception_": lambda size: {"aux_logits": False, "init_weights": True},
}
"""Of torchvision's models whose names begin so: of one size, or with further outputs."""


def _torchvision(models: Any, name: str, shape: Shape, classes: int) -> nn.Module:
    given = [make(shape[1]) for begin, make in _OPTIONS.items() if name.startswith(begin)]
    options = given[0] if given else {}
    made: nn.Module = models.get_model(name, weights=None, num_classes=classes, **options)
    _take_channels(made, shape[0])
    return made


def _take_channels(model: nn.Module, channels: int) -> None:
    """Leave the first convolution, which is for three channels, the first ones of its weights."""
    first = next(m for m in model.modules() if isinstance(m, nn.Conv2d))
    if channels < first.in_channels:
        first.weight = nn.Parameter(first.weight.detach()[:, :channels].clone())
        first.in_channels = channels


@torch.no_grad()
def check_sizes(
    model: nn.Module, name: str, channels: int, classes: int, sizes: Iterable[int]
) -> None:
    """Give the model a blank image of each size.

    Raises:
        ValueError: it does not take one, or gives no scores of the classes; one line.
    """
    model.eval()
    for size in sorted(set(sizes)):
        try:
            out = model(torch.zeros(1, channels, size, size))
        except Exception as error:  # of the library
            what = f"image_size: model {name!r} does not take images of {size} pixels a side"
            raise ValueError(f"{what}: {one_line(error)}") from None
        if not isinstance(out, Tensor) or out.shape != (1, classes):
            raise ValueError(f"model {name!r} gives no scores of classes alone")
    model.train()


def flops(model: nn.Module, size: int) -> float:
    """As `trainers.models.flops.per_image`; nan for a model that cannot be counted so."""
    try:
        return per_image(model, size)
    except Exception:  # of the library: it computes with numbers, or its images are no images
        return math.nan
