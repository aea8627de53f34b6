"""Causal language models of transformers, by `model_type`: tokens in, scores of the next out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from trainers.models import transformers_config, weights
from trainers.models.blocks import blocks
from trainers.models.library import imported, offline, one_line, split, without_dropout
from trainers.models.transformers_config import Sizes, faults_of, quiet


class Scores(nn.Module):
    """A causal model of transformers that gives scores (batch, length, vocabulary) alone."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self._matrices, self._attended = _per_token(network)

    def forward(self, tokens: Tensor) -> Tensor:
        scores: Tensor = self.network(input_ids=tokens, use_cache=False).logits
        return scores

    def units(self) -> list[nn.Module]:
        """The layers."""
        return blocks(self.network)

    def flops(self, size: int) -> float:
        """Of training on one token of a sequence of `size`, as `gpt.flops_per_token` counts them.

        All matrices count, also those of a mixture's experts that a token does not see.
        """
        return 6.0 * self._matrices + 6.0 * self._attended * (size + 1)


def _per_token(network: Any) -> tuple[int, int]:
    """Numbers of the matrices that a token goes through, and layers times width."""
    tables = (m for m in network.modules() if isinstance(m, nn.Embedding))
    looked_up = {id(p) for table in tables for p in table.parameters()}
    matrices = sum(p.numel() for p in network.parameters() if p.ndim > 1 and id(p) not in looked_up)
    output = network.get_output_embeddings()
    if output is not None and id(output.weight) in looked_up:
        matrices += output.weight.numel()
    config = network.config.get_text_config()
    return matrices, getattr(config, "num_hidden_layers", 0) * getattr(config, "hidden_size", 0)


def language_model(
    name: str,
    vocabulary: int,
    sizes: Sizes,
    longest: int,
    file: str | None = None,
    read: bool = True,
) -> Scores:
    """The model `transformers:NAME`.

    Args:
        vocabulary: the number of tokens; a file whose model has more keeps them.
        longest: tokens of the longest sequence; a new model has as many places at least.
        file: whose weights it begins with; None: new ones.
        read: whether its weights are read, and not the sizes beside it alone.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is of another model, the library is not installed, or cannot make the model;
            one line.
    """
    library = imported("transformers", f"model {name!r}")
    kind = library.CONFIG_MAPPING[split(name)[1]]
    beside = transformers_config.beside(file)
    known = beside and transformers_config.of_file(beside, kind, vocabulary, sizes)
    found = weights.read(file) if file is not None and read else None
    with offline(), quiet(library), _in_one_line(name):
        config = (
            transformers_config.new(kind, vocabulary, sizes, longest)
            if known is None
            else kind.from_dict(known)
        )
        with nullcontext() if found is None else torch.device("meta"):
            network = library.AutoModelForCausalLM.from_config(
                config, dtype=torch.float32, trust_remote_code=False
            )
        if found is not None:
            network, about = type(network).from_pretrained(
                None,
                config=config,
                state_dict=found,
                dtype=torch.float32,
                ignore_mismatched_sizes=True,
                output_loading_info=True,
                local_files_only=True,
            )
    faults = [] if found is None else faults_of(about, config.vocab_size)
    if faults:
        raise ValueError(weights.other_model(str(file), faults))
    made = Scores(without_dropout(network))
    return made.train()


@contextmanager
def _in_one_line(name: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # of the library
        raise ValueError(f"model {name!r} cannot be made so: {one_line(error)}") from None


@torch.no_grad()
def check_causal(model: nn.Module, name: str) -> None:
    """Give the model two sequences that differ in their last token.

    Raises:
        ValueError: it does not take them, or other places' scores differ too; one line.
    """
    tokens = torch.zeros(2, 4, dtype=torch.int64)
    tokens[1, -1] = 1
    model.eval()
    with _in_one_line(name):
        one, other = model(tokens)[:, :-1]
    if not torch.allclose(one, other, rtol=1e-4, atol=1e-4):
        raise ValueError(f"model {name!r} sees the tokens that it is to predict: it is not causal")
    model.train()


def vocabulary_of(name: str, sizes: Sizes, file: str | None, found: Mapping[str, Tensor]) -> int:
    """The number of tokens of the weights `found` of such a model."""
    with torch.device("meta"):
        made = language_model(name, 2, sizes, 1, file, read=False)
    network: Any = made.network
    table = network.get_input_embeddings().weight
    return next(len(found[n]) for n, own in made.named_parameters() if own is table)
