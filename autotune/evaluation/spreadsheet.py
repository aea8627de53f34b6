"""Rows as CSV, which a spreadsheet opens without taking any text for a formula."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from autotune.errors import UserError
from autotune.trial.plain_text import plain_text

_FORMULA = ("=", "+", "-", "@", "\t")  # what spreadsheets compute, not show, if a cell begins so


def write(rows: Sequence[Mapping[str, Any]], out: TextIO) -> None:
    """A line with the names of the columns, and one for each row; unknown values are empty cells.

    Args:
        rows: at least one; all have the same columns.
        out: opened with `newline=""`, if it is a file.
    """
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([cell(name) for name in rows[0]])
    writer.writerows([cell(value) for value in row.values()] for row in rows)


def write_file(rows: Sequence[Mapping[str, Any]], file: Path) -> None:
    """`write` into a file.

    Raises:
        UserError: the file cannot be written.
    """
    try:
        with file.open("w", newline="", encoding="utf-8") as out:
            write(rows, out)
    except OSError as error:
        raise UserError(f"cannot write {file}: {error.strerror or error}") from None


def cell(value: Any) -> Any:
    """A value for a cell: lists and dicts as JSON, text without control characters.

    Text that a spreadsheet would compute (it begins with = + - @ and is no number) gets an
    apostrophe in front, as spreadsheets themselves mark text.

    >>> [cell(value) for value in (None, -1.5, "-1.5", "=1+1", "-O3", [1, "a"])]
    [None, -1.5, '-1.5', "'=1+1", "'-O3", '[1, "a"]']
    """
    if isinstance(value, list | tuple | dict):
        value = json.dumps(value)
    if not isinstance(value, str):
        return value
    text = plain_text(value)
    return f"'{text}" if text.startswith(_FORMULA) and not _is_number(text) else text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
