"""The configuration of the image trainer: the keys beside the common ones.

| key | value (default) |
|---|---|
| `data` | digits, fashion_mnist, cifar10, folder or synthetic |
| `data_dir` | folder of data sets; with `folder`, that of images (`trainers.data.image_files`) |
| `train_size`, `val_size` | use the first so many images (all) |
| `val_share` | share of each class that validates, for a folder without `val/` (0.2) |
| `image_size` * | pixels of a side while training (the data's own; folder 224, synthetic 32) |
| `val_image_size` | pixels of a side when evaluating (the full size) |
| the keys of loading and keeping | for folder: `trainers.data.loader`, `trainers.data.cache` |
| `augment` | none, or crop, flip, cutout joined by `+` (none) |
| `model` | mlp, resnet8, resnet18, resnet50, or one of a library: `trainers.models.library` |
| `width`, `norm` | of a model that is none of a library: its width; batch or group (batch) |
| `weights` | a file of weights to begin with: `trainers.models.weights` (new ones) |
| `channels_last` | (False) |
| `pruning` | none, unstructured or structured (none) |
| `sparsity` * | the share of weights or channels that is removed (0) |
| `sparsity_ramp` | the progress at which a number as `sparsity` is reached (0.5) |
| `pruning_scope` | layer: of each as much; or global: the smallest of all (layer) |
| `quantization` | none, qat or post_training (none) |
| `teacher` | the file of a trained model, or models:/NAME/VERSION, to follow (None) |
| `distill_weight` | share of the loss that follows the teacher's scores (0.9) |
| `distill_temperature` | their temperature (4) |

Keys marked * take a number or a schedule. `image_size` is rounded to a whole number at each step,
at least the model's total stride; mlp takes one size only. The full size, which also chooses the
stem of a residual network, is that of the images in memory, and otherwise `val_image_size`, or the
largest value of the schedule: name it where schedules differ, so that all train for the same
problem.
The common keys are in `trainers.training`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autotune.schedules import Constant, as_schedule
from trainers.communication.keys import KEYS as EXCHANGES
from trainers.compression import applied as smaller
from trainers.compression import distill, prune, quantize
from trainers.data import cache, loader
from trainers.data.augment import PARTS
from trainers.data.images import KNOWN, READERS
from trainers.models import library
from trainers.models.images import NORMS, WIDTHS, stride_of
from trainers.plan import KEYS as PLAN
from trainers.plan import check_undivided
from trainers.readers import (
    REQUIRED,
    Key,
    NotAllowedError,
    Number,
    Schedule,
    counted,
    flag,
    greatest,
    one_of,
    optional,
    require,
    text,
    whole,
)
from trainers.technique import Effect, Knob, require_places
from trainers.training import EFFECTS as COMMON_EFFECTS
from trainers.training import OPTIONS, TAKES, TRAINING, Training, read_training

__all__ = ["KEYS", "OPTIONS", "TAKES", "Settings", "read_settings"]

UNSIZED = {"folder": 224, "synthetic": 32}
"""The default size for data whose images have no fixed size."""


@dataclass(frozen=True)
class Settings:
    """A checked configuration; `full_size` and `val_image_size` are pixels of a side."""

    training: Training
    data: str
    data_dir: str | None
    train_size: int | None
    val_size: int | None
    val_share: float
    image_size: Schedule
    val_image_size: int
    full_size: int
    loader_workers: int
    prefetch_factor: int
    cache: str
    cache_dir: str | None
    cache_gb: float
    augment: frozenset[str]
    model: str
    width: int | None
    norm: str
    weights: str | None
    channels_last: bool
    pruning: str
    sparsity: Schedule
    sparsity_ramp: float
    pruning_scope: str
    quantization: str
    teacher: str | None
    distill_weight: float
    distill_temperature: float

    @property
    def compression(self) -> dict[str, Any]:
        """The values of the keys of `trainers.compression`."""
        return {key: getattr(self, key) for key in COMPRESSION}


def _augment(value: Any) -> Any:
    parts = value.split("+") if isinstance(value, str) else []
    if value != "none" and (not parts or len(set(parts)) < len(parts) or not {*parts} <= {*PARTS}):
        raise NotAllowedError(f"'none', or some of {', '.join(PARTS)} joined by '+'")
    return frozenset() if value == "none" else frozenset(parts)


INPUT: Mapping[str, Knob] = {**loader.KNOBS, **cache.KNOBS}
"""The keys of how images of a folder are loaded, and what is kept of them."""

COMPRESSION: Mapping[str, Knob] = {**prune.KNOBS, **quantize.KNOBS, **distill.KNOBS}
"""The keys of smaller models."""

OWN: Mapping[str, Key] = {
    "data": (REQUIRED, one_of((*READERS, "folder", "synthetic"))),
    "data_dir": (None, optional(text)),
    "train_size": (None, optional(whole(1))),
    "val_size": (None, optional(whole(1))),
    "val_share": (0.2, Number(0.0, 1.0, open_low=True)),
    "image_size": (None, optional(counted(1))),
    "val_image_size": (None, optional(whole(1))),
    **{key: (knob.default, knob.reader) for key, knob in INPUT.items()},
    "augment": ("none", _augment),
    "model": (REQUIRED, library.model_of(WIDTHS, library.IMAGES)),
    "width": (None, optional(whole(1))),
    "norm": ("batch", one_of(NORMS)),
    "weights": (None, optional(text)),
    "channels_last": (False, flag),
    **{key: (knob.default, knob.reader) for key, knob in COMPRESSION.items()},
}
KEYS: Mapping[str, Key] = {**OWN, **TRAINING, **PLAN, **EXCHANGES}
"""All keys but the optimizer's: the default and the reader."""


