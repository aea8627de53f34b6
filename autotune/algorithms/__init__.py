"""Decisions as functions of trials: samplers, pruners, controllers, ranking."""

from __future__ import annotations

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__, ["controllers", "pruners", "ranking", "samplers", "specs"]
)
