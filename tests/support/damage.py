"""Files of a study folder, damaged in one of the ways of disks, editors and other programs."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

VALUES = (
    *(None, True, False, 0, -1, 1.5, 2**63, 10**400, float("nan"), float("inf"), "", "x", "\0"),
    *(
        "caf\udce9",
        "/proc/nowhere",
        "no/such",
        "http://[::1",
        "x" * 5000,
        [],
        [None],
        {},
        {"x": {}},
        [[[]]],
    ),
)
Damage = Callable[[random.Random, bytes], bytes]


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """All containers and their keys in a JSON document."""
    if isinstance(value, dict | list):
        for key in value if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from _places(value[key])


def _changed(rng: random.Random, text: bytes, change: Callable[[Any, Any], None]) -> bytes:
    """The document with one place changed, or left out where it is no container."""
    document = json.loads(text)
    if places := list(_places(document)):
        change(*rng.choice(places))
    return json.dumps(document).encode()


def value(rng: random.Random, text: bytes) -> bytes:
    """Another value, mostly of another type."""

    def change(container: Any, key: Any) -> None:
        container[key] = rng.choice(VALUES)

    return _changed(rng, text, change)


def missing(rng: random.Random, text: bytes) -> bytes:
    return _changed(rng, text, lambda container, key: container.__delitem__(key))


def swapped(rng: random.Random, text: bytes) -> bytes:
    """A value from elsewhere in the document."""
    others = [container[key] for container, key in _places(json.loads(text))]

    def change(container: Any, key: Any) -> None:
        container[key] = rng.choice(others)

    return _changed(rng, text, change)


def bits(rng: random.Random, text: bytes) -> bytes:
    made = bytearray(text)
    for _ in range(rng.randint(1, 4)):
        made[rng.randrange(len(made))] ^= 1 << rng.randrange(8)
    return bytes(made)


def cut(rng: random.Random, text: bytes) -> bytes:
    return text[: rng.randrange(len(text))]


DAMAGES: tuple[Damage, ...] = (value, value, value, missing, swapped, bits, cut)


def damaged(rng: random.Random, text: bytes, by_line: bool) -> bytes:
    """The file, damaged in one place; in one of its lines where each is a document."""
    damage = rng.choice(DAMAGES)
    if not by_line:
        return damage(rng, text)
    lines = text.splitlines()
    at = rng.randrange(len(lines))
    lines[at] = damage(rng, lines[at])
    if rng.random() < 0.1:
        lines.insert(rng.randrange(len(lines)), lines[at])
    return b"\n".join(lines) + b"\n"
