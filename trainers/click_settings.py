"""The configuration of the trainer of clicks.

| key | value (default) |
|---|---|
| `data` | generated: `trainers.data.clicks`; criteo: files, `trainers.data.criteo` (required) |
| `data_dir` | folder with `train/` and `val/`, whose files have Criteo's format; of criteo |
| `train_size` | samples of an epoch; of generated (50000) |
| `val_size` | samples to validate on; of criteo the first ones (generated 10000; criteo all) |
| `hash_size` | rows of the table for each category feature (1000) |
| `reader_threads`, `shuffle_buffer` | queues of a rank (1), samples shuffled (8192); of criteo |
| `model` | dlrm or wide_deep: `trainers.models.clicks` (dlrm) |
| `width`, `hidden` | of an embedding (8), of the perceptrons (32) |
| `optimizer` | of the dense part: adam, adagrad or sgd (adam) |
| `optimizer_sparse` | of the table: sparse_adam, rowwise_adagrad or sgd (rowwise_adagrad) |
| `lr` *, `lr_sparse` * | learning rates of the two (required; that of the dense part) |
| `beta1` *, `beta2` * | of adam and sparse_adam (0.9, 0.999) |
| `sparse_update` | synchronous, asynchronous, geo_sgd or hogwild (synchronous) |
| `staleness_bound` | steps that weights may be behind; of asynchronous (4) |
| `push_every` | steps between two exchanges; of geo_sgd and hogwild (8) |
| `hogwild_workers` | threads of a rank; of hogwild (2) |
| `batch_size` * | samples of a step, of all ranks together (128) |
| `horizon`, `milestone`, `max_epochs` | as of the other trainers: `trainers.training` |
| `microbatch` | most samples of a rank in one forward pass; gradients add up (all) |
| `seed`, `state` | reserved: set by autotune, as is `microbatch` once memory has run out |

Keys marked * take a number or a schedule.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from autotune.schedules import as_schedule
from trainers.communication import keys
from trainers.models.clicks import MODELS
from trainers.plan import read_plan
from trainers.readers import (
    REQUIRED,
    Key,
    Number,
    Schedule,
    one_of,
    optional,
    scheduled,
    text,
    value_of,
    whole,
)
from trainers.sparse.rules import DENSE, SPARSE
from trainers.technique import Effect, Knob, When, require_places
from trainers.training import TRAINING, Training

UPDATES = ("synchronous", "asynchronous", "geo_sgd", "hogwild")
_GENERATED = {"train_size": 50_000, "val_size": 10_000}


def _where(key: str, *values: str) -> When:
    return When(f"{key} {' or '.join(values)}", lambda found: found[key] in values)


_CRITEO = _where("data", "criteo")
KNOBS: Mapping[str, Knob] = {
    "sparse_update": Knob(UPDATES[0], one_of(UPDATES), "both"),
    "staleness_bound": Knob(4, whole(1), "both", _where("sparse_update", "asynchronous")),
    "push_every": Knob(8, whole(1), "both", _where("sparse_update", "geo_sgd", "hogwild")),
    "hogwild_workers": Knob(2, whole(1), "both", _where("sparse_update", "hogwild")),
    "optimizer_sparse": Knob("rowwise_adagrad", one_of(SPARSE), "both"),
    "reader_threads": Knob(1, whole(1), "both", _CRITEO, memory=False),
    "shuffle_buffer": Knob(8192, whole(1), "statistical", _CRITEO),
}
"""The techniques of this trainer."""

_COMMON = ("batch_size", "horizon", "milestone", "max_epochs", "microbatch", "seed", "state")
_BETA = scheduled(Number(0.0, 1.0))
KEYS: Mapping[str, Key] = {
    "data": (REQUIRED, one_of(("generated", "criteo"))),
    "data_dir": (None, optional(text)),
    "train_size": (None, optional(whole(1))),
    "val_size": (None, optional(whole(2))),
    "hash_size": (1000, whole(2)),
    "model": ("dlrm", one_of(MODELS)),
    "width": (8, whole(1)),
    "hidden": (32, whole(1)),
    "optimizer": ("adam", one_of(DENSE)),
    "lr": TRAINING["lr"],
    "lr_sparse": (None, optional(scheduled(Number(0.0)))),
    "beta1": (0.9, _BETA),
    "beta2": (0.999, _BETA),
    **{key: TRAINING[key] for key in _COMMON},
    **{key: (knob.default, knob.reader) for key, knob in KNOBS.items()},
}
"""All keys: the default and the reader."""

EFFECTS: Mapping[str, Effect] = {
    **dict.fromkeys(("batch_size", "optimizer", "model", "width", "hidden", "hash_size"), "both"),
    **dict.fromkeys(("lr", "lr_sparse", "beta1", "beta2", "horizon"), "statistical"),
    "microbatch": "exact",
    **{key: knob.effect for key, knob in KNOBS.items()},
}
"""What the keys change of a training (`trainers.technique.Effect`)."""

MEMORY_KEYS = (
    *("data", "train_size", "val_size", "hash_size", "model", "width", "hidden", "optimizer"),
    *(key for key, knob in KNOBS.items() if knob.memory),
)


@dataclass(frozen=True)
class Settings:
    """A checked configuration.

    Args:
        training: the common part; its learning rate is that of the dense part.
        sparse: the same with the learning rate of the table.
    """

    training: Training
    sparse: Training
    data: str
    data_dir: str | None
    train_size: int | None
    val_size: int | None
    hash_size: int
    model: str
    width: int
    hidden: int
    optimizer: str
    optimizer_sparse: str
    sparse_update: str
    staleness_bound: int
    push_every: int
    hogwild_workers: int
    reader_threads: int
    shuffle_buffer: int


def read_settings(config: Mapping[str, Any]) -> Settings:
    """`config`, checked and completed with the defaults.

    Raises:
        ValueError: one line with the key, its value, what is allowed, and the nearest valid key.
    """
    for key in config:
        if key not in KEYS:
            raise ValueError(_unknown(key))
    found = {key: value_of(config, key, *KEYS[key]) for key in KEYS}
    require_places(KNOBS, found)
    _check_data(found)
    adam = "adam" in (found["optimizer"], found["optimizer_sparse"].removeprefix("sparse_"))
    betas = {key: found.pop(key) for key in ("beta1", "beta2")}
    for key in betas:
        if key in config and not adam:
            raise ValueError(f"{key} needs optimizer adam or optimizer_sparse sparse_adam")
    lr, table = found.pop("lr"), found.pop("lr_sparse")
    common = {key: found.pop(key) for key in _COMMON}
    training = _training(lr, betas if adam else {}, common)
    if found["data"] == "generated":
        given = {key: found[key] or size for key, size in _GENERATED.items()}
        found |= given
    return Settings(training, replace(training, lr=lr if table is None else table), **found)


def _check_data(found: Mapping[str, Any]) -> None:
    criteo = found["data"] == "criteo"
    if criteo and found["data_dir"] is None:
        raise ValueError("data_dir is missing from the configuration, with data criteo")
    for key, of in (("data_dir", "criteo"), ("train_size", "generated")):
        if found[key] is not None and found["data"] != of:
            raise ValueError(f"{key} {found[key]!r} needs data {of}")


def _training(lr: Schedule, options: Mapping[str, Any], common: Mapping[str, Any]) -> Training:
    """The common part, as `trainers.knobs` takes it; what it has no keys for is off."""
    compression, synchronization = keys.read(keys.DEFAULTS)
    return Training(
        plan=read_plan({}),
        gradient_compression=compression,
        synchronization=synchronization,
        optimizer="adamw" if options else "sgd",
        lr=lr,
        label_smoothing=as_schedule(0.0),
        precision="fp32",
        deterministic=False,
        compile=False,
        validation="inline",
        noise_scale_every=None,
        adascale_batch_size=None,
        options=options,
        **common,
    )


def _unknown(key: object) -> str:
    near = difflib.get_close_matches(str(key).lower(), KEYS, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"unknown key {key!r} in the configuration{hint} (allowed: {', '.join(sorted(KEYS))})"
