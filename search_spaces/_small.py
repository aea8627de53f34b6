"""A model that must be small: its width, what is removed of it, bits of its weights, a teacher."""

from __future__ import annotations

from pathlib import Path

from autotune.space.coupling import SpaceEntry
from autotune.space.search_space import Choice, Fixed, Float, Int, ScheduleSpace, SearchSpace
from autotune.study.experiment import Experiment
from autotune.trial import FailurePolicy, Limit, Target
from trainers.image import train


def small_mlp(data: str, target: Target, limits: list[Limit], teacher: Path | None) -> Experiment:
    """A perceptron with AdamW under limits; what makes it small is searched with the rate.

    Args:
        teacher: a file of a trained model to learn from, as a study of a large one writes it.
    """
    pruned = {"pruning": ("unstructured", "structured")}
    entries: dict[str, SpaceEntry] = {
        "data": Fixed(data),
        "model": Fixed("mlp"),
        "optimizer": Fixed("adamw"),
        "milestone": Fixed(2156),  # two epochs
        "batch_size": Int(16, 128, power_of_two=True, log=True),
        "lr": ScheduleSpace(
            Float(1e-3, 3e-2, log=True),
            family=Choice(("cosine", "linear")),
            final=0.01,
            warmup=0.05,
            follows="batch_size",
            rule="sqrt",
            reference=64,
        ),
        "weight_decay": Float(1e-3, 0.3, log=True),
        "horizon": Float(20.0, 80.0, log=True),
        "width": Int(64, 512, step=64),
        "pruning": Choice(("none", "unstructured", "structured")),
        "sparsity": Float(0.3, 0.9, when=pruned),
        "quantization": Choice(("none", "post_training")),
    }
    if teacher:
        entries |= {
            "teacher": Fixed(str(teacher)),
            "distill_weight": Float(0.1, 0.9),
            "distill_temperature": Float(1.0, 8.0, log=True),
        }
    return Experiment(
        name=f"{data}-small",
        train=train,
        space=SearchSpace(entries),
        target=target,
        limits=limits,
        failure=FailurePolicy(keep_checkpoints=3),  # of which the file of the best is made
        canonical={"horizon": "epochs"},
    )
