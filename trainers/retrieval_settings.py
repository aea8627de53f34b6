"""The configuration of the retrieval trainer: the keys beside the common ones.

| key | value (default) |
|---|---|
| `data` | identities: made up (`trainers.data.identities`); folder: images by classes |
| `identities`, `unseen` | how many are made up to train on (1000), and to be found only (200) |
| `samples_per_identity` | images of each (8) |
| `difficulty` | how different the images of an identity are (1.0) |
| `data_dir` | with folder, that of images, `CLASS/*` or `ALPHABET/CLASS/*` |
| `unseen_share` | share of a folder's classes that are not trained on (0.2) |
| `val_share` | share of each known identity's images that validates (0.25) |
| `image_size` | pixels of a side (8; folder 32) |
| the keys of loading | for folder: `trainers.data.loader` |
| `augment` | none, or crop and flip joined by `+` (none) |
| `model` | mlp, resnet8, resnet18 or resnet50 (mlp) |
| `width`, `norm` | of the model, as for `trainers.image` |
| `features` | outputs of the model, which are made to length 1 (64) |
| `margin` | none, arcface or cosface (arcface) |
| `margin_size` | 0 to 1.5; of arcface in radians (that of the papers: 0.5, cosface 0.35) |
| `margin_scale` | by which cosines are multiplied for the softmax (64) |
| `class_sample_rate` * | share of the classes that a step compares with, in (0, 1] (1) |

Of the common keys (`trainers.training`) it takes the optimizers whose steps are of each number on
its own, as ranks have different rows of the classes: sgd, adamw, nadamw and the schedule-free ones.
Of the keys of plans (`trainers.plan`) it takes those of copies, of recomputation and of
accumulation: the network is copied, and the classes are always divided over all ranks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autotune.schedules import Constant, as_schedule
from trainers import settings
from trainers.communication.keys import KEYS as EXCHANGES
from trainers.communication.synchronization import EVERY_STEP
from trainers.data import cache, loader
from trainers.models.images import NORMS, WIDTHS, stride_of
from trainers.models.margins import USUAL
from trainers.models.recognition import Margin
from trainers.parallel import classes
from trainers.plan import DEFAULTS, Plan
from trainers.plan import KEYS as PLAN
from trainers.readers import (
    REQUIRED,
    Key,
    Number,
    Schedule,
    one_of,
    optional,
    shown,
    text,
    whole,
)
from trainers.technique import Effect, Knob, require_places
from trainers.training import EFFECTS as COMMON_EFFECTS
from trainers.training import OPTIONS, TRAINING, Training, read_training

__all__ = ["EFFECTS", "KEYS", "OPTIONS", "TAKEN", "Settings", "read_settings"]

OPTIMIZERS = ("sgd", "adamw", "nadamw", "schedulefree_sgd", "schedulefree_adamw")
TAKEN: Mapping[str, Any] = {
    key: DEFAULTS[key]
    for key in (
        *("data_parallel_replicate_degree", "bucket_cap_mb", "static_graph"),
        *("all_reduce_topology", "all_reduce_group_size"),
        *("activation_checkpoint_mode", "selective_ac_option"),
        *("gradient_accumulation_steps", "optimizer_implementation"),
    )
}
"""The keys of plans that may differ from their defaults, and these."""

INPUT: Mapping[str, Knob] = loader.KNOBS
OWN: Mapping[str, Key] = {
    "data": (REQUIRED, one_of(("identities", "folder"))),
    "identities": (1000, whole(2)),
    "unseen": (200, whole(2)),
    "samples_per_identity": (8, whole(2)),
    "difficulty": (1.0, Number(0.0)),
    "data_dir": (None, optional(text)),
    "unseen_share": (0.2, Number(0.0, 1.0, open_low=True)),
    "val_share": (0.25, Number(0.0, 1.0, open_low=True)),
    "image_size": (None, optional(whole(1))),
    **{key: (knob.default, knob.reader) for key, knob in INPUT.items()},
    "augment": ("none", settings.OWN["augment"][1]),
    "model": ("mlp", one_of(WIDTHS)),
    "width": (None, optional(whole(1))),
    "norm": ("batch", one_of(NORMS)),
    "features": (64, whole(1)),
    **{key: (knob.default, knob.reader) for key, knob in classes.KNOBS.items()},
}
KEYS: Mapping[str, Key] = {**OWN, **TRAINING, **PLAN, **EXCHANGES}
"""All keys but the optimizer's: the default and the reader."""

