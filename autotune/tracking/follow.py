"""Keep a tracking store up to date with a study until the study has ended."""

from __future__ import annotations

import time
from collections.abc import Callable

from autotune.tracking.sync import Copier

_POLL_SECONDS = 1.0
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.5, 10.0


def follow(
    copier: Copier,
    gone: Callable[[float], bool],
    patience_seconds: Callable[[], float],
    explain: Callable[[Exception], str],
) -> bool:
    """Copy until the driver has ended and all is written; False if patience ended before that.

    `gone(seconds)` waits for that time or until the driver has ended; it returns whether it has.
    """
    pause, reported, deadline = 0.0, "", float("inf")
    while True:
        over = gone(pause)
        if over and deadline == float("inf"):
            deadline = time.monotonic() + patience_seconds()
        try:
            copier.catch_up(over)
        except Exception as error:  # any error: the study continues, and the journal is complete
            copier.reset()
            reason = explain(error)
            copier.cursor.behind(reason)
            if not reported:
                pause = _SHORTEST_PAUSE / 2
            if reason != reported:
                copier.say(f"behind: {reason}")
            reported, pause = reason, min(2 * pause, _LONGEST_PAUSE)
            if time.monotonic() >= deadline:
                return False
            continue
        if reported:
            copier.say("caught up")
        if over:
            return True
        pause, reported = _POLL_SECONDS, ""
