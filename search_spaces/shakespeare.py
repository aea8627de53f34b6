"""A character-level language model on 1 MB of Shakespeare, two ranks: half a minute per trial.

The text is `tinyshakespeare/input.txt` in the data folder. Steps, milestones and epochs count
tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
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
_BATCH = Int(8, 128, power_of_two=True)
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
    name: str, optimizer: str, entries: Mapping[str, SpaceEntry], baseline: Mapping[str, Any]
) -> Experiment:
    """Raises FileNotFoundError: the text is missing; one line that says where to put it."""
    data_dir = str(require_data("tinyshakespeare"))
    fixed = {**SETTING, "data_dir": data_dir, "optimizer": optimizer}
    return Experiment(
        name=f"shakespeare-{name}",
        train=train,
        space=SearchSpace(
            {
                **{key: Fixed(value) for key, value in fixed.items()},
                "horizon": Float(0.5, 8.0, log=True),
                **entries,
            }
        ),
        target=Target("val_loss", 1.9, mode="min", limit=120.0),
        scaling=Scaling(num_workers=2, cpus_per_worker=1),
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


def adamw() -> Experiment:
    """AdamW; the baseline is a cosine from 0.003 over two epochs."""
    entries: dict[str, SpaceEntry] = {
        "batch_size": _BATCH,
        "sequence_length": Fixed(64),
        **_BETAS,
        "lr": _lr(3e-4, 3e-2),
        "weight_decay": Float(1e-3, 0.3, log=True),
    }
    return _experiment("adamw", "adamw", entries, {**_BASELINE, "batch_size": 32})


def lamb() -> Experiment:
    """LAMB, whose trust ratio may be bounded; the baseline is its linear decay, a larger batch."""
    entries: dict[str, SpaceEntry] = {
        "batch_size": _BATCH,
        "sequence_length": Fixed(64),
        **_BETAS,
        "lr": _lr(1e-3, 0.2),
        "weight_decay": Float(1e-3, 0.3, log=True),
        "trust_max": Choice((None, 10.0, 1.0)),
    }
    own = {"lr.family": "linear", "lr.peak": 0.02, "batch_size": 64, "trust_max": None}
    return _experiment("lamb", "lamb", entries, {**_BASELINE, **own})


def schedules() -> Experiment:
    """AdamW with schedules of learning rate, batch size, beta1 and sequence length."""
    grown: dict[str, Any] = {
        "family": Choice(("constant", "staircase")),
        "knots": Int(1, 2),
        "direction": "rising",
    }
    entries: dict[str, SpaceEntry] = {
        "batch_size": ScheduleSpace(_BATCH, **grown),
        "sequence_length": ScheduleSpace(Int(16, 64, power_of_two=True), **grown),
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
        "batch_size.peak": 32,
        "sequence_length.family": "constant",
        "sequence_length.peak": 64,
        "beta1.family": "constant",
        "beta1.peak": 0.9,
    }
    usual = {key: value for key, value in _BASELINE.items() if key != "beta1"}
    return _experiment("schedules", "adamw", entries, {**usual, **constant})
