"""The plan of a trial as text, from its configuration alone."""

from __future__ import annotations

import doctest
from functools import partial
from typing import Any

import pytest

from autotune.errors import UserError
from autotune.trial import plan_text as module
from autotune.trial.plan_text import plan_keys, plan_text

KEYS = {"parts": 1, "bucket_cap_mb": None, "offload": False}


def test_examples() -> None:
    failed, tried = doctest.testmod(module)
    assert tried
    assert not failed


@pytest.mark.parametrize(
    ("config", "shown"),
    [
        ({"lr": 0.1}, "default"),
        ({"parts": 1, "bucket_cap_mb": None, "offload": False}, "default"),
        ({"offload": True, "parts": 4, "lr": 0.1}, "parts 4, offload True"),
        ({"bucket_cap_mb": 0.5}, "bucket_cap_mb 0.5"),
        ({"parts": "\x1b[31mtwo\x00"}, "parts two\\x00"),
    ],
)
def test_it_is_what_differs_from_the_defaults_in_their_order(
    config: dict[str, Any], shown: str
) -> None:
    assert plan_text(config, KEYS) == shown
    assert plan_text(config, {}) == ""


def test_the_keys_are_those_of_the_trainer_also_of_a_partial_one() -> None:
    def train(config: dict[str, Any], more: int) -> None: ...

    assert plan_keys(train) == {}
    train.plan_keys = KEYS  # type: ignore[attr-defined]
    assert plan_keys(train) == plan_keys(partial(partial(train, more=1))) == KEYS
    train.plan_keys = tuple(KEYS)  # type: ignore[attr-defined]
    with pytest.raises(UserError, match="plan_keys must be a dict of keys and their defaults but"):
        plan_keys(train)
