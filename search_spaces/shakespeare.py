"""A character-level language model on 1 MB of Shakespeare, two ranks: half a minute per trial.

The text is `tinyshakespeare/input.txt` in the data folder. Steps, milestones and epochs count
tokens. The recipes `gpu_...` train a larger model to a lower loss, on one GPU a trial.
"""

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
from trainers.data import require_data
from trainers.language import train

SETTING: Mapping[str, Any] = {
    "text": "tinyshakespeare",
    "layers": 2,
    "width": 96,
    "heads": 3,
    "val_size": 32_768,
    "val_sequence_length": 64,
    "milestone": 65_536,
}
GPU_SETTING: Mapping[str, Any] = {
    **SETTING,
    "layers": 6,
    "width": 384,
    "heads": 6,
    "val_sequence_length": 256,
    "milestone": 1_048_576,
    "precision": "bf16",
}


@dataclass(frozen=True)
class Problem:
    """A language model and a target, independent of the optimizer.

    Args:
        setting: fixed keys of the trainer's configuration.
        batch_size: the global batch sizes to search, in sequences.
        sequence_length: the largest length, which all recipes but `schedules` train with.
        horizon: the lengths of the schedules to search, in epochs.
        target: the target of the trials.
        scaling: the resources of a trial.
        variant: a word for the names of its recipes.
    """

    setting: Mapping[str, Any]
    batch_size: Int
    sequence_length: int
    horizon: Float
    target: Target
    scaling: Scaling
    variant: str = ""


SMALL = Problem(
    setting=SETTING,
    batch_size=Int(8, 128, power_of_two=True),
    sequence_length=64,
    horizon=Float(0.5, 8.0, log=True),
    target=Target("val_loss", 1.9, mode="min", limit=120.0),
    scaling=Scaling(num_workers=2),
)
GPU = Problem(
    setting=GPU_SETTING,
    batch_size=Int(16, 256, power_of_two=True),
    sequence_length=256,
    horizon=Float(4.0, 64.0, log=True),
    target=Target("val_loss", 1.55, mode="min", limit=600.0),
    scaling=Scaling(gpus_per_worker=1),
    variant="gpu",
)
_BASELINE: Mapping[str, Any] = {
    "horizon": 2.0,
    "beta1": 0.9,
    "beta2": 0.99,
    "lr.family": "cosine",
    "lr.peak": 3e-3,
    "lr.final": 0.1,
    "lr.warmup": 0.05,
    "weight_decay": 0.1,
}
_BETAS: Mapping[str, SpaceEntry] = {"beta1": Float(0.8, 0.98), "beta2": Float(0.9, 0.999)}


def _experiment(
    problem: Problem,
    name: str,
    optimizer: str,
    entries: Mapping[str, SpaceEntry],
    baseline: Mapping[str, Any],
) -> Experiment:
    """Raises FileNotFoundError: the text is missing; one line that says where to put it."""
    data_dir = str(require_data("tinyshakespeare"))
    fixed = {**problem.setting, "data_dir": data_dir, "optimizer": optimizer}
    return Experiment(
        name="-".join(part for part in ("shakespeare", problem.variant, name) if part),
        train=train,
        space=SearchSpace(
            {
                **{key: Fixed(value) for key, value in fixed.items()},
                "horizon": problem.horizon,
                **entries,
            }
        ),
        target=problem.target,
        scaling=problem.scaling,
        baseline=baseline,
    )


def _lr(low: float, high: float) -> ScheduleSpace:
    return ScheduleSpace(
        Float(low, high, log=True),
        family=Choice(("linear", "cosine", "wsd", "inverse_sqrt", "constant")),
        final=Float(0.001, 0.3, log=True),
        warmup=Float(0.0, 0.3),
        decay=Float(0.1, 0.6),
    )


