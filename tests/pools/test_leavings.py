"""What a trial changes of its process: the next one in it does not see it, or gets another."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from ranks import Remote
from shaking import shaking, staying


@pytest.fixture(scope="module")
def shaken() -> Iterator[Remote]:
    remote = Remote(shaking)
    yield remote
    remote.close()


def test_what_a_trial_changed_is_put_back(shaken: Remote) -> None:
    found = []
    for _ in range(2):
        shaken.start()
        stretch = shaken("resume", None, None)
        assert stretch.kind == "milestone", stretch.error
        found.append(stretch.metrics)
        end = shaken("stop", None)
        assert (end.kind, end.worn) == ("stopped", "")
    assert found[1] == found[0]
    assert (found[0]["signals"], found[0]["denormals"], found[0]["gc"]) == (0, 1, 1)


def test_an_alarm_that_a_trial_set_does_not_end_the_next_one(shaken: Remote) -> None:
    """SIGALRM would kill the process."""
    shaken.start({"alarm": 0.5})
    shaken("resume", None, None)
    assert shaken("stop", None).worn == ""

    time.sleep(0.8)
    assert shaken.start().kind == "milestone"
    assert shaken("stop", None).worn == ""


@pytest.mark.parametrize(
    ("stays", "worn"),
    [
        ("files", "files left open: "),
        ("signal", "cannot be put back: signal handlers"),
        ("nice", "cannot be put back: priority"),
        ("inference", "cannot be put back: inference mode"),
    ],
)
def test_what_cannot_be_put_back_replaces_the_process(stays: str, worn: str) -> None:
    remote = Remote(staying)
    try:
        remote.start({"stays": ""})
        assert remote("stop", None).worn == ""  # the first trial opens what stays open
        remote.start({"stays": stays})
        remote("resume", None, None)
        assert worn in remote("stop", None).worn
    finally:
        remote.close()
