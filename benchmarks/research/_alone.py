"""The farm's networks trained one at a time, without torch: a tenth of the time for one worker.

The arithmetic is that of `_networks.stepped`, with its gradient by hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from _networks import Farm, Layout, Network

Matrices = list[np.ndarray]


class Alone(Farm):
    """A farm for studies on one worker: each network trains by itself."""

    def _stretch(self, networks: Sequence[Network], padded: int) -> None:
        for network in networks:
            self._trained(network)

    def _trained(self, network: Network) -> None:
        plan, begin = network.plan, network.steps
        end = plan.stops[len(network.found)]
        weights = _views(self.layout, network.flat.numpy())
        velocity = _views(self.layout, network.velocity.numpy())
        inputs, targets = self.data.inputs.numpy(), self.data.targets.numpy()
        for step in range(begin, end):
            rows = next(network.order)
            slopes = gradient(weights, inputs[rows], targets[rows])
            _move(weights, velocity, slopes, float(plan.rates[step]), plan)
        outputs = forward(weights, self.data.checks.numpy())[-1]
        answers = self.data.answers.numpy()
        right = float((outputs.argmax(1) == answers).mean())
        known = _log_softmax(outputs)[np.arange(len(answers)), answers]
        network.found.append([right, -float(known.mean())])
        self.steps_made += end - begin


def _views(layout: Layout, flat: np.ndarray) -> Matrices:
    """The tensors of a network, as parts of its one vector."""
    ends = np.cumsum(layout.sizes)[:-1]
    parts = zip(np.split(flat, ends), layout.shapes, strict=True)
    return [part.reshape(shape) for part, shape in parts]


def forward(weights: Matrices, inputs: np.ndarray) -> Matrices:
    """What goes into each layer, and the outputs: (count, numbers) each but the first.

    The first layer is applied to every patch of a sample; see `_networks.layout`.
    """
    first, bias, *rest = weights
    patches = inputs.reshape(-1, inputs.shape[2])
    hidden = np.maximum(patches @ first + bias, 0).reshape(len(inputs), -1)
    layers = [patches, hidden]
    for weight, own in zip(rest[:-2:2], rest[1:-2:2], strict=True):
        layers.append(np.maximum(layers[-1] @ weight + own, 0))
    return [*layers, layers[-1] @ rest[-2] + rest[-1]]


def gradient(weights: Matrices, inputs: np.ndarray, targets: np.ndarray) -> Matrices:
    """Of the mean cross-entropy of samples, for each tensor."""
    *layers, outputs = forward(weights, inputs)
    slope = np.exp(_log_softmax(outputs))
    slope[np.arange(len(targets)), targets] -= 1
    slope /= len(targets)
    found: Matrices = []
    for layer, weight in zip(reversed(layers), reversed(weights[::2]), strict=True):
        if slope.shape[1] != weight.shape[1]:  # the first layer: back to patches
            slope = slope.reshape(-1, weight.shape[1])
        found[:0] = [layer.T @ slope, slope.sum(0)]
        if layer is not layers[0]:
            slope = (slope @ weight.T) * (layer > 0)
    return found


def _log_softmax(outputs: np.ndarray) -> np.ndarray:
    outputs = outputs - outputs.max(1, keepdims=True)
    return outputs - np.log(np.exp(outputs).sum(1, keepdims=True))


def _move(weights: Matrices, velocity: Matrices, slopes: Matrices, rate: float, plan: Any) -> None:
    """One step of SGD or LARS, in place."""
    for weight, speed, slope in zip(weights, velocity, slopes, strict=True):
        if weight.ndim > 1:
            above, below = float(np.linalg.norm(weight)), float(np.linalg.norm(slope))
            slope = slope + plan.decay * weight
            if plan.trust * above * below > 0:
                slope *= plan.trust * above / (below + plan.decay * above)
        speed *= plan.momentum
        speed += rate * slope if plan.trust > 0 else slope
        weight -= speed if plan.trust > 0 else rate * speed


def agrees(data: Any, widths: Sequence[int], plan: Any) -> float:
    """The greatest difference of the accuracies that both ways measure; for a check."""
    found = []
    for kind in (Farm, Alone):
        farm = kind(data, widths)
        network = farm.plant(plan, 1)
        found.append([farm.measured(network, i)[0] for i in range(len(plan.stops))])
    return float(torch.tensor(found).diff(dim=0).abs().max())
