"""A compact decoder-only transformer (GPT) for any sequence length.

Rotary position embeddings (Su et al., arXiv 2104.09864) depend on distances only, so that a model
trained on short sequences can be evaluated on long ones. Pre-norm blocks (RMSNorm, arXiv
1910.07467), an output layer with the embedding's weights (Press and Wolf, arXiv 1608.05859), and no
dropout: a step draws no random numbers.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainers.models.attention import Attention, Sparse, causal

Rotation = tuple[Tensor, Tensor]
BASE = 10_000.0
EPS = 1e-6


def rotation(length: int, width: int, device: torch.device) -> Rotation:
    """Cosines and sines (length, width / 2) of every position's angles; `width` is a head's."""
    frequencies = BASE ** (-torch.arange(0, width, 2, device=device, dtype=torch.float32) / width)
    angles = torch.arange(length, device=device, dtype=torch.float32).outer(frequencies)
    return angles.cos(), angles.sin()


def rotated(x: Tensor, turn: Rotation) -> Tensor:
    """Apply rotary position embeddings to `x` (..., length, width).

    >>> x = torch.ones(1, 2, 4)
    >>> bool(torch.equal(rotated(x, rotation(2, 4, x.device))[:, 0], x[:, 0]))
    True
    """
    cos, sin = turn
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1).to(x.dtype)


class Layer(nn.Module):
    """A transformer block: causal self-attention and a perceptron of four times the width."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention: Attention = causal
        self.attention_norm = nn.RMSNorm(width, eps=EPS)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.mix = nn.Linear(width, width, bias=False)
        self.perceptron_norm = nn.RMSNorm(width, eps=EPS)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor, turn: Rotation) -> Tensor:
        qkv = self.qkv(self.attention_norm(x)).unflatten(-1, (3, self.heads, -1))
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        q, k = rotated(q, turn), rotated(k, turn)
        mixed = self.attention(q, k, v)
        x = x + self.mix(mixed.transpose(1, 2).flatten(2))
        found: Tensor = x + self.down(F.gelu(self.up(self.perceptron_norm(x))))
        return found


