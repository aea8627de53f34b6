"""Samplers propose the next configuration; the protocol between a study and its sampler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from autotune.trial import Params, Trial


class Sampler(Protocol):
    """Proposes points of a search space. Called from one thread, never from the study's loop."""

    def ask(self, number: int, trials: Sequence[Trial]) -> Params | None:
        """A point, given all `trials` so far, ended and running.

        `number` counts the asks of a study: it grows from ask to ask and is never below the number
        of trials, so that it can seed a draw. A trial's own number is given later, when it is
        written down; the ask that its point came from is its `ask_number`.

        A sampler keeps no results but those in `trials`, so a resumed study needs nothing but its
        journal. None when there is nothing left to propose.
        """
        ...
