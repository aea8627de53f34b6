"""Many small networks trained at once by `torch.func.vmap`, each by its own settings, as needed.

A `Farm` holds the live networks of one task. Whoever reads a milestone of one of them has all
others that have read everything they have take the same stretch of steps, so a network is never
trained further than the one milestone that its reader waits for. A network that nobody holds any
more (a stopped trial) is gone and costs nothing.

A network's numbers depend on its plan and seed alone: each call has the same shapes.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from _signals import Data
from torch import Tensor
from torch.func import grad, vmap

METRICS = ("val_accuracy", "val_loss")
PROGRESS = "progress"
SLOTS = 8
PADDED = (64, 256)  # each network's batches are padded to the first of these that holds them
CLASSES = 10


@dataclass(frozen=True)
class Plan:
    """How one network is trained.

    Args:
        rates: learning rate of each step.
        momentum: in [0, 1).
        decay: L2 coefficient of the weight matrices, >= 0; biases have none.
        trust: LARS' trust coefficient, > 0, for the weight matrices; 0 is plain SGD.
        batch: samples of a step, 1 to 256.
        beta2: of AdamW, whose beta1 is the momentum.
        stops: steps made at each milestone, rising.
        horizon: steps over which the learning rate's schedule runs.
    """

    rates: np.ndarray
    momentum: float
    decay: float
    trust: float
    batch: int
    stops: Sequence[int]
    horizon: float
    beta2: float = 0.0


@dataclass(frozen=True)
class Layout:
    """Where a network's tensors lie in its one flat vector: weights and biases in turns."""

    shapes: tuple[tuple[int, ...], ...]

    @property
    def sizes(self) -> list[int]:
        return [int(np.prod(shape)) for shape in self.shapes]

    def tensors(self, flat: Tensor) -> list[Tensor]:
        parts = flat.split(self.sizes)
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]


def layout(data: Data, widths: Sequence[int]) -> Layout:
    """Layers of these widths and the classes; the first is applied to every patch of a sample."""
    parts, numbers = data.inputs.shape[1:]
    fans = [numbers, *widths]
    fans[1] = fans[1] * parts
    shapes = [(numbers, widths[0]), (widths[0],)]
    for below, above in zip(fans[1:], [*widths[1:], CLASSES], strict=True):
        shapes += [(below, above), (above,)]
    return Layout(tuple(shapes))


def initial(shapes: Layout, rng: np.random.Generator) -> Tensor:
    """He's normal weights (arXiv 1502.01852) and biases of zero, in one vector."""
    parts = [
        rng.standard_normal(shape) * np.sqrt(2 / shape[0]) if len(shape) > 1 else np.zeros(shape)
        for shape in shapes.shapes
    ]
    return torch.from_numpy(np.concatenate([p.ravel() for p in parts]).astype(np.float32))


def logits(shapes: Layout, flat: Tensor, inputs: Tensor) -> Tensor:
    """Of samples (count, patches, numbers): (count, 10)."""
    tensors = shapes.tensors(flat)
    (first, bias), rest = tensors[:2], tensors[2:]
    hidden = torch.relu(inputs.flatten(0, 1) @ first + bias).view(len(inputs), -1)
    for weight, bias in zip(rest[:-2:2], rest[1:-2:2], strict=True):
        hidden = torch.relu(hidden @ weight + bias)
    return hidden @ rest[-2] + rest[-1]


def loss(shapes: Layout, flat: Tensor, inputs: Tensor, wanted: Tensor) -> Tensor:
    """Mean cross-entropy.

    `wanted`, (count, 10), is minus each sample's part in the mean at its class; 0 where it pads.
    """
    return (torch.log_softmax(logits(shapes, flat, inputs), dim=1) * wanted).sum()


