"""Made-up images in folders: classes that differ in brightness."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image


def write(folder: Path, counts: dict[str, int], *, side: int = 16, suffix: str = "png") -> Path:
    """Write so many images of each class into `folder/CLASS/`; the later a class, the brighter."""
    random = np.random.default_rng(0)
    for label, (name, count) in enumerate(counts.items()):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            low = 200 * label // max(len(counts) - 1, 1)
            pixels = random.integers(low, low + 50, (side + i % 3, side, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{i}.{suffix}")
    return folder
