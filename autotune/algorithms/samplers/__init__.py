"""Who proposes the next configuration: the protocol between the study and a sampler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from autotune.trial import Params, Trial


class Sampler(Protocol):
    """Proposes points of a search space. Called from one thread, never from the study's loop."""

    def ask(self, number: int, trials: Sequence[Trial]) -> Params | None:
        """A point for trial `number`, in the light of all `trials` so far, ended and running.

        `trials` is the whole truth: a sampler keeps no other record of results, so a resumed
        study needs nothing but its journal. None when there is nothing left to propose.
        """
        ...
