"""The configuration of the language trainer: the keys beside the common ones.

| key | value (default) |
|---|---|
| `text` | tinyshakespeare, synthetic, or the path of a text file |
| `data_dir` | folder of the data sets, for tinyshakespeare |
| `tokens` | characters, words, or the path of a `tokenizer.json` (characters) |
| `vocabulary` | the most words that are known (8192) |
| `train_size`, `val_size` | use the first so many tokens of each part (all) |
| `sequence_length` * | tokens of a sequence while training (128) |
| `val_sequence_length` | when evaluating (the largest value of `sequence_length`) |
| `model` | gpt, or one of a library: `trainers.models.library` (gpt) |
| `layers`, `width`, `heads` | of the model (4, 128, 4; of a library's its own) |
| `weights` | a file of weights to begin with: `trainers.models.weights` (new ones) |
| `attention` | full, sliding_window or block_sparse (full): `trainers.models.attention` |
| `attention_window` | its tokens, for the latter two |
| `sharding` | none, or full: short for `data_parallel_shard_degree` -1 (none) |

`sequence_length` takes a number or a schedule, rounded to a whole number at each step. `batch_size`
and `microbatch` count sequences.
The common keys are in `trainers.training`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainers.communication.keys import KEYS as EXCHANGES
from trainers.data.text import TOKENS
from trainers.data.tokenizer import is_file
from trainers.models import attention
from trainers.models.library import TEXT, model_of, named
from trainers.plan import DEGREES, check_layers, check_undivided
from trainers.plan import KEYS as PLAN
from trainers.readers import (
    REQUIRED,
    Key,
    NotAllowedError,
    Schedule,
    counted,
    greatest,
    one_of,
    optional,
    text,
    whole,
)
from trainers.technique import Effect
from trainers.training import EFFECTS as COMMON_EFFECTS
from trainers.training import TRAINING, Training, read_training


@dataclass(frozen=True)
class Settings:
    """A checked configuration; lengths and sizes are in tokens."""

    training: Training
    text: str
    data_dir: str | None
    tokens: str
    vocabulary: int
    train_size: int | None
    val_size: int | None
    sequence_length: Schedule
    val_sequence_length: int
    model: str
    layers: int | None
    width: int | None
    heads: int | None
    weights: str | None
    attention: str
    attention_window: int | None
    sharding: str


USUAL = {"layers": 4, "width": 128, "heads": 4}
"""The sizes of our own model, unless they are given."""


def _tokens(value: Any) -> Any:
    if isinstance(value, str) and is_file(value):
        return value
    try:
        return one_of(TOKENS)(value)
    except NotAllowedError as wrong:
        raise NotAllowedError(f"{wrong}, or the path of a tokenizer.json") from None


OWN: Mapping[str, Key] = {
    "text": (REQUIRED, text),
    "data_dir": (None, optional(text)),
    "tokens": ("characters", _tokens),
    "vocabulary": (8192, whole(2)),
    "train_size": (None, optional(whole(2))),
    "val_size": (None, optional(whole(1))),
    "sequence_length": (128, counted(1)),
    "val_sequence_length": (None, optional(whole(1))),
    "model": ("gpt", model_of(("gpt",), TEXT)),
    "layers": (None, optional(whole(1))),
    "width": (None, optional(whole(2))),
    "heads": (None, optional(whole(1))),
    "weights": (None, optional(text)),
    "attention": ("full", one_of(attention.KINDS)),
    "attention_window": (None, optional(whole(1))),
    "sharding": ("none", one_of(("none", "full"))),
}
KEYS: Mapping[str, Key] = {**OWN, **TRAINING, **PLAN, **EXCHANGES}
"""All keys but the optimizer's: the default and the reader."""


EFFECTS: Mapping[str, Effect] = {
    **COMMON_EFFECTS,
    **dict.fromkeys(("sequence_length", "model", "layers", "width", "heads"), "both"),
    **dict.fromkeys(("attention", "attention_window"), "both"),
    **dict.fromkeys(("weights",), "statistical"),
    **dict.fromkeys(("sharding",), "exact"),
}
"""What the keys change of a training; those of the text are its problem."""


def read_settings(config: Mapping[str, Any]) -> Settings:
    """`config`, checked and completed with the defaults.

    Raises:
        ValueError: one line with the key, its value, what is allowed, and the nearest valid key.
    """
    if str(config.get("sharding")).lower() == "full":
        for key in DEGREES:
            if key in config:
                raise ValueError(f"sharding 'full' chooses {key}: give one of the two")
        config = {**config, "data_parallel_shard_degree": -1}
    training, own = read_training(config, OWN, "trainers.language")
    attention.check(own["attention"], own["attention_window"])
    if not named(own["model"]):
        own |= {key: usual if own[key] is None else own[key] for key, usual in USUAL.items()}
        width, heads = own["width"], own["heads"]
        if width % (2 * heads):
            rule = f"a multiple of twice the heads, {2 * heads}"
            raise ValueError(f"width must be {rule}, got {width}")
        check_layers(training.plan, own["layers"], width, heads)
    else:
        check_undivided(training.plan, f"with model {own['model']!r}")
        if own["attention"] != "full":
            rule = f"must be 'full' with model {own['model']!r}, which has its own"
            raise ValueError(f"attention {rule}, got {own['attention']!r}")
    longest = own["val_sequence_length"] or round(greatest(own["sequence_length"]))
    return Settings(training, **{**own, "val_sequence_length": longest})