_OF_DATA = {
    **dict.fromkeys(("identities", "unseen", "samples_per_identity", "difficulty"), "identities"),
    **dict.fromkeys(("data_dir", "unseen_share"), "folder"),
}
_PIXELS = {"identities": 8, "folder": 32}

EFFECTS: Mapping[str, Effect] = {
    **COMMON_EFFECTS,
    **dict.fromkeys(("augment", "model", "width", "norm", "features"), "both"),
    **{key: knob.effect for key, knob in {**INPUT, **classes.KNOBS}.items()},
}
"""What the keys change of a training; those of the data are its problem."""


@dataclass(frozen=True)
class Settings:
    """A checked configuration."""

    training: Training
    data: str
    identities: int
    unseen: int
    samples_per_identity: int
    difficulty: float
    data_dir: str | None
    unseen_share: float
    val_share: float
    image_size: int
    loader_workers: int
    prefetch_factor: int
    augment: frozenset[str]
    model: str
    width: int | None
    norm: str
    features: int
    margin: Margin
    class_sample_rate: Schedule

    @property
    def validated(self) -> int:
        """Images of each identity made up that validate."""
        count = self.samples_per_identity
        return min(max(round(self.val_share * count), 1), count - 1)

    def of_images(self) -> settings.Settings:
        """As `trainers.data.folder` takes it."""
        size, off = self.image_size, {**cache.KNOBS, **settings.COMPRESSION}
        return settings.Settings(
            training=self.training,
            data=self.data,
            data_dir=self.data_dir,
            train_size=None,
            val_size=None,
            val_share=self.val_share,
            image_size=as_schedule(size),
            val_image_size=size,
            full_size=size,
            loader_workers=self.loader_workers,
            prefetch_factor=self.prefetch_factor,
            augment=self.augment,
            model=self.model,
            width=self.width,
            norm=self.norm,
            weights=None,
            channels_last=False,
            **{key: knob.default for key, knob in off.items()},
        )


def read_settings(config: Mapping[str, Any]) -> Settings:
    """`config`, checked and completed with the defaults.

    Raises:
        ValueError: one line with the key, its value, what is allowed, and the nearest valid key.
    """
    training, own = read_training(config, OWN, "trainers.retrieval")
    for key, data in _OF_DATA.items():
        if key in config and own["data"] != data:
            raise ValueError(f"{key} needs data {data!r}, got data {own['data']!r}")
    require_places({**INPUT, **classes.KNOBS}, own)
    _check_training(training)
    if "cutout" in own["augment"]:
        raise ValueError("augment must be without cutout in trainers.retrieval (crop, flip)")
    size = own["image_size"] = own["image_size"] or _PIXELS[own["data"]]
    least = stride_of(own["model"], (3, size, size))
    if size < least:
        rule = f"at least {least}, the total stride of {own['model']}"
        raise ValueError(f"image_size must be {rule}, got {size}")
    kind, margin = own["margin"], own.pop("margin_size")
    usual = USUAL[kind] if margin is None else margin
    own["margin"] = Margin(kind, usual, own.pop("margin_scale"))
    return Settings(training, **own)


def _check_training(training: Training) -> None:
    """Raise a ValueError, one line, for what does not go with divided classes."""
    where = "in trainers.retrieval, whose classes are divided over the ranks"
    if training.optimizer not in OPTIMIZERS:
        allowed = ", ".join(OPTIMIZERS)
        raise ValueError(f"optimizer must be one of {allowed} {where}, got {training.optimizer!r}")
    smoothing = training.label_smoothing
    if not isinstance(smoothing, Constant) or smoothing.value != 0:
        raise ValueError(f"label_smoothing must be 0 {where}, got {shown(smoothing)}")
    if training.compile is True:
        raise ValueError(f"compile must be False or 'units' {where}, got True")
    if training.validation != "inline":
        raise ValueError(f"validation must be 'inline' {where}, got {training.validation!r}")
    for key in ("noise_scale_every", "adascale_batch_size"):
        if (given := getattr(training, key)) is not None:
            raise ValueError(f"{key} must be None {where}, got {given}")
    kind, bits = (
        training.synchronization.kind,
        training.gradient_compression["gradient_compression"],
    )
    if kind != EVERY_STEP:
        raise ValueError(f"synchronization must be {EVERY_STEP!r} {where}, got {kind!r}")
    if bits != "none":
        raise ValueError(f"gradient_compression must be 'none' {where}, got {bits!r}")
    _check_plan(training.plan, where)


def _check_plan(plan: Plan, where: str) -> None:
    for key, default in DEFAULTS.items():
        if key not in TAKEN and getattr(plan, key) != default:
            raise ValueError(f"{key} must be {default} {where}, got {getattr(plan, key)}")