def stepped(
    shapes: Layout, flat: Tensor, velocity: Tensor, batch: tuple[Tensor, ...], settings: Tensor
) -> tuple[Tensor, Tensor]:
    """One step of SGD with momentum, or LARS, of one network: weights and velocity after it.

    LARS as in the paper (You, Gitman, Ginsburg 2017, arXiv 1708.03888): the ratio of each weight
    matrix is trust |w| / (|g| + decay |w|), and the learning rate enters the velocity; SGD as in
    torch, where it does not.
    """
    rate, momentum, decay, trust, acts, _, _ = settings.unbind()
    slope = grad(partial(loss, shapes))(flat, *batch)
    moves = []
    for weight, own, shape in zip(
        flat.split(shapes.sizes), slope.split(shapes.sizes), shapes.shapes, strict=True
    ):
        if len(shape) == 1:
            moves.append(own)
            continue
        above, below = weight.norm(), own.norm()
        ratio = trust * above / (below + decay * above)
        ratio = torch.where(trust * above * below > 0, ratio, 1.0)
        moves.append((own + decay * weight) * ratio)
    adapts = trust > 0
    inner, outer = torch.where(adapts, rate, 1.0), torch.where(adapts, 1.0, rate)
    fresh = momentum * velocity + inner * torch.cat(moves)
    return torch.where(acts > 0, flat - outer * fresh, flat), torch.where(acts > 0, fresh, velocity)


def measures(shapes: Layout, flat: Tensor, inputs: Tensor, answers: Tensor) -> Tensor:
    """Share of right answers, and the mean cross-entropy."""
    found = logits(shapes, flat, inputs)
    known = torch.log_softmax(found, dim=1).gather(1, answers[:, None])
    return torch.stack([(found.argmax(1) == answers).float().mean(), -known.mean()])


@dataclass(eq=False)
class Network:
    """One network in training: its state, and what was measured at its milestones."""

    plan: Plan
    flat: Tensor
    velocity: Tensor
    order: Iterator[np.ndarray]
    found: list[list[float]] = field(default_factory=list)
    read: int = 0
    """Milestones that its reader has had."""

    @property
    def steps(self) -> int:
        return self.plan.stops[len(self.found) - 1] if self.found else 0

    @property
    def due(self) -> bool:
        """Whether its reader waits for its next milestone."""
        return len(self.found) <= self.read < len(self.plan.stops)


