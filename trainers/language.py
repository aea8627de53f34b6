"""Distributed data-parallel training of a small language model in plain PyTorch.

It runs as `trainers.image` does. A sample is a **token**: steps, epochs, milestones and progress
count tokens, so that neither the batch size nor the sequence length moves a schedule. The keys of
its configuration are in `trainers.text_settings` and `trainers.training`.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from autotune.trial import Change, Milestone
from trainers import trained_weights
from trainers.communication.keys import MEMORY_KEYS as EXCHANGED
from trainers.data.text import Text, TextStream, load_text
from trainers.loop import run
from trainers.models import attention, library_text
from trainers.models import weights as given
from trainers.models.gpt import GPT
from trainers.models.library import named
from trainers.parallel.ranks import Ranks, process_group
from trainers.parallel.states import reshaped
from trainers.plan import DEFAULTS, MEMORY_KEYS
from trainers.readers import greatest, require
from trainers.task import StepAt, Task
from trainers.text_settings import EFFECTS, KEYS, OWN, USUAL, Settings, read_settings
from trainers.training import pass_sizes

__all__ = [
    "KEYS",
    "OWN",
    "Settings",
    "check",
    "memory",
    "pass_size",
    "read_settings",
    "train",
    "trained",
]


def train(config: dict[str, Any]) -> Generator[Milestone, Change | None, None]:
    """Train as `config` says until closed, or until `max_epochs`.

    Milestones, changes and states are as those of `trainers.image.train`, but count tokens.

    `evaluate` gives val_loss (the mean cross-entropy of the next token in nats) and val_accuracy
    over the same validation tokens each time; lr, momentum, batch_size, sequence_length and
    progress (above 1 beyond the horizon) now; and, once trained, train_loss, samples_per_second
    (tokens), flops_per_second of the model (as `trainers.models.gpt.flops_per_token`),
    exposed_communication where there are several ranks, staleness where they exchange beside
    steps, and what `trainers.statistics` and, if asked for, `trainers.noise_scale` measure, all
    since the last milestone.

    Raises:
        ValueError: a key or value that is not allowed; one line.
        FileNotFoundError: a missing text; one line that says where to put it.
    """
    settings = read_settings(config)
    with process_group() as ranks:
        yield from run(settings.training, ranks, _task(settings))


def check(config: Mapping[str, Any]) -> None:
    """Raise a ValueError, one line, for a configuration that cannot be trained.

    As `read_settings`; and a file of weights to begin with must be there.
    """
    settings = read_settings(config)
    if not settings.training.state:
        given.require_file(settings.weights)


def trained(
    config: Mapping[str, Any], states: Sequence[Mapping[str, Any]]
) -> tuple[nn.Module, Tensor]:
    """The language model that `config` trained, and an example of its input, int64 (N, L).

    Args:
        states: the checkpoint of every rank, in the order of ranks.

    L is the length at which it was evaluated; the output has the scores of the next token at every
    place. No text is read: the weights determine the vocabulary's size.
    """
    settings, weights = read_settings(config), trained_weights.weights(states)
    if named(settings.model):
        sizes, file = _sizes(settings), settings.weights
        words = library_text.vocabulary_of(settings.model, sizes, file, weights)
    else:
        words = len(weights["embedding.weight"])
    made = _model(settings, words, begins=False)
    own = made.state_dict()
    made.load_state_dict({k: reshaped(v, own[k]) if k in own else v for k, v in weights.items()})
    length = settings.val_sequence_length
    return made.eval(), torch.zeros(trained_weights.EXAMPLES, length, dtype=torch.int64)


def memory(config: Mapping[str, Any], ranks: int = 1, has: int = 0) -> int:
    """The bytes of memory that a rank of this training needs, its part of the text included.

    Nothing is trained, and no memory allocated for it (`trainers.memory.predict`).

    Args:
        ranks: of the training.
        has: bytes that a rank has; where it surely needs less, that bound will do.

    Raises:
        ValueError: a key or value that is not allowed, or a plan for other ranks; one line.
        FileNotFoundError: a missing text; one line.
    """
    from trainers.data.blank import texts
    from trainers.memory.predict import needed

    settings = _counted(read_settings(config))
    task = _task(settings, begins=False)
    shares = settings.training.plan.shares(ranks)
    blank = texts(task.stream, settings.val_sequence_length, shares)
    return needed(settings.training, task, blank, ranks, has)


def _counted(settings: Settings) -> Settings:
    """The training whose memory is counted on a CPU in place of this one.

    Kernels of sparse attention keep what those of full attention do; without one, masks too.
    """
    width, heads = settings.width, settings.heads
    if settings.attention == "full" or width is None or heads is None:
        return settings
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if not attention.has_kernel(device, width // heads):
        return settings
    return replace(settings, attention="full", attention_window=None)


pass_size = pass_sizes(read_settings)

train.model = trained  # type: ignore[attr-defined]  # for registration of the model
train.check = check  # type: ignore[attr-defined]  # called before a study starts
train.effects = EFFECTS  # type: ignore[attr-defined]  # what each key changes of a training
train.pass_size = pass_size  # type: ignore[attr-defined]  # halved where memory has run out
train.memory = memory  # type: ignore[attr-defined]  # what a rank needs, before it is tried
train.plan_keys = {  # type: ignore[attr-defined]  # of a plan, with their defaults
    **DEFAULTS,
    "sharding": "none",
}
train.memory_keys = (  # type: ignore[attr-defined]  # keys that determine the memory of a step
    *("text", "tokens", "vocabulary", "sequence_length", "val_sequence_length"),
    *("model", "weights", "layers", "width", "heads", "attention", "attention_window", "sharding"),
    *("optimizer", "precision", "deterministic", "compile"),
    *("noise_scale_every", "adascale_batch_size"),
    *MEMORY_KEYS,
    *EXCHANGED,
)


def _sizes(settings: Settings) -> dict[str, int | None]:
    return {"layers": settings.layers, "width": settings.width, "heads": settings.heads}


def _model(settings: Settings, words: int, begins: bool) -> nn.Module:
    """The model for so many tokens.

    Args:
        begins: whether it begins with the weights of a file, where one is given.
    """
    name, file = settings.model, settings.weights
    if named(name):
        longest = max(settings.val_sequence_length, round(greatest(settings.sequence_length)))
        return library_text.language_model(name, words, _sizes(settings), longest, file, begins)
    sizes = {key: size or USUAL[key] for key, size in _sizes(settings).items()}
    seen = attention.made(settings.attention, settings.attention_window)
    made = GPT(words, **sizes, attention=seen)
    if file is not None and begins:
        given.load(made, file, words)
    return made


def _task(settings: Settings, begins: bool = True) -> Task[TextStream]:
    """The training of a configuration.

    Args:
        begins: whether it begins, and not its memory alone is of interest: then models have no
            numbers to compute with, and no file of weights is read.
    """

    def stream(_: StepAt, data: Ranks) -> TextStream:
        s = settings
        found = load_text(s.text, s.data_dir, s.tokens, s.vocabulary, data.device)
        found = _part(settings, found, data)
        return TextStream(found, s.training.seed, data, s.val_sequence_length, s.val_size)

    def model(stream: TextStream) -> nn.Module:
        new = begins and not settings.training.state
        made = _model(settings, stream.classes, begins=new)
        if begins and named(settings.model):
            library_text.check_causal(made, settings.model)
        return made

    stateless = replace(settings.training, state=None)
    return Task(
        size_key="sequence_length",
        size=settings.sequence_length,
        samples=lambda size: size,
        stream=stream,
        model=model,
        flops=lambda model, size: float(model.flops(size)),
        dims=(1,),
        again=partial(_task, replace(settings, training=stateless), begins=False),
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
    plan = settings.training.plan
    if (plan.shards or plan.divides) and tokens < least:
        how = "sharded" if plan.shards else "divided"
        raise ValueError(
            f"val_size must give each rank a sequence where the model is {how}, at least {least} "
            f"tokens, got {tokens}"
        )
    train = found.train[: settings.train_size]
    most = len(train) - 1
    rule = f"at most {most}, what the training text can hold"
    require("sequence_length", settings.sequence_length, rule, lambda v: round(v) <= most)
    return replace(found, train=train)
