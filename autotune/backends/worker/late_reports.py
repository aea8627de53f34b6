"""Reports of trainers that validate beside training: `evaluate` has returned a future.

While the metrics of a milestone are computed, training goes on to the next one. There the rank
answers with the report of the milestone before: its step, its clock, and the state that was kept
of it. So what the driver knows of a trial is what it would know without, one milestone later.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

from autotune.backends.worker.messages import Answer
from autotune.backends.worker.reported import evaluated


@dataclass(frozen=True)
class Awaited:
    """A milestone whose metrics are still to come.

    Args:
        answer: the rank's answer but for the metrics.
        metrics: what `evaluate` returned.
        state: a copy of the milestone's state; None if it has none.
    """

    answer: Answer
    metrics: Future[Any]
    state: Mapping[str, Any] | None


@dataclass
class Later:
    """The reports of a trial whose metrics come later than their milestones.

    Attributes:
        awaited: the milestone whose metrics are still to come.
        reported: the one before, while the rank waits for the decision on it.
    """

    awaited: Awaited | None = None
    reported: Awaited | None = None

    def take(self, ahead: int | None) -> Answer | None:
        """Wait for the metrics that are still to come; None where none are.

        Args:
            ahead: the step at which the ranks are now; None once the trainer has ended.
        """
        if self.awaited is None:
            return None
        metrics = evaluated(self.awaited.metrics.result())
        self.reported, self.awaited = self.awaited, None
        return replace(self.reported.answer, metrics=metrics, ahead=ahead)


def promised(found: object) -> Future[Any]:
    """What `evaluate` returned as a future, also after others where it is no future itself."""
    if isinstance(found, Future):
        return found
    done: Future[Any] = Future()
    done.set_result(found)
    return done
