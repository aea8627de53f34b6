"""A trained image classifier from its file, `best_model.pt`: classes of images.

    python -m trainers.classifier best_model.pt photo.jpg ...

prints the class of each image and its probability.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from trainers.folder import central_box
from trainers.image_files import DECODED
from trainers.models import make_model


@dataclass(frozen=True)
class Classifier:
    """A model with what is needed to use it on images.

    Args:
        model: in evaluation mode, on the CPU.
        classes: their names, in the order of the model's scores.
        image_size: pixels of a side of its input.
        channels: 3 for colours, 1 for grey images.
        mean, std: of each channel, of pixels from 0 to 255.
    """

    model: nn.Module
    classes: tuple[str, ...]
    image_size: int
    channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def pixels(self, image: Image.Image) -> Tensor:
        """The model's input for an image: float32 (channels, size, size), normalised."""
        size = self.image_size
        whole = (0.0, 0.0, float(image.width), float(image.height))
        box = whole if image.size == (size, size) else central_box(image.width, image.height)
        made = image.convert("RGB" if self.channels == 3 else "L")
        made = made.resize((size, size), Image.Resampling.BILINEAR, box=box)
        pixels = np.asarray(made, np.float32).reshape(size, size, self.channels)
        mean, std = (np.asarray(part, np.float32) for part in (self.mean, self.std))
        normal = (pixels - mean) / std
        return torch.from_numpy(np.ascontiguousarray(normal.transpose(2, 0, 1)))

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
        model = make_model(saved["model"], shape, len(names), saved["width"], saved["norm"])
        model.load_state_dict(saved["weights"])
    except OSError:
        raise
    except Exception as error:  # of the file's format, or of its content
        line = str(error).strip().partition("\n")[0]
        raise ValueError(f"{path} holds no classifier: {line}") from None
    mean, std = tuple(saved["mean"]), tuple(saved["std"])
    return Classifier(model.eval(), names, saved["image_size"], channels, mean, std)


def main(arguments: Sequence[str]) -> int:
    if len(arguments) < 2:
        print("usage: python -m trainers.classifier best_model.pt IMAGE...", file=sys.stderr)
        return 2
    try:
        classifier = load(arguments[0])
        images = [Image.open(path, formats=DECODED) for path in arguments[1:]]
        found = classifier.probabilities(images)
    except (OSError, ValueError, SyntaxError) as error:  # some decoders raise the last one
        print(error, file=sys.stderr)
        return 2
    for path, row in zip(arguments[1:], found, strict=True):
        best = int(row.argmax())
        print(f"{path}\t{classifier.classes[best]}\t{row[best]:.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