def batches(count: int, size: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Indices of batches without end: permutations one after another, cut at every `size`."""
    rest = np.empty(0, dtype=np.int64)
    while True:
        while len(rest) < size:
            rest = np.concatenate([rest, rng.permutation(count)])
        yield rest[:size]
        rest = rest[size:]


class Farm:
    """The live networks of one task, which train together.

    Args:
        data: what all train on.
        widths: of the hidden layers; see `layout`.
        rule, vectors: a network's step, and how many vectors its state has.
    """

    def __init__(
        self, data: Data, widths: Sequence[int], rule: Any = stepped, vectors: int = 1
    ) -> None:
        torch.set_num_threads(1)
        self.data = data
        self.layout = layout(data, widths)
        self.steps_made = 0  # of all networks
        self._classes = torch.eye(CLASSES)
        self._live: list[weakref.ref[Network]] = []
        self._vectors, self._step = vectors, vmap(partial(rule, self.layout))
        self._measure = vmap(partial(measures, self.layout), in_dims=(0, None, None))

    def plant(self, plan: Plan, seed: int) -> Network:
        """A new network; it lives as long as the caller, or its readings, hold it."""
        rng = np.random.default_rng(seed)
        flat = initial(self.layout, rng)
        order = batches(len(self.data.targets), plan.batch, rng)
        network = Network(plan, flat, torch.zeros(self._vectors * len(flat)), order)
        self._live.append(weakref.ref(network))
        return network

    def reading(self, network: Network, milestone: int) -> Mapping[str, float]:
        """What is measured at a milestone, from 0; the training is done when it is looked at."""
        return _Reading(self, network, milestone)

    def measured(self, network: Network, milestone: int) -> Sequence[float]:
        """Accuracy and loss at a milestone, from 0, after the training that it still takes."""
        while len(network.found) <= milestone:
            network.read = max(network.read, len(network.found))
            self._advance()
        network.read = max(network.read, milestone + 1)
        return network.found[milestone]

    def _advance(self) -> None:
        """All networks whose next milestone is waited for train until it."""
        there = [(reference, reference()) for reference in self._live]
        self._live = [reference for reference, network in there if network is not None]
        due = [network for _, network in there if network is not None and network.due]
        for i, padded in enumerate(PADDED):
            least = PADDED[i - 1] if i else 0
            own = [n for n in due if least < n.plan.batch <= padded]
            for begin in range(0, len(own), SLOTS):
                self._stretch(own[begin : begin + SLOTS], padded)

    @torch.no_grad()
    def _stretch(self, networks: Sequence[Network], padded: int) -> None:
        flat, velocity = (
            _slots([getattr(n, name) for n in networks]) for name in ("flat", "velocity")
        )
        counts = [n.plan.stops[len(n.found)] - n.steps for n in networks]
        rows = _rows(networks, counts, padded)
        settings = torch.from_numpy(_settings(networks, counts))
        wanted = _wanted(networks, padded)
        for row, setting in zip(torch.from_numpy(rows), settings, strict=True):
            batch = (self.data.inputs[row], self._classes[self.data.targets[row]] * wanted)
            flat, velocity = self._step(flat, velocity, batch, setting)
        found = self._measure(flat, self.data.checks, self.data.answers).tolist()
        for slot, network in enumerate(networks):
            network.flat, network.velocity = flat[slot].clone(), velocity[slot].clone()
            network.found.append(found[slot])
        self.steps_made += sum(counts)


def _slots(own: Sequence[Tensor]) -> Tensor:
    """Stacked, and filled up with zeros to the constant count of slots."""
    return torch.stack([*own, *([torch.zeros_like(own[0])] * (SLOTS - len(own)))])


def _rows(networks: Sequence[Network], counts: Sequence[int], padded: int) -> np.ndarray:
    """The samples of each step, (steps, slots, padded)."""
    rows = np.zeros((max(counts), SLOTS, padded), dtype=np.int64)
    for slot, (network, count) in enumerate(zip(networks, counts, strict=True)):
        for step in range(count):
            rows[step, slot, : network.plan.batch] = next(network.order)
    return rows


def _wanted(networks: Sequence[Network], padded: int) -> Tensor:
    """Minus each sample's part in its network's mean loss, (slots, padded, 1)."""
    parts = torch.zeros(SLOTS, padded, 1)
    for slot, network in enumerate(networks):
        parts[slot, : network.plan.batch] = -1 / network.plan.batch
    return parts


def _settings(networks: Sequence[Network], counts: Sequence[int]) -> np.ndarray:
    """Of each step and slot: rate, momentum, decay, trust, whether it acts, beta2, its number."""
    settings = np.zeros((max(counts), SLOTS, 7), dtype=np.float32)
    for slot, (network, count) in enumerate(zip(networks, counts, strict=True)):
        plan, begin = network.plan, network.steps
        settings[:count, slot, 0] = plan.rates[begin : begin + count]
        settings[:count, slot, 1:6] = plan.momentum, plan.decay, plan.trust, 1.0, plan.beta2
        settings[:count, slot, 6] = np.arange(begin + 1, begin + count + 1)
    return settings


@dataclass(frozen=True)
class _Reading(Mapping[str, float]):
    farm: Farm
    network: Network
    milestone: int

    def __getitem__(self, name: str) -> float:
        if name == PROGRESS:  # of the schedule: known without training
            plan = self.network.plan
            return min(plan.stops[self.milestone] / plan.horizon, 1.0)
        if name not in METRICS:
            raise KeyError(name)
        return self.farm.measured(self.network, self.milestone)[METRICS.index(name)]

    def __iter__(self) -> Iterator[str]:
        return iter((*METRICS, PROGRESS))

    def __len__(self) -> int:
        return len(METRICS) + 1
