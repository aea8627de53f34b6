"""A compact decoder-only transformer (GPT) for any sequence length.

Rotary position embeddings (Su et al., arXiv 2104.09864) depend on distances only, so that a model
trained on short sequences can be evaluated on long ones. Pre-norm blocks (RMSNorm, arXiv
1910.07467), an output layer with the embedding's weights (Press and Wolf, arXiv 1608.05859), and no
dropout: a step draws no random numbers.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

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
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.mix(mixed.transpose(1, 2).flatten(2))
        found: Tensor = x + self.down(F.gelu(self.up(self.perceptron_norm(x))))
        return found


class GPT(nn.Module):
    """Scores of the next token (batch, length, vocabulary) for tokens (batch, length).

    Args:
        vocabulary: the number of tokens.
        layers, width, heads: `heads` must divide `width` into even parts.

    >>> GPT(65, layers=1, width=32, heads=4)(torch.zeros(2, 7, dtype=torch.int64)).shape
    torch.Size([2, 7, 65])
    """

    def __init__(self, vocabulary: int, layers: int, width: int, heads: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.norm = nn.RMSNorm(width, eps=EPS)
        self.head_width = width // heads
        self._turn: Rotation | None = None
        self._initialise()

    def _initialise(self) -> None:
        """Initialise as GPT-2: residual projections are scaled down by the depth."""
        for name, parameter in self.named_parameters():
            if parameter.ndim > 1:
                added = name.endswith(("mix.weight", "down.weight"))
                scale = 1.0 / math.sqrt(2 * len(self.layers)) if added else 1.0
                nn.init.normal_(parameter, std=0.02 * scale)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        turn = self._rotation(tokens.shape[1], tokens.device)
        for layer in self.layers:
            x = layer(x, turn)
        return F.linear(self.norm(x), self.embedding.weight)

    def _rotation(self, length: int, device: torch.device) -> Rotation:
        """Cosines and sines for so many places: kept, unless a compiler makes them one kernel."""
        if torch.compiler.is_compiling():
            return rotation(length, self.head_width, device)
        kept = self._turn
        if kept is None or len(kept[0]) < length or kept[0].device != device:
            kept = self._turn = rotation(length, self.head_width, device)
        return kept[0][:length], kept[1][:length]


def flops_per_token(model: GPT, length: int) -> float:
    """Floating-point operations of training on one token of a sequence of `length`.

    6 P + 6 layers width (length + 1): every weight of a matrix product (P, the embedding once, for
    the output; looking it up is none) multiplies and adds in the forward pass and twice in the
    backward pass; attention compares with and sums over the (length + 1) / 2 tokens that a token
    sees on average, of 4 width operations each, likewise three times. Norms, activations and the
    rotation are left out, and so is work that a kernel does for tokens that are not seen.

    As in Kaplan et al. (arXiv 2001.08361) and PaLM's appendix B (Chowdhery et al., arXiv
    2204.02311), but for the causal half, which PaLM does not take off, and the output, which Kaplan
    leaves out.

    >>> flops_per_token(GPT(10, layers=1, width=8, heads=2), 3)
    5280.0
    """
    weights = sum(p.numel() for p in model.parameters() if p.ndim > 1)
    width = model.embedding.embedding_dim
    return 6.0 * weights + 6.0 * len(model.layers) * width * (length + 1)
