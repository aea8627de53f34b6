"""Local SGD: every rank makes steps of its own, and weights are averaged every few of them.

Stich 2019, arXiv 1805.09767. After some steps with averaged gradients it is post-local SGD: Lin et
al. 2020, arXiv 1808.07217. Momenta stay local: the mean of the weights is then that of SGD with the
mean of the gradients, as long as gradients are taken at the same weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from autotune.schedules import as_schedule
from trainers.communication.copies import Copies, Every
from trainers.readers import Schedule, counted, whole
from trainers.technique import Knob, when

_CHOSEN = when("synchronization", "local_sgd")
KNOBS: Mapping[str, Knob] = {
    "local_sgd_period": Knob(as_schedule(8), counted(1), "both", _CHOSEN, memory=False),
    "local_sgd_start": Knob(0, whole(0), "both", _CHOSEN, memory=False),
}


class LocalSGD:
    """Averages weights every few steps.

    Args:
        period: steps from one averaging to the next, a schedule.
        start: steps with averaged gradients before.
    """

    def __init__(self, copies: Copies, period: Schedule, start: int) -> None:
        self._copies, self._every, self._start = copies, Every(period), start
        self._steps = start  # a warm-up begins with what comes after

    def at(self, progress: float) -> None:
        self._every.at(progress)

    def gradients(self) -> bool:
        if self._steps < self._start:
            self._copies.set_gradients(self._copies.mean(self._copies.gradients()))
        return True

    def stepped(self) -> None:
        self._steps += 1
        if self._steps > self._start and self._every.next():
            self._copies.set(self.whole())

    def arrived(self) -> None: ...

    def whole(self) -> Tensor:
        return self._copies.mean(self._copies.weights())

    def restart(self) -> None:
        self._steps = 0
        self._every.restart()

    def metrics(self) -> dict[str, float]:
        return {}

    def shared(self) -> dict[str, Any]:
        return {"steps": self._steps}

    def own(self) -> dict[str, Any]:
        return {"since": self._every.since}

    def restore(self, shared: dict[str, Any], own: dict[str, Any] | None) -> None:
        self._steps = shared["steps"]
        if own is not None:
            self._every.restart(own["since"])
