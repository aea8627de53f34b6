"""Parameters of a test of which some are in the larger tier only."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

import pytest


def rows(all_: Mapping[str, Any], quick: Container[str]) -> list[Any]:
    """Rows by name as parameters of a test; those that are not `quick` are slow.

    Args:
        all_: a value, or a tuple with one for each name of the parametrization.
    """
    return [
        pytest.param(
            *(row if isinstance(row, tuple) else (row,)),
            id=name,
            marks=[] if name in quick else pytest.mark.slow,
        )
        for name, row in all_.items()
    ]
