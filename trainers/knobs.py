"""The knobs of a training: schedules, and the changes that controllers make."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn
from torch.optim import Optimizer

from autotune import schedules
from autotune.schedules import Constant, substituted
from autotune.trial import Change
from trainers.memory import fused, low_bit
from trainers.optimizers import make_optimizer, schedule_free
from trainers.readers import Schedule, require
from trainers.training import SCHEDULED, Training


def build_optimizer(model: nn.Module, training: Training) -> Optimizer:
    """Build the optimizer; `Knobs` sets its scheduled values before every step.

    Raises:
        ValueError: an option out of range, or an unknown variant of the optimizer.
    """
    options = {k: v(0.0) if k in SCHEDULED else v for k, v in training.options.items()}
    if "beta1" in options:
        options["betas"] = options.pop("beta1"), options.pop("beta2")
    name, plan = training.optimizer, training.plan
    options |= fused.settings(plan.optimizer_implementation, name)
    return make_optimizer(
        name, model, lr=0.0, kind=low_bit.kind_of(plan.optimizer_state_bits), **options
    )


class Knobs:
    """Learning rate, momentum, weight decay, trust coefficient, smoothing and batch size.

    A value that a controller sets replaces the schedule at every progress, also where the learning
    rate depends on it. A learning rate that is a `Following` of the batch size's schedule then
    follows the new batch size: it is multiplied by (new / scheduled) ** power. An `Effective` one
    compensates the new momentum.

    Args:
        training: has a schedule for each knob.
        ranks: the number of ranks, the least batch size.
        state: a result of `state`, or empty.

    Raises:
        ValueError: a batch size below the number of ranks.
    """

    def __init__(self, training: Training, ranks: int, state: Mapping[str, Any]) -> None:
        rule = f"at least the number of ranks, {ranks}"
        require("batch_size", training.batch_size, rule, lambda value: round(value) >= ranks)
        self.smoothing = fast(training.label_smoothing)
        self._training = training
        self._ranks = ranks
        self._lr_factor: float = state.get("lr_factor", 1.0)
        self._set_batch_size: int | None = state.get("batch_size")
        self._set_momentum: float | None = state.get("momentum")
        self._arrange()

    def _arrange(self) -> None:
        """Determine the functions for every step, and which of the optimizer's values change."""
        training, options = self._training, self._training.options
        momentum, batch_size = momentum_of(training), training.batch_size
        lr = training.lr
        if self._set_batch_size is not None:
            lr = with_constant(lr, batch_size, self._set_batch_size)
            batch_size = Constant(self._set_batch_size)
        if self._set_momentum is not None:
            lr = with_constant(lr, momentum, self._set_momentum)
            momentum = Constant(self._set_momentum)
        self._lr, self._momentum, self._batch_size = fast(lr), fast(momentum), fast(batch_size)
        self._numbers: dict[str, Callable[[float], Any]] = {"lr": self.lr}
        parts = {"lr": [lr]}
        if "momentum" in options:
            self._numbers["momentum"], parts["momentum"] = self.momentum, [momentum]
        if "beta1" in options:
            first = options["beta1"] if "momentum" in options else momentum
            beta1, beta2 = fast(first), fast(options["beta2"])
            self._numbers["betas"] = lambda progress: (beta1(progress), beta2(progress))
            parts["betas"] = [first, options["beta2"]]
        for name in ("weight_decay", "trust_coefficient"):
            if name in options:
                self._numbers[name], parts[name] = fast(options[name]), [options[name]]
        changing = (n for n, found in parts.items() if not all(map(is_constant, found)))
        self._changing = tuple(changing)

    def change(self, change: Change) -> None:
        """Apply a controller's change: factors of the learning rate multiply, other values replace.

        Raises:
            ValueError: a batch size below the number of ranks, or a momentum of 0 with an optimizer
                that divides by it.
        """
        self._lr_factor *= change.lr_factor
        if change.batch_size is not None:
            if change.batch_size < self._ranks:
                rule = f"at least the number of ranks, {self._ranks}"
                raise ValueError(f"batch_size must be {rule}, got {change.batch_size}")
            self._set_batch_size = change.batch_size
        if change.momentum is not None:
            if self._training.optimizer in schedule_free.KINDS:
                schedule_free.check(self._training.optimizer, change.momentum)
            self._set_momentum = change.momentum
        self._arrange()

    def lr(self, progress: float) -> float:
        return self._lr(progress) * self._lr_factor

    def momentum(self, progress: float) -> float:
        """The momentum, or the first beta of an optimizer that has betas only."""
        return self._momentum(progress)

    def batch_size(self, progress: float) -> int:
        """The global batch size, rounded to a whole number."""
        return round(self._batch_size(progress))

    def set(self, optimizer: Optimizer, progress: float) -> None:
        """Set all of the optimizer's values, including constant ones."""
        self._set(optimizer, progress, tuple(self._numbers))

    def turn(self, optimizer: Optimizer, progress: float) -> None:
        """Set those of the optimizer's values that change with progress."""
        if self._changing:
            self._set(optimizer, progress, self._changing)

    def _set(self, optimizer: Optimizer, progress: float, names: tuple[str, ...]) -> None:
        values = {name: self._numbers[name](progress) for name in names}
        decay = values.pop("weight_decay", None)
        for group in optimizer.param_groups:
            group.update(values)
            if "lr_share" in group and "lr" in values:  # of what `Muon` leaves to AdamW
                group["lr"] = values["lr"] * group["lr_share"]
            if decay is not None and group["decays"]:  # other groups have none
                group["weight_decay"] = decay

    def state(self) -> dict[str, Any]:
        """The changes by controllers, for a checkpoint."""
        return {
            "lr_factor": self._lr_factor,
            "batch_size": self._set_batch_size,
            "momentum": self._set_momentum,
        }


def momentum_of(training: Training) -> Schedule:
    """The schedule of the momentum, of the first beta if there is no momentum, else 0."""
    options = training.options
    found: Schedule = options.get("momentum", options.get("beta1", Constant(0.0)))
    return found


def is_constant(schedule: Schedule) -> bool:
    """Whether a schedule is a `Constant`."""
    return isinstance(schedule, Constant)


def fast(schedule: Schedule) -> Schedule:
    """The schedule, or a fast function if it is constant."""
    if not isinstance(schedule, Constant):
        return schedule
    value = schedule.value
    return lambda progress: value


def with_constant(schedule: Schedule, old: Schedule, new: float) -> Schedule:
    """A learning rate with the schedule `old` that it depends on replaced by the constant `new`.

    >>> from autotune.schedules import Following, Linear
    >>> batch_size = Linear(100, 200)
    >>> with_constant(Following(Constant(0.1), batch_size, 1.0, 100), batch_size, 400)(0.5)
    0.4
    """
    if not isinstance(schedule, schedules.Schedule) or not isinstance(old, schedules.Schedule):
        return schedule
    return substituted(schedule, old, Constant(new))
