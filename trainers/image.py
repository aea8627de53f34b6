"""Distributed data-parallel training of an image classifier in plain PyTorch.

It runs in one process (`for milestone in train(config): print(milestone.evaluate())`), under
`torchrun`, or in an existing process group. The keys of `config` are in `trainers.settings` and
`trainers.training`.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from autotune.trial import Change, Milestone
from trainers import model_file as files
from trainers import trained_weights
from trainers.communication.keys import MEMORY_KEYS as EXCHANGED
from trainers.compression.applied import Compression
from trainers.compression.distill import require_file
from trainers.compression.exported import MEASURES
from trainers.data.folder import FolderStream
from trainers.data.images import read_images, synthetic
from trainers.data.stream import MemoryStream
from trainers.loop import run
from trainers.models import library_images
from trainers.models import weights as given
from trainers.models.flops import per_image
from trainers.models.images import make_model
from trainers.models.library import named
from trainers.parallel.ranks import Ranks, process_group, raising_together
from trainers.plan import DEFAULTS, MEMORY_KEYS
from trainers.readers import SAMPLED
from trainers.settings import EFFECTS, Settings, read_settings
from trainers.task import StepAt, Task
from trainers.training import pass_sizes

Images = FolderStream | MemoryStream


def train(config: dict[str, Any]) -> Generator[Milestone, Change | None, None]:
    """Train as `config` says until closed, or until `max_epochs`.

    The first milestone, at the starting step, ends the set-up (data, model, compilation, a warm-up
    without side effects); the next ones follow every `milestone` images. A `Change` that is sent
    in holds from then on: `lr_factor` multiplies the learning rate (and earlier factors),
    `batch_size` and `momentum` replace their schedules.

    `evaluate` gives val_accuracy and val_loss at full size; lr, momentum, batch_size, image_size
    and progress (above 1 beyond the horizon) now; and, once trained, train_loss,
    samples_per_second, flops_per_second of the model (`trainers.models.flops.per_image`),
    exposed_communication where there are several ranks (`trainers.parallel.exposed`), staleness
    where they exchange beside steps, and what `trainers.statistics` and, if asked for,
    `trainers.noise_scale` measure, all since the last milestone; with `compile`,
    recompile_limit_met where shapes run uncompiled.

    `state` restores bit for bit on as many ranks (on a GPU with `deterministic`), and holds the
    tensors that are trained: copy it to keep it. The next steps depend on the seed and the samples
    seen only, so no random state is saved.

    Raises:
        ValueError: a key or value that is not allowed; one line.
        FileNotFoundError: missing data; one line that says where to put it.
    """
    settings = read_settings(config)
    with process_group() as ranks:
        yield from run(settings.training, ranks, _task(settings))


def check(config: Mapping[str, Any]) -> None:
    """Raise a ValueError, one line, for a configuration that cannot be trained.

    As `read_settings`; and files of weights to begin with, and of a teacher, must be there.
    """
    settings = read_settings(config)
    if not settings.training.state:
        given.require_file(settings.weights)
        require_file(settings.teacher)


def check_measured(config: Mapping[str, Any]) -> None:
    """Raise a ValueError, one line, for a configuration whose `MEASURES` cannot be limited.

    With validation beside training the model has trained on when its metrics come.
    """
    if config.get("validation") == "beside":
        limited = f"with limits on what is measured ({', '.join(MEASURES)})"
        raise ValueError(f"validation must be 'inline' {limited}, got 'beside'")


def trained(
    config: Mapping[str, Any], states: Sequence[Mapping[str, Any]]
) -> tuple[nn.Module, Tensor]:
    """The classifier that `config` trained, as it was evaluated, and an example of its input.

    Args:
        states: the checkpoint of every rank, in the order of ranks.

    Images are float32 (N, channels, height, width), each channel normalised by its mean and
    standard deviation over the training images (`trainers.data.images`); the output has the
    classes' scores.
    No data is read: the weights' shapes determine that of the model.
    """
    settings, weights = read_settings(config), trained_weights.weights(states)
    made = files.exported(settings, weights, files.masks_of(states))
    channels, size = files.image_shape(settings, weights)[0], settings.val_image_size
    return made, torch.zeros(trained_weights.EXAMPLES, channels, size, size)


def memory(config: Mapping[str, Any], ranks: int = 1, has: int = 0) -> int:
    """The bytes of memory that a rank of this training needs, images that it keeps included.

    Nothing is trained, no image read, and no memory allocated (`trainers.memory.predict`).

    Args:
        ranks: of the training.
        has: bytes that a rank has; where it surely needs less, that bound will do.

    Raises:
        ValueError: a key or value that is not allowed, or a plan for other ranks; one line.
        FileNotFoundError: a missing folder of images.
    """
    from trainers.data.blank import images
    from trainers.memory.predict import needed

    settings = read_settings(config)
    task = _task(settings, begins=False)
    return needed(settings.training, task, images(settings, ranks), ranks, has)


pass_size = pass_sizes(read_settings)

train.model = trained  # type: ignore[attr-defined]  # for registration of the model
train.check = check  # type: ignore[attr-defined]  # called before a study starts
train.effects = EFFECTS  # type: ignore[attr-defined]  # what each key changes of a training
train.pass_size = pass_size  # type: ignore[attr-defined]  # halved where memory has run out
train.memory = memory  # type: ignore[attr-defined]  # what a rank needs, before it is tried
train.plan_keys = DEFAULTS  # type: ignore[attr-defined]  # of a plan, with their defaults
train.memory_keys = (  # type: ignore[attr-defined]  # keys that determine the memory of a step
    *("data", "image_size", "val_image_size", "model", "width", "norm", "channels_last"),
    *("optimizer", "precision", "deterministic", "compile"),
    *("noise_scale_every", "adascale_batch_size"),
    *EXCHANGED,
    *(*MEMORY_KEYS, "quantization", "teacher"),
)


def saved(config: Mapping[str, Any], states: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """What a file of the trained classifier holds: `trainers.classifier` makes it of that again.

    Tensors, numbers and text only, so that `torch.load(weights_only=True)` reads it: what the
    compression has left of the weights (`trainers.compression.packed`). None for synthetic data.

    Args:
        states: the checkpoint of every rank, in the order of ranks.
    """
    return files.content(read_settings(config), states)


train.measures = MEASURES  # type: ignore[attr-defined]  # metrics of what is saved, for limits
train.check_measured = check_measured  # type: ignore[attr-defined]  # `check` with such limits
train.saved = saved  # type: ignore[attr-defined]  # for the file of the best model


def _check_validated(stream: Images, data: Ranks, asked: int | None) -> None:
    """Raise a ValueError where this rank has no image to validate on, of so many as are asked."""
    if not stream.evaluated():
        rule = f"at least {data.size}, an image for each rank where the model is sharded"
        got = "all there are, which are fewer" if asked is None else asked
        raise ValueError(f"val_size must be {rule}, got {got}")


def _task(settings: Settings, begins: bool = True) -> Task[Images]:
    """The training of a configuration.

    Args:
        begins: whether it begins, and not its memory alone is of interest: then models have no
            numbers to compute with, and no file of weights is read.
    """

    def stream(step_at: StepAt, data: Ranks) -> Images:
        found = opened(step_at, data)
        try:
            if settings.training.plan.shards:
                with raising_together(data):
                    _check_validated(found, data, settings.val_size)
        except (ValueError, RuntimeError):
            found.close()
            raise
        return found

    def opened(step_at: StepAt, data: Ranks) -> Images:
        if settings.data == "folder":
            return FolderStream(settings, data, step_at)
        if settings.data == "synthetic":
            train, val = settings.train_size or 4096, settings.val_size or 1024
            images = synthetic(train, val, settings.full_size, data.device)
        else:
            images = read_images(settings.data, settings.data_dir, data.device)
            images = images.first(settings.train_size, settings.val_size)
        seed, val_size = settings.training.seed, settings.val_image_size
        return MemoryStream(images, settings.augment, seed, data, val_size)

    def model(stream: Images) -> nn.Module:
        name, shape, classes = settings.model, stream.shape, stream.classes
        made = make_model(name, shape, classes, settings.width, settings.norm)
        if begins and named(name):
            sizes = {round(settings.image_size(progress)) for progress in SAMPLED}
            library_images.check_sizes(
                made, name, shape[0], classes, sizes | {settings.val_image_size}
            )
        if begins and settings.weights is not None and not settings.training.state:
            given.load(made, settings.weights, classes)
        return made

    def compression(made: nn.Module, stream: Images, device: torch.device) -> Compression:
        return files.compression(settings, made, stream.shape, device)

    return Task(
        size_key="image_size",
        size=settings.image_size,
        samples=lambda size: 1,
        stream=stream,
        model=model,
        flops=library_images.flops if named(settings.model) else per_image,
        layout=torch.channels_last if settings.channels_last else torch.contiguous_format,
        dims=(2, 3),
        again=partial(_task, _as_validated(settings), begins=False),
        compression=compression if begins else None,
    )


def _as_validated(settings: Settings) -> Settings:
    """For a process that only validates: without a state, and with images from their files."""
    training = replace(settings.training, state=None)
    return replace(settings, training=training, cache="none", cache_dir=None)
