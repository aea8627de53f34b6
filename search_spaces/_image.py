"""Shared parts of the image-classification recipes: search spaces for SGD, LARS and LAMB."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autotune.space.coupling import SpaceEntry
from autotune.space.schedule_space import RULES
from autotune.space.search_space import Choice, Fixed, Float, Int, ScheduleSpace, SearchSpace
from autotune.study.experiment import Experiment
from autotune.trial import Target
from autotune.trial.scaling import Scaling
from trainers.data import FILES, require_data
from trainers.image import train

SGD_BASELINE: Mapping[str, Any] = {
    "lr.family": "cosine",
    "lr.peak": 0.1,
    "lr.final": 0.001,
    "lr.warmup": 0.05,
    "momentum": 0.9,
    "weight_decay": 5e-4,
}
LARS_BASELINE: Mapping[str, Any] = {
    "lr.family": "polynomial",
    "lr.peak": 10.0,
    "lr.final": 0.001,
    "lr.warmup": 0.1,
    "momentum": 0.9,
    "weight_decay": 1e-4,
    "trust_coefficient": 0.001,
    "nesterov": False,
}
LAMB_BASELINE: Mapping[str, Any] = {
    "lr.family": "linear",
    "lr.peak": 0.02,
    "lr.final": 0.001,
    "lr.warmup": 0.1,
    "beta1": 0.9,
    "beta2": 0.999,
    "weight_decay": 0.01,
    "trust_max": None,
}
"""Common settings of each optimizer; batch size and horizon depend on the problem."""

SCHEDULES_BASELINE: Mapping[str, Any] = {
    "batch_size.family": "constant",
    "momentum.family": "constant",
    "momentum.peak": 0.9,
    "lr.family": "cosine",
    "lr.peak": 1.0,
    "lr.final": 0.001,
    "lr.warmup": 0.05,
    "weight_decay": 5e-4,
    "label_smoothing": 0.0,
}
"""`SGD_BASELINE` as a point of `schedules`, where the peak is an effective learning rate."""


GPU_SETTING: Mapping[str, Any] = {
    "model": "resnet18",
    "augment": "crop+flip",
    "precision": "bf16",
    "channels_last": True,
}
"""What a GPU is for: a ResNet-18 in the precision and memory layout of its tensor cores."""


@dataclass(frozen=True)
class Problem:
    """An image data set with a model and a target, independent of the optimizer.

    Args:
        data: the data set's name, also that of its recipes.
        setting: further fixed keys of the trainer's configuration.
        batch_size: the global batch sizes to search.
        horizon: the lengths of the schedules to search, in epochs.
        target: the target of the trials.
        scaling: the resources of a trial.
        image_size: the training sizes to search, of which the greatest is that of the images; None
            for a model with a fixed size.
        variant: a word for the names of its recipes, where a data set has several problems.
    """

    data: str
    setting: Mapping[str, Any]
    batch_size: Int
    horizon: Float
    target: Target
    scaling: Scaling
    image_size: Int | None = None
    variant: str = ""

    def experiment(
        self,
        optimizer: str,
        entries: Mapping[str, SpaceEntry],
        baseline: Mapping[str, Any],
        name: str = "",
    ) -> Experiment:
        """The experiment that searches `entries`, the batch size and the horizon.

        Args:
            name: of the recipe; the optimizer's by default.

        Raises:
            FileNotFoundError: the data set is missing; one line that says where to put it.
        """
        setting = {"data": self.data, **self.setting, "optimizer": optimizer}
        if self.data in FILES:
            setting["data_dir"] = str(require_data(self.data))
        fixed = {key: Fixed(value) for key, value in setting.items()}
        searched = {"horizon": self.horizon, "batch_size": self.batch_size, **entries}
        return Experiment(
            name="-".join(part for part in (self.data, self.variant, name or optimizer) if part),
            train=train,
            space=SearchSpace({**fixed, **searched}),
            target=self.target,
            scaling=self.scaling,
            baseline=baseline,
        )


def _lr(low: float, high: float) -> ScheduleSpace:
    return ScheduleSpace(
        Float(low, high, log=True),
        family=Choice(("linear", "cosine", "polynomial", "step", "constant")),
        final=Float(0.001, 0.3, log=True),
        warmup=Float(0.0, 0.4),
    )


def sgd(problem: Problem, baseline: Mapping[str, Any]) -> Experiment:
    """SGD with Nesterov momentum."""
    entries: dict[str, SpaceEntry] = {
        "nesterov": Fixed(True),
        "lr": _lr(0.01, 1.0),
        "momentum": Float(0.7, 0.98),
        "weight_decay": Float(1e-5, 1e-2, log=True),
    }
    return problem.experiment("sgd", entries, baseline)


def lars(problem: Problem, baseline: Mapping[str, Any]) -> Experiment:
    """LARS with the learning rate inside the momentum, as in its paper."""
    entries: dict[str, SpaceEntry] = {
        "lr": _lr(1.0, 100.0),
        "momentum": Float(0.7, 0.98),
        "weight_decay": Float(1e-5, 1e-2, log=True),
        "trust_coefficient": Float(2e-4, 5e-3, log=True),
        "nesterov": Choice((False, True)),
    }
    return problem.experiment("lars", entries, baseline)


def lamb(problem: Problem, baseline: Mapping[str, Any]) -> Experiment:
    """LAMB, whose trust ratio may be bounded."""
    entries: dict[str, SpaceEntry] = {
        "lr": _lr(0.001, 0.2),
        "beta1": Float(0.7, 0.98),
        "beta2": Float(0.9, 0.9999),
        "weight_decay": Float(1e-4, 0.3, log=True),
        "trust_max": Choice((None, 10.0, 1.0)),
    }
    return problem.experiment("lamb", entries, baseline)


def schedules(problem: Problem, baseline: Mapping[str, Any]) -> Experiment:
    """SGD with a schedule for every knob: learning rate, batch size, momentum and image size.

    The searched `lr.peak` is that of the effective learning rate, lr / (1 - momentum). The learning
    rate may follow the batch size, and the momentum move against the learning rate.
    """
    grown: dict[str, Any] = {
        "family": Choice(("constant", "staircase")),
        "knots": Int(1, 2),
        "direction": "rising",
    }
    entries: dict[str, SpaceEntry] = {
        "nesterov": Fixed(True),
        "batch_size": ScheduleSpace(problem.batch_size, **grown),
        "momentum": ScheduleSpace(
            Float(0.8, 0.98),
            family=Choice(("constant", "mirror")),
            final=Float(0.8, 1.0),
            mirrors="lr",
        ),
        "lr": ScheduleSpace(
            Float(0.1, 10.0, log=True),
            family=Choice(("linear", "cosine", "one_cycle", "wsd", "piecewise", "constant")),
            final=Float(0.001, 0.3, log=True),
            warmup=Float(0.0, 0.4),
            decay=Float(0.1, 0.6),
            peak_at=Float(0.1, 0.6),
            follows="batch_size",
            rule=Choice(tuple(RULES)),
            effective="momentum",
        ),
        "weight_decay": Float(1e-5, 1e-2, log=True),
        "label_smoothing": Float(0.0, 0.2),
    }
    if problem.image_size is not None:
        sizes = {**grown, "knots": 1}
        entries["image_size"] = ScheduleSpace(problem.image_size, **sizes)
        full = {"image_size.family": "constant", "image_size.peak": problem.image_size.high}
        baseline = {**full, **baseline}
    return problem.experiment("sgd", entries, baseline, "schedules")
