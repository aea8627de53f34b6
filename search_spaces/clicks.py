"""Click-through prediction on two ranks, with a sharded table of embeddings: seconds per trial.

The clicks are generated, so that the best AUC is known: 0.856 for these
(`trainers.data.clicks.best_auc(50_000, 10_000, 100)`). The target is what main effects of the
categories nearly give.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.space.coupling import SpaceEntry
from autotune.space.search_space import Choice, Fixed, Float, Int, ScheduleSpace, SearchSpace
from autotune.study.experiment import Experiment
from autotune.trial import Target
from autotune.trial.scaling import Scaling
from trainers.clicks import train

SETTING: Mapping[str, Any] = {
    "data": "generated",
    "hash_size": 100,
    "train_size": 50_000,
    "val_size": 10_000,
    "milestone": 2500,
    "model": "dlrm",
    "width": 8,
    "optimizer": "adam",
    "optimizer_sparse": "rowwise_adagrad",
}


def _rate(low: float, high: float) -> ScheduleSpace:
    """A rate that follows the batch size by the square root, as of adaptive optimizers."""
    return ScheduleSpace(
        Float(low, high, log=True),
        family=Choice(("cosine", "linear", "constant")),
        final=Float(0.01, 0.3, log=True),
        warmup=Float(0.0, 0.3),
        follows="batch_size",
        rule="sqrt",
        reference=128,
    )


def generated() -> Experiment:
    """Both learning rates, batch size, and how sparse updates are made; synchronous at first."""
    space: dict[str, SpaceEntry] = {
        **{key: Fixed(value) for key, value in SETTING.items()},
        "batch_size": Int(32, 1024, power_of_two=True, log=True),
        "horizon": Float(0.5, 3.0, log=True),
        "lr": _rate(3e-4, 0.03),
        "lr_sparse": _rate(0.01, 0.5),
        "sparse_update": Choice(("synchronous", "asynchronous", "geo_sgd", "hogwild")),
        "staleness_bound": Int(1, 16, log=True, when={"sparse_update": "asynchronous"}),
        "push_every": Int(
            2, 64, power_of_two=True, log=True, when={"sparse_update": ("geo_sgd", "hogwild")}
        ),
        "hogwild_workers": Int(2, 4, when={"sparse_update": "hogwild"}),
    }
    rate = {"family": "constant", "warmup": 0.0}
    return Experiment(
        name="clicks-generated",
        train=train,
        space=SearchSpace(space),
        target=Target("val_auc", 0.805, limit=30.0),
        scaling=Scaling(num_workers=2),
        baseline={
            "batch_size": 128,
            "horizon": 1.0,
            **{f"lr.{key}": value for key, value in rate.items()},
            "lr.peak": 0.003,
            **{f"lr_sparse.{key}": value for key, value in rate.items()},
            "lr_sparse.peak": 0.05,
            "sparse_update": "synchronous",
        },
        canonical={"horizon": "epochs"},
    )
