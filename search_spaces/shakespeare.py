"""A character-level language model on 1 MB of Shakespeare, two ranks: half a minute per trial.

The text is `tinyshakespeare/input.txt` in the data folder. Steps, milestones and epochs count
tokens. The recipes `gpu_...` train a larger model to a lower loss, on one GPU a trial.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from autotune.space.coupling import SpaceEntry
from autotune.space.schedule_space import RULES
from autotune.space.search_space import Choice, Fixed, Float, Int, ScheduleSpace, SearchSpace
from autotune.study.experiment import Experiment
from autotune.trial import Target
from autotune.trial.scaling import Scaling
from search_spaces import _averaging, _communication, _plans
from search_spaces._spaces import BETAS, TEXTS, by_optimizer, point_of, rate
from trainers.data.images import require_data
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
_LAMB_BASELINE: Mapping[str, Any] = {
    **_BASELINE,
    "lr.family": "linear",
    "lr.peak": 0.02,
    "trust_max": None,
}
_MUON_BASELINE: Mapping[str, Any] = {
    **{key: value for key, value in _BASELINE.items() if not key.startswith("beta")},
    "horizon": 1.0,
    "lr.peak": 0.01,
    "momentum": 0.95,
    "adamw_share": 1.0,
}
_FREE_BASELINE: Mapping[str, Any] = {
    "horizon": 2.0,
    "beta1": 0.9,
    "beta2": 0.99,
    "lr.peak": 0.01,
    "lr.warmup": 0.05,
    "weight_decay": 0.1,
}


def _experiment(
    problem: Problem,
    name: str,
    optimizer: str,
    entries: Mapping[str, SpaceEntry],
    baseline: Mapping[str, Any],
) -> Experiment:
    """Raises FileNotFoundError: the text is missing; one line that says where to put it."""
    data_dir = str(require_data("tinyshakespeare"))
    setting = {**problem.setting, "data_dir": data_dir, "optimizer": optimizer}
    fixed = {key: Fixed(value) for key, value in setting.items() if key not in entries}
    return Experiment(
        name="-".join(part for part in ("shakespeare", problem.variant, name) if part),
        train=train,
        space=SearchSpace({**fixed, "horizon": problem.horizon, **entries}),
        target=problem.target,
        scaling=problem.scaling,
        baseline=baseline,
        canonical={"horizon": "epochs"},
    )


_DECAY = Float(1e-3, 0.3, log=True)
_SHAPE: Mapping[str, Any] = {
    "family": Choice(("linear", "cosine", "wsd", "inverse_sqrt", "constant")),
    "final": Float(0.001, 0.3, log=True),
    "warmup": Float(0.0, 0.3),
    "decay": Float(0.1, 0.6),
}


def _searched(problem: Problem, optimizer: str, baseline: Mapping[str, Any]) -> Experiment:
    """The recipe of one optimizer; its rate follows the batch size from the baseline's."""
    own = TEXTS[optimizer]
    entries: dict[str, SpaceEntry] = {
        "batch_size": problem.batch_size,
        "sequence_length": Fixed(problem.sequence_length),
        **own.entries,
        "lr": rate(own, baseline["batch_size"], **_SHAPE),
        "weight_decay": _DECAY,
    }
    name = "schedulefree" if optimizer == "schedulefree_adamw" else optimizer
    return _experiment(problem, name, optimizer, entries, baseline)


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
        "beta2": BETAS["beta2"],
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
    return _searched(SMALL, "adamw", {**_BASELINE, "batch_size": 32})


def nadamw() -> Experiment:
    """AdamW with Nesterov momentum; the baseline is that of `adamw`."""
    return _searched(SMALL, "nadamw", {**_BASELINE, "batch_size": 32})


def muon() -> Experiment:
    """Muon for the layers' matrices, AdamW for the rest; a cosine from 0.01 over one epoch."""
    return _searched(SMALL, "muon", {**_MUON_BASELINE, "batch_size": 32})


def schedulefree() -> Experiment:
    """Schedule-free AdamW; the baseline stays at 0.01 after a short warm-up."""
    return _searched(SMALL, "schedulefree_adamw", {**_FREE_BASELINE, "batch_size": 32})


def lamb() -> Experiment:
    """LAMB, whose trust ratio may be bounded; the baseline is its linear decay, a larger batch."""
    return _searched(SMALL, "lamb", {**_LAMB_BASELINE, "batch_size": 64})


