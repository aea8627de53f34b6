"""The features of a trial for a policy: eleven dimensionless numbers from the trial's reports.

A feature whose metrics the trainer does not report is 0. Features do not depend on the size of the
model, the batch size or the speed of the machine, so that weights learned in one study can be used
in another.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.errors import UserError
from autotune.schedules import Constant, Schedule, extremes
from autotune.trial import Change, Metrics, Report, Target, Trial

FEATURES: Mapping[str, str] = {
    "bias": "1",
    "loss": "log10 of train_loss over its first value",
    "loss_slope": "change of `loss` since the decision before",
    "grad_change": "change of log10 grad_norm since the decision before",
    "grad_spread": "spread of the gradient's norm (grad_norm_spread)",
    "gap": "log10 of val_loss over train_loss",
    "metric_slope": "share of the first distance to the target covered since the decision before",
    "metric": "distance to the target over the first distance",
    "time": "share of the target's limit used",
    "lr": "log10 of all factors of the learning rate together",
    "update": "log10 of the relative update size, over the schedule's share of its peak, plus 2",
}
"""The features by name, each with its definition; values are clipped to [-3, 3]."""

_GAINS: Mapping[str, float] = {"lr": 0.7, "batch_size": 0.7, "momentum": 0.35}
MOST = 1.5  # of an action: a learning rate changes by a factor of at most e^1.05 = 2.9
_WIDEST = 3.0
_FARTHEST = 1e3  # the product of all factors of a learning rate stays between this and its inverse
_FLATTEST = 0.1  # share of the schedule's peak below which its shape is not compensated
_FORMULA = {"lr", "grad_norm", "momentum", "weight_norm"}
_ALIGNED = 4.0
_BATCHES = 8  # the most that a batch size may grow or shrink, as a factor of the first
_MOMENTA = (0.0, 0.995)


@dataclass(frozen=True)
class Decision:
    """A milestone at which knobs were turned: its features, and the action of each knob."""

    step: int
    features: tuple[float, ...]
    actions: Mapping[str, float]


class View:
    """The features of a trial's reports, with cumulative values computed once."""

    def __init__(self, trial: Trial, target: Target) -> None:
        self.trial = trial
        self._target = target
        self._begin = _first(trial.reports, "train_loss")
        first = _first(trial.reports, target.metric)
        self._start = target.shortfall(first.metrics[target.metric]) if first else 0.0
        self._factors = list(_factors(trial))
        self._shapes = list(_shapes(trial, self._factors))

    def features(self, place: int, before: int | None) -> tuple[float, ...]:
        """The features at the report at `place`; `before` is that of the decision before."""
        reports = self.trial.reports
        report, now = reports[place], reports[place].metrics
        begin = self._begin.metrics if self._begin is not None else now
        then = reports[before].metrics if before is not None else begin
        left, left_then = self._left(now), self._left(then)
        size = relative_update(now, str(self.trial.config.get("optimizer", "sgd")).lower())
        seen = (
            1.0,
            _ratio(now.get("train_loss"), begin.get("train_loss")),
            _ratio(now.get("train_loss"), then.get("train_loss")),
            _ratio(now.get("grad_norm"), then.get("grad_norm")),
            now.get("grad_norm_spread", 0.0),
            _ratio(now.get("val_loss"), now.get("train_loss")),
            left_then - left,
            left,
            report.seconds / self._target.horizon,
            math.log10(self._factors[place]),
            math.log10(size / self._shapes[place]) + 2 if size else 0.0,
        )
        return tuple(_within(value) for value in seen)

    def _left(self, metrics: Metrics) -> float:
        if self._target.metric not in metrics or not 0 < self._start < math.inf:
            return 1.0
        return max(self._target.shortfall(metrics[self._target.metric]), 0.0) / self._start


def decisions(trial: Trial, knobs: Sequence[str], target: Target) -> list[Decision]:
    """The features and actions at each of the trial's changes."""
    places = {report.step: place for place, report in enumerate(trial.reports)}
    view, made, before = View(trial, target), list[Decision](), None
    for step, change in trial.changes:
        place = places.get(step)
        if place is None:
            continue
        actions = {knob: _action(knob, change, trial.reports[place]) for knob in knobs}
        made.append(Decision(step, view.features(place, before), actions))
        before = place
    return made


