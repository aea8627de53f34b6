"""The configuration of the image trainer: its keys, their defaults, and what is allowed.

| key | value (default) |
|---|---|
| `data` | digits, fashion_mnist, cifar10, folder or synthetic |
| `data_dir` | folder of the data sets; with `folder`, the one that holds `train` and `val` |
| `train_size`, `val_size` | use the first so many images (all) |
| `image_size` | pixels of a side, for folder and synthetic (224, 32) |
| `loader_workers` | processes a rank that decode images, for folder (4) |
| `augment` | none, or crop, flip, cutout joined by `+` (none) |
| `model`, `width`, `norm` | mlp, resnet8, resnet18 or resnet50; its width; batch or group |
| `optimizer` | sgd, adamw, lars or lamb (sgd), and its options in `TAKES` |
| `lr` * | learning rate, required |
| `batch_size` * | samples a step, of all ranks together (128) |
| `label_smoothing` * | (0) |
| `horizon` | epochs after which schedules have run their course (10) |
| `milestone` | samples between two milestones (the training set) |
| `max_epochs` | training ends here (never) |
| `microbatch` | most samples of a rank in one forward pass; gradients add up (all) |
| `precision` | fp32, bf16 or fp16 (fp32) |
| `channels_last`, `compile` | (False) |
| `seed`, `state` | reserved: set by autotune |

What is marked * takes a number or a schedule, as do the optimizers' options `momentum` (or
`beta1`), `weight_decay` and `trust_coefficient`.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from autotune.schedules import as_schedule
from trainers.augment import PARTS
from trainers.data import READERS
from trainers.models import NORMS, WIDTHS

Schedule = Callable[[float], float]
Reader = Callable[[Any], Any]
REQUIRED = object()
SAMPLED = tuple(i / 20 for i in range(21))


@dataclass(frozen=True)
class Settings:
    """A checked configuration; numbers that may be schedules are schedules."""

    data: str
    data_dir: str | None
    train_size: int | None
    val_size: int | None
    image_size: int | None
    loader_workers: int
    augment: frozenset[str]
    model: str
    width: int | None
    norm: str
    optimizer: str
    lr: Schedule
    batch_size: Schedule
    label_smoothing: Schedule
    horizon: float
    milestone: int | None
    max_epochs: float | None
    microbatch: int | None
    precision: str
    channels_last: bool
    compile: bool
    seed: int
    state: dict[str, Any] | None
    options: Mapping[str, Any]


class _NotAllowedError(Exception):
    """A value that is not allowed; its text says what is."""


def _one_of(allowed: Iterable[str]) -> Reader:
    names = tuple(allowed)

    def read(value: Any) -> Any:
        if value not in names:
            raise _NotAllowedError("one of " + ", ".join(names))
        return value

    return read


def _number(low: float, high: float = math.inf, *, open_low: bool = False) -> Reader:
    top = "" if high == math.inf else f" and less than {high:g}"
    allowed = f"a number {'more than' if open_low else 'at least'} {low:g}{top}"

    def read(value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _NotAllowedError(allowed)
        if not (low < value if open_low else low <= value) or not value < high:
            raise _NotAllowedError(allowed)
        return value

    return read


def _whole(least: int) -> Reader:
    def read(value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise _NotAllowedError(f"a whole number at least {least}")
        return value

    return read


def _optional(reader: Reader) -> Reader:
    return lambda value: None if value is None else reader(value)


def _scheduled(reader: Reader) -> Reader:
    """A number that `reader` allows, or a schedule all of whose values it allows."""

    def read(value: Any) -> Any:
        if not callable(value):
            return as_schedule(reader(value))
        for progress in SAMPLED:
            try:
                reader(value(progress))
            except _NotAllowedError as wrong:
                raise _NotAllowedError(f"{wrong} at every progress, also at {progress:g}") from None
        return value

    return read


def _batch_size(value: Any) -> Any:
    return _scheduled(_number(1))(value) if callable(value) else as_schedule(_whole(1)(value))


def _flag(value: Any) -> Any:
    if not isinstance(value, bool):
        raise _NotAllowedError("True or False")
    return value


def _as_is(value: Any) -> Any:
    return value  # the optimizer checks it


def _text(value: Any) -> Any:
    if not isinstance(value, str):
        raise _NotAllowedError("text")
    return value


def _augment(value: Any) -> Any:
    parts = value.split("+") if isinstance(value, str) else []
    if value != "none" and (not parts or len(set(parts)) < len(parts) or not {*parts} <= {*PARTS}):
        raise _NotAllowedError(f"'none', or some of {', '.join(PARTS)} joined by '+'")
    return frozenset() if value == "none" else frozenset(parts)


def _state(value: Any) -> Any:
    if not isinstance(value, Mapping):
        raise _NotAllowedError("what this trainer's milestone gave as its state")
    return value


KEYS: Mapping[str, tuple[Any, Reader]] = {
    "data": (REQUIRED, _one_of((*READERS, "folder", "synthetic"))),
    "data_dir": (None, _optional(_text)),
    "train_size": (None, _optional(_whole(1))),
    "val_size": (None, _optional(_whole(1))),
    "image_size": (None, _optional(_whole(8))),
    "loader_workers": (4, _whole(0)),
    "augment": ("none", _augment),
    "model": (REQUIRED, _one_of(WIDTHS)),
    "width": (None, _optional(_whole(1))),
    "norm": ("batch", _one_of(NORMS)),
    "optimizer": ("sgd", _one_of(("sgd", "adamw", "lars", "lamb"))),
    "lr": (REQUIRED, _scheduled(_number(0.0))),
    "batch_size": (128, _batch_size),
    "label_smoothing": (0.0, _scheduled(_number(0.0, 1.0))),
    "horizon": (10.0, _number(0.0, open_low=True)),
    "milestone": (None, _optional(_whole(1))),
    "max_epochs": (None, _optional(_number(0.0, open_low=True))),
    "microbatch": (None, _optional(_whole(1))),
    "precision": ("fp32", _one_of(("fp32", "bf16", "fp16"))),
    "channels_last": (False, _flag),
    "compile": (False, _flag),
    "seed": (0, _whole(0)),
    "state": (None, _optional(_state)),
}
"""Every key but the optimizer's: its default, and what reads it."""

