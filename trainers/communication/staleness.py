"""Gradients that are averaged while training goes on, and applied some steps later.

The mean of a step's gradients is begun when they are computed, and waited for s steps later: the
steps that it travels in are computed meanwhile. It is the stale synchronous parallel of Ho et al.
2013 (NeurIPS; bounds of its kind: Xing et al. 2015, arXiv 1512.09295), with every gradient exactly
at the bound, so that a training can be repeated. All ranks have equal weights all along. Nothing
has arrived in the first s steps, which change nothing; the last s gradients are never applied.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from trainers.communication.copies import Copies, Sending
from trainers.readers import whole
from trainers.technique import Knob, when

_CHOSEN = when("synchronization", "bounded_staleness")
KNOBS: Mapping[str, Knob] = {"staleness_bound": Knob(1, whole(0), "both", _CHOSEN)}


def sent(weights: int) -> float:
    """The bytes that a rank gives to sums in a step.

    Args:
        weights: bytes of the parameters.

    >>> sent(4000)
    4000.0
    """
    return float(weights)


class BoundedStaleness:
    """Applies averaged gradients late.

    Args:
        bound: s, in steps.
    """

    def __init__(self, copies: Copies, bound: int) -> None:
        self._copies, self._bound = copies, bound
        self.restart()
        nothing = ((-1, Sending(torch.zeros_like(copies.weights()))) for _ in range(bound))
        self._sending.extend(nothing)  # so a warm-up allocates what a step needs later

    def at(self, progress: float) -> None: ...

    def gradients(self) -> bool:
        self._sending.append((self._step, self._copies.begin_mean(self._copies.gradients())))
        self._step += 1
        if len(self._sending) <= self._bound:
            self._copies.no_gradients()
            return False
        computed, sending = self._sending.popleft()
        self._copies.set_gradients(sending.mean())
        self._ages.append(self._step - 1 - computed)
        return True

    def stepped(self) -> None: ...

    def arrived(self) -> None:
        for _, sending in self._sending:
            sending.mean()

    def whole(self) -> Tensor:
        return self._copies.weights()

    def restart(self) -> None:
        self._sending: deque[tuple[int, Sending]] = deque()
        self._step, self._ages = 0, list[int]()

    def metrics(self) -> dict[str, float]:
        """`staleness`: steps from the computation of a gradient to its step, the mean."""
        ages, self._ages = self._ages, []
        return {"staleness": sum(ages) / len(ages)} if ages else {}

    def shared(self) -> dict[str, Any]:
        sending = [{"step": step, "mean": sending.mean()} for step, sending in self._sending]
        return {"steps": self._step, "sending": sending}

    def own(self) -> dict[str, Any]:
        return {}

    def restore(self, shared: dict[str, Any], own: dict[str, Any] | None) -> None:
        self._step, device = shared["steps"], self._copies.ranks.device
        newest = shared["sending"][-self._bound :] if self._bound else []
        for one in newest:  # of a state with a larger bound the latest
            self._sending.append((one["step"], Sending(one["mean"].to(device, copy=True))))
