"""Distributed data-parallel training of an image classifier in plain PyTorch.

It runs in one process (`for milestone in train(config): print(milestone.evaluate())`), under
`torchrun`, or in an existing process group. The keys of `config` are in `trainers.settings` and
`trainers.training`.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from autotune.trial import Change, Milestone
from trainers import served
from trainers.data import data_folder, read_images, synthetic
from trainers.distributed import Ranks, process_group
from trainers.folder import CENTRAL, MEAN, STD, FolderStream
from trainers.formats import FORMATS, class_names
from trainers.image_files import parts
from trainers.loop import StepAt, Task, run
from trainers.models import make_model
from trainers.settings import Settings, read_settings
from trainers.stream import MemoryStream

Images = FolderStream | MemoryStream


def train(config: dict[str, Any]) -> Generator[Milestone, Change | None, None]:
    """Train as `config` says until closed, or until `max_epochs`.

    The first milestone, at the starting step, ends the set-up (data, model, compilation, a warm-up
    without side effects); the next ones follow every `milestone` images. A `Change` that is sent
    in holds from then on: `lr_factor` multiplies the learning rate (and earlier factors),
    `batch_size` and `momentum` replace their schedules.

    `evaluate` gives val_accuracy and val_loss at full size; lr, momentum, batch_size, image_size
    and progress (above 1 beyond the horizon) now; and, once trained, train_loss, samples_per_second
    and what `trainers.statistics` measures, all since the last milestone; with `compile`,
    recompile_limit_met where shapes run uncompiled. `state`
    restores bit for bit on as many ranks (on a GPU with `deterministic`), and holds the tensors
    that are trained: copy it to keep it. The
    next steps depend on the seed and the samples seen only, so no random state is saved.

    Raises:
        ValueError: a key or value that is not allowed; one line.
        FileNotFoundError: missing data; one line that says where to put it.
    """
    settings = read_settings(config)
    with process_group() as ranks:
        yield from run(settings.training, ranks, _task(settings, ranks))


def trained(
    config: Mapping[str, Any], states: Sequence[Mapping[str, Any]]
) -> tuple[nn.Module, Tensor]:
    """The classifier that `config` trained, as it was evaluated, and an example of its input.

    Args:
        states: the checkpoint of every rank, in the order of ranks.

    Images are float32 (N, channels, height, width), each channel normalised by its mean and
    standard deviation over the training images (`trainers.data`); the output has the classes'
    scores.
    No data is read: the weights' shapes determine that of the model.
    """
    settings, weights = read_settings(config), served.weights(states)
    first, last = served.outer(weights)
    side, size = settings.full_size, settings.val_image_size
    channels = first.shape[1] // (side * side) if settings.model == "mlp" else first.shape[1]
    shape = (channels, side, side)
    made = make_model(settings.model, shape, len(last), settings.width, settings.norm)
    made.load_state_dict(weights)
    return made.eval(), torch.zeros(served.EXAMPLES, channels, size, size)


train.model = trained  # type: ignore[attr-defined]  # for registration of the model
train.check = read_settings  # type: ignore[attr-defined]  # called before a study starts
train.memory_keys = (  # type: ignore[attr-defined]  # keys that determine the memory of a step
    *("data", "image_size", "val_image_size", "model", "width", "norm", "channels_last"),
    *("optimizer", "precision", "deterministic", "compile"),
)


def saved(config: Mapping[str, Any], states: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """What a file of the trained classifier holds: `trainers.classifier` makes it of that again.

    Tensors, numbers and text only, so that `torch.load(weights_only=True)` reads it. None for data
    that is not in files of images (digits, synthetic).

    Args:
        states: the checkpoint of every rank, in the order of ranks.
    """
    settings = read_settings(config)
    root = data_folder(settings.data_dir)
    if settings.data == "folder":
        classes: Sequence[str] = parts(root, settings.val_share)[0].classes
        mean, spread = MEAN, STD
        size, crop = settings.val_image_size, CENTRAL
    elif settings.data in FORMATS:
        images = read_images(settings.data, settings.data_dir, torch.device("cpu"))
        assert images.mean is not None
        assert images.spread is not None
        mean, spread = (tuple(part.flatten().tolist()) for part in (images.mean, images.spread))
        classes = class_names(settings.data, root)[: images.classes]
        size, crop = settings.full_size, 1.0
    else:
        return None
    return {
        "weights": served.weights(states),
        "model": settings.model,
        "width": settings.width,
        "norm": settings.norm,
        "full_size": settings.full_size,
        "image_size": settings.val_image_size,
        "decoded_size": size,
        "crop": crop,
        "classes": list(classes),
        "mean": list(mean),
        "std": list(spread),
    }


train.saved = saved  # type: ignore[attr-defined]  # for the file of the best model


def _task(settings: Settings, ranks: Ranks) -> Task[Images]:
    def stream(step_at: StepAt) -> Images:
        if settings.data == "folder":
            return FolderStream(settings, ranks, step_at)
        if settings.data == "synthetic":
            train, val = settings.train_size or 4096, settings.val_size or 1024
            images = synthetic(train, val, settings.full_size, ranks.device)
        else:
            images = read_images(settings.data, settings.data_dir, ranks.device)
            images = images.first(settings.train_size, settings.val_size)
        seed, val_size = settings.training.seed, settings.val_image_size
        return MemoryStream(images, settings.augment, seed, ranks, val_size)

    def model(stream: Images) -> nn.Module:
        return make_model(
            settings.model, stream.shape, stream.classes, settings.width, settings.norm
        )

    return Task(
        size_key="image_size",
        size=settings.image_size,
        samples=lambda size: 1,
        stream=stream,
        model=model,
        layout=torch.channels_last if settings.channels_last else torch.contiguous_format,
        dims=(2, 3),
    )
