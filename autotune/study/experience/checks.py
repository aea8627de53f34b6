"""What each value of a summary may be."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from autotune.errors import shown
from autotune.storage.manifest import STUDY_NAME
from autotune.trial.checks import is_finite

MARKS_KEPT = 12  # at which format 1 has curves
LARGEST = 1e30  # of numbers
_LONGEST = 500  # of texts, in characters
_HEX = re.compile(r"[0-9a-f]{32}")


def require(name: str, needed: str, right: bool, value: Any) -> None:
    if not right:
        raise ValueError(f"{name} must be {needed} but got {shown(value)}")


def is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= _LONGEST


def is_name(value: Any) -> bool:
    return isinstance(value, str) and STUDY_NAME.fullmatch(value) is not None


def is_id(value: Any) -> bool:
    return isinstance(value, str) and _HEX.fullmatch(value) is not None


def is_point(value: Any) -> bool:
    """Whether it is a dict of numbers, truth values, short texts and None."""
    if not isinstance(value, Mapping):
        return False
    return all(map(is_text, value)) and all(map(is_plain, value.values()))


def is_plain(value: Any) -> bool:
    return value is None or isinstance(value, bool) or is_text(value) or is_number(value)


def is_number(value: Any) -> bool:
    """Whether it is one that models of 32-bit numbers can take, on any scale."""
    return is_finite(value) and abs(value) <= LARGEST


def is_time(value: Any) -> bool:
    return value is None or (is_number(value) and value > 0)


def is_end(value: Any) -> bool:
    return is_number(value) and value >= 0


def is_curve(value: Any) -> bool:
    if not isinstance(value, list | tuple) or len(value) != MARKS_KEPT:
        return False
    return all(v is None or is_number(v) for v in value)


COLUMNS: Mapping[str, Callable[[Any], bool]] = {
    "points": is_point,
    "times": is_time,
    "ended": is_end,
    "curves": is_curve,
}
WHAT = {
    "points": "a dict of plain values",
    "times": "null or a number above 0",
    "ended": "a number >= 0",
    "curves": f"a list of {MARKS_KEPT} numbers or nulls",
}
