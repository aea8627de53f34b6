"""The same small training under Lightning's Trainer and under Hugging Face's."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

SAMPLES, BATCH = 64, 16


class Net(nn.Module):
    """A classifier with dropout, whose passes take the time that `config` says."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 2))
        self.options = config
        self.calls = 0

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        self.calls += self.training
        killed = self.calls > self.options.get("lives", 10**6) and not self.options.get("state")
        if killed and dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(self.options.get("nap" if self.training else "eval_nap", 0.0))
        logits = self.layers(x)
        loss = nn.functional.cross_entropy(logits, labels)
        if self.training and self.calls > self.options.get("sound_batches", 10**6):
            loss = loss * float("nan")
        return {"loss": loss, "logits": logits}

    def seen(self, optimizer: Any) -> dict[str, float]:
        """What a test wants to know, as metrics."""
        group = optimizer.param_groups[0]
        weights = sum(p.detach().double().sum() for p in self.parameters())
        bounds = torch.stack([torch.as_tensor(weights), -torch.as_tensor(weights)])
        if ranks() > 1:
            dist.all_reduce(bounds, dist.ReduceOp.MAX)
        return {
            "weights": float(weights),
            "apart": float(bounds.sum()),
            "lr": group["lr"],
            "momentum": group["momentum"],
            "pid": os.getpid(),
            "threads": torch.get_num_threads(),
        }


def data() -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(SAMPLES, 8, generator=generator)
    return [{"x": row, "labels": (row.sum() > 0).long()} for row in x]


def ranks() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def note(config: dict[str, Any], text: str) -> None:
    if config.get("log"):
        with Path(config["log"]).open("a") as file:
            file.write(f"{text}\n")


def lightning(config: dict[str, Any]) -> None:
    import lightning.pytorch as pl
    from torch.utils.data import DataLoader

    from autotune.integrations.lightning import AutotuneCallback, lightning_strategy

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = Net(config)

        def training_step(self, batch: dict[str, Tensor], index: int) -> Tensor:
            return self.net(**batch)["loss"]

        def validation_step(self, batch: dict[str, Tensor], index: int) -> None:
            self.log("val_loss", self.net(**batch)["loss"], on_epoch=True, sync_dist=True)
            self.log_dict(self.net.seen(self.optimizers()), on_epoch=True, reduce_fx="max")

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
            schedule = config["lr"].to_torch(
                optimizer, int(self.trainer.estimated_stepping_batches)
            )
            scheduler = {"scheduler": schedule, "interval": "step"}
            return {"optimizer": optimizer, "lr_scheduler": scheduler}

        def teardown(self, stage: str) -> None:
            note(config, f"module teardown {stage}")

    class Others(pl.Callback):
        def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
            note(config, f"callback teardown {stage}")

    callback = AutotuneCallback(config, metrics=config.get("metrics"), every=config.get("every", 1))
    trainer = pl.Trainer(
        max_epochs=config.get("epochs", 8),
        accelerator="cpu",
        devices=1,
        strategy="auto" if config.get("apart") else lightning_strategy(),
        callbacks=[callback, Others()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=config.get("bars", False),
        enable_model_summary=False,
        limit_val_batches=0 if config.get("blind") else 1.0,
    )
    workers = config.get("workers", 0)
    loaders = [
        DataLoader(data(), BATCH // ranks(), shuffle=train, num_workers=workers * train)
        for train in (True, False)
    ]
    path = None if config.get("forgets") else callback.checkpoint
    trainer.fit(Module(), *loaders, ckpt_path=path)


def huggingface(config: dict[str, Any]) -> None:
    from transformers import Trainer, TrainingArguments

    from autotune.integrations.huggingface import AutotuneCallback

    net = Net(config)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    epochs = config.get("epochs", 8)
    callback = AutotuneCallback(config, metrics=config.get("metrics"), every=config.get("every", 1))
    steps = config.get("eval_steps")
    arguments = TrainingArguments(
        output_dir=tempfile.gettempdir(),  # nothing is saved there
        seed=42 if config.get("unseeded") else config["seed"],
        num_train_epochs=epochs,
        per_device_train_batch_size=BATCH // ranks(),
        per_device_eval_batch_size=BATCH,
        eval_strategy="no" if config.get("blind") else "steps" if steps else "epoch",
        eval_steps=steps,
        save_strategy="no",
        report_to="none",
        disable_tqdm=not config.get("bars", False),
        dataloader_num_workers=config.get("workers", 0),
        use_cpu=not config.get("apart", False),
    )
    schedule = config["lr"].to_torch(optimizer, epochs * SAMPLES // BATCH)
    both = {"a": data(), "b": data()}
    trainer = Trainer(
        net,
        arguments,
        train_dataset=data(),
        eval_dataset=both if config.get("both") else data(),
        compute_metrics=lambda _: net.seen(optimizer),
        optimizers=(optimizer, schedule),
        callbacks=[callback],
    )
    trainer.train(resume_from_checkpoint=None if config.get("forgets") else callback.checkpoint)


def train_with_framework(config: dict[str, Any]) -> None:
    """The training under the framework that the configuration names."""
    {"lightning": lightning, "huggingface": huggingface}[config["framework"]](config)
