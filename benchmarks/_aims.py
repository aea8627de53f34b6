"""What a benchmark aims at: printed, and judged by its exit code."""

from __future__ import annotations

from collections.abc import Iterable

Judged = tuple[bool, str]
"""Whether an aim is met, and its sentence with the figure."""


def exit_code(judged: Iterable[Judged]) -> int:
    """Print each aim; 1 if one is missed."""
    code = 0
    for met, text in judged:
        print(f"{'met' if met else 'MISSED'}: {text}")
        code = code if met else 1
    return code
