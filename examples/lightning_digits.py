"""A Lightning trainer: `autotune run examples/lightning_digits.py:experiment --trials 8`.

`experiment_two_ranks` trains each trial on two processes. Alone: `python lightning_digits.py`.
"""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import autotune as at
from autotune.integrations.lightning import AutotuneCallback, lightning_strategy
from autotune.integrations.training import world_size


class Digits(LightningModule):
    """A small perceptron on scikit-learn's digits."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.config = config
        self.model = nn.Sequential(
            nn.Linear(64, config["width"]), nn.ReLU(), nn.Linear(config["width"], 10)
        )

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        return nn.functional.cross_entropy(self.model(batch[0]), batch[1])

    def validation_step(self, batch: list[Tensor], index: int) -> None:
        right = (self.model(batch[0]).argmax(1) == batch[1]).float().mean()
        self.log("val_accuracy", right, on_epoch=True, sync_dist=True)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=1.0, momentum=0.9)
        steps = int(self.trainer.estimated_stepping_batches)
        schedule = self.config["lr"].to_torch(optimizer, steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def loaders(config: dict[str, Any]) -> tuple[DataLoader[Any], DataLoader[Any]]:
    """1,437 digits to train on, 360 to validate with; every rank gets its share of a batch."""
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
    share = config["batch_size"] // world_size()
    train = DataLoader(TensorDataset(x[360:], y[360:]), share, shuffle=True, drop_last=True)
    return train, DataLoader(TensorDataset(x[:360], y[:360]), 360)


def train(config: dict[str, Any]) -> None:
    callback = AutotuneCallback(config, metrics=["val_accuracy"])
    trainer = Trainer(
        max_epochs=config["epochs"],
        accelerator="cpu",
        strategy=lightning_strategy(),
        devices=1,
        callbacks=[callback],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Digits(config), *loaders(config), ckpt_path=callback.checkpoint)
    shown = {name: round(float(value), 4) for name, value in trainer.callback_metrics.items()}
    if trainer.is_global_zero:
        print(shown)


def experiment() -> at.Experiment:
    space = at.SearchSpace(
        {
            "lr": at.ScheduleSpace(at.Float(0.01, 1.0, log=True), family="cosine", final=0.01),
            "batch_size": at.Int(32, 256, power_of_two=True),
            "width": at.Choice([32, 64, 128]),
            "epochs": at.Fixed(20),
        }
    )
    target = at.Target("val_accuracy", 0.95, limit=30)
    baseline = {"lr.peak": 0.1, "batch_size": 64, "width": 64}
    return at.Experiment("lightning-digits", train, space, target, baseline=baseline)


def experiment_two_ranks() -> at.Experiment:
    from dataclasses import replace

    return replace(experiment(), name="lightning-digits-2", scaling=at.Scaling(num_workers=2))


if __name__ == "__main__":
    torch.manual_seed(0)
    train({"lr": at.Cosine(0.1, 0.001), "batch_size": 64, "width": 64, "epochs": 5})