def optimizers() -> Experiment:
    """The optimizer is searched too; the baseline is that of `adamw`."""
    names = ("adamw", "nadamw", "muon", "schedulefree_adamw")
    entries: dict[str, SpaceEntry] = {
        "batch_size": SMALL.batch_size,
        "sequence_length": Fixed(SMALL.sequence_length),
        **by_optimizer(TEXTS, 32, dict.fromkeys(names, _DECAY), **_SHAPE),
    }
    point = point_of("adamw", {**_BASELINE, "batch_size": 32}, entries)
    return _experiment(SMALL, "optimizers", "adamw", entries, point)


def plans() -> Experiment:
    """AdamW, and how two ranks divide the work; the baseline is that of `adamw`, with four heads.

    After the baseline, one plan of each other family runs.
    """
    own = TEXTS["adamw"]
    entries: dict[str, SpaceEntry] = {
        "heads": Fixed(4),  # two ranks may have two each
        "batch_size": SMALL.batch_size,
        "sequence_length": Fixed(SMALL.sequence_length),
        **own.entries,
        "lr": rate(own, 32, **_SHAPE),
        "weight_decay": _DECAY,
        **_plans.LANGUAGE_ENTRIES,
        **_plans.of_texts(SMALL.sequence_length),
    }
    usual = {**_BASELINE, "batch_size": 32, **_plans.BASELINE_OF_TEXTS}
    made = _experiment(SMALL, "plans", "adamw", entries, {**usual, **_plans.LANGUAGE_BASELINE})
    others = [{**usual, **family} for family in _plans.LANGUAGE_FAMILIES]
    return replace(made, configs=others)


def averaging() -> Experiment:
    """AdamW, and how often two ranks exchange what; the baseline, then one of each other kind."""
    return _averaging.searched(adamw())


def communication() -> Experiment:
    """AdamW, and what two ranks send of their gradients; the baseline is that of `adamw`."""
    own = TEXTS["adamw"]
    entries: dict[str, SpaceEntry] = {
        "batch_size": SMALL.batch_size,
        "sequence_length": Fixed(SMALL.sequence_length),
        **own.entries,
        "lr": rate(own, 32, **_SHAPE),
        "weight_decay": _DECAY,
        **_communication.OF_ADAMW,
    }
    usual = {**_BASELINE, "batch_size": 32, **_communication.BASELINE}
    return _experiment(SMALL, "communication", "adamw", entries, usual)


def schedules() -> Experiment:
    """AdamW with schedules of learning rate, batch size, beta1 and sequence length."""
    return _schedules(SMALL, {"batch_size.peak": 32})


def gpu_adamw() -> Experiment:
    """`adamw` for a GPU: a model of 11 million weights, a cosine from 0.001 over 16 epochs."""
    baseline = {**_BASELINE, "lr.peak": 1e-3, "batch_size": 64, "horizon": 16.0}
    return _searched(GPU, "adamw", baseline)


def gpu_lamb() -> Experiment:
    """`lamb` for a GPU, at a larger batch."""
    return _searched(GPU, "lamb", {**_LAMB_BASELINE, "batch_size": 128, "horizon": 16.0})


def gpu_plans() -> Experiment:
    """On a GPU: AdamW or Adafactor, what a step keeps, how it computes; `gpu_adamw`'s baseline."""
    entries: dict[str, SpaceEntry] = {
        "batch_size": GPU.batch_size,
        "sequence_length": Fixed(GPU.sequence_length),
        **by_optimizer(TEXTS, 64, dict.fromkeys(("adamw", "adafactor"), _DECAY), **_SHAPE),
        **_plans.ON_A_GPU,
        **_plans.of_texts(GPU.sequence_length),
    }
    usual = {**_BASELINE, "lr.peak": 1e-3, "batch_size": 64, "horizon": 16.0}
    own_plan = {**_plans.BASELINE_ON_A_GPU, **_plans.BASELINE_OF_TEXTS}
    point = point_of("adamw", {**usual, **own_plan}, entries)
    return _experiment(GPU, "plans", "adamw", entries, point)


def gpu_schedules() -> Experiment:
    """`schedules` for a GPU; the baseline is that of `gpu_adamw`."""
    return _schedules(GPU, {"lr.peak": 1e-3, "batch_size.peak": 64, "horizon": 16.0})
