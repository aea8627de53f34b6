"""The journal: what is written is read back, and what is torn is repaired."""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sims import memory, race, racing, simulate

from autotune.errors import StudyError, UserError
from autotune.schedules import Constant, Cosine, Stages
from autotune.storage import driver_lock, journal
from autotune.storage.codec import encode, plain
from autotune.storage.journal import JOURNAL, Closed, Journal, Opened, from_line, to_line
from autotune.trial import (
    EVENTS,
    Change,
    Changed,
    Checkpoint,
    Clock,
    Ended,
    Hardware,
    Interrupted,
    Origin,
    Report,
    Reported,
    Saved,
    Started,
    State,
    Suggested,
)

SCHEDULE = Stages((0.1,), (Constant(0.1), Cosine(0.1, 1e-9)))
ENTRIES = [
    Opened("x", 0.1, journal.VERSION),
    Suggested(0, {"lr": SCHEDULE, "n": 3, "o": None}, {"lr.peak": 0.1}, "baseline", 3, 0.2),
    Suggested(1, {"schedule": "cosine", "deep": {"a": [1, {"b": 2}]}}, None, "trial", 4, 0.2),
    Started(0, 0.5, Hardware("cpu", 2, 0.5, True), 0.3),
    Reported(0, Report(5, 1 / 3, {"acc": 0.1 + 0.2, "ü": 1.0}, Clock(train=1e-7), ahead=7), 0.4),
    Changed(0, 5, Change(0.5, batch_size=64), 0.45),
    Saved(0, Checkpoint(5, "/a/b c", Clock(setup=1.0)), 0.5),
    Interrupted(0, "worker died: rank 1", "", False, 0.6),
    Ended(0, State.FAILED, "ValueError: ü\u2028\n\r", 1.5, "detail", "trace\nback", 0.7),
    Closed("done", 0.8),
]


def written(folder: Path, entries: list[Any] = ENTRIES) -> bytes:
    with Journal(folder) as open_journal:
        for entry in entries:
            open_journal.write(entry)
    return (folder / JOURNAL).read_bytes()


def test_the_fingerprint_of_a_forks_checkpoint_is_read_back() -> None:
    """What `Checkpoint` is compared by leaves it out."""
    saved = Checkpoint(5, "/a", Clock(train=1.0), hardware=Hardware("fast", before="slow"))
    event = Suggested(2, {}, None, "trial", 1, origin=Origin(0, 1, saved))
    read = journal.from_line(journal.to_line(event))
    assert read.origin.checkpoint.hardware == saved.hardware
    line = journal.to_line(Saved(0, Checkpoint(5, "/a")))
    older = line.replace(',"hardware":null', "")
    assert older != line
    assert journal.from_line(older) == journal.from_line(line) == Saved(0, Checkpoint(5, "/a"))


def test_new_lines_carry_a_version_and_the_count_of_asks(fast_path: Path) -> None:
    """Each driver writes the version of its lines, and each suggestion the ask it came from."""
    simulate(racing([1.0, 2.0]), fast_path, 4)
    rows = [json.loads(row) for row in (fast_path / JOURNAL).read_text().splitlines()]
    assert [row["version"] for row in rows if row["event"] == "opened"] == [journal.VERSION]
    asks = [row["ask"] for row in rows if row["event"] == "suggested"]
    assert asks == [None, None, 2, 3], "what is given is not asked for"


def test_lines_of_version_1_are_read() -> None:
    opened = from_line('{"event":"opened","study":"x","at":0.1,"time":"2026-01-01"}')
    assert opened == Opened("x", 0.1, version=1)
    line = to_line(Suggested(3, {}, {"x": 1}, "trial", 3))
    older = line.replace(',"ask":null', "")
    assert older != line
    assert from_line(older) == from_line(line)


