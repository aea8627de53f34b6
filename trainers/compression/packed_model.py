"""A model that keeps its weights packed, so that its graph (`torch.export`) has few bytes, too."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn
from torch.func import functional_call

from trainers.compression.packed import Packed, unpack


class PackedModel(nn.Module):
    """A model for evaluation, whose weights are unpacked in every forward pass.

    Args:
        model: in evaluation mode; its own weights are not used.
        weights: all of them, as `trainers.compression.packed` packs them.
    """

    def __init__(self, model: nn.Module, weights: Mapping[str, Packed]) -> None:
        super().__init__()
        self._model = (model,)  # in a tuple, or its weights would be this module's, too
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._buffers_of: dict[str, dict[str, str]] = {}
        for i, (name, value) in enumerate(weights.items()):
            parts = {"values": value} if isinstance(value, Tensor) else dict(value)
            if "shape" in parts:
                self._shapes[name] = tuple(parts.pop("shape").tolist())
            self._buffers_of[name] = {part: f"{part}_{i}" for part in parts}
            for part, tensor in parts.items():
                self.register_buffer(f"{part}_{i}", tensor)

    def forward(self, x: Tensor) -> Tensor:
        weights = {}
        for name, buffers in self._buffers_of.items():
            found = {part: self.get_buffer(buffer) for part, buffer in buffers.items()}
            shape = self._shapes.get(name)
            weights[name] = found["values"] if shape is None else unpack(found, shape)
        scores: Tensor = functional_call(self._model[0], weights, (x,))
        return scores
