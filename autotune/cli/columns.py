"""Tables that fit a terminal: what matters least is cut first, or goes on in a second line."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size

from autotune.trial.plain_text import plain_text

_GAP, _INDENT = "  ", " " * 6
END, MIDDLE = "end", "middle"
_LEAST_HEAD, _LEAST_CUT, _READABLE = 8, 10, 20  # columns of heads, and of cells that are cut
_LAST_ALONE, _LAST_FOLDED = 32, 40  # columns that the last one needs beside the others


@dataclass(frozen=True)
class Column:
    """A column: its head, whether it is aligned to the right, and what of its cells may be cut.

    `cut` is `END`, `MIDDLE` (the end of a name says most), or empty for nothing.
    """

    head: str
    right: bool = False
    cut: str = ""


def table(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int, lines: int = 2
) -> list[tuple[str, ...]]:
    """The head and then each row, in at most so many lines of at most `width` columns.

    The last column has what the others leave. With two lines to a row it is folded there or, where
    they leave little, has the second line to itself. Then cells of columns that may be cut are cut,
    and heads. A terminal of very few columns gets longer lines.
    """
    rows = [[" ".join(plain_text(cell).split("\n")) for cell in row] for row in rows]
    fixed = columns[:-1]
    longest = max((cell_len(row[-1]) for row in rows), default=0)
    kept = min(longest, _LAST_ALONE) + len(_GAP) if lines == 1 else 0
    widths = _widths(fixed, rows, width - kept)
    left = width - sum(widths) - len(_GAP) * len(widths)
    beside = lines == 1 or left >= max(min(longest, _LAST_FOLDED), 1)
    heads = [column.head for column in columns]
    made: list[tuple[str, ...]] = [(_aligned(fixed, heads if beside else heads[:-1], widths),)]
    for row in rows:
        if not beside:
            below = cut(row[-1], width - len(_INDENT))
            first = _aligned(fixed, row[:-1], widths)
            made.append((first, f"{_INDENT}{below}") if below else (first,))
            continue
        first_part, *more = _folded(row[-1], left, lines)
        before = " " * (width - left)
        first = _aligned(fixed, [*row[:-1], first_part], widths)
        made.append((first, *(f"{before}{part}" for part in more)))
    return made


def cut(text: str, width: int, what: str = END) -> str:
    """`text` in at most so many columns of a terminal, its end or middle left out.

    >>> cut("configuration", 8), cut("configuration", 8, MIDDLE), cut("short", 8)
    ('configu…', 'con…tion', 'short')
    """
    if cell_len(text) <= width:
        return text
    if what == MIDDLE:
        head = (width - 1) // 2
        tail = width - 1 - head
        while cell_len(text[len(text) - tail :]) > width - 1 - head:
            tail -= 1
        return f"{set_cell_size(text, head).rstrip()}…{text[len(text) - tail :]}"
    return f"{set_cell_size(text, max(width - 1, 0)).rstrip()}…"


def _widths(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> list[int]:
    """How wide the columns are: as their cells, as their heads if there is room."""
    content = [max((cell_len(row[i]) for row in rows), default=0) for i in range(len(columns))]
    heads = [cell_len(column.head) for column in columns]
    room = width - len(_GAP) * (len(columns) - 1)
    made = [max(pair) for pair in zip(content, heads, strict=True)]
    made = _narrowed(columns, made, room, _READABLE)
    if sum(made) > room:
        made = [max(min(w, c), min(w, _LEAST_HEAD)) for w, c in zip(made, content, strict=True)]
    return _narrowed(columns, made, room, _LEAST_CUT)


def _narrowed(columns: Sequence[Column], widths: Sequence[int], room: int, least: int) -> list[int]:
    """The widths, those of columns that may be cut made less, down to `least`, if need be."""
    made = list(widths)
    for i, column in enumerate(columns):
        if column.cut and sum(made) > room:
            made[i] = max(min(made[i], least), made[i] - (sum(made) - room))
    return made


def _aligned(columns: Sequence[Column], cells: Sequence[str], widths: Sequence[int]) -> str:
    made = []
    for column, cell, width in zip(columns, cells, widths, strict=False):
        text = cut(cell, width, column.cut or END)
        space = " " * (width - cell_len(text))
        made.append(f"{space}{text}" if column.right else f"{text}{space}")
    return _GAP.join([*made, *cells[len(columns) :]]).rstrip()


def _folded(text: str, width: int, lines: int) -> list[str]:
    """The text in at most so many lines, broken between words; its end is left out."""
    if lines == 1:
        return [cut(text, width)]
    parts = textwrap.wrap(text, width, max_lines=lines, placeholder=" …", break_on_hyphens=False)
    return [cut(part, width) for part in parts] or [""]
