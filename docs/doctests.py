"""Show the doctests of a docstring as code: an extension of griffe, which mkdocstrings uses."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

_DOCTEST = re.compile(r"^(>>> .*(?:\n(?!\s*$).*)*)", re.MULTILINE)


class Doctests(Extension):
    """Put every doctest into a fenced block."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Rewrite the docstring of `obj`, if it has one."""
        if obj.docstring is not None:
            text = obj.docstring.value
            obj.docstring.value = _DOCTEST.sub(r"```pycon\n\1\n```", text)
