"""The common part of the trainers' configurations: keys, defaults and validation.

| key | value (default) |
|---|---|
| `optimizer` | one of `trainers.optimizers.NAMES` (sgd), and its options in `TAKES` |
| `lr` * | learning rate, required |
| `batch_size` * | images or sequences a step, of all ranks together (128) |
| `label_smoothing` * | (0) |
| `horizon` | epochs after which schedules have run their course (10) |
| `milestone` | samples between two milestones (an epoch) |
| `max_epochs` | training ends here (never) |
| `microbatch` | most images or sequences of a rank in one forward pass; gradients add up (all) |
| `precision` | fp32, tf32, bf16 or fp16 (fp32); see `trainers.memory.precision` |
| `deterministic` | kernels that give the same bits in every run, or an error (False) |
| `compile` | False, True or units (False); see `trainers.memory.compiled` |
| `noise_scale_every` | measures the gradient noise scale at every n-th step (never) |
| `adascale_batch_size` | for which lr and horizon are meant: `trainers.optimizers.adascale` (off) |
| `validation` | inline, or beside training: `trainers.validation_process` (inline) |
| the keys of exchanges | how often: `trainers.communication.synchronization` (in every step) |
| keys of fewer bytes | between copies of a model: `trainers.communication.compression` |
| the keys of a plan | how ranks divide the work, and what is kept in memory: `trainers.plan` |
| `seed`, `state` | reserved: set by autotune, as is `microbatch` once memory has run out |

Keys marked * take a number or a schedule, as do the optimizers' options `momentum` (or
`beta1`), `beta2`, `weight_decay` and `trust_coefficient`. All values of a schedule must
be allowed. The momentum (or `beta1`) of schedule-free optimizers must be a number.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from autotune.schedules import Constant
from trainers import noise_scale
from trainers.communication import compression, keys, synchronization
from trainers.communication.keys import KNOBS as EXCHANGED
from trainers.communication.synchronization import Synchronization
from trainers.memory import accumulate, compiled, low_bit
from trainers.memory.precision import PRECISIONS
from trainers.optimizers import adascale
from trainers.optimizers.make import NAMES, require_optimizer
from trainers.optimizers.schedule_free import KINDS
from trainers.parallel.passes import microbatches
from trainers.plan import KNOBS, Plan, check, read_plan
from trainers.readers import (
    REQUIRED,
    Key,
    Number,
    Schedule,
    counted,
    flag,
    greatest,
    one_of,
    optional,
    saved_state,
    scheduled,
    shown,
    unscheduled,
    value_of,
    whole,
)
from trainers.technique import Effect


@dataclass(frozen=True)
class Training:
    """The validated common part; numbers that may be schedules are schedules."""

    plan: Plan

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
    compile: bool | str
    validation: str
    noise_scale_every: int | None
    adascale_batch_size: int | None
    seed: int
    state: dict[str, Any] | None
    options: Mapping[str, Any]
    synchronization: Synchronization
    gradient_compression: Mapping[str, Any]

    def on(self, ranks: int) -> Training:
        """As it is where so many ranks have other samples: with the plan's microbatch."""
        steps, largest = self.plan.gradient_accumulation_steps, round(greatest(self.batch_size))
        found = accumulate.microbatch(steps, self.microbatch, largest, ranks)
        return replace(self, microbatch=found)

    @property
    def measured_every(self) -> int | None:
        """Each n-th step whose gradient's noise is measured; None: none is."""
        return self.noise_scale_every if self.adascale_batch_size is None else 1

    def pass_size(self, ranks: int) -> int:
        """The most items of a rank in one forward pass, on so many ranks.

        Raises:
            ValueError: the plan is not for so many ranks; one line.
        """
        shares, degree = self.plan.shares(ranks), self.plan.pipeline_parallel_degree
        local = -(-round(greatest(self.batch_size)) // shares)
        most = min(local, self.on(shares).microbatch or local)
        return most if degree == 1 else microbatches(local, -(-local // most), degree)[1]


VALIDATIONS = ("inline", "beside")

TRAINING: Mapping[str, Key] = {
    "optimizer": ("sgd", one_of(NAMES)),
    "lr": (REQUIRED, scheduled(Number(0.0))),
    "batch_size": (128, counted(1)),
    "label_smoothing": (0.0, scheduled(Number(0.0, 1.0))),
    "horizon": (10.0, Number(0.0, open_low=True)),
    "milestone": (None, optional(whole(1))),
    "max_epochs": (None, optional(Number(0.0, open_low=True))),
    "microbatch": (None, optional(whole(1))),
    "precision": ("fp32", one_of(PRECISIONS)),
    "deterministic": (False, flag),
    "compile": (False, compiled.read),
    "validation": (VALIDATIONS[0], one_of(VALIDATIONS)),
    **noise_scale.KEYS,
    **adascale.KEYS,
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
    **dict.fromkeys(("momentum_decay", "adamw_share", "ns_steps", "adjust_lr_fn"), _GIVEN),
    **dict.fromkeys(("r", "weight_lr_power"), _GIVEN),
    **dict.fromkeys(("beta2_decay", "clip_threshold"), _GIVEN),
}
"""All options of the optimizers; those without a default keep the optimizer's own."""

_USUAL: Mapping[str, Mapping[str, Any]] = {
    "muon": {"momentum": 0.95, "nesterov": True, "beta2": 0.95},
}
"""The defaults of an optimizer's options that differ from those in `OPTIONS`."""

_TRUST = ("trust_coefficient", "trust_min", "trust_max", "adapt", "max_grad_norm", "variant")
_MOMENTA, _BETAS = ("momentum", "nesterov"), ("beta1", "beta2", "eps")
_ALL = ("weight_decay", "exclude")
_AVERAGED = ("r", "weight_lr_power")
TAKES: Mapping[str, tuple[str, ...]] = {
    "sgd": (*_ALL, *_MOMENTA),
    "adamw": (*_ALL, *_BETAS),
    "nadamw": (*_ALL, *_BETAS, "momentum_decay"),
    "lars": (*_ALL, *_MOMENTA, *_TRUST, "eps", "denominator", "lr_in_momentum", "larc_clip"),
    "lamb": (
        *(*_ALL, *_BETAS, *_TRUST, "bias_correction", "grad_averaging", "decoupled"),
        *("weight_norm_min", "weight_norm_max"),
    ),
    "muon": (*_ALL, *_MOMENTA, *_BETAS, "adamw_share", "ns_steps", "adjust_lr_fn"),
    "adafactor": (*_ALL, "beta2_decay", "clip_threshold", "eps"),
    "schedulefree_sgd": (*_ALL, "momentum", *_AVERAGED),
    "schedulefree_adamw": (*_ALL, *_BETAS, *_AVERAGED),
}
"""The options of each optimizer; `trainers.optimizers` documents them."""

_OWNERS: Mapping[str, str] = {
    **dict.fromkeys(("image_size", "val_image_size", "augment", "norm"), "trainers.image"),
    **dict.fromkeys(("sequence_length", "val_sequence_length", "text"), "trainers.language"),
}


EFFECTS: Mapping[str, Effect] = {
    # validation, as probes time training alone, and "beside" saves time on the wall clock only
    **dict.fromkeys(("optimizer", "batch_size", "validation"), "both"),
    **dict.fromkeys(("lr", "label_smoothing", "horizon", "adascale_batch_size"), "statistical"),
    **dict.fromkeys(OPTIONS, "statistical"),
    **dict.fromkeys(("precision",), "rounding"),
    **dict.fromkeys(("deterministic", "compile", "microbatch"), "exact"),
    "noise_scale_every": "exact",
    **{key: knob.effect for key, knob in {**KNOBS, **EXCHANGED}.items()},
}
"""What the common keys change of a training (`trainers.technique.Effect`).

The others do not belong to a search: seed, state, and what ends or reports a training. A microbatch
is exact in models without batch normalisation.
"""


def pass_sizes(read: Callable[[Mapping[str, Any]], Any]) -> Callable[[Mapping[str, Any], int], int]:
    """What a trainer has as `pass_size`; `read` reads its settings, with their `training`."""

    def pass_size(config: Mapping[str, Any], ranks: int) -> int:
        """The most items of a rank in one forward pass of this training, on so many ranks.

        Raises:
            ValueError: a key or value that is not allowed, or a plan for other ranks; one line.
        """
        found: int = read(config).training.pass_size(ranks)
        return found

    return pass_size


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
        if not any(key in known for known in (own, TRAINING, OPTIONS, KNOBS, EXCHANGED)):
            raise ValueError(_unknown(key, own, trainer))
    values = {key: value_of(config, key, *TRAINING[key]) for key in TRAINING}
    takes = TAKES[values["optimizer"]]
    for key in OPTIONS:
        if key in config and key not in takes:
            raise ValueError(
                f"{key} is given but optimizer {values['optimizer']!r} does not take it "
                f"(it takes {', '.join(takes)})"
            )
    require_optimizer(values["optimizer"])
    usual = {key: OPTIONS[key][0] for key in takes} | dict(_USUAL.get(values["optimizer"], {}))
    wanted = (key for key in takes if key in config or usual[key] is not None)
    options = {key: value_of(config, key, usual[key], OPTIONS[key][1]) for key in wanted}
    _check_averaged(values["optimizer"], options)
    chosen = {key: value_of(config, key, None, KNOBS[key].reader) for key in KNOBS if key in config}
    plan = read_plan(chosen)
    exchanged = {key: value_of(config, key, *keys.KEYS[key]) for key in keys.KEYS}
    sent, sync = keys.read(exchanged)
    compression.check(sent, plan, values["optimizer"], values["precision"], options)
    synchronization.check(sync, plan, values["optimizer"], values["precision"])
    noise = {key: values[key] for key in (*noise_scale.KEYS, *adascale.KEYS)}
    noise_scale.check(noise, plan, sent["gradient_compression"], sync.every_step)
    adascale.check(values["optimizer"], values["batch_size"], **noise)
    low_bit.check_options(plan.optimizer_state_bits, options)
    smoothing = values["label_smoothing"]
    smoothed = not isinstance(smoothing, Constant) or smoothing.value > 0
    check(plan, values["optimizer"], values["precision"], values["compile"], smoothed)
    if values["validation"] != VALIDATIONS[0] and plan.pipeline_parallel_degree != 1:
        rule = f"must be {VALIDATIONS[0]!r} where no rank has all layers"
        raise ValueError(f"validation {rule} (pipeline_parallel_degree), got 'beside'")
    found = {key: value_of(config, key, *own[key]) for key in own}
    return Training(
        **values, options=options, plan=plan, synchronization=sync, gradient_compression=sent
    ), found


def _check_averaged(optimizer: str, options: Mapping[str, Any]) -> None:
    """Raise a ValueError for a momentum with which the steps of `optimizer` are no averages."""
    if optimizer not in KINDS:
        return
    key = "momentum" if "momentum" in options else "beta1"
    found = options[key]
    if not isinstance(found, Constant) or not 0 < found.value < 1:
        was = found.value if isinstance(found, Constant) else shown(found)
        raise ValueError(
            f"{key} must be a number in (0, 1) with optimizer {optimizer!r}, no schedule, got {was}"
        )


def _unknown(key: object, own: Mapping[str, Key], trainer: str) -> str:
    names = sorted((*own, *TRAINING, *OPTIONS, *KNOBS, *EXCHANGED))
    allowed = f"(allowed: {', '.join(names)})"
    owner = _OWNERS.get(str(key))
    if owner is not None:
        return f"{key} is a key of {owner}, which {trainer} does not have {allowed}"
    near = difflib.get_close_matches(str(key).lower(), names, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"unknown key {key!r} in the configuration{hint} {allowed}"