@pytest.mark.parametrize(
    ("version", "says"),
    [
        (
            str(journal.VERSION + 1),
            "line 1 was written by a later version of autotune: its journals have version "
            f"{journal.VERSION + 1}",
        ),
        ('"2"', "line 1 is damaged: version must be a whole number but got '2'"),
    ],
)
def test_a_journal_of_a_later_version_is_refused(version: str, says: str, fast_path: Path) -> None:
    lines = [f'{{"event":"opened","study":"x","at":0.1,"version":{version}}}']
    lines.append('{"event":"closed","reason":"done","at":0.2}')
    (fast_path / JOURNAL).write_text("\n".join(lines) + "\n")
    with pytest.raises(UserError, match=says):
        journal.read(fast_path)


@pytest.mark.parametrize(
    ("last", "says"),
    [
        (
            '{"event":"opened","study":"x","at":0.1,"version":8,"host":"a"}',
            "have version 8, and this",
        ),
        (
            '{"event":"probed","trial":0,"at":0.9}',
            "line 11 is damaged: unknown event 'probed'.*; a later version of autotune may have",
        ),
        ('{"event":"closed","reason":"done","more":1}', "line 11 is damaged: unknown field 'more'"),
        ('{"event":"closed"}', "line 11 is damaged: reason is missing"),
    ],
)
def test_a_whole_last_line_that_cannot_be_read_is_told_and_stays(
    last: str, says: str, fast_path: Path
) -> None:
    """Only what is no JSON was torn; anything else may be of a later version."""
    data = written(fast_path) + last.encode() + b"\n"
    (fast_path / JOURNAL).write_bytes(data)
    for use in (journal.read, Journal):
        with pytest.raises(UserError, match=says) as error:
            use(fast_path)
        assert "\n" not in str(error.value)
        assert (fast_path / JOURNAL).read_bytes() == data
    (fast_path / JOURNAL).write_bytes(data[:-2] + b"\n")
    assert journal.read(fast_path) == ENTRIES


TYPED = [  # the number of the entry, what is put into its line, and what is said of it
    (0, {"study": 3}, "study must be text but got 3"),
    (0, {"at": "now"}, "at must be a finite number but got 'now'"),
    (1, {"trial": 0.5}, "trial must be a whole number but got 0.5"),
    (1, {"trial": -1}, "a trial's number must be at least 0 but got -1"),
    (1, {"config": []}, r"config must be an object but got \[\]"),
    (1, {"seed": 2**63}, "seed must be a whole number but got a whole number of 64 bits"),
    (1, {"repeats": 7}, "trial 0 comes from trial 7, which is not there"),
    (3, {"hardware": {"nodes": "1"}}, "hardware nodes must be a whole number but got '1'"),
    (3, {"queue_seconds": True}, "queue_seconds must be a finite number but got True"),
    (4, {"report": None}, "report must be an object but got None"),
    (
        4,
        {"report": {"step": 1, "seconds": 1e308, "metrics": {}}},
        r"report seconds must be at most 1e\+300 but got 1e\+308",
    ),
    (4, {"report": {"step": 1, "seconds": 1, "metrics": {"a": "b"}}}, "report metrics could not"),
    (4, {"at": math.nan}, "NaN is not JSON"),
    (4, {"report": {"step": 1, "metrics": {}}}, "report seconds is missing"),
    (5, {"change": {"lr": 0.1}}, "change unknown field 'lr'"),
    (5, {"change": {"lr_factor": "0.1"}}, "change lr_factor must be a finite number but got '0.1'"),
    (5, {"change": {"batch_size": -8}}, "change Change batch_size must be a whole number >= 0 but"),
    (6, {"checkpoint": {"step": 5, "path": 3}}, "checkpoint path must be text but got 3"),
    (
        6,
        {"checkpoint": {"step": 5, "path": "a", "sums": "b"}},
        "checkpoint sums must be a list but",
    ),
    (7, {"broke": "no"}, "broke must be true or false but got 'no'"),
    (8, {"state": "SLEEPING"}, "state must be one of RUNNING, REACHED, .* but got 'SLEEPING'"),
    (8, {"state": ["FAILED"]}, "state must be one of"),
]


