"""`autotune.report` inside a Hugging Face `Trainer`.

    from autotune.integrations.huggingface import AutotuneCallback

    def train(config):
        callback = AutotuneCallback(config, metrics={"val_accuracy": "eval_accuracy"})
        args = TrainingArguments(seed=config["seed"], eval_strategy="epoch", save_strategy="no")
        trainer = Trainer(model, args, callbacks=[callback], ...)
        trainer.train(resume_from_checkpoint=callback.checkpoint)

Every evaluation is a milestone: its metrics are reported, the training clock pauses during it, and
the trial can be stopped, saved or changed there on all ranks. Tested with transformers
5.23 and accelerate 1.15.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from autotune.backends.worker.reporting import report
from autotune.errors import UserError
from autotune.integrations import training
from autotune.integrations.training import CallbackState


class AutotuneCallback(TrainerCallback):
    """Reports every evaluation of `Trainer.train` to autotune and follows its decision.

    The first step ends the set-up. `step` is the number of samples over all ranks. Besides the
    metrics of the evaluation it reports `train_loss`, the Trainer's mean since its last log, and
    logs at every evaluation. It turns off `logging_nan_inf_filter`, which hides losses that are not
    finite: with such a loss the trial has diverged.

    Args:
        config: the trial's configuration; that of a resumed trial has the callback's state.
        metrics: the names to report, as a list or as `{our name: the Trainer's}`; all if None.
            Where several data sets are evaluated, the report waits for the last of these names.
        every: report at every n-th evaluation, n at least 1.

    Raises:
        UserError: a metric that was not evaluated; no evaluation; a seed that is not the trial's;
            ranks that would train apart, or a sharded model; a change of a controller that the
            Trainer's loop cannot follow.
    """

    def __init__(
        self, config: Mapping[str, Any], *, metrics: training.Names = None, every: int = 1
    ) -> None:
        self._state = CallbackState(config, metrics, every, _write)
        self._seed = config.get("seed")
        self._training = False
        self._step = -1
        self._found: dict[str, Any] = {}
        self._loss: float | None = None

    @property
    def checkpoint(self) -> str | None:
        """For `Trainer.train(resume_from_checkpoint=callback.checkpoint)`; None for a new trial."""
        return self._state.checkpoint

    # --- events -------------------------------------------------------------------------------

    def on_init_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        on_cpu = " with use_cpu=True" if not torch.cuda.is_available() else ""
        remedy = f"make the TrainingArguments inside the trainer{on_cpu}"
        training.check_ranks("the Trainer", args.world_size, remedy)
        if args.eval_strategy == "no":
            raise UserError("AutotuneCallback reports evaluations: set eval_strategy")
        if self._seed is not None and args.seed != self._seed:
            raise UserError(
                f"TrainingArguments has seed {args.seed} and the trial {self._seed}: "
                "pass seed=config['seed']"
            )
        if args.deepspeed or args.fsdp:
            raise UserError("AutotuneCallback cannot save models that deepspeed or fsdp shard")
        args.logging_nan_inf_filter = False

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **parts: Any
    ) -> None:
        restored = self._state.restored
        if restored is not None:
            saved = json.loads(restored["trainer"])["global_step"]
            if state.global_step != saved:
                raise UserError(
                    "the trial resumes from a checkpoint: pass "
                    "resume_from_checkpoint=callback.checkpoint to Trainer.train"
                )
        self._training = True
        self._step = samples(args, state, parts["train_dataloader"])
        self._report({}, state, parts)

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        self._state.restored = None
        self._state.clean()
        self._refuse_missing()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        if control.should_evaluate:
            control.should_log = True
            self._state.pause()

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        self.on_step_end(args, state, control)

    def on_prediction_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Pause the clock for an evaluation without a preceding event, as before the first step."""
        if self._training:
            self._state.pause()

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, Any],
        **_: Any,
    ) -> None:
        if "loss" in logs:
            self._loss = float(logs["loss"])

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: Mapping[str, Any],
        **parts: Any,
    ) -> None:
        if not self._training:
            return
        step = samples(args, state, parts["train_dataloader"])
        if step <= self._step:
            self._state.resume()
            return
        self._found |= metrics
        names = self._state.names
        if names is not None and not set(names.values()) <= set(self._found):
            return
        found, self._found = self._found, {}
        self._state.resume()
        if self._state.counted():
            self._step = step
            loss = {} if self._loss is None else {"train_loss": self._loss}
            self._report(loss | training.chosen(loss | found, names), state, parts)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        self._state.resume()
        self._refuse_missing()
        self._training = False

    # --- parts of the events ------------------------------------------------------------------

    def _report(
        self, metrics: Mapping[str, float], state: TrainerState, parts: Mapping[str, Any]
    ) -> None:
        step, optimizer, scheduler = self._step, parts["optimizer"], parts["lr_scheduler"]

        def saved() -> dict[str, Any]:
            scaler = getattr(optimizer, "scaler", None)
            return {
                "step": step,
                "random": training.random_state(),
                "trainer": json.dumps(dataclasses.asdict(state)),
                "model": parts["model"].state_dict(),
                "optimizer": optimizer.state_dict(),
                "scheduler": scheduler.state_dict(),
                "scaler": scaler.state_dict() if scaler is not None else None,
            }

        self._loss = None
        training.turn(report(step, metrics, saved), [optimizer], [scheduler])

    def _refuse_missing(self) -> None:
        """Raise for a missing metric, once no evaluation of another data set can follow."""
        if self._found:
            self._state.resume()
            training.chosen(self._found, self._state.names)


def samples(args: TrainingArguments, state: TrainerState, loader: Any) -> int:
    """The number of samples that all ranks have trained on, without padding of batches."""
    done: int = state.global_step
    ranks = args.world_size * args.gradient_accumulation_steps
    batch: int = (state.train_batch_size or args.train_batch_size) * ranks
    try:
        length, batches = len(loader.dataset), len(loader)
    except (TypeError, AttributeError):  # a stream has no length
        return done * batch
    steps: int = math.ceil(batches / args.gradient_accumulation_steps)
    epochs, rest = divmod(done, steps)
    return epochs * min(steps * batch, length) + min(rest * batch, length)


def _write(folder: Path, saved: Mapping[str, Any]) -> Path:
    """Write a checkpoint folder for the Trainer; every rank has its own."""
    (folder / "trainer_state.json").write_text(saved["trainer"])
    torch.save(saved["model"], folder / "pytorch_model.bin")
    for name in ("optimizer", "scheduler", "scaler"):
        if saved[name] is not None:
            torch.save(saved[name], folder / f"{name}.pt")
    version, words, gauss = saved["random"]["python"]
    generators: dict[str, Any] = {
        "python": (version, tuple(words), gauss),
        "numpy": training.numpy_state(saved["random"]),
        "cpu": saved["random"]["torch"],
    }
    if "cuda" in saved["random"]:  # a distributed Trainer expects one for each visible device
        state = saved["random"]["cuda"]
        generators["cuda"] = [state] if "LOCAL_RANK" in os.environ else state
    rank = f"_{torch.distributed.get_rank()}" if training.world_size() > 1 else ""
    torch.save(generators, folder / f"rng_state{rank}.pth")
    return folder
