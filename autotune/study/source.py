"""Where a study's trainer is from: a checksum of its source, and the script that began it.

With the checksum a changed trainer is seen; with the script a study says how to go on with it.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from autotune.trial.trainer import function_of


def checksum(train: Any) -> str | None:
    """A checksum of the trainer's source, and of what it uses of its module; None if unknown.

    Comments and layout do not count, nor does what it imports. A trainer with a text `source` says
    by itself what it is.
    """
    own = getattr(train, "source", None)
    if isinstance(own, str):
        return own
    definition = _definition(train)
    tree = _tree(definition)
    if tree is None or getattr(definition, "__name__", "") == "<lambda>":  # its line has more
        return None
    known = {name: node for node in _top_level(definition) for name in _bound(node)}
    texts: dict[str, str] = {}
    waiting: list[tuple[str, ast.AST]] = [("", tree)]
    while waiting:
        name, node = waiting.pop()
        texts[name] = ast.unparse(node)
        waiting += [(n, known[n]) for n in _used(node) if n in known and n not in texts]
    parts = "\n".join(text for _, text in sorted(texts.items()))
    return hashlib.sha256(parts.encode()).hexdigest()


def name(train: Any) -> str:
    """The module and the qualified name of a trainer; `functools.?` of a partial one.

    What a partial trainer wraps is another trainer: it lacks the arguments.
    """
    return f"{train.__module__}.{getattr(train, '__qualname__', '?')}"


def script() -> str | None:
    """The Python file that this process runs; None in a notebook, or where it is a module's."""
    file = getattr(sys.modules["__main__"], "__file__", None)
    path = Path(file) if isinstance(file, str) else None
    if path is None or path.suffix != ".py" or path.name == "__main__.py":
        return None
    return str(path.absolute())


def _definition(train: Any) -> Any:
    """The function or class that a trainer was defined as."""
    train = inspect.unwrap(function_of(train))
    if inspect.ismethod(train):
        return train.__func__
    return train if inspect.isfunction(train) or inspect.isclass(train) else type(train)


def _tree(definition: Any) -> ast.Module | None:
    """The source as a tree, if it can be read."""
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(definition)))
    except (OSError, TypeError, SyntaxError, ValueError, IndexError):
        return None


def _top_level(definition: Any) -> list[ast.stmt]:
    module = inspect.getmodule(definition)
    tree = _tree(module) if module is not None else None
    return tree.body if tree is not None else []


def _bound(node: ast.stmt) -> Iterator[str]:
    """The names that a statement of a module defines, but for imported ones."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            yield node.name
        case ast.Assign() | ast.AnnAssign():
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name))


def _used(tree: ast.AST) -> set[str]:
    """The names that a piece of source reads, and neither sets nor takes as an argument."""
    nodes = [*ast.walk(tree)]
    names = [n for n in nodes if isinstance(n, ast.Name)]
    own = {n.id for n in names if not isinstance(n.ctx, ast.Load)}
    own |= {n.arg for n in nodes if isinstance(n, ast.arg)}
    return {n.id for n in names if isinstance(n.ctx, ast.Load)} - own
