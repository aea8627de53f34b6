"""What a technique says of its keys: default, allowed values, where they apply, kind of effect."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from trainers.readers import NotAllowedError, Reader, shown

Effect = Literal["exact", "rounding", "statistical", "both"]
"""What a key changes of a training.

- exact: nothing but the order of sums; only seconds per sample and memory.
- rounding: the number of bits; seconds per sample, memory, and a little of each step.
- statistical: how many samples the training needs.
- both: samples and seconds per sample.
"""


@dataclass(frozen=True)
class When:
    """The configurations in which a key means something.

    Args:
        text: these, for messages and documentation.
        holds: of all keys of the plan.
    """

    text: str
    holds: Callable[[Mapping[str, Any]], bool]


def when(key: str, *values: Any) -> When:
    """The configurations in which a key has one of these values.

    >>> when("cache", "disk", "memory", "decoded").text
    "cache 'disk', 'memory' or 'decoded'"
    """
    *most, last = map(shown, values)
    text = f"{', '.join(most)} or {last}" if most else last
    return When(f"{key} {text}", lambda found: found[key] in values)


@dataclass(frozen=True)
class Knob:
    """A key of a technique.

    Args:
        default: the value of a training without the technique.
        reader: checks and converts a value.
        effect: see `Effect`.
        when: where another value than the default is allowed; None: everywhere.
        memory: whether it changes the memory of a step.
    """

    default: Any
    reader: Reader
    effect: Effect
    when: When | None = None
    memory: bool = True


def require_places(knobs: Mapping[str, Knob], values: Mapping[str, Any]) -> None:
    """Raise a ValueError, one line, for a value other than the default where it has no meaning.

    Args:
        values: of these keys, and of all that their `when` asks for.
    """
    for key, knob in knobs.items():
        if knob.when is not None and values[key] != knob.default and not knob.when.holds(values):
            raise ValueError(f"{key} {shown(values[key])} needs {knob.when.text}")


def degree(value: Any) -> Any:
    """Reads a number of ranks, or -1 for what is left."""
    if isinstance(value, bool) or not isinstance(value, int) or (value < 1 and value != -1):
        raise NotAllowedError("a whole number at least 1, or -1 for what is left of the ranks")
    return value