_MOMENTUM = (0.9, _scheduled(_number(0.0, 1.0)))
_GIVEN = (None, _as_is)
OPTIONS: Mapping[str, tuple[Any, Reader]] = {
    "momentum": _MOMENTUM,
    "beta1": _MOMENTUM,
    "beta2": (0.999, _number(0.0, 1.0)),
    "weight_decay": (0.0, _scheduled(_number(0.0))),
    "trust_coefficient": (None, _scheduled(_number(0.0, open_low=True))),
    "nesterov": (False, _flag),
    **dict.fromkeys(("exclude", "variant", "adapt", "denominator", "lr_in_momentum"), _GIVEN),
    **dict.fromkeys(("eps", "trust_min", "trust_max", "larc_clip", "max_grad_norm"), _GIVEN),
    **dict.fromkeys(("bias_correction", "grad_averaging", "decoupled"), _GIVEN),
    **dict.fromkeys(("weight_norm_min", "weight_norm_max"), _GIVEN),
}
"""The options of the optimizers, likewise; those without a default keep the optimizer's own."""

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
"""Which optimizer takes which of them; what they mean is told in `trainers.optimizers`."""


def read_settings(config: Mapping[str, Any]) -> Settings:
    """`config`, checked and completed with the defaults.

    Raises:
        ValueError: in one line, naming the key, its value, what is allowed, the nearest right key.
    """
    for key in config:
        if key not in KEYS and key not in OPTIONS:
            raise ValueError(_unknown(key))
    values = {key: _value(config, key, *KEYS[key]) for key in KEYS}
    takes = TAKES[values["optimizer"]]
    for key in OPTIONS:
        if key in config and key not in takes:
            raise ValueError(
                f"{key} is given but optimizer {values['optimizer']!r} does not take it "
                f"(it takes {', '.join(takes)})"
            )
    wanted = (key for key in takes if key in config or OPTIONS[key][0] is not None)
    options = {key: _value(config, key, *OPTIONS[key]) for key in wanted}
    if values["data"] == "folder" and "cutout" in values["augment"]:
        raise ValueError("augment must be without cutout when data is 'folder' (crop, flip)")
    return Settings(**values, options=options)


def _value(config: Mapping[str, Any], key: str, default: Any, reader: Reader) -> Any:
    if key not in config and default is REQUIRED:
        raise ValueError(f"{key} is missing from the configuration")
    value = config.get(key, default)
    try:
        return reader(value)
    except _NotAllowedError as wrong:
        raise ValueError(f"{key} must be {wrong}, got {value!r}") from None


def _unknown(key: object) -> str:
    names = sorted((*KEYS, *OPTIONS))
    near = difflib.get_close_matches(str(key), names, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"unknown key {key!r} in the configuration{hint} (allowed: {', '.join(names)})"
