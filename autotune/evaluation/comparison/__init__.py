"""Comparison of times to a target: which configuration is fastest, by how much, and why.

`compare(candidates, baseline)` makes the table; `sources.py` reads candidates from study folders,
published runs and MLflow. `docs/cards/statistics.md` has a card for every statistic.
"""

from __future__ import annotations

from autotune.evaluation.comparison.model import (
    CONDITIONS,
    CONFIRMED,
    PUBLISHED,
    TUNING,
    Candidate,
    ComparedTarget,
    Comparison,
    Conditions,
    Interval,
    Row,
    Run,
    Survival,
)
from autotune.evaluation.comparison.table import compare

__all__ = [
    "CONFIRMED",
    "PUBLISHED",
    "CONDITIONS",
    "TUNING",
    "ComparedTarget",
    "Candidate",
    "Comparison",
    "Interval",
    "Row",
    "Run",
    "Survival",
    "Conditions",
    "compare",
]
