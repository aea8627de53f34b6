"""Retrieval: how often the nearest other image is one of the same identity.

Song et al. 2016, arXiv 1511.06452, section 6: every image is looked up among all others.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trainers.data.stream import NO_LABEL
from trainers.parallel.classes import everyone
from trainers.parallel.ranks import Ranks

AT_ONCE = 1024  # images that are looked up in one product


@torch.no_grad()
def recall_at_1(features: Tensor, labels: Tensor, ranks: Ranks) -> float:
    """The share of all ranks' images whose nearest other one has the same label; collective.

    Args:
        features: (images, width) of this rank, of length 1: the nearest has the largest cosine.
        labels: int64 (images,).

    >>> alone = Ranks(0, 1, torch.device("cpu"))
    >>> x = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0], [0.6, 0.8]])
    >>> recall_at_1(x, torch.tensor([0, 0, 1, 0]), alone)
    0.5
    """
    every, known = everyone(features, labels, ranks)
    begin = ranks.rank * (len(known) // ranks.size)
    right = torch.zeros((), dtype=torch.float64, device=features.device)
    for low in range(0, len(labels), AT_ONCE):
        own = slice(low, low + AT_ONCE)
        cosines = features[own] @ every.T
        cosines.masked_fill_(known == NO_LABEL, -torch.inf)
        places = torch.arange(len(cosines), device=features.device)
        cosines[places, begin + low + places] = -torch.inf  # itself
        right += (known[cosines.argmax(1)] == labels[own]).sum()
    count = torch.tensor(float(len(labels)), dtype=torch.float64, device=features.device)
    found = ranks.sum(torch.stack([right, count]))
    return (found[0] / found[1]).item()