@pytest.mark.parametrize(("number", "wrong", "says"), TYPED)
def test_a_field_of_the_wrong_type_is_one_clear_error(
    fast_path: Path, number: int, wrong: dict[str, Any], says: str
) -> None:
    rows = written(fast_path).splitlines(keepends=True)
    rows[number] = json.dumps({**json.loads(rows[number]), **wrong}).encode() + b"\n"
    (fast_path / JOURNAL).write_bytes(b"".join(rows))
    with pytest.raises(UserError, match=f"line {number + 1} is damaged: {says}") as error:
        journal.read(fast_path)
    assert "\n" not in str(error.value)


OLDER = [  # the number of the entry, what an earlier version wrote there, and how it is read
    (5, {"change": {"batch_size": 64.0}}, lambda e: (e.change.batch_size, 64)),
    (5, {"change": {"batch_size": -8}}, lambda e: (e.change.batch_size, -8)),
    (
        5,
        {"change": {"lr_factor": -0.5, "momentum": -0.9, "batch_size": None}},
        lambda e: (astuple(e.change), (-0.5, None, -0.9)),
    ),
    (5, {"change": {"lr_factor": "nan"}}, lambda e: (math.isnan(e.change.lr_factor), True)),
    (5, {"change": {"lr_factor": "inf"}}, lambda e: (e.change.lr_factor, math.inf)),
    (5, {"step": 2**63}, lambda e: (e.step, 2**63 - 1)),
    (
        4,
        {"report": {"step": 2**70, "seconds": 1, "metrics": {"acc": 0.5}}},
        lambda e: (e.report.step, 2**63 - 1),
    ),
    (6, {"checkpoint": {"step": 2**63, "path": "a"}}, lambda e: (e.checkpoint.step, 2**63 - 1)),
    (8, {"reason": 3}, lambda e: (e.reason, "3")),
    (8, {"reason": ["slow", None]}, lambda e: (e.reason, "['slow', None]")),
]


@pytest.mark.parametrize("version", [1, 2, 3, journal.VERSION])
@pytest.mark.parametrize(("number", "wrong", "read"), OLDER)
def test_what_an_earlier_version_wrote_is_still_read(
    fast_path: Path, number: int, wrong: dict[str, Any], read: Any, version: int
) -> None:
    """Versions 1 and 2 checked less; what this one writes after their lines is checked."""
    rows = written(fast_path).splitlines(keepends=True)
    for place, more in ((0, {"version": version}), (number, wrong)):
        rows[place] = json.dumps({**json.loads(rows[place]), **more}).encode() + b"\n"
    (fast_path / JOURNAL).write_bytes(b"".join(rows))
    if version >= 3:
        with pytest.raises(UserError, match=f"line {number + 1} is damaged"):
            journal.read(fast_path)
        return
    found, expected = read(journal.read(fast_path)[number])
    assert found == expected
    with Journal(fast_path) as opened:
        opened.write(Opened("x", 1.0, journal.VERSION))
        with pytest.raises(UserError, match="cannot be written down"):
            opened.write(Reported(0, Report(2**63, 1.0, {})))
    with (fast_path / JOURNAL).open("ab") as file:
        file.write(rows[number])
    with pytest.raises(UserError, match="line 12 is damaged"):
        journal.read(fast_path)


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        (Changed(0, 5, {"lr": 0.1}), "change unknown field 'lr'"),  # type: ignore[arg-type]
        (Reported(0, Report(10**5000, 1.0, {})), "Reported cannot be written down"),
        (
            Reported(0, Report(1, math.nan, {})),
            "report seconds must be a finite number but got 'nan",
        ),
        (Suggested(0, {"a": object()}, None, "trial", 1), "a object .* cannot be written as JSON"),
        (Suggested(0, {}, None, "trial", 1), "trial 0: Suggested cannot follow"),
        (Started(9, 0.0, Hardware()), "trial 9: Started cannot follow"),
    ],
)
def test_what_could_not_be_read_back_is_not_written(fast_path: Path, entry: Any, says: str) -> None:
    data = written(fast_path)
    with Journal(fast_path) as opened:
        with pytest.raises(UserError, match=says) as error:
            opened.write(entry)
        assert "\n" not in str(error.value)
        assert (fast_path / JOURNAL).read_bytes() == data
        opened.write(Closed("later", 0.9))
    assert journal.read(fast_path) == [*ENTRIES, Closed("later", 0.9)]


