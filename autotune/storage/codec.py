"""Values as JSON types and back: configurations, schedules, reports."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import Field, fields, is_dataclass
from functools import partial
from typing import Any, NoReturn

from autotune import schedules
from autotune.trial import (
    Config,
)


def parsed(text: str | bytes) -> Any:
    """A JSON document.

    Raises:
        ValueError: it is none; NaN and infinities, which are no JSON, are refused too.
    """
    return _PARSER.decode(text if isinstance(text, str) else text.decode())


def _refused(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


_PARSER = json.JSONDecoder(parse_constant=_refused)


def encode(value: Any, odd: Callable[[float], Any] = str) -> Any:
    """`value` as JSON types: schedules by their `to_json`, numbers that are no numbers as text.

    Args:
        odd: makes something else of NaN and infinities, at any depth.

    Raises:
        TypeError: a value that has no JSON form, named by its type.
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else odd(value)
    if hasattr(value, "to_json"):
        return value.to_json()
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: encode(own, odd) for f, own in _written(value)}
    if isinstance(value, Mapping):
        return {str(k): encode(v, odd) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [encode(v, odd) for v in value]
    if hasattr(value, "item"):
        return encode(value.item(), odd)
    raise TypeError(f"a {type(value).__name__} ({value!r:.60}) cannot be written as JSON")


def _written(value: Any) -> Iterator[tuple[Field[Any], Any]]:
    """The fields of a dataclass with their values, without spare ones that have their default."""
    for one in fields(value):
        own = getattr(value, one.name)
        if not (one.metadata.get("spare") and own == one.default):
            yield one, own


def decode_config(value: Any) -> Any:
    """A value of a configuration from its JSON form: schedules become values again.

    Raises:
        ValueError: a schedule that is none; the line begins with the keys that lead to it.
    """
    if isinstance(value, dict):
        if "schedule" in value and "version" in value:
            return schedules.from_json(value)
        return decode_entries(value)
    return [decode_config(v) for v in value] if isinstance(value, list) else value


def decode_entries(config: Mapping[str, Any]) -> dict[str, Any]:
    """A whole configuration from its JSON form; see `decode_config`."""
    return {key: _decoded(key, value) for key, value in config.items()}


def _decoded(key: str, value: Any) -> Any:
    try:
        return decode_config(value)
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from None


def plain(config: Config) -> dict[str, Any]:
    """`config` as it will be read back from the journal, so that a resumed trial sees the same.

    Raises:
        ValueError: a number that JSON does not have (NaN, infinity), at any depth, named with the
            key of the configuration.
        TypeError: a value that has no JSON form.
    """
    return {k: decode_config(encode(v, partial(_refuse, k))) for k, v in config.items()}


def _refuse(key: str, value: float) -> NoReturn:
    raise ValueError(f"{key} must be finite but got {float(value)!r}")
