"""A trained image classifier from its file, `best_model.pt`: classes of images.

    python -m trainers.classifier best_model.pt photo.jpg ...

prints the class of each image and its probability.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from trainers.compression.packed import unpacked
from trainers.compression.structure import fit
from trainers.data.augment import resized
from trainers.data.folder import CENTRAL, MEAN, central_box, decoded
from trainers.data.image_files import DECODED
from trainers.models.images import make_model


@dataclass(frozen=True)
class Classifier:
    """A model with what is needed to use it on images.

    Args:
        model: in evaluation mode, on the CPU.
        classes: their names, in the order of the model's scores.
        image_size: pixels of a side of its input.
        decoded_size: those of a decoded image, which is then resized to `image_size`.
        crop: the share of an image's shorter side that is the side of its central square.
        channels: 3 for colours, 1 for grey images.
        mean, std: of each channel, of pixels from 0 to 255.
    """

    model: nn.Module
    classes: tuple[str, ...]
    image_size: int
    decoded_size: int
    crop: float
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def pixels(self, image: Image.Image) -> Tensor:
        """The model's input for an image, as when its study validated it.

        Args:
            image: a JPEG that was opened but not loaded may be decoded, and then is, at a half, a
                quarter or an eighth of its size.

        Returns:
            normalised float32 (channels, size, size).
        """
        box = central_box(image.width, image.height, self.crop)
        mode = "RGB" if self.channels == 3 else "L"
        made = decoded(image, box, self.decoded_size, mode)
        made = made.reshape(self.decoded_size, self.decoded_size, self.channels)
        normal = torch.from_numpy(made.transpose(2, 0, 1).astype(np.float32))
        mean, std = (torch.tensor(part).view(-1, 1, 1) for part in (self.mean, self.std))
        return resized(normal.sub_(mean).div_(std)[None], self.image_size)[0]

    @torch.no_grad()
    def probabilities(self, images: Sequence[Image.Image]) -> Tensor:
        """The probability of each class for each image: (images, classes)."""
        batch = torch.stack([self.pixels(image) for image in images])
        scores: Tensor = self.model(batch)
        return scores.softmax(1)


def load(path: str | Path) -> Classifier:
    """The classifier in a file.

    Raises:
        OSError: the file cannot be read.
        ValueError: it holds no classifier; one line.
    """
    try:
        saved: Any = torch.load(path, map_location="cpu", weights_only=True)
        channels = len(saved["mean"])
        shape = (channels, saved["full_size"], saved["full_size"])
        names = tuple(saved["classes"])
        made = make_model(saved["model"], shape, len(names), saved["width"], saved["norm"])
        model = fit(made, unpacked(saved["weights"]))
    except OSError:
        raise
    except Exception as error:  # of the file's format, or of its content
        line = str(error).strip().partition("\n")[0]
        raise ValueError(f"{path} holds no classifier: {line}") from None
    mean, std = tuple(saved["mean"]), tuple(saved["std"])
    of_folder = mean == MEAN  # files of earlier versions do not have the two
    usual = (saved["image_size"], CENTRAL) if of_folder else (saved["full_size"], 1.0)
    size, crop = saved.get("decoded_size", usual[0]), saved.get("crop", usual[1])
    return Classifier(model.eval(), names, saved["image_size"], size, crop, channels, mean, std)


def main(arguments: Sequence[str]) -> int:
    """Print the class of each image: 0, or 2 if a file cannot be used; one line then says why."""
    parser = argparse.ArgumentParser(
        prog="python -m trainers.classifier",
        description="Print the class of each image and its probability.",
    )
    parser.add_argument("model", metavar="MODEL", help="the best_model.pt of a study")
    parser.add_argument("images", metavar="IMAGE", nargs="+", help="a file of an image")
    given = parser.parse_args(arguments)
    path = given.model
    try:
        classifier = load(path)
        found = []
        for path in given.images:
            with Image.open(path, formats=DECODED) as image:
                found.append(classifier.probabilities([image])[0])
    except OSError as error:
        print(f"autotune: {path} cannot be read: {error.strerror or error}", file=sys.stderr)
        return 2
    except (ValueError, SyntaxError) as error:  # some decoders raise the last one
        print(f"autotune: {error}", file=sys.stderr)
        return 2
    for path, row in zip(given.images, found, strict=True):
        best = int(row.argmax())
        print(f"{path}\t{classifier.classes[best]}\t{row[best]:.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
