"""autotune finds the configuration and the schedules that reach a target accuracy soonest.

Importing this package is light: Ray, Optuna, MLflow and torch are loaded when they are needed. The
public names are listed once, in `__init__.pyi`.
"""

from __future__ import annotations

from typing import Any

import lazy_loader

_public, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

_FOREIGN = {
    "categorical": "Choice",
    "integer": "Int",
    "loguniform": "Float",
    "quniform": "Float",
    "randint": "Int",
    "uniform": "Float",
}
"""Parameters of other libraries, by what they are called here."""


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from autotune.study.versions import version_of

        return version_of("autotune") or "unknown"
    if name not in __all__:
        raise AttributeError(_no_attribute(name))
    return _public(name)


def _no_attribute(name: str) -> str:
    """One line for a name that this package does not have, with the right one."""
    if name.startswith("_"):
        return f"module 'autotune' has no attribute {name!r}"
    from autotune.errors import unknown

    if near := _FOREIGN.get(name.lower()):
        return f"unknown autotune attribute {name!r}; did you mean {near!r}?"
    return unknown("autotune attribute", name, __all__)
