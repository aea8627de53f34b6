"""Errors that are too long for a line of the journal: head and tail there, the whole in a file."""

from __future__ import annotations

from pathlib import Path

from autotune.storage import atomic
from autotune.trial.plain_text import shortened

ERRORS = "errors"  # the folder of these files in a study folder
LONGEST = 40_000  # characters that a line keeps


def kept(folder: Path, name: str, text: str) -> str:
    """`text` as the journal keeps it; a long one is written whole to `FOLDER/errors/NAME.txt`."""
    if len(text) <= LONGEST:
        return text
    where = f"; all of it is in {ERRORS}/{name}.txt"
    try:
        (folder / ERRORS).mkdir(exist_ok=True)
        atomic.write(folder / ERRORS / f"{name}.txt", text)
    except OSError as error:  # the study goes on without it
        where = f", as {ERRORS}/{name}.txt cannot be written: {error.strerror}"
    return shortened(text, LONGEST, where)
