"""Texts that are compared with files; `RENEW_SNAPSHOTS=1` writes the files in place of that."""

from __future__ import annotations

import os
from pathlib import Path


def check(text: str, file: Path) -> None:
    """Check that a text is as its file has it; spaces at the ends of lines do not count."""
    found = "".join(f"{line.rstrip()}\n" for line in text.rstrip().splitlines())
    if os.environ.get("RENEW_SNAPSHOTS"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(found)
    assert found == file.read_text(), f"{file.name}: as it should be? RENEW_SNAPSHOTS=1 writes it"
