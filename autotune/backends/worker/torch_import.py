"""Torch in a rank's process: imported where the trainer needs it, and prepared whoever imports it.

A trainer that does not use torch should not pay for it: its import takes seconds and 200 MiB. One
that does must not pay for it on its first trial's clock.
"""

from __future__ import annotations

import importlib.abc
import inspect
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from autotune.trial.trainer import function_of

_NAME = "torch"


def mentions_torch(train: Callable[..., Any], pickled: bytes = b"") -> bool:
    """Whether a trainer, as it was pickled, or the source of its module names torch.

    So one that imports torch when it is called is recognized as well. One that has `uses_torch`, as
    a script, says it itself.
    """
    train = function_of(train)
    says = getattr(train, "uses_torch", None)
    if isinstance(says, bool):
        return says
    if _NAME.encode() in pickled:
        return True
    module = sys.modules.get(getattr(train, "__module__", None) or type(train).__module__)
    try:
        return module is not None and _NAME in inspect.getsource(module)
    except (OSError, TypeError):  # of an interactive session, say
        code = getattr(train, "__code__", None)
        return code is not None and _NAME in (*code.co_names, *code.co_consts)


def when_imported(prepare: Callable[[], None]) -> Callable[[], None]:
    """Call `prepare` once: now if torch is there, else right after somebody has imported it.

    Returns:
        what is to be called when it need not be prepared any more.
    """
    if _NAME in sys.modules:
        prepare()
        return lambda: None
    finder = _Finder(prepare)
    sys.meta_path.insert(0, finder)
    return finder.leave


class _Finder(importlib.abc.MetaPathFinder):
    """Finds torch as the others would, with a loader that calls `prepare` in the end."""

    def __init__(self, prepare: Callable[[], None]) -> None:
        self._prepare = prepare

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _NAME:
            return None
        after = sys.meta_path.index(self) + 1 if self in sys.meta_path else 0
        for finder in sys.meta_path[after:]:  # an earlier one of this class asks this one
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(fullname, path, target) if find is not None else None
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader, self._imported)
                return spec
        return None

    def leave(self) -> None:
        """Find nothing from now on, and prepare nothing."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def _imported(self) -> None:
        if self in sys.meta_path:
            self.leave()
            self._prepare()


class _Loader(importlib.abc.Loader):
    """Another loader, with something to do afterwards."""

    def __init__(self, loader: Any, imported: Callable[[], None]) -> None:
        self._loader, self._imported = loader, imported

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self._loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._imported()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
