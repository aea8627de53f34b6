"""What a trial changes of its process: the next one in it does not see it, or gets another."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
from process_changes import changes_everything, compiling, staying
from ranks import Remote
from torch.utils.data._utils import signal_handling

from autotune.backends.worker import process_settings


@pytest.fixture(scope="module")
def shaken() -> Iterator[Remote]:
    remote = Remote(changes_everything)
    yield remote
    remote.close()


def test_what_a_trial_changed_is_put_back(shaken: Remote) -> None:
    found = []
    for _ in range(2):
        shaken.start()
        answer = shaken("resume", None, None)
        assert answer.kind == "milestone", answer.error
        found.append(answer.metrics)
        end = shaken("stop", None)
        assert (end.kind, end.must_restart) == ("stopped", "")
    assert found[1] == found[0]
    ignored = (signal.getsignal(n) == signal.SIG_IGN for n in (signal.SIGINT, signal.SIGHUP))
    inherited = sum(ignored)  # a shell starts what it runs in the background so
    assert (found[0]["signals"], found[0]["denormals"], found[0]["gc"]) == (inherited, 1, 1)


def test_an_alarm_that_a_trial_set_does_not_end_the_next_one(shaken: Remote) -> None:
    """SIGALRM would kill the process."""
    shaken.start({"alarm": 600.0})
    shaken("resume", None, None)
    assert shaken("stop", None).must_restart == ""
    shaken.start()
    assert shaken("resume", None, None).metrics["alarm"] == 0.0
    assert shaken("stop", None).must_restart == ""


@pytest.mark.slow
def test_the_compiler_s_threads_and_workers_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """They were taken for leaks, so that every trial that compiled cost its process."""
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "2")
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)  # the compiler's here sets it
    remote = Remote(compiling)
    try:
        for _ in range(2):
            first = remote.start()
            assert first.kind == "milestone", first.error
            found = remote("resume", None, None).metrics
            assert remote("stop", None).must_restart == ""
        assert found["threads"] > 3, "the compiler's are there still"
        assert found["cached"] == 1
    finally:
        remote.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stays", "must_restart"),
    [
        ("files", "files left open: "),
        ("signal", "cannot be put back: signal handlers"),
        ("nice", "cannot be put back: priority"),
        ("inference", "cannot be put back: inference mode"),
    ],
)
def test_what_cannot_be_put_back_replaces_the_process(stays: str, must_restart: str) -> None:
    remote = Remote(staying)
    try:
        remote.start({"stays": ""})
        assert remote("stop", None).must_restart == ""  # the first trial opens what stays open
        remote.start({"stays": stays})
        remote("resume", None, None)
        assert must_restart in remote("stop", None).must_restart
    finally:
        remote.close()


@pytest.mark.slow
def test_a_process_that_cannot_be_cleaned_is_replaced_and_its_trial_has_not_failed() -> None:
    remote = Remote(staying)
    try:
        remote.start({"stays": "broken"})
        remote("resume", None, None)
        answer = remote("resume", None, None)
        assert (answer.kind, answer.error) == ("finished", "")
        assert answer.must_restart.startswith("it cannot be cleaned: AttributeError: ")
    finally:
        remote.close()


def test_the_handler_that_torch_sets_once_stays() -> None:
    """Without it a loader would not learn that its worker died, and torch does not set it again."""
    before, known = signal.getsignal(signal.SIGCHLD), signal_handling._SIGCHLD_handler_set
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    clean = process_settings.read()
    signal_handling._SIGCHLD_handler_set = False
    try:
        signal_handling._set_SIGCHLD_handler()
        torch_s = signal.getsignal(signal.SIGCHLD)
        assert torch_s is not signal.SIG_DFL
        assert "signal handlers" not in process_settings.changed(clean)
        process_settings.put_back(clean)
        assert signal.getsignal(signal.SIGCHLD) is torch_s
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        assert "signal handlers" in process_settings.changed(clean)
        process_settings.put_back(clean)
        assert signal.getsignal(signal.SIGCHLD) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGCHLD, before)
        signal_handling._SIGCHLD_handler_set = known
