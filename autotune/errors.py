"""The errors that autotune raises on purpose, and how they name what was mistyped."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """A mistake of the user's, reported in one line; the command line exits with 2."""


class StudyError(RuntimeError):
    """The study could not go on (cluster, disk, every trial fails); exit code 4, resumable."""


def unknown(what: str, name: object, allowed: Iterable[str]) -> str:
    """One line for a mistyped name: what was given, the nearest right name, what is allowed."""
    names = sorted(set(allowed))
    near = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"unknown {what} {name!r}{hint} (allowed: {', '.join(names)})"
