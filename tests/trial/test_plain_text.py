"""Texts from outside are safe to store and to print once they are in an event."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.storage.journal import Closed
from autotune.trial import Ended, Interrupted, State
from autotune.trial.plain_text import plain_text, shortened

NASTY = "\x1b[1;31mcaf\udce9.jpg\x1b[0m\x00 \x1b]0;title\x07\x9b2J\r\nnext\tline"
PLAIN = "caf\\udce9.jpg\\x00 \\x1b]0;title\\x07\\x9b2J\nnext\tline"


def test_what_is_no_text_is_escaped_and_colours_are_removed() -> None:
    assert plain_text(NASTY) == PLAIN
    assert plain_text("Grüße, 你好 🙂\n\t") == "Grüße, 你好 🙂\n\t"


def anything(**more: int) -> st.SearchStrategy[str]:
    """All code points, halves of surrogate pairs among them."""
    return st.text(st.characters(exclude_categories=()), **more)


@given(anything())
def test_any_text_becomes_one_that_stays_as_it_is(text: str) -> None:
    plain = plain_text(text)
    plain.encode("utf-8")
    assert all(c in "\n\t" or (c >= " " and not "\x7f" <= c <= "\x9f") for c in plain)
    assert plain_text(plain) == plain


@given(anything(max_size=400), st.integers(100, 300))
def test_a_long_text_keeps_its_head_and_its_tail(text: str, most: int) -> None:
    short = shortened(text, most)
    assert len(short) <= most
    assert shortened(short, most) == short
    if len(text) <= most:
        assert short == text
    else:
        head, _, rest = short.partition(" [... ")
        assert text.startswith(head)
        assert text.endswith(rest.rpartition(" ...] ")[2])


@pytest.mark.parametrize("field", ["reason", "error", "detail"])
def test_texts_of_events_are_plain_wherever_they_came_from(field: str) -> None:
    ended = Ended(0, State.FAILED, **{"reason": "r", "seconds": 0.0, field: NASTY})
    assert getattr(ended, field) == PLAIN
    if field != "detail":
        lost = Interrupted(0, **{"reason": "r", field: NASTY})
        assert getattr(lost, field) == PLAIN
    assert Closed(NASTY).reason == PLAIN


def test_a_reason_is_cut_and_an_error_is_not() -> None:
    ended = Ended(0, State.FAILED, "r" * 9000, 0.0, error="e" * 9000)
    assert len(ended.reason) == 2000
    assert len(ended.error) == 9000
