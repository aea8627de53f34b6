"""Distributed data-parallel training of a small language model in plain PyTorch.

It runs as `trainers.image` does. A sample is a **token**: steps, epochs, milestones and progress
count tokens, so that neither the batch size nor the sequence length moves a schedule. The keys of
its configuration, beside the common ones of `trainers.training`:

| key | value (default) |
|---|---|
| `text` | tinyshakespeare, synthetic, or the path of a text file |
| `data_dir` | folder of the data sets, for tinyshakespeare |
| `tokens` | characters or words (characters) |
| `vocabulary` | the most words that are known (8192) |
| `train_size`, `val_size` | use the first so many tokens of each part (all) |
| `sequence_length` * | tokens of a sequence while training (128) |
| `val_sequence_length` | when evaluating (the largest value of `sequence_length`) |
| `layers`, `width`, `heads` | of the model (4, 128, 4) |
| `sharding` | none, or full: parameters, gradients and optimizer over the ranks (none) |

`sequence_length` takes a number or a schedule, rounded to a whole number at each step. `batch_size`
and `microbatch` count sequences.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from autotune.trial import Change, Milestone
from trainers import served
from trainers.distributed import Ranks, process_group
from trainers.gpt import GPT, flops_per_token
from trainers.loop import StepAt, Task, run
from trainers.readers import (
    REQUIRED,
    Key,
    Schedule,
    counted,
    greatest,
    one_of,
    optional,
    require,
    text,
    whole,
)
from trainers.sharding import SHARDINGS
from trainers.text import TOKENS, Text, TextStream, load_text
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
    layers: int
    width: int
    heads: int
    sharding: str


OWN: Mapping[str, Key] = {
    "text": (REQUIRED, text),
    "data_dir": (None, optional(text)),
    "tokens": ("characters", one_of(TOKENS)),
    "vocabulary": (8192, whole(2)),
    "train_size": (None, optional(whole(2))),
    "val_size": (None, optional(whole(1))),
    "sequence_length": (128, counted(1)),
    "val_sequence_length": (None, optional(whole(1))),
    "layers": (4, whole(1)),
    "width": (128, whole(2)),
    "heads": (4, whole(1)),
    "sharding": ("none", one_of(SHARDINGS)),
}
KEYS: Mapping[str, Key] = {**OWN, **TRAINING}
"""All keys but the optimizer's: the default and the reader."""


def read_settings(config: Mapping[str, Any]) -> Settings:
    """`config`, checked and completed with the defaults.

    Raises:
        ValueError: one line with the key, its value, what is allowed, and the nearest valid key.
    """
    training, own = read_training(config, OWN, "trainers.language")
    width, heads = own["width"], own["heads"]
    if width % (2 * heads):
        raise ValueError(f"width must be a multiple of twice the heads, {2 * heads}, got {width}")
    if own["sharding"] != "none" and (training.compile or training.precision == "fp16"):
        raise ValueError("sharding 'full' takes precision fp32, tf32 or bf16, and compile False")
    longest = own["val_sequence_length"] or round(greatest(own["sequence_length"]))
    return Settings(training, **{**own, "val_sequence_length": longest})


def train(config: dict[str, Any]) -> Generator[Milestone, Change | None, None]:
    """Train as `config` says until closed, or until `max_epochs`.

    Milestones, changes and states are as those of `trainers.image.train`, but count tokens.

    `evaluate` gives val_loss (the mean cross-entropy of the next token in nats) and val_accuracy
    over the same validation tokens each time; lr, momentum, batch_size, sequence_length and
    progress (above 1 beyond the horizon) now; and, once trained, train_loss, samples_per_second
    (tokens), flops_per_second of the model (`trainers.gpt.flops_per_token`) and what
    `trainers.statistics` measures, all since the last milestone.

    Raises:
        ValueError: a key or value that is not allowed; one line.
        FileNotFoundError: a missing text; one line that says where to put it.
    """
    settings = read_settings(config)
    with process_group() as ranks:
        yield from run(settings.training, ranks, _task(settings, ranks))


def trained(
    config: Mapping[str, Any], states: Sequence[Mapping[str, Any]]
) -> tuple[nn.Module, Tensor]:
    """The language model that `config` trained, and an example of its input, int64 (N, L).

    Args:
        states: the checkpoint of every rank, in the order of ranks.

    L is the length at which it was evaluated; the output has the scores of the next token at every
    place. No text is read: the weights determine the vocabulary's size.
    """
    settings, weights = read_settings(config), served.weights(states)
    words = len(weights["embedding.weight"])
    made = GPT(words, settings.layers, settings.width, settings.heads)
    made.load_state_dict(weights)
    length = settings.val_sequence_length
    return made.eval(), torch.zeros(served.EXAMPLES, length, dtype=torch.int64)


train.model = trained  # type: ignore[attr-defined]  # for registration of the model
train.check = read_settings  # type: ignore[attr-defined]  # called before a study starts
train.memory_keys = (  # type: ignore[attr-defined]  # keys that determine the memory of a step
    *("text", "tokens", "vocabulary", "sequence_length", "val_sequence_length"),
    *("layers", "width", "heads", "sharding"),
    *("optimizer", "precision", "deterministic", "compile"),
)


def _task(settings: Settings, ranks: Ranks) -> Task[TextStream]:
    def stream(_: StepAt) -> TextStream:
        s = settings
        found = load_text(s.text, s.data_dir, s.tokens, s.vocabulary, ranks.device)
        found = _part(settings, found, ranks)
        return TextStream(found, s.training.seed, ranks, s.val_sequence_length, s.val_size)

    def model(stream: TextStream) -> nn.Module:
        return GPT(stream.classes, settings.layers, settings.width, settings.heads)

    return Task(
        size_key="sequence_length",
        size=settings.sequence_length,
        samples=lambda size: size,
        stream=stream,
        model=model,
        flops=flops_per_token,
        dims=(1,),
        units=None if settings.sharding == "none" else lambda model: list(model.layers),
    )


def _part(settings: Settings, found: Text, ranks: Ranks) -> Text:
    """The part of the text to train on.

    Raises:
        ValueError: the text is too short for the sizes, or has nothing to validate on.
    """
    asked = {"train_size": settings.train_size, "val_size": settings.val_size}
    if len(found.val) < 2:
        where = f"its last tenth, which is validated on, {settings.text} has {len(found.val)}"
        raise ValueError(f"text must have at least 2 tokens in {where}")
    there = {"train_size": len(found.train), "val_size": len(found.val) - 1}
    for key, size in asked.items():
        if size is not None and size > there[key]:
            raise ValueError(f"{key} must be at most {there[key]}, all that there is, got {size}")
    tokens = settings.val_size or there["val_size"]
    least = (ranks.size - 1) * settings.val_sequence_length + 1
    if settings.sharding != "none" and tokens < least:
        raise ValueError(
            f"val_size must give each rank a sequence where the model is sharded, at least {least} "
            f"tokens, got {tokens}"
        )
    train = found.train[: settings.train_size]
    most = len(train) - 1
    rule = f"at most {most}, what the training text can hold"
    require("sequence_length", settings.sequence_length, rule, lambda v: round(v) <= most)
    return replace(found, train=train)
