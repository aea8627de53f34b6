"""The accuracy of an exported graph where only torch can be imported.

    python torch_only.py model.pt2 images.pt

`images.pt` has `x` and `y`. The file is loaded as MLflow does it, without MLflow.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any

from torch import Tensor

MISSING = {"autotune", "trainers", "search_spaces", "mlflow", "ray", "torchao"}


class Missing(MetaPathFinder):
    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> None:
        if name.partition(".")[0] in MISSING:
            raise ImportError(f"{name} is not installed here")


def accuracy(model: Path, x: Tensor, y: Tensor, folder: Path) -> float:
    """What a process finds that has torch only.

    Args:
        folder: for a file of the images.
    """
    import torch

    torch.save({"x": x, "y": y}, folder / "images.pt")
    command = [sys.executable, __file__, str(model), str(folder / "images.pt")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


def main(model: str, images: str) -> None:
    import torch

    found, data = torch.export.load(model).module(), torch.load(images, weights_only=True)
    with torch.no_grad():
        right = found(data["x"]).argmax(1) == data["y"]
    print(right.double().mean().item())


if __name__ == "__main__":
    sys.meta_path.insert(0, Missing())
    main(*sys.argv[1:])
