"""Schedules from their JSON documents."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from difflib import get_close_matches
from typing import Any, cast, get_args

from autotune.schedules.compose import Schedule
from autotune.schedules.curve import NESTED, VERSION

_KINDS: Mapping[str, Any] = {kind.__name__: kind for kind in get_args(Schedule)}


def from_json(obj: Mapping[str, Any]) -> Schedule:
    """The schedule that `to_json` wrote.

    >>> from_json({"schedule": "Cosin", "version": 1, "start": 1, "end": 0})
    Traceback (most recent call last):
    ValueError: unknown schedule 'Cosin', did you mean 'Cosine'?

    Raises:
        ValueError: an unknown schedule, version or field, a missing field, or a bad value; in a
            schedule within another, the line begins with the path to it.
    """
    try:
        return _read(obj)
    except RecursionError:
        raise ValueError("a schedule is nested too deeply in others") from None


def _read(obj: Mapping[str, Any]) -> Schedule:
    name = obj.get("schedule") if isinstance(obj, Mapping) else None
    if not isinstance(name, str):
        raise ValueError(f"a schedule must be a JSON object that names its schedule, got {obj!r}")
    if name not in _KINDS:
        kinds = {known.lower(): known for known in _KINDS}
        near = kinds[get_close_matches(name.lower(), kinds, n=1, cutoff=0.0)[0]]
        raise ValueError(f"unknown schedule {name!r}, did you mean {near!r}?")
    _check_version(name, obj.get("version"))
    given = {key: value for key, value in obj.items() if key not in ("schedule", "version")}
    known = [field.name for field in fields(_KINDS[name])]
    if given.keys() != set(known):
        got = ", ".join(map(str, given))
        raise ValueError(f"{name}: its fields must be {', '.join(known)}; got {got}")
    for key in given.keys() & set(NESTED):
        given[key] = _within(f"{name}: {key}", given[key])
    if isinstance(given.get("parts"), list):
        parts = enumerate(given["parts"], 1)
        given["parts"] = [_within(f"{name}: part {number}", part) for number, part in parts]
    return cast(Schedule, _KINDS[name](**given))


def _check_version(name: str, version: Any) -> None:
    """Raise ValueError for any other version: a later one may give fields another meaning."""
    if version != VERSION or isinstance(version, bool):
        later = isinstance(version, int) and version > VERSION
        hint = ": a later autotune wrote it, and reads it" if later else ""
        raise ValueError(f"{name}: version must be {VERSION}, got {version!r}{hint}")


def _within(path: str, obj: Mapping[str, Any]) -> Schedule:
    try:
        return _read(obj)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
