"""The network of `trained_policy.network` in torch, for batches of decisions of unequal size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from autotune.algorithms.experience.known_task import Array
from autotune.algorithms.samplers.trained_policy.inputs import Inputs
from autotune.algorithms.samplers.trained_policy.network import SHAPES

Layers = Mapping[str, Tensor]
_LAST = ("score",)  # begins at zero, so that the first policy is the expected improvement's
_GAIN = 16.0  # its weight then


@dataclass(frozen=True)
class Batch:
    """Decisions, padded to one size; each `has` is one where a row is of a decision."""

    pairs: Tensor
    has_pairs: Tensor
    parameters: Tensor
    has_parameters: Tensor
    points: Tensor
    has_points: Tensor
    state: Tensor


def fresh(seed: int) -> dict[str, Tensor]:
    """Random weights of which the scores are those of the expected improvement."""
    generator = torch.Generator().manual_seed(seed)
    made = {}
    for name, shape in SHAPES.items():
        scale = 0.0 if name in _LAST else (2.0 / shape[0]) ** 0.5
        weight = scale * torch.randn(shape, generator=generator)
        if shape[0] > 1:
            weight[-1] = 0.0
        made[name] = torch.full(shape, _GAIN) if name == "gain" else weight
    return {name: weight.requires_grad_(True) for name, weight in made.items()}


def as_arrays(layers: Layers) -> dict[str, Array]:
    """The weights in numpy."""
    return {name: layer.detach().double().numpy() for name, layer in layers.items()}


def batch(decisions: Sequence[Inputs]) -> Batch:
    """Decisions as one batch."""
    pairs, has_pairs = _padded([d.pairs for d in decisions])
    parameters, has_parameters = _padded([d.parameters for d in decisions])
    points, _ = _padded([d.points[None] for d in decisions])
    size = points.shape[2]
    has_points = torch.zeros(len(decisions), size)
    for i, decision in enumerate(decisions):
        has_points[i, : len(decision.points)] = 1.0
    state = torch.tensor(np.stack([d.state for d in decisions]), dtype=torch.float32)
    return Batch(pairs, has_pairs, parameters, has_parameters, points[:, 0], has_points, state)


def _padded(arrays: Sequence[Array]) -> tuple[Tensor, Tensor]:
    first, second = (max(a.shape[i] for a in arrays) for i in (0, 1))
    second = max(second, 1)
    made = np.zeros((len(arrays), first, second, arrays[0].shape[2]), dtype=np.float32)
    has = np.zeros((len(arrays), 1, second, 1), dtype=np.float32)
    for i, array in enumerate(arrays):
        made[i, : array.shape[0], : array.shape[1]] = array
        has[i, :, : array.shape[1]] = 1.0
    return torch.from_numpy(made), torch.from_numpy(has)


def log_policy(layers: Layers, given: Batch) -> Tensor:
    """Log probabilities of the candidates of each decision, (decisions, candidates)."""
    pairs = _layer(layers["pair_2"], _layer(layers["pair_1"], given.pairs))
    heat = _linear(layers["attention"], pairs) - 1e9 * (1 - given.has_pairs)
    heat = torch.softmax(heat, dim=2) * given.has_pairs
    attended = (pairs * heat).sum(2)
    mean = (pairs * given.has_pairs).sum(2) / given.has_pairs.sum(2).clamp(min=1)
    own = _layer(layers["parameter_2"], _layer(layers["parameter_1"], given.parameters))
    own = own * given.has_parameters
    average = own.sum(2) / given.has_parameters.sum(2).clamp(min=1)
    most = own.amax(2)  # of numbers that are not negative
    state = given.state[:, None].expand(-1, given.points.shape[1], -1)
    joint = torch.cat([given.points, state, mean, attended, average, most], dim=2)
    hidden = _layer(layers["joint_2"], _layer(layers["joint_1"], joint))
    scores = _linear(layers["score"], hidden)[..., 0]
    scores = scores + layers["gain"][0, 0] * given.points[..., 0]
    return torch.log_softmax(scores.masked_fill(given.has_points == 0, -1e9), dim=1)


def stop_logits(layers: Layers, rows: Tensor) -> Tensor:
    """Logits of `network.chance` of running trials, (rows,), from what is seen of them."""
    hidden = _layer(layers["stop_2"], _layer(layers["stop_1"], rows))
    return _linear(layers["stop_3"], hidden)[:, 0]


def _linear(layer: Tensor, rows: Tensor) -> Tensor:
    return rows @ layer[:-1] + layer[-1]


def _layer(layer: Tensor, rows: Tensor) -> Tensor:
    return torch.relu(_linear(layer, rows))