def _adamw(problem: Problem, own: Mapping[str, Any]) -> Experiment:
    entries: dict[str, SpaceEntry] = {
        "batch_size": problem.batch_size,
        "sequence_length": Fixed(problem.sequence_length),
        **_BETAS,
        "lr": _lr(3e-4, 3e-2),
        "weight_decay": Float(1e-3, 0.3, log=True),
    }
    return _experiment(problem, "adamw", "adamw", entries, {**_BASELINE, **own})


def _lamb(problem: Problem, own: Mapping[str, Any]) -> Experiment:
    entries: dict[str, SpaceEntry] = {
        "batch_size": problem.batch_size,
        "sequence_length": Fixed(problem.sequence_length),
        **_BETAS,
        "lr": _lr(1e-3, 0.2),
        "weight_decay": Float(1e-3, 0.3, log=True),
        "trust_max": Choice((None, 10.0, 1.0)),
    }
    usual = {"lr.family": "linear", "lr.peak": 0.02, "trust_max": None}
    return _experiment(problem, "lamb", "lamb", entries, {**_BASELINE, **usual, **own})


def _schedules(problem: Problem, own: Mapping[str, Any]) -> Experiment:
    longest = problem.sequence_length
    grown: dict[str, Any] = {
        "family": Choice(("constant", "staircase")),
        "knots": Int(1, 2),
        "direction": "rising",
    }
    entries: dict[str, SpaceEntry] = {
        "batch_size": ScheduleSpace(problem.batch_size, **grown),
        "sequence_length": ScheduleSpace(Int(longest // 4, longest, power_of_two=True), **grown),
        "beta1": ScheduleSpace(
            Float(0.8, 0.98),
            family=Choice(("constant", "mirror")),
            final=Float(0.85, 1.0),
            mirrors="lr",
        ),
        "beta2": _BETAS["beta2"],
        "lr": ScheduleSpace(
            Float(3e-4, 3e-2, log=True),
            family=Choice(("linear", "cosine", "one_cycle", "wsd", "piecewise", "constant")),
            final=Float(0.001, 0.3, log=True),
            warmup=Float(0.0, 0.3),
            decay=Float(0.1, 0.6),
            peak_at=Float(0.05, 0.5),
            follows="batch_size",
            rule=Choice(tuple(RULES)),
        ),
        "weight_decay": Float(1e-3, 0.3, log=True),
    }
    constant = {
        "batch_size.family": "constant",
        "sequence_length.family": "constant",
        "sequence_length.peak": longest,
        "beta1.family": "constant",
        "beta1.peak": 0.9,
    }
    usual = {key: value for key, value in _BASELINE.items() if key != "beta1"}
    return _experiment(problem, "schedules", "adamw", entries, {**usual, **constant, **own})


def adamw() -> Experiment:
    """AdamW; the baseline is a cosine from 0.003 over two epochs."""
    return _adamw(SMALL, {"batch_size": 32})


def lamb() -> Experiment:
    """LAMB, whose trust ratio may be bounded; the baseline is its linear decay, a larger batch."""
    return _lamb(SMALL, {"batch_size": 64})


def schedules() -> Experiment:
    """AdamW with schedules of learning rate, batch size, beta1 and sequence length."""
    return _schedules(SMALL, {"batch_size.peak": 32})


def gpu_adamw() -> Experiment:
    """`adamw` for a GPU: a model of 11 million weights, a cosine from 0.001 over 16 epochs."""
    return _adamw(GPU, {"lr.peak": 1e-3, "batch_size": 64, "horizon": 16.0})


def gpu_lamb() -> Experiment:
    """`lamb` for a GPU, at a larger batch."""
    return _lamb(GPU, {"batch_size": 128, "horizon": 16.0})


def gpu_schedules() -> Experiment:
    """`schedules` for a GPU; the baseline is that of `gpu_adamw`."""
    return _schedules(GPU, {"lr.peak": 1e-3, "batch_size.peak": 64, "horizon": 16.0})