EFFECTS: Mapping[str, Effect] = {
    **COMMON_EFFECTS,
    **dict.fromkeys(("image_size", "augment", "model", "width", "norm"), "both"),
    **dict.fromkeys(("weights",), "statistical"),
    **dict.fromkeys(("channels_last",), "exact"),
    **{key: knob.effect for key, knob in {**INPUT, **COMPRESSION}.items()},
}
"""What the keys change of a training; those of the data are its problem."""


def read_settings(config: Mapping[str, Any]) -> Settings:
    """`config`, checked and completed with the defaults.

    Raises:
        ValueError: one line with the key, its value, what is allowed, and the nearest valid key.
    """
    training, own = read_training(config, OWN, "trainers.image")
    if own["data"] == "folder" and "cutout" in own["augment"]:
        raise ValueError("augment must be without cutout when data is 'folder' (crop, flip)")
    require_places({**INPUT, **COMPRESSION}, own)
    every_step = training.synchronization.every_step
    sent = training.gradient_compression["gradient_compression"]
    smaller.check(own, training.optimizer, training.compile, training.plan.shards, every_step, sent)
    cache.check(own)
    for key in ("width", "norm"):
        if key in config and library.named(own["model"]):
            raise ValueError(f"{key} is of {', '.join(WIDTHS)}: {own['model']!r} has its own")
    check_undivided(training.plan, "in trainers.image")
    if own["channels_last"] and training.plan.shards:
        raise ValueError("channels_last must be False where the model is sharded")
    own["image_size"], own["val_image_size"], full = _sizes(own)
    return Settings(training, **own, full_size=full)


def _sizes(own: Mapping[str, Any]) -> tuple[Schedule, int, int]:
    """The size while training, when evaluating, and in full."""
    data, model = own["data"], own["model"]
    side = KNOWN[data].side if data in KNOWN else None
    train = own["image_size"] or as_schedule(side or UNSIZED[data])
    full = side or own["val_image_size"] or round(greatest(train))
    val = own["val_image_size"] or full
    if model == "mlp":
        rule = f"{full} all along for model 'mlp', which takes one size only"
        if not isinstance(train, Constant) and data in UNSIZED:
            rule = "one number for model 'mlp', which takes one size only"
        sizes = {"image_size": train, "val_image_size": as_schedule(val)}
        for key, size in sizes.items():
            require(key, size, rule, lambda value: round(value) == full)
        return train, val, full
    stride = stride_of(model, (3, full, full))
    rule = f"at least {stride}, the total stride of {model} on images of {full}"
    require("image_size", train, rule, lambda value: round(value) >= stride)
    require("val_image_size", as_schedule(val), rule, lambda value: value >= stride)
    return train, val, full
