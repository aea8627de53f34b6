"""A classifier of one's own images: `autotune run search_spaces.images:folder --with data=DIR`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

import torch

from autotune.errors import UserError, canonical, unknown
from autotune.space.coupling import SpaceEntry
from autotune.space.search_space import Choice, Fixed, Float, Int, ScheduleSpace, SearchSpace
from autotune.study.experiment import Experiment
from autotune.trial import FailurePolicy, Target
from trainers.data import formats, image_files
from trainers.data.images import KNOWN, read_images
from trainers.image import train
from trainers.models import library
from trainers.models.images import WIDTHS, stride_of
from trainers.readers import NotAllowedError

_MOST_PIXELS = 128  # a side, by default: larger images are made smaller
_MOST_SAMPLES = 5000  # between two evaluations, and in one of them
_OF_LIBRARIES = ", or timm:NAME, torchvision:NAME"
_KEPT = 3  # trials whose models are kept: those that may be confirmed


class MissingDataError(UserError, FileNotFoundError):
    """The folder is not here; it may be where the study is to run."""


def folder(
    data: Path,
    model: str = "resnet18",
    seconds: float = 120.0,
    image_size: int | None = None,
    val_share: float = 0.2,
    precision: Literal["fp32", "tf32", "bf16", "fp16"] = "fp32",
    weights: Path | None = None,
    cache: Literal["none", "memory", "decoded"] = "none",
    validation: Literal["inline", "beside"] = "inline",
) -> Experiment:
    """The best accuracy within `seconds` of training, on a folder of images by classes.

    The best model is written to `best_model.pt` in the study folder, with the names of its classes
    (`trainers.classifier` uses it).

    Args:
        data: `CLASS/*.jpg`, or `train/CLASS/*.jpg` with or without `val/CLASS/*.jpg`; or the
            published files of CIFAR-10 or Fashion-MNIST.
        seconds: of training of each trial.
        image_size: pixels of a side; by default the images' own, but at most 128.
        model: resnet8, resnet18, resnet50, mlp, timm:NAME or torchvision:NAME.
        val_share: the share of each class that validates, where the folder is not divided.
        weights: a file of the model's weights to begin with.
        cache: what is kept of the images while a trial trains (`trainers.data.cache`).
        validation: between two steps, or in a process beside training.

    Raises:
        UserError: there are no such images or weights, one cannot be read, or an argument is
            outside its range; one line.
    """
    if not seconds > 0:
        raise UserError(f"seconds must be more than 0 but got {seconds:g}")
    if not 0 < val_share < 1:
        raise UserError(f"val_share must be a share between 0 and 1 but got {val_share:g}")
    model = _model(model)
    if weights is not None and not weights.is_file():
        raise MissingDataError(f"weights: there is no file {weights}")
    fixed, count = _data(data, model, image_size, val_share)
    if cache != "none":
        if fixed["data"] != "folder":
            raise UserError(f"cache must be none for {fixed['data']}, which is in memory anyway")
        fixed["cache"] = cache
    if validation != "inline":
        fixed["validation"] = validation
    if weights is not None:
        fixed["weights"] = str(weights)
    largest = _power_of_two(min(max(count // 8, 4), 512))
    fixed |= {"model": model, "precision": precision, "optimizer": "sgd", "nesterov": True}
    usual = min(64, largest)
    entries = {key: Fixed(value) for key, value in fixed.items()}
    return Experiment(
        name=_name(data, model),
        train=train,
        space=SearchSpace({**entries, **_searched(largest, usual, weights)}),
        target=Target("val_accuracy", limit=seconds),
        baseline=_baseline(usual, 0.1 if weights is None else 0.01),
        failure=FailurePolicy(keep_checkpoints=_KEPT),
        canonical={"horizon": "epochs"},
    )


def _searched(largest: int, usual: int, weights: Path | None) -> dict[str, SpaceEntry]:
    """What is searched; smaller rates for weights of a file.

    Args:
        largest: batch size.
        usual: batch size at which the rates hold.
    """
    return {
        "augment": Choice(("none", "flip", "crop+flip")),
        "batch_size": Int(max(largest // 16, 2), largest, power_of_two=True, log=True),
        "horizon": Float(2.0, 60.0, log=True),
        "lr": ScheduleSpace(
            Float(0.003, 1.0, log=True) if weights is None else Float(0.0003, 0.3, log=True),
            family=Choice(("cosine", "linear", "one_cycle")),
            final=Float(0.001, 0.1, log=True),
            warmup=Float(0.0, 0.2),
            peak_at=Float(0.1, 0.5),
            follows="batch_size",
            rule="linear",
            reference=usual,
        ),
        "momentum": Float(0.8, 0.98),
        "weight_decay": Float(1e-5, 1e-2, log=True),
        "label_smoothing": Float(0.0, 0.2),
    }


def _model(name: str) -> str:
    """The model's name as the trainer knows it.

    Raises:
        UserError: there is none of this name, or its library is not installed.
    """
    if not library.named(name) and (known := canonical(name, WIDTHS)) in WIDTHS:
        return known
    if not library.named(name):
        raise UserError(unknown("model", name, WIDTHS) + _OF_LIBRARIES)
    try:
        found: str = library.model_of(WIDTHS, library.IMAGES)(name)
    except NotAllowedError as wrong:
        raise UserError(f"model must be {wrong} but got {name!r}") from None
    except ValueError as error:
        raise UserError(str(error)) from None
    return found


def _baseline(batch_size: int, rate: float) -> dict[str, Any]:
    """SGD with a cosine, scaled to its batch size.

    Args:
        rate: at 128 images.
    """
    return {
        "augment": "crop+flip",
        "batch_size": batch_size,
        "horizon": 15.0,
        "lr.family": "cosine",
        "lr.peak": max(rate * batch_size / 128, rate / 20),
        "lr.final": 0.001,
        "lr.warmup": 0.05,
        "momentum": 0.9,
        "weight_decay": 5e-4,
        "label_smoothing": 0.1,
    }


def _data(
    data: Path, model: str, image_size: int | None, val_share: float
) -> tuple[dict[str, Any], int]:
    """What of the configuration describes the images, and how many there are to train on.

    Raises:
        UserError: they cannot be used.
    """
    if not data.exists():
        raise MissingDataError(f"data: there is no folder {data}")
    if not data.is_dir():
        made = f"python -m trainers.convert {data} FOLDER"
        raise UserError(f"data must be a folder but {data} is a file: make one with {made}")
    try:
        name = formats.recognised(data)
        if name is not None:
            images = read_images(name, str(data), torch.device("cpu"))
            train_size, val_size, side = len(images.train_y), len(images.val_y), KNOWN[name].side
        else:
            parts = image_files.parts(data, val_share)
            side = image_files.check(*parts)
            train_size, val_size = (len(part.paths) for part in parts)
    except FileNotFoundError:
        raise UserError(
            f"data: {data} holds no images; they belong into {data}/CLASS/*.jpg "
            "(python -m trainers.convert makes such a folder of archives and lists)"
        ) from None
    except (ValueError, OSError) as error:
        raise UserError(str(error)) from None
    sizes = {"milestone": min(train_size, _MOST_SAMPLES)}
    if val_size > _MOST_SAMPLES:
        sizes["val_size"] = _MOST_SAMPLES
    if name is not None:
        if image_size not in (None, side):
            raise UserError(f"image_size must be {side}, that of {name}, but got {image_size}")
        return {"data": name, "data_dir": str(data), **sizes}, train_size
    size = min(side, _MOST_PIXELS) if image_size is None else image_size
    least = stride_of(model, (3, size, size))
    if image_size is not None and image_size < least:
        raise UserError(f"image_size must be at least {least} for {model} but got {image_size}")
    size = max(size, least)
    own = {"image_size": size, "val_image_size": size, "loader_workers": 2, "val_share": val_share}
    return {"data": "folder", "data_dir": str(data), **own, **sizes}, train_size


def _power_of_two(most: int) -> int:
    """The largest one that is at most `most`.

    >>> _power_of_two(100)
    64
    """
    return 1 << (most.bit_length() - 1)


def _name(data: Path, model: str) -> str:
    """The study's name, made of that of the folder."""
    own = re.sub(r"[^A-Za-z0-9_.-]+", "-", data.name)[:60] or "folder"
    return f"images-{own}-{model.replace(':', '-')}"
