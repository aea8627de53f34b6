"""Comparison of times to a target: which configuration is fastest, by how much, and why.

`compare(candidates, baseline)` makes the table; `sources.py` reads candidates from study folders,
published runs and MLflow. `docs/cards/statistics.md` has a card for every statistic.
"""

from __future__ import annotations

from autotune.evaluation.comparison.model import (
    CONFIRMED,
    PUBLISHED,
    TERMS,
    TUNING,
    Aim,
    Candidate,
    Comparison,
    Interval,
    Row,
    Run,
    Survival,
    Terms,
)
from autotune.evaluation.comparison.table import compare

__all__ = [
    "CONFIRMED",
    "PUBLISHED",
    "TERMS",
    "TUNING",
    "Aim",
    "Candidate",
    "Comparison",
    "Interval",
    "Row",
    "Run",
    "Survival",
    "Terms",
    "compare",
]
