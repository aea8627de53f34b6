"""autotune finds the configuration and the schedules that reach a target accuracy soonest.

Importing this package is light: Ray, Optuna, MLflow and torch are loaded when they are needed. The
public names are listed once, in `__init__.pyi`.
"""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
