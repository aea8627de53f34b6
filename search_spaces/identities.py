"""Identities that are made up, told apart by a small perceptron on two ranks: seconds per trial.

The target is retrieval: images of identities that were never trained on are found again
(`trainers.retrieval`). The directions of the identities are divided over the ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.space.search_space import Choice, Fixed, Float, Int, ScheduleSpace, SearchSpace
from autotune.study.experiment import Experiment
from autotune.trial import Target
from autotune.trial.scaling import Scaling
from search_spaces._spaces import IMAGES, rate
from trainers.retrieval import train

SETTING: Mapping[str, Any] = {
    "data": "identities",
    "identities": 1000,
    "unseen": 200,
    "model": "mlp",
    "features": 64,
    "optimizer": "sgd",
    "milestone": 3072,
}
BASELINE: Mapping[str, Any] = {
    "lr.family": "cosine",
    "lr.peak": 0.1,
    "lr.final": 0.01,
    "lr.warmup": 0.05,
    "momentum": 0.9,
    "weight_decay": 5e-4,
    "batch_size": 128,
    "horizon": 10.0,
    "margin": "arcface",
    "margin_size:arcface": 0.2,
    "margin_scale": 16.0,
    "class_sample_rate": 1.0,
}


def arcface() -> Experiment:
    """SGD, with the margin, its size and scale, and the share of classes that a step has.

    The baseline is ArcFace with a small margin, as images are small, and all classes.
    """
    own = IMAGES["sgd"]
    lr: ScheduleSpace = rate(
        own,
        BASELINE["batch_size"],
        family=Choice(("linear", "cosine", "polynomial", "step", "constant")),
        final=Float(0.001, 0.3, log=True),
        warmup=Float(0.0, 0.4),
    )
    space = SearchSpace(
        {
            **{key: Fixed(value) for key, value in SETTING.items()},
            "horizon": Float(3.0, 30.0, log=True),
            "batch_size": Int(32, 512, power_of_two=True, log=True),
            **own.entries,
            "lr": lr,
            "weight_decay": Float(1e-5, 1e-2, log=True),
            "margin": Choice(("arcface", "cosface", "none")),
            "margin_size:arcface": Float(0.05, 0.6, when={"margin": "arcface"}),
            "margin_size:cosface": Float(0.02, 0.4, when={"margin": "cosface"}),
            "margin_scale": Float(8.0, 64.0, log=True),
            "class_sample_rate": Float(0.1, 1.0, log=True),
        }
    )
    return Experiment(
        name="identities-arcface",
        train=train,
        space=space,
        target=Target("val_recall_at_1", 0.9, limit=30.0),
        scaling=Scaling(num_workers=2),
        baseline=BASELINE,
        canonical={"horizon": "epochs"},
    )
