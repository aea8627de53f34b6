"""`autotune.report` inside a Lightning `Trainer`.

    from autotune.integrations.lightning import AutotuneCallback, lightning_strategy

    def train(config):
        callback = AutotuneCallback(config, metrics=["val_accuracy"])
        trainer = Trainer(strategy=lightning_strategy(), devices=1, callbacks=[callback],
                          logger=False, enable_checkpointing=False)
        trainer.fit(Module(config), train_loader, val_loader, ckpt_path=callback.checkpoint)

Every validation is a milestone: its metrics are reported, the training clock pauses during it, and
the trial can be stopped, saved or changed there on all ranks. Tested with 2.6.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.plugins.environments import ClusterEnvironment
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy, Strategy
from lightning.pytorch.utilities.data import extract_batch_size

from autotune.backends.worker.reporting import StopTrial, report
from autotune.errors import UserError
from autotune.integrations import training
from autotune.integrations.training import CallbackState

_REMEDY = "pass Trainer(strategy=lightning_strategy(), devices=1)"


class AutotuneCallback(Callback):
    """Reports every validation of a `Trainer.fit` to autotune and follows its decision.

    The first batch ends the set-up, sanity checks included. `step` is the number of samples over
    all ranks. Besides the metrics that the module logged it reports `train_loss`, the mean since
    the last report, unless the module logs one: if it is not finite the trial has diverged.

    Args:
        config: the trial's configuration; that of a resumed trial has the callback's state.
        metrics: the names to report, as a list or as `{our name: the module's}`; all if None.
        every: report at every n-th validation, n at least 1.
        samples: the samples in a batch of this rank; by default the length of its first tensor.

    Raises:
        UserError: a metric that was not logged; no validation; a strategy that trains ranks apart
            or shards the model; a change of a controller that Lightning's loop cannot follow.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        metrics: training.Names = None,
        every: int = 1,
        samples: Callable[[Any], int] = extract_batch_size,
    ) -> None:
        self._state = CallbackState(config, metrics, every, _write)
        self._samples_of = samples
        self._random: Mapping[str, Any] | None = None
        self._step = 0
        self._batches, self._samples = 0, 0
        self._loss: torch.Tensor | float = 0.0

    @property
    def checkpoint(self) -> str | None:
        """For `Trainer.fit(..., ckpt_path=callback.checkpoint)`; None for a new trial."""
        return self._state.checkpoint

    # --- hooks --------------------------------------------------------------------------------

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        training.check_ranks("Lightning", trainer.world_size, _REMEDY)
        if not isinstance(trainer.strategy, SingleDeviceStrategy | DDPStrategy):
            name = type(trainer.strategy).__name__
            raise UserError(f"AutotuneCallback cannot save what {name} shards: {_REMEDY}")

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.enable_validation:
            raise UserError("AutotuneCallback reports validations, and this Trainer has none")
        restored = self._state.restored
        if restored is not None:
            if trainer.global_step != restored["lightning"]["global_step"]:
                raise UserError(
                    "the trial resumes from a checkpoint: pass ckpt_path=callback.checkpoint to "
                    "Trainer.fit"
                )
            self._step, self._random = restored["step"], restored["random"]
            self._state.restored = None
            self._state.clean()
        self._report(trainer, {})
        self._restore_random()

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._restore_random()

    def on_train_batch_start(self, *_: Any) -> None:
        self._random = None

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._samples += self._samples_of(batch)
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if isinstance(loss, torch.Tensor):
            self._batches += 1
            self._loss = self._loss + loss.detach().double()

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._counts(trainer):
            self._state.pause()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not self._counts(trainer):
            return
        metrics = {}
        if due := self._state.counted():
            found = self._summed(pl_module.device) | dict(trainer.callback_metrics)
            metrics = training.chosen(found, self._state.names)
            metrics |= {"train_loss": float(found["train_loss"])} if "train_loss" in found else {}
        self._state.resume()
        if due:
            self._report(trainer, metrics)

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Clean up; call `teardown` of a stopped trial, which Lightning skips on exceptions."""
        self._state.resume()
        self._state.clean()
        if isinstance(exception, StopTrial):
            for hooks in (*trainer.callbacks, trainer.datamodule, pl_module):
                if isinstance(hooks, Callback):
                    hooks.teardown(trainer, pl_module, "fit")
                elif hooks is not None:
                    hooks.teardown("fit")

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._state.clean()

    # --- parts of the hooks -------------------------------------------------------------------

    def _report(self, trainer: Trainer, metrics: Mapping[str, float]) -> None:
        step = self._step

        def state() -> dict[str, Any]:
            return {"step": step, "random": training.random_state(), "lightning": dumped(trainer)}

        change = report(step, metrics, state)
        schedulers = [config.scheduler for config in trainer.lr_scheduler_configs]
        training.turn(change, trainer.optimizers, schedulers)

    def _summed(self, device: torch.device) -> dict[str, float]:
        """Add the samples of all ranks since the last report to `step`; return their mean loss."""
        own = (self._samples, self._batches, self._loss)
        sums = torch.stack([torch.as_tensor(v, dtype=torch.float64, device=device) for v in own])
        if training.world_size() > 1:
            dist.all_reduce(sums)
        samples, batches, loss = sums.tolist()
        self._step += round(samples)
        self._samples, self._batches, self._loss = 0, 0, 0.0
        return {"train_loss": loss / batches} if batches else {}

    def _restore_random(self) -> None:
        """Restore the generators until the first batch, as Lightning's start draws from them."""
        if self._random is not None:
            training.set_random_state(self._random)

    @staticmethod
    def _counts(trainer: Trainer) -> bool:
        """Whether the validation belongs to the training and is no sanity check."""
        return trainer.state.fn == "fit" and not trainer.sanity_checking


