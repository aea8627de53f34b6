"""Modules that were loaded from a recipe's file, so that no import by name finds them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from autotune.errors import UserError
from autotune.trial.trainer import function_of

FILE_PREFIX = "autotune_recipe_"


def is_recipe_file(module: ModuleType) -> bool:
    """Whether the module was loaded from a recipe's path, so that no import by name finds it."""
    return module.__name__.startswith(FILE_PREFIX)


def pickled(train: Callable[[dict[str, Any]], Any], cloudpickle: Any) -> bytes:
    """Serialize the trainer for the workers: a recipe file's module by value, others by name.

    Args:
        train: the trainer.
        cloudpickle: the module, or Ray's copy of it, which knows Ray's own objects.

    Raises:
        UserError: it cannot be serialized.
    """
    module = sys.modules.get(function_of(train).__module__)
    if module is not None and is_recipe_file(module):
        cloudpickle.register_pickle_by_value(module)
    try:
        made: bytes = cloudpickle.dumps(train)
    except Exception as error:
        raise UserError(f"the trainer cannot be sent to workers: {error}") from None
    return made
