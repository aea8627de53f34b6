"""The area under the ROC curve, exactly: how well scores order clicks before the rest."""

from __future__ import annotations

import torch
from torch import Tensor


def auc(scores: Tensor, labels: Tensor) -> float:
    """The share of pairs of a click and a sample without one in which the click has more.

    Pairs of equal scores count half (the statistic of Mann and Whitney 1947); O(N log N).

    Args:
        scores: (N,), any numbers.
        labels: (N,), 1 for a click, else 0.

    Returns:
        a number in [0, 1]; nan where all labels are equal.

    >>> auc(torch.tensor([0.1, 0.4, 0.4, 0.8]), torch.tensor([0, 1, 0, 1]))
    0.875
    """
    clicks = labels.double()
    _, place, counts = torch.unique(scores, return_inverse=True, return_counts=True)
    last = counts.cumsum(0).double()
    rank = last - (counts.double() - 1) / 2  # the mean of the ranks, from 1 on, of equal scores
    positive, total = clicks.sum(), len(clicks)
    above = (rank[place] * clicks).sum() - positive * (positive + 1) / 2
    return float(above / (positive * (total - positive)))