def test_every_kind_of_entry_is_read_back_exactly(fast_path: Path) -> None:
    assert {type(e) for e in ENTRIES} >= set(EVENTS.values())
    data = written(fast_path)
    assert journal.read(fast_path) == ENTRIES
    assert data.count(b"\n") == len(ENTRIES)
    assert all({"event", "at", "time"} <= json.loads(line).keys() for line in data.splitlines())


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_metrics_that_are_no_numbers_are_valid_json(value: float) -> None:
    event = Reported(0, Report(1, 1.0, {"loss": value}))
    line = to_line(event)
    json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    back = from_line(line)
    assert isinstance(back, Reported)
    assert str(back.report.metrics["loss"]) == str(value)


@given(st.floats(allow_nan=False, allow_infinity=False), st.text())
def test_numbers_and_texts_round_trip(number: float, text: str) -> None:
    event = Suggested(
        0, {"a": number, "b": text}, {"a": number}, "trial", 1, min(abs(number), 1e300)
    )
    assert from_line(to_line(event)) == event


def test_plain_is_what_a_resumed_trial_sees() -> None:
    config = {"lr": SCHEDULE, "betas": (0.9, 0.99), "n": np.int64(3), "x": np.float32(0.5)}
    made = plain(config)
    assert made == {"lr": SCHEDULE, "betas": [0.9, 0.99], "n": 3, "x": 0.5}
    assert type(made["n"]) is int
    assert plain(made) == made


def test_a_value_without_a_json_form_is_named() -> None:
    with pytest.raises(TypeError, match=r"a object .* cannot be written as JSON"):
        encode({"a": object()})


@pytest.mark.parametrize(
    "value", [math.inf, [0.9, math.inf], {"deep": [1, (math.inf,)]}, np.float32(math.inf)]
)
def test_a_number_that_json_does_not_have_is_named_at_any_depth(value: Any) -> None:
    with pytest.raises(ValueError, match=r"^clip must be finite but got inf$"):
        plain({"lr": 0.1, "clip": value})


def test_a_journal_cut_anywhere_opens_with_its_whole_lines(fast_path: Path) -> None:
    data = written(fast_path / "whole")
    ends = [i + 1 for i, byte in enumerate(data) if byte == ord("\n")]
    folder = fast_path / "cut"
    folder.mkdir()
    for cut in range(len(data)):
        (folder / JOURNAL).write_bytes(data[:cut])
        whole = sum(end <= cut for end in ends)
        assert journal.read(folder) == ENTRIES[:whole]
        with Journal(folder) as opened:
            assert opened.entries == ENTRIES[:whole]
            opened.write(Closed("again", 9.0))
        assert journal.read(folder) == [*ENTRIES[:whole], Closed("again", 9.0)]


@given(st.binary(max_size=40))
def test_rubbish_after_the_last_line_is_repaired(rubbish: bytes) -> None:
    with memory() as folder:
        data = written(folder)
        last = rubbish.replace(b"\n", b"")
        (folder / JOURNAL).write_bytes(data + last)
        assert journal.read(folder) == ENTRIES
        with Journal(folder) as opened:
            assert opened.entries == ENTRIES
        assert (folder / JOURNAL).read_bytes() == data