def change_of(actions: Mapping[str, float], trial: Trial) -> Change:
    """The change of knobs for the actions at the trial's last report; action 0 changes nothing."""
    now = trial.reports[-1]
    turned = {k: math.exp(_GAINS[k] * _clipped(a, MOST)) for k, a in actions.items()}
    change: dict[str, Any] = {}
    if "lr" in turned:
        factor = list(_factors(trial))[-1]
        wanted = min(max(factor * turned["lr"], 1 / _FARTHEST), _FARTHEST)
        change["lr_factor"] = wanted / factor
    batch_size, first = now.metrics.get("batch_size"), _first(trial.reports, "batch_size")
    if "batch_size" in turned and batch_size and first is not None:
        start = first.metrics["batch_size"]
        least = max(start / _BATCHES, trial.hardware.num_workers, 1)
        wanted = min(max(batch_size * turned["batch_size"], least), start * _BATCHES)
        change["batch_size"] = math.ceil(wanted) if round(wanted) < least else round(wanted)
    momentum = now.metrics.get("momentum")
    if "momentum" in turned and momentum is not None:
        low, high = _MOMENTA
        change["momentum"] = min(max(1 - (1 - momentum) / turned["momentum"], low), high)
    return Change(**change)


def _action(knob: str, change: Change, report: Report) -> float:
    """The action of a change: the inverse of `change_of`."""
    now = report.metrics.get(knob)
    factor = change.lr_factor
    if knob == "batch_size":
        factor = change.batch_size / now if change.batch_size and now else 1.0
    elif knob == "momentum":
        set_to = change.momentum
        factor = (1 - now) / (1 - set_to) if set_to is not None and now is not None else 1.0
    return math.log(factor) / _GAINS[knob] if factor > 0 else 0.0


def require_allowed(knobs: Sequence[str], allowed: Sequence[str]) -> None:
    """Raise UserError for a controller's knob that the experiment does not allow."""
    for knob in knobs:
        if knob not in allowed:
            raise UserError(
                f"the controller turns {knob!r}, which the experiment does not allow: "
                f"say Experiment(..., knobs={(*allowed, knob)!r})"
            )


def relative_update(metrics: Metrics, optimizer: str = "sgd") -> float | None:
    """The relative size of an update if all steps had the same direction; None if unknown.

    lr |g| / ((1 - momentum) |w|) for SGD, if the trainer reports these: it has less noise than the
    change of the weights (`update_ratio`), and follows the learning rate at once. For optimizers
    that scale gradients themselves it is `update_ratio`, times the ratio of the two in SGD with a
    momentum of 0.9.
    """
    measured = metrics.get("update_ratio")
    size = _ALIGNED * measured if measured is not None else 0.0
    if optimizer == "sgd" and metrics.keys() >= _FORMULA:
        left, weight = 1 - metrics["momentum"], metrics["weight_norm"]
        if left > 0 and weight > 0:
            size = metrics["lr"] * metrics["grad_norm"] / (left * weight)
    return size if size > 0 else None


def _factors(trial: Trial) -> Iterator[float]:
    """The product of the learning rate's factors before each report."""
    changes, place, product = trial.changes, 0, 1.0
    for report in trial.reports:
        while place < len(changes) and changes[place][0] < report.step:
            product *= changes[place][1].lr_factor
            place += 1
        yield product


def _shapes(trial: Trial, factors: Sequence[float]) -> Iterator[float]:
    """The learning rate's schedule at each report, as a share of its peak.

    A controller does not correct the recipe's decay: the setpoint is the update size at the peak.
    """
    schedule, peak = trial.config.get("lr"), 0.0
    if isinstance(schedule, Schedule) and not isinstance(schedule, Constant):
        peak = extremes(schedule)[1]
    for report, factor in zip(trial.reports, factors, strict=True):
        base = report.metrics.get("lr", 0.0) / factor
        peak = max(peak, base)
        yield max(base / peak, _FLATTEST) if base > 0 else 1.0


def _first(reports: Sequence[Report], metric: str) -> Report | None:
    return next((r for r in reports if math.isfinite(r.metrics.get(metric, math.nan))), None)


def _ratio(a: float | None, b: float | None) -> float:
    return math.log10(a) - math.log10(b) if a and b and a > 0 and b > 0 else 0.0


def _within(value: float) -> float:
    return _clipped(value, _WIDEST) if not math.isnan(value) else 0.0


def _clipped(value: float, most: float) -> float:
    return min(max(value, -most), most)
