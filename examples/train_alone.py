"""The image trainer without autotune's services, on scikit-learn's digits.

Run it as it is, or on two processes that train together:

    python examples/train_alone.py
    torchrun --nproc-per-node 2 examples/train_alone.py
"""

from __future__ import annotations

import os

from autotune.schedules import Cosine, warmed
from trainers.image import train

CONFIG = {
    "data": "digits",
    "model": "resnet8",
    "lr": warmed(Cosine(0.1, 0.0), 0.1),
    "momentum": 0.9,
    "weight_decay": 5e-4,
    "batch_size": 64,
    "horizon": 5,
    "max_epochs": 5,
}


def main() -> None:
    for milestone in train(CONFIG):
        metrics = milestone.evaluate()
        if os.environ.get("RANK", "0") == "0":
            shown = " ".join(f"{name}={value:.4g}" for name, value in metrics.items())
            print(f"step={milestone.step} {shown}")


if __name__ == "__main__":
    main()
