"""The parts of one kind of training."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import nn

from trainers.compression.applied import Compression
from trainers.data.stream import Batch, Stream
from trainers.parallel.ranks import Ranks
from trainers.readers import Schedule

S = TypeVar("S", bound=Stream)
Outputs = Callable[[Iterable[Batch]], tuple[torch.Tensor, torch.Tensor]]
StepAt = Callable[[int], tuple[int, int]]


@dataclass(frozen=True)
class Task(Generic[S]):
    """The parts of one kind of training: its data, its model, and its scheduled size.

    Args:
        size_key: the key and the metric of an item's size.
        size: that size, a schedule; rounded to a whole number at every step.
        samples: samples in an item of a given size: 1 image, or the tokens of a sequence.
        stream: opens the data for these ranks' parts; its first argument gives batch size and size
            of the step after a number of samples, and may be called once training has started.
        model: builds the model for a stream, on the host, with torch's global generator.
        flops: of training per sample, for a model and an item's size; nan if not countable.
        layout: memory format of the model's input.
        dims: of the input of a model that have the item's size.
        further: more metrics of a validation, from a function for outputs and labels of batches.
        again: makes the task in another process, to evaluate models that were trained in this one.
        compression: of a model on its way to a device; it may change the model in place.
    """

    size_key: str
    size: Schedule
    samples: Callable[[int], int]
    stream: Callable[[StepAt, Ranks], S]
    model: Callable[[S], nn.Module]
    flops: Callable[[Any, int], float]
    layout: torch.memory_format = torch.contiguous_format
    dims: tuple[int, ...] = ()
    further: Callable[[S, Outputs], Mapping[str, float]] | None = None
    again: Callable[[], Task[S]] | None = None
    compression: Callable[[nn.Module, S, torch.device], Compression] | None = None
