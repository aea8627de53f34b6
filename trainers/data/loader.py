"""The processes of a rank that decode the images of a folder ahead of training.

| key | value (default) |
|---|---|
| `loader_workers` | processes a rank; 0: none, images are decoded between steps (4) |
| `prefetch_factor` | batches that each of them decodes ahead (2) |

Batches do not depend on either.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from trainers.readers import whole
from trainers.technique import Knob, When

_WHERE = When(
    "data 'folder' and loader_workers at least 1",
    lambda values: values["data"] == "folder" and values["loader_workers"] > 0,
)
KNOBS: Mapping[str, Knob] = {
    "loader_workers": Knob(4, whole(0), "exact", memory=False),
    "prefetch_factor": Knob(2, whole(1), "exact", _WHERE, memory=False),
}


def loaded(
    pictures: Dataset[Any], batches: Iterable[Any], workers: int, prefetch: int, pinned: bool
) -> DataLoader[Any]:
    """The loader of a rank's batches, whose processes stay for further passes.

    They are forked where the data is in memory that they share; a fork is torch's default on Linux
    up to Python 3.13 anyway.

    Args:
        batches: the keys of each batch.
        workers, prefetch: as the keys of the configuration.
        pinned: whether batches are in memory from which a GPU copies while it computes.
    """
    ahead: dict[str, Any] = {}
    if workers > 0:
        ahead = {"prefetch_factor": prefetch, "multiprocessing_context": "fork"}
    return DataLoader(
        pictures,
        batch_sampler=batches,
        num_workers=workers,
        persistent_workers=workers > 0,
        pin_memory=pinned,
        generator=torch.Generator(),  # else the global generator gives the base seed
        **ahead,
    )
