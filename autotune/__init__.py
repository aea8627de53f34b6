"""autotune finds the configuration and the schedules that reach a target accuracy soonest.

Importing this package is light: Ray, Optuna, MLflow and torch are loaded when they are needed. The
public names are listed once, in `__init__.pyi`.
"""

from __future__ import annotations

from typing import Any

import lazy_loader

_public, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from autotune.study.versions import version_of

        return version_of("autotune") or "unknown"
    return _public(name)
