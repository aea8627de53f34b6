"""A search space as JSON types, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from autotune.errors import UserError
from autotune.space.parameters import Choice, Fixed, Float, Int
from autotune.space.schedule_space import ScheduleSpace
from autotune.space.search_space import SearchSpace
from autotune.storage.codec import decode_config, encode

_SPACE_MODULES = ("autotune.space.parameters", "autotune.space.schedule_space")
_KINDS = {kind.__name__: kind for kind in (Float, Int, Choice, Fixed, ScheduleSpace)}


def describe(space: SearchSpace) -> dict[str, Any]:
    """A search space as JSON types: each entry with its kind and its settings.

    Raises:
        UserError: a value has no JSON form.
    """

    def entry(value: Any) -> Any:
        if type(value).__module__ not in _SPACE_MODULES:
            return encode(value)
        settings = {f.name: entry(getattr(value, f.name)) for f in fields(value)}
        if isinstance(value, Float) and value.effective is None:
            del settings["effective"]  # older manifests do not have it: their studies go on
        if isinstance(value, ScheduleSpace) and value.reference is None:
            del settings["reference"]  # as above
        return {"kind": type(value).__name__, **settings}

    entries = {}
    for name, value in space.entries.items():
        try:
            entries[name] = entry(value)
        except TypeError as error:
            raise UserError(f"the search space's {name}: {error}") from None
    return {"entries": entries, "constraints": [c.text for c in space.constraints]}


def space_from_json(description: Mapping[str, Any]) -> SearchSpace:
    """The search space that was described, without its constraints, which are code.

    Raises:
        ValueError, TypeError, KeyError, AttributeError: not a space that this version knows.
    """

    def entry(value: Any) -> Any:
        if not isinstance(value, dict) or value.get("kind") not in _KINDS:
            return decode_config(value)
        kind = _KINDS[value["kind"]]
        settings = {f.name: value[f.name] for f in fields(kind) if f.name in value}
        return kind(**{k: v if k == "when" else entry(v) for k, v in settings.items()})

    return SearchSpace({n: entry(value) for n, value in description["entries"].items()})
