"""The trained image classifier as a file and as a model: what its compression has left of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from trainers import trained_weights
from trainers.compression.applied import Compression, Masks, smaller_of
from trainers.compression.exported import latency_ms, megabytes, small
from trainers.compression.packed import Packed, is_packed, unpacked
from trainers.compression.packed_model import PackedModel
from trainers.compression.quantize import prepare
from trainers.compression.structure import fit
from trainers.compression.teacher import read_teacher
from trainers.data.folder import CENTRAL, MEAN, STD
from trainers.data.formats import FORMATS, class_names
from trainers.data.image_files import parts
from trainers.data.images import data_folder, normalisation
from trainers.models.images import make_model
from trainers.readers import SAMPLED
from trainers.settings import Settings

State = Mapping[str, Any]


def masks_of(states: Sequence[State]) -> Masks:
    """The masks in the checkpoints of all ranks, which are the same on each."""
    found: Masks = states[0]["learner"].get("compression", {}).get("masks", {})
    return found


def content(settings: Settings, states: Sequence[State]) -> dict[str, Any] | None:
    """What a file of the trained classifier holds: see `trainers.image.saved`."""
    about = _about(settings)
    if about is None:
        return None
    return _file(
        settings, _small(settings, trained_weights.weights(states), masks_of(states)), about
    )


def exported(settings: Settings, weights: Mapping[str, Tensor], masks: Masks) -> nn.Module:
    """The model that is exported, in evaluation mode on the CPU; it keeps its weights packed.

    Args:
        weights: the whole model's, as they are trained.
        masks: of the training.
    """
    packed = _small(settings, weights, masks)
    model = _model(settings, weights, packed)
    return PackedModel(model, packed).eval() if any(map(is_packed, packed.values())) else model


def measured(
    settings: Settings, weights: Mapping[str, Tensor], masks: Masks, device: torch.device
) -> dict[str, float]:
    """The size of the model's file, and its latency on the device."""
    packed = _small(settings, weights, masks)
    about = _about(settings) or _unnamed(weights)
    model = _model(settings, weights, packed)
    layout = torch.channels_last if settings.channels_last else torch.contiguous_format
    model = model.to(device, memory_format=layout)  # type: ignore[call-overload]
    channels, size = image_shape(settings, weights)[0], settings.val_image_size
    sample = torch.zeros(1, channels, size, size, device=device).contiguous(memory_format=layout)
    return {
        "model_megabytes": megabytes(_file(settings, packed, about)),
        "latency_ms": latency_ms(model, sample),
    }


def compression(
    settings: Settings, model: nn.Module, shape: tuple[int, int, int], device: torch.device
) -> Compression:
    """The compression of a training of the model, whose layers it may swap.

    Args:
        shape: channels, height and width of the images.

    Raises:
        ValueError: the teacher is not one for these images; one line.
    """
    smaller, teacher = smaller_of(model, settings.compression), None
    if settings.teacher is not None:
        how = settings.distill_weight, settings.distill_temperature
        sizes = {round(settings.image_size(progress)) for progress in SAMPLED}
        data, images = _about(settings), (shape[0], sizes, _classes(model, shape))
        names = data["classes"] if data and settings.data == "folder" else None
        normal = (data["mean"], data["std"]) if data else None
        teacher = read_teacher(settings.teacher, *images, device, *how, names, normal)
    if settings.quantization == "qat":
        prepare(model)
    measure = partial(measured, settings, device=device)
    return Compression(model, smaller, teacher, measure)


@torch.no_grad()
def _classes(model: nn.Module, shape: tuple[int, int, int]) -> int:
    found: Tensor = model.eval()(torch.zeros(1, *shape))
    model.train()
    return found.shape[1]


def _small(settings: Settings, weights: Mapping[str, Tensor], masks: Masks) -> dict[str, Packed]:
    smaller = smaller_of(_made(settings, weights), settings.compression)
    return small(weights, smaller, masks)


def _model(
    settings: Settings, weights: Mapping[str, Tensor], packed: Mapping[str, Packed]
) -> nn.Module:
    return fit(_made(settings, weights), unpacked(packed)).eval()


def _made(settings: Settings, weights: Mapping[str, Tensor]) -> nn.Module:
    """A new model of the configuration; its shape is that of the weights, and no data is read."""
    _, last = trained_weights.outer(weights)
    shape = image_shape(settings, weights)
    return make_model(settings.model, shape, len(last), settings.width, settings.norm)


def image_shape(settings: Settings, weights: Mapping[str, Tensor]) -> tuple[int, int, int]:
    """Channels, height and width of the images that the weights are for.

    Args:
        weights: the whole model's, in its order.
    """
    side = settings.full_size
    if settings.model == "mlp":
        return trained_weights.outer(weights)[0].shape[1] // (side * side), side, side
    # Transformers have class tokens and positions, (1, ...), in front of the first convolution.
    kernels = (v for name, v in weights.items() if v.dim() == 4 and name.endswith("weight"))
    first = next(kernels)
    return first.shape[1], side, side


def _file(settings: Settings, packed: Mapping[str, Packed], about: State) -> dict[str, Any]:
    return {
        "weights": dict(packed),
        "model": settings.model,
        "width": settings.width,
        "norm": settings.norm,
        "full_size": settings.full_size,
        "image_size": settings.val_image_size,
        **about,
    }


def _about(settings: Settings) -> dict[str, Any] | None:
    """What the file says of the images and classes; None for data that is made up."""
    root = data_folder(settings.data_dir)
    if settings.data == "synthetic":
        return None
    if settings.data == "folder":
        classes: Sequence[str] = parts(root, settings.val_share)[0].classes
        mean, spread = list(MEAN), list(STD)
        size, crop = settings.val_image_size, CENTRAL
    else:
        mean, spread = normalisation(settings.data, settings.data_dir)
        size, crop = settings.full_size, 1.0
        in_files = settings.data in FORMATS
        classes = class_names(settings.data, root) if in_files else tuple("0123456789")
    return {
        "decoded_size": size,
        "crop": crop,
        "classes": list(classes),
        "mean": mean,
        "std": spread,
    }


def _unnamed(weights: Mapping[str, Tensor]) -> dict[str, Any]:
    """What the file of a model of made up images would say, were there one."""
    classes = len(trained_weights.outer(weights)[1])
    unit = {"mean": [0.0] * 3, "std": [1.0] * 3}
    return {"decoded_size": 0, "crop": 1.0, "classes": [str(i) for i in range(classes)], **unit}
