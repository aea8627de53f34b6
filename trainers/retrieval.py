"""Distributed training of a network that finds images of the same identity, in plain PyTorch.

It runs as `trainers.image` does. A network gives features of length 1, which are compared with a
direction for each identity; the network is copied, and the directions are divided, over the ranks
(`trainers.parallel.classes`). The keys of its configuration are in `trainers.retrieval_settings`
and `trainers.training`.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from autotune.schedules import as_schedule
from autotune.trial import Change, Milestone
from trainers import trained_weights
from trainers.data.folder import FolderStream
from trainers.data.identities import IdentityStream, made_up, of_folder
from trainers.data.images import Images, data_folder
from trainers.data.stream import MemoryStream, Stream
from trainers.loop import run
from trainers.models.images import Chain, make_model
from trainers.models.recognition import Classes, Normalised, Recognition
from trainers.parallel.ranks import Ranks, process_group, raising_together
from trainers.plan import MEMORY_KEYS
from trainers.recall import recall_at_1
from trainers.retrieval_settings import EFFECTS, KEYS, TAKEN, Settings, read_settings
from trainers.task import Outputs, StepAt, Task
from trainers.training import pass_sizes

__all__ = ["KEYS", "Settings", "check", "pass_size", "read_settings", "train", "trained"]


def train(config: dict[str, Any]) -> Generator[Milestone, Change | None, None]:
    """Train as `config` says until closed, or until `max_epochs`.

    Milestones, changes and states are as those of `trainers.image.train`. In a state the directions
    of identities are sharded by rows over the ranks, and any number of ranks reads it.

    `evaluate` gives val_recall_at_1, the share of images of unseen identities whose nearest other
    image is one of the same (`trainers.recall`); val_accuracy and val_loss of the known identities
    (the nearest direction, and the cross-entropy in nats without a margin); and what the image
    trainer measures beside.

    Raises:
        ValueError: a key or value that is not allowed; one line.
        FileNotFoundError: missing data; one line that says where to put it.
    """
    settings = read_settings(config)
    with process_group() as ranks:
        yield from run(settings.training, ranks, _task(settings))


def check(config: Mapping[str, Any]) -> None:
    """Raise a ValueError, one line, for a configuration that cannot be trained."""
    read_settings(config)


def trained(
    config: Mapping[str, Any], states: Sequence[Mapping[str, Any]]
) -> tuple[nn.Module, Tensor]:
    """The network that `config` trained, and an example of its input.

    Its outputs are the features of images, of length 1: images of an identity have large cosines.
    No data is read: the weights' shapes determine that of the network.

    Args:
        states: the checkpoint of every rank, in the order of ranks.
    """
    settings, weights = read_settings(config), trained_weights.weights(states)
    prefix = "backbone."
    own = {k.removeprefix(prefix): v for k, v in weights.items() if k.startswith(prefix)}
    channels = 3 if settings.data == "folder" else 1
    shape = (channels, settings.image_size, settings.image_size)
    made = _backbone(settings, shape)
    made.load_state_dict(own)
    return made.eval(), torch.zeros(trained_weights.EXAMPLES, *shape)


pass_size = pass_sizes(read_settings)

train.model = trained  # type: ignore[attr-defined]  # for registration of the model
train.check = check  # type: ignore[attr-defined]  # called before a study starts
train.effects = EFFECTS  # type: ignore[attr-defined]  # what each key changes of a training
train.pass_size = pass_size  # type: ignore[attr-defined]  # halved where memory has run out
train.plan_keys = TAKEN  # type: ignore[attr-defined]  # of a plan, with their defaults
train.memory_keys = (  # type: ignore[attr-defined]  # keys that determine the memory of a step
    *("data", "identities", "image_size", "model", "width", "norm", "features"),
    *("class_sample_rate", "optimizer", "precision", "deterministic", "compile"),
    *(key for key in MEMORY_KEYS if key in TAKEN),
)


def _backbone(settings: Settings, shape: tuple[int, int, int]) -> Chain:
    made = make_model(settings.model, shape, settings.features, settings.width, settings.norm)
    return Chain(*made.children(), Normalised())


def _task(settings: Settings) -> Task[IdentityStream]:
    """The training of a configuration."""

    def stream(step_at: StepAt, data: Ranks) -> IdentityStream:
        found = (_folder if settings.data == "folder" else _made_up)(settings, data, step_at)
        try:
            with raising_together(data):
                _check_validated(found, data)
        except (ValueError, RuntimeError):
            found.close()
            raise
        return found

    def model(stream: IdentityStream) -> nn.Module:
        backbone = _backbone(settings, stream.shape)
        seed, width = settings.training.seed, settings.features
        margin, rate = settings.margin, settings.class_sample_rate
        return Recognition(
            backbone, Classes(stream.classes, width, stream.ranks, margin, rate, seed)
        )

    def further(stream: IdentityStream, outputs: Outputs) -> dict[str, float]:
        features, labels = outputs(stream.unseen())
        return {"val_recall_at_1": recall_at_1(features, labels, stream.ranks)}

    return Task(
        size_key="image_size",
        size=as_schedule(settings.image_size),
        samples=lambda size: 1,
        stream=stream,
        model=model,
        flops=lambda model, size: float(model.flops(size)),
        further=further,
    )


def _made_up(settings: Settings, data: Ranks, _: StepAt) -> IdentityStream:
    found = made_up(
        settings.identities,
        settings.unseen,
        settings.samples_per_identity,
        settings.validated,
        settings.difficulty,
        settings.image_size,
    ).on(data.device)

    def opened(images: Images) -> Stream:
        return MemoryStream(images, settings.augment, settings.training.seed, data)

    shape = found.known.shape
    return IdentityStream(
        opened(found.known), opened(found.others()), found.known.classes, shape, data
    )


def _folder(settings: Settings, data: Ranks, step_at: StepAt) -> IdentityStream:
    root = data_folder(settings.data_dir)
    train, val, unseen = of_folder(root, settings.unseen_share, settings.val_share)
    of_images = settings.of_images()
    known = FolderStream(of_images, data, step_at, (train, val))
    others = FolderStream(of_images, data, step_at, (unseen, unseen))
    return IdentityStream(known, others, known.classes, known.shape, data)


def _check_validated(stream: IdentityStream, data: Ranks) -> None:
    """Raise a ValueError where this rank has no image to validate on, of either kind."""
    rule = f"must leave each of {data.size} ranks an image to validate on, and one to be found"
    if not (stream.evaluated() and stream.found()):
        raise ValueError(f"data {rule}: there are too few")
