"""The live table on a pseudo-terminal, as the terminal's screen holds it: compared with files."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import snapshots
from terminals import screens, text

SUPPORT = Path(__file__).parents[2] / "support"
SNAPSHOTS = Path(__file__).parent / "snapshots"


@pytest.mark.parametrize("columns", [80, 140])
def test_the_live_table_on_a_terminal(columns: int) -> None:
    command = [sys.executable, str(SUPPORT / "shown_study.py")]
    parts = []
    for screen in screens(command, 30, columns):
        parts.append(f"{f' {screen.title} ':-^{columns}}\n{text(screen)}\n")
    assert len(parts) == 5
    snapshots.check("\n".join(parts[:4]), SNAPSHOTS / f"terminal-{columns}.txt")


def test_a_screen_holds_nothing_that_was_written_after_its_title() -> None:
    """Also where both are read at once, as on a busy machine."""
    written = "before \\x1b]0;one\\x07after \\x1b]0;two\\x07"
    program = f"import os; os.write(1, b'{written}'); input(); input()"
    seen = [(s.title, text(s)) for s in screens([sys.executable, "-c", program], 3, 40)]
    assert seen == [("one", "before"), ("two", "before after"), ("", "before after")]