@pytest.mark.parametrize(
    "damage",
    [
        b"not json",
        b"[1, 2]",
        b'{"event":"unheard-of"}',
        b'{"event":["opened"]}',
        b'{"event":"opened"}',
        b'{"event":"closed","reason":"x","more":1}',
        b'{"event":"reported","trial":0,"report":{"step":1,"seconds":1,"metrics":[],"clock":{}}}',
        b'{"event":"reported","trial":0,"report":7}',
        b'{"event":"ended","trial":0,"state":"SLEEPING","reason":"","seconds":1}',
        b'{"event":"suggested","trial":0,"config":[],"params":{},"kind":"trial","seed":1}',
        b"\x00\x00\x00\x00",
        b"\xff\xfe",
        b"",
    ],
)
def test_a_damaged_line_in_the_middle_is_one_clear_error(fast_path: Path, damage: bytes) -> None:
    rows = written(fast_path).splitlines(keepends=True)
    rows[3] = damage + b"\n"
    (fast_path / JOURNAL).write_bytes(b"".join(rows))
    for use in (journal.read, Journal):
        with pytest.raises(UserError, match=r"journal\.jsonl: line 4 is damaged") as error:
            use(fast_path)
        assert "\n" not in str(error.value)


def test_events_that_cannot_follow_are_one_clear_error(fast_path: Path) -> None:
    rows = written(fast_path / "a").splitlines(keepends=True)
    (fast_path / "b").mkdir()
    simulate(racing([2.0]), fast_path / "b", 1)
    (fast_path / "b" / JOURNAL).write_bytes(rows[0] + rows[3] + rows[-1])
    with pytest.raises(UserError, match="line 2 is damaged: trial 0: Started cannot follow"):
        simulate(racing([2.0]), fast_path / "b", 1)


