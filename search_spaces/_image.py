"""Shared parts of the image-classification recipes: problems, baselines and spaces."""

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
from search_spaces import _communication, _plans
from search_spaces._spaces import IMAGES, by_optimizer, point_of, rate
from trainers.data.images import FILES, require_data
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
ADAMW_BASELINE: Mapping[str, Any] = {
    "lr.family": "cosine",
    "lr.peak": 0.01,
    "lr.final": 0.01,
    "lr.warmup": 0.05,
    "beta1": 0.9,
    "beta2": 0.99,
    "weight_decay": 0.05,
}
MUON_BASELINE: Mapping[str, Any] = {
    "lr.family": "cosine",
    "lr.peak": 0.01,
    "lr.final": 0.01,
    "lr.warmup": 0.05,
    "momentum": 0.95,
    "adamw_share": 1.0,
    "weight_decay": 0.05,
}
SCHEDULEFREE_BASELINE: Mapping[str, Any] = {
    "lr.peak": 0.01,
    "lr.warmup": 0.05,
    "beta1": 0.9,
    "beta2": 0.99,
    "weight_decay": 0.05,
}
SCHEDULEFREE_SGD_BASELINE: Mapping[str, Any] = {
    "lr.peak": 3.0,
    "lr.warmup": 0.05,
    "momentum": 0.9,
    "weight_decay": 5e-4,
}
"""Common settings of each optimizer, the last four as measured on digits and Fashion-MNIST
(benchmarks/results/2026-11-23-optimizer-baselines.md); batch size and horizon depend on the
problem."""

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
        fixed = {key: Fixed(value) for key, value in setting.items() if key not in entries}
        searched = {"horizon": self.horizon, "batch_size": self.batch_size, **entries}
        return Experiment(
            name="-".join(part for part in (self.data, self.variant, name or optimizer) if part),
            train=train,
            space=SearchSpace({**fixed, **searched}),
            target=self.target,
            scaling=self.scaling,
            baseline=baseline,
            canonical={"horizon": "epochs"},
        )


_SHAPE: Mapping[str, Any] = {
    "family": Choice(("linear", "cosine", "polynomial", "step", "constant")),
    "final": Float(0.001, 0.3, log=True),
    "warmup": Float(0.0, 0.4),
}
_DECAY: Mapping[str, Float] = {
    **dict.fromkeys(("sgd", "lars", "schedulefree_sgd"), Float(1e-5, 1e-2, log=True)),
    **dict.fromkeys(("lamb",), Float(1e-4, 0.3, log=True)),
    **dict.fromkeys(("adamw", "nadamw", "muon", "schedulefree_adamw"), Float(1e-3, 1.0, log=True)),
}


def searched(problem: Problem, optimizer: str, baseline: Mapping[str, Any]) -> Experiment:
    """The recipe of one optimizer; its rate follows the batch size from the baseline's."""
    own = IMAGES[optimizer]
    entries: dict[str, SpaceEntry] = {
        **own.entries,
        "lr": rate(own, baseline["batch_size"], **_SHAPE),
        "weight_decay": _DECAY[optimizer],
    }
    name = "schedulefree" if optimizer == "schedulefree_adamw" else optimizer.replace("_", "-")
    return problem.experiment(optimizer, entries, baseline, name)


def plans(problem: Problem, baseline: Mapping[str, Any]) -> Experiment:
    """SGD, with how ranks divide the work and what a step keeps searched too.

    Args:
        baseline: that of `searched` for SGD.
    """
    own = IMAGES["sgd"]
    entries: dict[str, SpaceEntry] = {
        **own.entries,
        "lr": rate(own, baseline["batch_size"], **_SHAPE),
        "weight_decay": _DECAY["sgd"],
        **_plans.ENTRIES,
    }
    return problem.experiment("sgd", entries, {**baseline, **_plans.BASELINE}, "plans")


def communication(problem: Problem, baseline: Mapping[str, Any]) -> Experiment:
    """SGD with plain momentum, and what ranks send of their gradients.

    Args:
        baseline: that of `searched` for SGD.
    """
    own = IMAGES["sgd"]
    entries: dict[str, SpaceEntry] = {
        **own.entries,
        "nesterov": Fixed(False),  # of momenta before the exchange there is none
        "lr": rate(own, baseline["batch_size"], **_SHAPE),
        "weight_decay": _DECAY["sgd"],
        **_communication.OF_SGD,
    }
    return problem.experiment(
        "sgd", entries, {**baseline, **_communication.BASELINE}, "communication"
    )


OPTIMIZERS = ("sgd", "adamw", "nadamw", "muon", "schedulefree_adamw", "schedulefree_sgd")


def optimizers(problem: Problem, baseline: Mapping[str, Any]) -> Experiment:
    """The optimizer is searched too, each with ranges of its own.

    Args:
        baseline: that of `searched` for SGD.
    """
    decay = {name: _DECAY[name] for name in OPTIMIZERS}
    entries = by_optimizer(IMAGES, baseline["batch_size"], decay, **_SHAPE)
    point = point_of("sgd", baseline, entries)
    return problem.experiment("sgd", entries, point, "optimizers")


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
