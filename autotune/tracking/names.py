"""Names and values as MLflow takes them."""

from __future__ import annotations

import itertools
import json
import posixpath
import re
from typing import Any

from autotune.storage.codec import encode
from autotune.trial import Trial
from autotune.trial.plain_text import plain_text

_LONGEST_KEY, _LONGEST_TEXT = 250, 5000  # MLflow takes 250 and 6000


def run_name(trial: Trial, count: int) -> str:
    """The name of the trial's run, which is the `count`-th of its kind (and of what it repeats).

    >>> run_name(Trial(11, {}), 5), run_name(Trial(0, {}, kind="baseline"), 1)
    ('trial-0011', 'baseline')
    >>> run_name(Trial(20, {}, kind="confirm", repeats=11), 2)
    'confirm-0011-seed2'
    >>> run_name(Trial(3, {}, kind="probe"), 2)
    'probe-0003'
    """
    if trial.repeats is not None:
        return f"{trial.kind}-{trial.repeats:04d}-seed{count}"
    first = trial.kind == "baseline" and count == 1
    return trial.kind if first else f"{trial.kind}-{trial.number:04d}"


def clean(name: str) -> str:
    """`name` as MLflow takes it for a metric, param or tag.

    >>> clean("val/top@5"), clean("/a//b/../c"), clean("")
    ('val/top_5', 'a/b/__/c', '_')
    """
    allowed = re.sub(r"[^\w\-. :/]", "_", name).replace("..", "__")
    path = posixpath.normpath(allowed.strip("/. ") or "_")
    return path[:_LONGEST_KEY].rstrip("/. ")


class ShownNames:
    """Names as MLflow takes them; names that differ stay different, in the order of their coming.

    >>> shown = ShownNames()
    >>> shown("a@b"), shown("a#b"), shown("a@b")
    ('a_b', 'a_b_2', 'a_b')
    """

    def __init__(self) -> None:
        self._shown: dict[str, str] = {}
        self._taken: set[str] = set()

    def __call__(self, name: str) -> str:
        if name not in self._shown:
            first = clean(name)
            others = (f"{first[: _LONGEST_KEY - 9]}_{n}" for n in itertools.count(2))
            chosen = next(n for n in itertools.chain([first], others) if n not in self._taken)
            self._shown[name] = chosen
            self._taken.add(chosen)
        return self._shown[name]


def text(value: Any) -> str:
    """`value` as text that is short and plain enough for a param or a tag."""
    nested = isinstance(value, list | tuple | dict)
    whole = plain_text(json.dumps(encode(value)) if nested else str(value))
    return whole if len(whole) <= _LONGEST_TEXT else whole[: _LONGEST_TEXT - 3] + "..."
