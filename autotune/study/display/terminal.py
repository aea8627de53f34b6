"""A terminal on which a live display and what others print do not get into each other."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.live import Live


class Terminal(Console):
    """A console that is one thread's from the first character of a print to the last one's flush.

    A `Live` redraws on a thread of its own: it goes back over the lines of its last drawing. Where
    that thread draws between another one's computing of those lines and its writing, each goes
    back over the other's, and a line of the table stays on the screen.
    """

    def __init__(self, **settings: Any) -> None:
        self._whole = threading.RLock()
        super().__init__(**settings)

    def draws_with(self, live: Live) -> None:
        """Take the lock under which the display draws: with two, each may wait for the other."""
        self._whole = live._lock

    def __enter__(self) -> Terminal:
        self._whole.acquire()
        super().__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            super().__exit__(kind, error, trace)
        finally:
            self._whole.release()
