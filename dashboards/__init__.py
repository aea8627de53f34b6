"""Reports of studies: tables from trials, figures from tables, and one HTML file from figures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dashboards.report import write_comparison, write_study

__all__ = ["write_comparison", "write_study"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from dashboards import report

        return getattr(report, name)
    raise AttributeError(f"module 'dashboards' has no attribute {name!r}")
