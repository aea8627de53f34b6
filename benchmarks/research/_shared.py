"""What these scripts take from `_common.py`, which lies in the folder above."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

from _common import (
    Answer,
    Task,
    arguments,
    introduce,
    keep,
    measure,
    missing,
    repeats_of,
    serve,
    summary,
)
from _intervals import interval as bootstrap

__all__ = [
    "Answer",
    "Task",
    "arguments",
    "bootstrap",
    "introduce",
    "keep",
    "measure",
    "summary",
    "missing",
    "repeats_of",
    "serve",
]