def dumped(trainer: Trainer) -> dict[str, Any]:
    """Lightning's checkpoint of this rank without hyperparameters, which are in the config."""
    saved = trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
    return {k: v for k, v in saved.items() if "hparams" not in k and "hyper_parameters" not in k}


def _write(folder: Path, saved: Mapping[str, Any]) -> Path:
    torch.save(saved["lightning"], folder / "trial.ckpt")
    return folder / "trial.ckpt"


def lightning_strategy(**options: Any) -> Strategy | str:
    """The Lightning strategy that trains on the ranks of this trial, in their process group.

    Pass it with `devices=1`: each rank is a process with its own device. With one rank, or outside
    a trial, it is "auto".

    Args:
        options: of Lightning's `DDPStrategy`.
    """
    if training.world_size() == 1:
        return "auto"
    return _GroupStrategy(cluster_environment=_Group(), **options)


class _Group(ClusterEnvironment):
    """The existing process group."""

    @property
    def creates_processes_externally(self) -> bool:
        return True

    @property
    def main_address(self) -> str:
        return os.environ["MASTER_ADDR"]

    @property
    def main_port(self) -> int:
        return int(os.environ["MASTER_PORT"])

    @staticmethod
    def detect() -> bool:
        return dist.is_initialized()

    def world_size(self) -> int:
        return dist.get_world_size()

    def set_world_size(self, size: int) -> None:
        """Do nothing: the process group exists already."""

    def global_rank(self) -> int:
        return dist.get_rank()

    def set_global_rank(self, rank: int) -> None:
        """Do nothing: the process group exists already."""

    def local_rank(self) -> int:
        return int(os.environ.get("LOCAL_RANK", "0"))

    def node_rank(self) -> int:
        return 0


class _GroupStrategy(DDPStrategy):
    """DDP over ranks with one device each."""

    @property
    def root_device(self) -> torch.device:
        device: torch.device = self.parallel_devices[0]
        return device

    @property
    def distributed_sampler_kwargs(self) -> dict[str, Any]:
        return {"num_replicas": self.world_size, "rank": self.global_rank}
