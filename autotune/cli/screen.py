"""Where tables are printed: a terminal of some width, a pipe, a file."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TextIO

from rich.console import Console
from rich.text import Text

from autotune.trial.plain_text import plain_text

PIPED = 160  # columns where the output is no terminal


@dataclass(frozen=True)
class Screen:
    """An output with its number of columns; colours are for terminals only."""

    console: Console
    width: int

    def lines(self, lines: Iterable[str], style: str = "") -> None:
        """Print lines, however long they are; what is in them is no markup."""
        for line in lines:
            self.console.print(Text(plain_text(line), style), soft_wrap=True)

    def paragraph(self, text: str) -> None:
        """Print text, broken between words; a word that is too long stays whole."""
        self.lines(textwrap.wrap(text, self.width, break_long_words=False, break_on_hyphens=False))


def screen(out: TextIO) -> Screen:
    """The output as a screen."""
    console = Console(file=out, markup=False, emoji=False, highlight=False)
    return Screen(console, width_of(out))


def width_of(out: TextIO) -> int:
    """The columns of the terminal that `out` writes to, or `PIPED`; `COLUMNS` overrides it."""
    if not out.isatty():
        return PIPED
    said = os.environ.get("COLUMNS", "")
    if said.isdecimal() and int(said):
        return int(said)
    try:
        return os.get_terminal_size(out.fileno()).columns or 80
    except (OSError, ValueError):
        return 80
