"""The common part of the trainers' configurations: keys, defaults and validation.

| key | value (default) |
|---|---|
| `optimizer` | sgd, adamw, lars or lamb (sgd), and its options in `TAKES` |
| `lr` * | learning rate, required |
| `batch_size` * | images or sequences a step, of all ranks together (128) |
| `label_smoothing` * | (0) |
| `horizon` | epochs after which schedules have run their course (10) |
| `milestone` | samples between two milestones (an epoch) |
| `max_epochs` | training ends here (never) |
| `microbatch` | most images or sequences of a rank in one forward pass; gradients add up (all) |
| `precision` | fp32, tf32, bf16 or fp16 (fp32); see `trainers.precision` |
| `deterministic` | kernels that give the same bits in every run, or an error (False) |
| `compile` | (False) |
| `seed`, `state` | reserved: set by autotune, as is `microbatch` once memory has run out |

Keys marked * take a number or a schedule, as do the optimizers' options `momentum` (or
`beta1`), `beta2`, `weight_decay` and `trust_coefficient`. All values of a schedule must
be allowed.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainers.precision import PRECISIONS
from trainers.readers import (
    REQUIRED,
    Key,
    NotAllowedError,
    Number,
    Schedule,
    counted,
    flag,
    one_of,
    optional,
    saved_state,
    scheduled,
    shown,
    unscheduled,
    whole,
)


@dataclass(frozen=True)
class Training:
    """The validated common part; numbers that may be schedules are schedules."""

    optimizer: str
    lr: Schedule
    batch_size: Schedule
    label_smoothing: Schedule
    horizon: float
    milestone: int | None
    max_epochs: float | None
    microbatch: int | None
    precision: str
    deterministic: bool
    compile: bool
    seed: int
    state: dict[str, Any] | None
    options: Mapping[str, Any]


TRAINING: Mapping[str, Key] = {
    "optimizer": ("sgd", one_of(("sgd", "adamw", "lars", "lamb"))),
    "lr": (REQUIRED, scheduled(Number(0.0))),
    "batch_size": (128, counted(1)),
    "label_smoothing": (0.0, scheduled(Number(0.0, 1.0))),
    "horizon": (10.0, Number(0.0, open_low=True)),
    "milestone": (None, optional(whole(1))),
    "max_epochs": (None, optional(Number(0.0, open_low=True))),
    "microbatch": (None, optional(whole(1))),
    "precision": ("fp32", one_of(PRECISIONS)),
    "deterministic": (False, flag),
    "compile": (False, flag),
    "seed": (0, whole(0)),
    "state": (None, optional(saved_state)),
}
"""All common keys but the optimizer's: the default and the reader."""

_FRACTION = scheduled(Number(0.0, 1.0))
SCHEDULED: Mapping[str, Key] = {
    "momentum": (0.9, _FRACTION),
    "beta1": (0.9, _FRACTION),
    "beta2": (0.999, _FRACTION),
    "weight_decay": (0.0, scheduled(Number(0.0))),
    "trust_coefficient": (None, scheduled(Number(0.0, open_low=True))),
}
"""The options of the optimizers that may be schedules: the default and the reader."""

_GIVEN = (None, unscheduled)
OPTIONS: Mapping[str, Key] = {
    **SCHEDULED,
    "nesterov": (False, flag),
    **dict.fromkeys(("exclude", "variant", "adapt", "denominator", "lr_in_momentum"), _GIVEN),
    **dict.fromkeys(("eps", "trust_min", "trust_max", "larc_clip", "max_grad_norm"), _GIVEN),
    **dict.fromkeys(("bias_correction", "grad_averaging", "decoupled"), _GIVEN),
    **dict.fromkeys(("weight_norm_min", "weight_norm_max"), _GIVEN),
}
"""All options of the optimizers; those without a default keep the optimizer's own."""

_TRUST = ("trust_coefficient", "trust_min", "trust_max", "adapt", "max_grad_norm", "variant")
_MOMENTA, _BETAS = ("momentum", "nesterov"), ("beta1", "beta2", "eps")
_ALL = ("weight_decay", "exclude")
TAKES: Mapping[str, tuple[str, ...]] = {
    "sgd": (*_ALL, *_MOMENTA),
    "adamw": (*_ALL, *_BETAS),
    "lars": (*_ALL, *_MOMENTA, *_TRUST, "eps", "denominator", "lr_in_momentum", "larc_clip"),
    "lamb": (
        *(*_ALL, *_BETAS, *_TRUST, "bias_correction", "grad_averaging", "decoupled"),
        *("weight_norm_min", "weight_norm_max"),
    ),
}
"""The options of each optimizer; `trainers.optimizers` documents them."""

_OWNERS: Mapping[str, str] = {
    **dict.fromkeys(("image_size", "val_image_size", "augment", "norm"), "trainers.image"),
    **dict.fromkeys(("sequence_length", "val_sequence_length", "text"), "trainers.language"),
}


def read_training(
    config: Mapping[str, Any], own: Mapping[str, Key], trainer: str
) -> tuple[Training, dict[str, Any]]:
    """Read the common part of `config` and the trainer's own keys.

    Args:
        own: the trainer's keys beyond the common ones.
        trainer: the module's name, for messages.

    Raises:
        ValueError: one line with the key, its value, what is allowed, and the nearest valid key.
    """
    for key in config:
        if key not in own and key not in TRAINING and key not in OPTIONS:
            raise ValueError(_unknown(key, own, trainer))
    values = {key: _value(config, key, *TRAINING[key]) for key in TRAINING}
    takes = TAKES[values["optimizer"]]
    for key in OPTIONS:
        if key in config and key not in takes:
            raise ValueError(
                f"{key} is given but optimizer {values['optimizer']!r} does not take it "
                f"(it takes {', '.join(takes)})"
            )
    wanted = (key for key in takes if key in config or OPTIONS[key][0] is not None)
    options = {key: _value(config, key, *OPTIONS[key]) for key in wanted}
    found = {key: _value(config, key, *own[key]) for key in own}
    return Training(**values, options=options), found


def _value(config: Mapping[str, Any], key: str, default: Any, reader: Any) -> Any:
    if key not in config and default is REQUIRED:
        raise ValueError(f"{key} is missing from the configuration")
    value = config.get(key, default)
    try:
        return reader(value)
    except NotAllowedError as wrong:
        raise ValueError(f"{key} must be {wrong}, got {shown(value)}") from None


def _unknown(key: object, own: Mapping[str, Key], trainer: str) -> str:
    names = sorted((*own, *TRAINING, *OPTIONS))
    allowed = f"(allowed: {', '.join(names)})"
    owner = _OWNERS.get(str(key))
    if owner is not None:
        return f"{key} is a key of {owner}, which {trainer} does not have {allowed}"
    near = difflib.get_close_matches(str(key), names, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"unknown key {key!r} in the configuration{hint} {allowed}"