class GPT(nn.Module):
    """Scores of the next token (batch, length, vocabulary) for tokens (batch, length).

    Args:
        vocabulary: the number of tokens.
        layers, width, heads: `heads` must divide `width` into even parts.
        attention: of all layers.

    >>> GPT(65, layers=1, width=32, heads=4)(torch.zeros(2, 7, dtype=torch.int64)).shape
    torch.Size([2, 7, 65])
    """

    def __init__(
        self, vocabulary: int, layers: int, width: int, heads: int, attention: Attention = causal
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        for layer in self.layers:
            layer.attention = attention  # type: ignore[assignment]
        self.norm = nn.RMSNorm(width, eps=EPS)
        self.head_width = width // heads
        self._turn: Rotation | None = None
        self._part = 0, 1
        self._initialise()

    def get_output_embeddings(self) -> nn.Module:
        """The output layer, which has the embedding's weights; a name of library `transformers`."""
        return self.embedding

    def _initialise(self) -> None:
        """Initialise as GPT-2: residual projections are scaled down by the depth."""
        for name, parameter in self.named_parameters():
            if parameter.ndim > 1:
                added = name.endswith(("mix.weight", "down.weight"))
                scale = 1.0 / math.sqrt(2 * len(self.layers)) if added else 1.0
                nn.init.normal_(parameter, std=0.02 * scale)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        (part, parts), length = self._part, tokens.shape[1]
        turn = self._rotation(parts * length, tokens.device)
        if parts > 1:
            turn = turn[0][part * length :][:length], turn[1][part * length :][:length]
        for layer in self.layers:
            x = layer(x, turn)
        return F.linear(self.norm(x), self.embedding.weight)

    def units(self) -> list[nn.Module]:
        """The layers."""
        return [*self.layers]

    def flops(self, size: int) -> float:
        """Of training on one token of a sequence of `size`: `flops_per_token`."""
        return flops_per_token(self, size)

    def tensor_plan(self) -> dict[str, str]:
        """How each matrix may be divided over ranks, by the name of its module.

        - heads: rows of the weight, so that a rank has query, key and value of its own heads; the
          rank's layer has so many heads fewer.
        - columns: rows of the weight; a rank has part of the outputs.
        - rows: columns of the weight; the ranks' outputs are summed.
        - vocabulary: rows of the embedding, and so columns of the scores.

        What has no name here, the norms, is whole on every rank.
        """
        found = {"embedding": "vocabulary"}
        ways = {"qkv": "heads", "mix": "rows", "up": "columns", "down": "rows"}
        for index in range(len(self.layers)):
            found |= {f"layers.{index}.{name}": way for name, way in ways.items()}
        return found

    def divide_sequences(self, part: int, parts: int, attention: Attention) -> None:
        """From now on the input is one of the equal parts of each sequence.

        Args:
            part: which one, from 0.
            attention: to the keys and values of all parts.
        """
        self._part = part, parts
        for module in self.modules():
            if isinstance(module, Layer):
                module.attention = attention

    def stages(self, count: int) -> list[nn.Module]:
        """The model as so many parts that follow each other, with its own parameters.

        The first embeds tokens, the last gives scores, with the same weights: their gradient is the
        sum of both. Parameters keep their names.

        Raises:
            ValueError: more stages than layers.
        """
        layers = len(self.layers)
        if not 1 <= count <= layers:
            rule = f"at least 1 and at most the layers, {layers}"
            raise ValueError(f"pipeline_parallel_degree must be {rule}, got {count}")
        bounds = [index * layers // count for index in range(count + 1)]
        return [Stage(self, *part) for part in pairwise(bounds)]

    def _rotation(self, length: int, device: torch.device) -> Rotation:
        """Cosines and sines for so many places: kept, unless a compiler makes them one kernel."""
        if torch.compiler.is_compiling():
            return rotation(length, self.head_width, device)
        kept = self._turn
        if kept is None or len(kept[0]) < length or kept[0].device != device:
            kept = self._turn = rotation(length, self.head_width, device)
        return kept[0][:length], kept[1][:length]


class Stage(nn.Module):
    """The layers [first, last) of a model, with what comes before the first and after the last."""

    def __init__(self, model: GPT, first: int, last: int) -> None:
        super().__init__()
        ends, end = first == 0, last == len(model.layers)
        self.embedding = model.embedding if ends or end else None
        self.layers = nn.ModuleDict({str(i): model.layers[i] for i in range(first, last)})
        self.norm = model.norm if end else None
        self._embeds = ends
        self._head_width = model.head_width

    def forward(self, x: Tensor) -> Tensor:
        if self._embeds:
            assert self.embedding is not None
            x = self.embedding(x)
        turn = rotation(x.shape[1], self._head_width, x.device)
        for layer in self.layers.values():
            x = layer(x, turn)
        if self.norm is None:
            return x
        assert self.embedding is not None
        return F.linear(self.norm(x), self.embedding.weight)


def flops_per_token(model: GPT, length: int) -> float:
    """Floating-point operations of training on one token of a sequence of `length`.

    6 P + 12 layers width seen: every weight of a matrix product (P, the embedding once, for
    the output; looking it up is none) multiplies and adds in the forward pass and twice in the
    backward pass; attention compares with and sums over the tokens that a token sees on average,
    (length + 1) / 2 unless it is sparse, of 4 width operations each, likewise three times. Norms,
    activations and the rotation are left out, and so is work that a kernel does for tokens that are
    not seen.

    As in Kaplan et al. (arXiv 2001.08361) and PaLM's appendix B (Chowdhery et al., arXiv
    2204.02311), but for the causal half, which PaLM does not take off, and the output, which Kaplan
    leaves out.

    >>> flops_per_token(GPT(10, layers=1, width=8, heads=2), 3)
    5280.0
    """
    weights = sum(p.numel() for p in model.parameters() if p.ndim > 1)
    width, attention = model.embedding.embedding_dim, model.layers[0].attention
    seen = attention.seen(length) if isinstance(attention, Sparse) else (length + 1) / 2
    return 6.0 * weights + 12.0 * len(model.layers) * width * seen