def test_a_second_opener_is_refused(fast_path: Path) -> None:
    with Journal(fast_path):
        assert driver_lock.is_held(fast_path / JOURNAL)
        with pytest.raises(UserError, match=r"another process is running .* another folder"):
            Journal(fast_path)
        code = (
            "from pathlib import Path; from autotune.storage.journal import Journal\n"
            f"Journal(Path({str(fast_path)!r}))"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert "UserError: another process is running the study" in done.stderr
    assert not driver_lock.is_held(fast_path / JOURNAL)
    Journal(fast_path).__exit__(None, None, None)


def test_who_lists_studies_keeps_no_driver_from_beginning(
    fast_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`is_held` of another process has the lock for a moment."""
    Journal(fast_path).__exit__(None, None, None)
    with open(fast_path / JOURNAL, "rb") as listing:
        fcntl.flock(listing, fcntl.LOCK_SH)
        pauses: list[float] = []

        def pause(seconds: float) -> None:
            pauses.append(seconds)
            if len(pauses) == 3:
                listing.close()

        monkeypatch.setattr(driver_lock, "time", SimpleNamespace(sleep=pause))
        with Journal(fast_path):
            assert len(pauses) == 3


def test_a_lock_that_is_refused_for_its_permissions_is_a_driver_s(
    fast_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As some network file systems answer."""
    Journal(fast_path).__exit__(None, None, None)

    def refused(file: Any, how: int) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(fcntl, "flock", refused)
    monkeypatch.setattr(driver_lock, "time", SimpleNamespace(sleep=lambda seconds: None))
    assert driver_lock.is_held(fast_path / JOURNAL)
    with pytest.raises(UserError, match="another process is running the study"):
        Journal(fast_path)


def test_a_file_system_without_locks_is_not_taken_for_a_study_in_use(
    fast_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(file: Any, how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refused)
    with pytest.raises(UserError) as error:
        Journal(fast_path)
    assert str(error.value) == (
        f"{fast_path}'s file system cannot lock files: {os.strerror(errno.ENOLCK)}: put the "
        "study on a local disk (--out, out=)"
    )
    assert not driver_lock.is_held(fast_path / JOURNAL)


def test_a_folder_that_cannot_be_written_is_the_users_mistake(fast_path: Path) -> None:
    (fast_path / "file").write_text("")
    with pytest.raises(UserError, match=r"cannot write the study folder .*file"):
        Journal(fast_path / "file" / "study")
    (fast_path / "study" / JOURNAL).mkdir(parents=True)
    with pytest.raises(UserError, match="cannot write the study folder"):
        Journal(fast_path / "study")
    if os.geteuid():
        fast_path.chmod(0o500)
        with pytest.raises(UserError, match="Permission denied"):
            Journal(fast_path / "new")
        fast_path.chmod(0o700)


def test_no_journal_is_the_users_mistake(fast_path: Path) -> None:
    with pytest.raises(UserError, match=r"is not a study folder: it has no journal\.jsonl"):
        journal.read(fast_path)


def test_a_full_disk_is_a_study_error_and_what_is_there_stays_valid(fast_path: Path) -> None:
    whole = fast_path / "whole"
    simulate(racing([2.0, 3.0, 4.0]), whole, 3)
    for size in (3500, 3700, 3801):
        folder = fast_path / str(size)
        code = (
            "import resource, signal, sys; from pathlib import Path\n"
            f"sys.path.insert(0, {str(Path(__file__).parents[1] / 'support')!r})\n"
            "from sims import racing, simulate; from autotune import StudyError\n"
            "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
            f"resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size}))\n"
            f"try: simulate(racing([2.0, 3.0, 4.0]), Path({str(folder)!r}), 3)\n"
            "except StudyError as error: print(error)\n"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert "cannot write" in done.stdout, done.stderr
        assert "journal.jsonl: File too large" in done.stdout
        journal.read(folder)
        result = simulate(racing([2.0, 3.0, 4.0]), folder, 3)
        assert [t.number for t in result.trials] == [0, 1, 2]
        assert all(t.ended for t in result.trials)
        assert journal.read(folder)[-1] == Closed("done", result.trials[-1].ended_at or 0.0)


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Inside, this process can write no file beyond `size` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_line_that_is_cut_short_is_taken_back(tmp_path: Path) -> None:
    with Journal(tmp_path) as written:
        written.write(Opened("x", 0.1))
        full = written.path.stat().st_size + 10
        with largest_file(full), pytest.raises(StudyError, match="File too large"):
            written.write(Closed("done", 0.2))
        written.write(Closed("budget", 0.3))
    assert journal.read(tmp_path) == [Opened("x", 0.1), Closed("budget", 0.3)]


def test_an_event_is_on_disk_before_it_is_acted_on(
    fast_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from autotune.backends.simulator import SimPool

    synced: list[int] = []
    real = os.fdatasync
    monkeypatch.setattr(
        os, "fdatasync", lambda fd: (real(fd), synced.append(os.fstat(fd).st_size))[0]
    )
    path = fast_path / JOURNAL

    class Witness(SimPool):
        """Looks at the disk at the moment the study acts."""

        def last(self) -> dict[str, Any]:
            data = path.read_bytes()
            assert data.endswith(b"\n")
            assert len(data) == synced[-1]
            return json.loads(data.splitlines()[-1])

        def start(self, launch: Any) -> Any:
            assert (self.last()["event"], self.last()["trial"]) == ("suggested", launch.trial)
            return super().start(launch)

        def resume(self, trial: int, *rest: Any) -> None:
            assert (self.last()["event"], self.last()["trial"]) == ("reported", trial)
            super().resume(trial, *rest)

        def stop(self, trial: int, *rest: Any) -> None:
            assert (self.last()["event"], self.last()["trial"]) == ("ended", trial)
            super().stop(trial, *rest)

    result = simulate(racing([2.0, 3.0, 1.0]), fast_path, 3, pool=Witness(race, 1))
    assert [t.state for t in result.trials] == [State.REACHED, State.REACHED, State.CENSORED]
