"""Entries that give one key of the configuration under different conditions.

`lr:muon` with the condition that the optimizer is "muon" gives `lr`, so that each optimizer may
have a range of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import combinations
from typing import Any

from autotune.space.parameters import When, wanted_values


def key_of(name: str, when: When | None) -> str:
    """The key of the configuration that an entry gives.

    >>> key_of("lr:muon", {"optimizer": ("muon", "sgd")}), key_of("lr:muon", None)
    ('lr', 'lr:muon')
    """
    key, _, variant = name.partition(":")
    values = (value for wanted in (when or {}).values() for value in wanted_values(wanted))
    return key if key and variant and variant in map(str, values) else name


def searched_keys(point: Iterable[str]) -> set[str]:
    """The keys of a configuration that the names of a point may belong to.

    >>> sorted(searched_keys(["lr:muon.peak", "width"]))
    ['lr', 'lr:muon', 'width']
    """
    entries = {name.partition(".")[0] for name in point}
    return entries | {name.partition(":")[0] for name in entries}


def keys_of(entries: Mapping[str, Any]) -> dict[str, str]:
    """The key that each entry gives.

    Raises:
        ValueError: two entries that may exist at once give the same one.
    """
    keys = {name: key_of(name, entry.when) for name, entry in entries.items()}
    for one, other in combinations(entries, 2):
        if keys[one] == keys[other] and not _exclude(entries[one].when, entries[other].when):
            raise ValueError(
                f"{one} and {other} both give {keys[one]!r}: their conditions must exclude each "
                f"other, but got {entries[one].when!r} and {entries[other].when!r}"
            )
    return keys


def _exclude(one: When | None, other: When | None) -> bool:
    one, other = one or {}, other or {}
    both = one.keys() & other.keys()
    return any(not set(wanted_values(one[k])) & set(wanted_values(other[k])) for k in both)
