"""A plugin of coverage that saves what a process has run so far, again and again.

Ray's workers, and processes that tests kill, never come to their own end.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import Any

import coverage

_EVERY_SECONDS = 2.0


def coverage_init(registry: Any, options: dict[str, Any]) -> None:
    threading.Thread(target=_flush, name="coverage-flush", daemon=True).start()


def _flush() -> None:
    while True:
        time.sleep(_EVERY_SECONDS)
        current = coverage.Coverage.current()
        with contextlib.suppress(Exception):
            if current is not None:
                current.save()
