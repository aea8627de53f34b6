"""Text from outside (exceptions, trainers, journals), made safe to store and to print."""

from __future__ import annotations

import re

_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def plain_text(text: str) -> str:
    r"""`text` without what a terminal, a database or UTF-8 does not take as text.

    A terminal's colours are removed. Control characters other than newline and tab, and halves of
    surrogate pairs (bytes of a file name that are no UTF-8), become escapes of ASCII characters.

    >>> plain_text("\x1b[31mno\x1b[0m caf\udce9.jpg\x00")
    'no caf\\udce9.jpg\\x00'
    """
    uncoloured = _COLOUR.sub("", text.replace("\r\n", "\n"))
    return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode(), uncoloured)


def shortened(text: str, most: int, where: str = "") -> str:
    """The head and the tail of `text` where it has more than `most` characters (at least 100).

    Args:
        where: what the line between them says of the whole.

    >>> shortened("abc" * 100, 100, "; all of it is in a.txt")[40:]
    XX
    """
    if len(text) <= most:
        return text
    kept = most - len(_cut(len(text), where))
    tail = kept // 2
    return text[: kept - tail] + _cut(len(text) - kept, where) + text[len(text) - tail :]


def _cut(count: int, where: str) -> str:
    return f" [... {count} characters left out{where} ...] "
