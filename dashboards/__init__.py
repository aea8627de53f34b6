"""Reports of studies: tables from trials, figures from tables, and one HTML file from figures."""

from __future__ import annotations

from dashboards.report import write_study

__all__ = ["write_study"]
