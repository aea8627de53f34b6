"""Geo-SGD: what ranks have changed is exchanged in the background, and merged some steps later.

All ranks know the global weights G. Every few steps a rank pushes w - G, what it has changed since
the last push, and trains on. When the mean D of what all have pushed arrives, G becomes G + D, and
the rank's weights G plus what it has changed since the push. They arrive exactly so many steps
later, which all ranks know: a training can be repeated. As the mode `geo` of the parameter servers
of Paddle's Fleet, which merges when it happens to arrive; the method is that of elastic averages:
Zhang et al. 2015, arXiv 1412.6651.

Without delay, G + D is the mean of the ranks' weights, and the same as local SGD. With it, a merge
does not change the mean over the ranks, which is evaluated and saved.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from autotune.schedules import as_schedule
from trainers.communication.copies import Copies, Every, Sending
from trainers.readers import Schedule, counted, require, whole
from trainers.technique import Knob, when

_CHOSEN = when("synchronization", "geo_sgd")
KNOBS: Mapping[str, Knob] = {
    "geo_sgd_period": Knob(as_schedule(8), counted(1), "both", _CHOSEN, memory=False),
    "geo_sgd_delay": Knob(1, whole(0), "both", _CHOSEN, memory=False),
}


def check(period: Schedule, delay: int) -> None:
    """Raise a ValueError for a push that would begin before the last one is merged."""
    rule = f"at least geo_sgd_delay, {delay}"
    require("geo_sgd_period", period, rule, lambda value: round(value) >= delay)


class GeoSGD:
    """Exchanges changes in the background.

    Args:
        period: steps from one push to the next, a schedule.
        delay: steps from a push to its merge, at most the period.
    """

    def __init__(self, copies: Copies, period: Schedule, delay: int) -> None:
        self._copies, self._every, self._delay = copies, Every(period), delay
        self._begin()

    def _begin(self) -> None:
        self._weights = self._copies.weights()
        self._pushed: Tensor | None = None
        self._sending: Sending | None = None
        self._age, self._ages = 0, list[int]()

    def at(self, progress: float) -> None:
        self._every.at(progress)

    def gradients(self) -> bool:
        return True

    def stepped(self) -> None:
        self._age += 1
        if self._sending is not None and self._age >= self._delay:
            self._merge()
        if self._every.next():
            self._pushed = self._copies.weights()
            self._sending = self._copies.begin_mean(self._pushed - self._weights)
            self._age = 0
            if not self._delay:
                self._merge()

    def _merge(self) -> None:
        assert self._sending is not None
        assert self._pushed is not None
        self._weights.add_(self._sending.mean())
        since = self._copies.weights().sub_(self._pushed)
        self._copies.set(since.add_(self._weights))  # G to the last bit, where it is 0
        self._sending = self._pushed = None
        self._ages.append(self._age)

    def arrived(self) -> None:
        if self._sending is not None:
            self._sending.mean()

    def whole(self) -> Tensor:
        return self._copies.mean(self._copies.weights())

    def restart(self) -> None:
        self._begin()
        self._every.restart()

    def metrics(self) -> dict[str, float]:
        """`staleness`: steps from a push to its merge, the mean."""
        ages, self._ages = self._ages, []
        return {"staleness": sum(ages) / len(ages)} if ages else {}

    def shared(self) -> dict[str, Any]:
        return {}

    def own(self) -> dict[str, Any]:
        found: dict[str, Any] = {"since": self._every.since, "global": self._weights}
        if self._sending is not None:
            found |= {"pushed": self._pushed, "mean": self._sending.mean(), "age": self._age}
        return found

    def restore(self, shared: dict[str, Any], own: dict[str, Any] | None) -> None:
        if own is None:
            return
        self._every.restart(own["since"])
        self._weights.copy_(own["global"])
        if "mean" in own:
            device = self._weights.device
            self._pushed, self._age = own["pushed"].to(device, copy=True), own["age"]
            self._sending = Sending(own["mean"].to(device, copy=True))
