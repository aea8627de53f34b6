"""Identities to be told apart, many with few images each, of which some are never trained on.

The images of training are those of known identities; some of them validate. What was learned of
looking at an image is seen on unseen identities: each image is looked up among the others
(`trainers.recall`). Identities are made up here, or are the classes of a folder of images.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from trainers.data.image_files import Files, listed, split
from trainers.data.images import Images
from trainers.data.stream import Batch, Stream
from trainers.parallel.ranks import Ranks

LATENT = 12  # numbers that tell identities apart
SHOWN = 12  # numbers that say how an image shows its identity
SPREAD = 0.3  # of the images of an identity, in units of that of the identities, at difficulty 1
GAIN = 1.5  # how far from linear images are in the numbers


@dataclass(frozen=True)
class Identities:
    """Images of known identities, and those of unseen ones (N, 1, side, side) with their labels.

    Args:
        latent: what the unseen images were made of, (N, LATENT): the truth.
    """

    known: Images
    unseen: Tensor
    unseen_y: Tensor
    latent: Tensor

    def on(self, device: torch.device) -> Identities:
        """With the images on a device."""
        known = self.known
        train, val = known.train.to(device), known.val.to(device)
        train_y, val_y = known.train_y.to(device), known.val_y.to(device)
        images = Images(train, train_y, val, val_y, known.classes)
        unseen, unseen_y = self.unseen.to(device), self.unseen_y.to(device)
        return Identities(images, unseen, unseen_y, self.latent.to(device))

    def others(self) -> Images:
        """The unseen ones as what is validated on."""
        return replace(self.known, val=self.unseen, val_y=self.unseen_y)


@lru_cache(maxsize=2)
def made_up(
    known: int, unseen: int, samples: int, validated: int, difficulty: float, side: int
) -> Identities:
    """Identities made up by a generator with a fixed seed, on the host.

    An identity is a point, its images are points about it and how they are shown: together they go
    through a fixed random network. Pixels of equal ways of showing are nearer than those of equal
    identities; what is to be learned is to see past them.

    Args:
        known: identities to train on, with `samples` images each, of which `validated` validate.
        unseen: further ones, with `samples` images each.
        difficulty: of images, 0 or more: how far those of an identity are apart, and how much the
            way of showing counts.
        side: pixels of a side.
    """
    random = torch.Generator().manual_seed(0)
    total, pixels = known + unseen, side * side
    first = torch.randn(LATENT + SHOWN, 2 * pixels, generator=random)
    second = torch.randn(2 * pixels, pixels, generator=random) / (2 * pixels) ** 0.5
    points = torch.randn(total, 1, LATENT, generator=random)
    about = torch.randn(total, samples, LATENT, generator=random)
    shown = torch.randn(total, samples, SHOWN, generator=random)
    latent = points + SPREAD * difficulty * about
    both = torch.cat((latent, difficulty * shown), 2) * (GAIN / (LATENT + SHOWN) ** 0.5)
    x = (torch.tanh(both @ first) @ second).view(total, samples, 1, side, side)
    x = (x - x.mean()) / x.std()
    y = torch.arange(total)[:, None].expand(total, samples)
    trained = samples - validated
    images = Images(
        x[:known, :trained].flatten(0, 1),
        y[:known, :trained].flatten(),
        x[:known, trained:].flatten(0, 1),
        y[:known, trained:].flatten(),
        known,
    )
    rest = x[known:].flatten(0, 1), y[known:].flatten()
    return Identities(images, *rest, latent[known:].flatten(0, 1))


def of_folder(root: Path, unseen_share: float, val_share: float) -> tuple[Files, Files, Files]:
    """The images `CLASS/*` of a folder: to train on, to validate on, and of unseen classes.

    Classes may be in folders, `ALPHABET/CLASS/*`, as Omniglot's characters are; their names are
    these paths. The names decide which classes are unseen, so that a folder is always divided in
    the same way.

    Args:
        unseen_share: of the classes, at least one of them.
        val_share: of the images of each other class.

    Raises:
        FileNotFoundError: there are no images; one line.
        ValueError: fewer than three classes, or an unseen class with one image only; one line.
    """
    files = listed(root, nested=True)
    if len(files.classes) < 3:
        rule = "must have at least three classes, two of them to train on"
        raise ValueError(f"image folder: {root} {rule}, got {len(files.classes)}")
    names = sorted(files.classes, key=lambda n: hashlib.sha256(os.fsencode(n)).digest())
    count = min(max(round(unseen_share * len(names)), 1), len(names) - 2)
    unseen = {*names[:count]}
    known = _of_classes(files, [n for n in files.classes if n not in unseen])
    others = _of_classes(files, [n for n in files.classes if n in unseen])
    for label, name in enumerate(others.classes):
        if others.labels.count(label) < 2:
            raise ValueError(f"image folder: class {name!r} needs at least two images to be found")
    return *split(known, val_share), others


def _of_classes(files: Files, names: list[str]) -> Files:
    """The images of some classes, numbered anew."""
    places = {files.classes.index(name): i for i, name in enumerate(names)}
    chosen = files.some([i for i, label in enumerate(files.labels) if label in places])
    return Files(tuple(names), chosen.paths, tuple(places[label] for label in chosen.labels))


class IdentityStream:
    """Batches of known identities, and those of unseen ones.

    Args:
        known: trains and validates on these.
        unseen: validates on the others.
        classes: known ones.
        shape: of an image, (channels, height, width).
        ranks: which have different images.
    """

    def __init__(
        self, known: Stream, unseen: Stream, classes: int, shape: tuple[int, int, int], ranks: Ranks
    ) -> None:
        self._known, self._unseen = known, unseen
        self.classes, self.shape, self.ranks = classes, shape, ranks
        self.train_size = known.train_size
        self.take, self.warm, self.dummy = known.take, known.warm, known.dummy
        self.validation, self.evaluated = known.validation, known.evaluated

    @property
    def waited(self) -> float:
        return self._known.waited

    def unseen(self) -> Iterator[Batch]:
        """This rank's share of the images of unseen identities."""
        return self._unseen.validation()

    def found(self) -> tuple[int, ...]:
        """The different numbers of items in the batches of `unseen`."""
        return self._unseen.evaluated()

    def close(self) -> None:
        self._known.close()
        self._unseen.close()
