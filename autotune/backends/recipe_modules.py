"""Modules that were loaded from a recipe's file, so that no import by name finds them."""

from __future__ import annotations

from types import ModuleType

FILE_PREFIX = "autotune_recipe_"


def is_recipe_file(module: ModuleType) -> bool:
    """Whether the module was loaded from a recipe's path, so that no import by name finds it."""
    return module.__name__.startswith(FILE_PREFIX)
