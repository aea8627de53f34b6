"""Before confirmations: is the machine idle? Theirs are the times to quote."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from autotune.backends.machine_load import MachineLoad

_PAUSE_SECONDS = 5.0  # between two looks at the machine


@dataclass
class IdleWait:
    """Waits for an idle machine, for so many seconds in all, or only warns.

    Args:
        seconds: how long to wait; None to warn, once.
        look: what other processes use of the machine just now; None where that is not known.
        say: prints a line.
    """

    seconds: float | None
    look: Callable[[], MachineLoad] | None
    say: Callable[[str], None]
    pause: Callable[[float], object] = time.sleep

    def __call__(self, stopped: Callable[[], object]) -> None:
        """Come back when the machine is idle, when time is up, or when `stopped` says so."""
        load = self.look() if self.look is not None else None
        if self.look is None or load is None or not load.busy:
            return
        if self.seconds is None:
            self.say(f"{load}: confirmed times will not be an idle machine's (see --wait-idle)")
            self.look = None
            return
        self.say(f"{load}: confirming when it is idle, in {self.seconds:.0f} s at the latest")
        while load.busy and self.seconds > 0 and not stopped():
            step = min(_PAUSE_SECONDS, self.seconds)
            self.pause(step)
            self.seconds -= step
            load = self.look()
        if self.seconds <= 0:
            if load.busy:
                self.say(f"{load}: confirming all the same")
            self.look = None
