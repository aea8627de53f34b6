"""The clock jumps: no duration is taken from it, and what is shown by its times stays in order."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import time
from datetime import datetime, timedelta
from pathlib import Path

import pytest
import soak_study
from sims import racing, simulate

from autotune.storage import journal
from autotune.storage.journal import JOURNAL, Closed, Opened
from autotune.study import result as results
from autotune.tracking.projection import Projection
from autotune.tracking.run_content import read_study_info
from autotune.trial import State

ROOT = Path(__file__).parents[2]
WALL = {"time", "time_ns", "now", "utcnow", "today", "localtime", "gmtime", "ctime"}
# Where the time of day is read, and what for. None of it is a study's duration.
ALLOWED = {
    (
        "autotune/cli/jobs/commands.py",
        "_row",
    ): "since when another machine's job runs, as Ray tells it",
    ("autotune/tracking/backup.py", "_send_heartbeat"): "a heartbeat for other machines",
    ("autotune/tracking/backup.py", "seconds_since_heartbeat"): "how old a heartbeat is",
    ("autotune/storage/journal.py", "append"): "when a line was written, for people",
    ("autotune/tracking/mlflow_store.py", "_check"): "a value that no earlier check has written",
    ("autotune/cli/listings.py", "_when"): "whether a study has gone on today, for people",
    ("dashboards/report.py", "_page"): "when a page was made, for people",
    ("trainers/data/copies.py", "_make_room"): "how old a file is, whose times are times of day",
    ("autotune/cli/mirror_process.py", "_say"): "when a line of a log was written, for people",
}
DAY = timedelta(days=1)


def readings(path: Path) -> list[str]:
    """The functions of a file that read the time of day."""
    found = []
    for function in ast.walk(ast.parse(path.read_text())):
        if isinstance(function, ast.FunctionDef):
            calls = [n for n in ast.walk(function) if isinstance(n, ast.Call)]
            found += [function.name for call in calls if reads_wall_clock(call)]
    return found


def reads_wall_clock(call: ast.Call) -> bool:
    """`time.time()`, `datetime.now(UTC)`, `time.localtime()` and their like."""
    name = call.func
    if not (isinstance(name, ast.Attribute) and isinstance(name.value, ast.Name)):
        return False
    no_given_time = name.attr not in ("localtime", "gmtime", "ctime") or not call.args
    return name.value.id in ("time", "datetime", "date") and name.attr in WALL and no_given_time


def test_no_duration_is_taken_from_the_time_of_day() -> None:
    found = {
        (str(path.relative_to(ROOT)), function)
        for room in ("autotune", "trainers", "dashboards")
        for path in (ROOT / room).rglob("*.py")
        for function in readings(path)
    }
    assert found == set(ALLOWED)


def test_a_reading_would_be_found(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("def f():\n    import time\n    return time.time() - 3\n")
    assert readings(tmp_path / "a.py") == ["f"]


@pytest.mark.parametrize("jump", [-DAY, DAY])
def test_what_mlflow_shows_stays_in_order(fast_path: Path, jump: timedelta) -> None:
    """In a store the point of the latest time counts: an earlier end would hide a later one."""
    simulate(racing([2.0, 3.0, 1.0]), fast_path, 3)
    rows = [json.loads(line) for line in (fast_path / JOURNAL).read_text().splitlines()]
    projection, times = Projection(read_study_info(fast_path)), []
    for number, row in enumerate(rows):
        jumped = number >= len(rows) // 3 and number < 2 * len(rows) // 3
        moment = datetime.fromisoformat(row["time"]) + (jump if jumped else timedelta())
        row["time"] = moment.isoformat(timespec="milliseconds")
        changed = projection.take(json.dumps(row).encode() + b"\n")
        times += [point.time_ms for points in changed.values() for point in points]
    assert len(times) > 30
    assert times == sorted(times)
    for number in (0, 1, 2):
        content = projection.content(number, over=True)
        assert content.start_ms <= content.end_ms


def library() -> str | None:
    """Debian's libfaketime, which tells the processes under it another time of day."""
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
    return str(found[0]) if found else None


@pytest.mark.slow
@pytest.mark.skipif(library() is None, reason="no libfaketime: apt-get install faketime")
def test_a_study_whose_driver_sees_the_clock_jump(bare_ray: str, tmp_path: Path) -> None:
    """Its workers do not: under libfaketime, `time.sleep` fails where they are its children."""
    folder, offset = tmp_path / "study", tmp_path / "offset"
    offset.write_text("+0\n")
    variables = {
        "LD_PRELOAD": library() or "",
        "FAKETIME_TIMESTAMP_FILE": str(offset),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    begin = time.monotonic()
    with open(tmp_path / "said", "wb") as said:
        driver = subprocess.Popen(
            [sys.executable, soak_study.__file__, str(folder), bare_ray, "6"],
            env={**os.environ, **variables},
            stdout=said,
            stderr=said,
        )
        try:
            for lines, jump in ((6, "+1d"), (20, "-1d"), (40, "+0")):
                wait_for_lines(folder, lines, driver)
                offset.write_text(f"{jump}\n")
            driver.wait(900)
        finally:
            driver.kill()
            driver.wait()
    lasted = time.monotonic() - begin
    assert (tmp_path / "said").read_text().strip().endswith("done")
    rows = [json.loads(line) for line in (folder / JOURNAL).read_text().splitlines()]
    days = {datetime.fromisoformat(row["time"]).date() for row in rows}
    assert len(days) >= 3, "the clock did jump"
    ats = [row["at"] for row in rows]
    assert ats == sorted(ats)
    assert ats[-1] < lasted
    result = results.read(folder, soak_study.experiment(folder).target)
    assert {t.state for t in result.trials} <= set(State) - {State.RUNNING}
    for trial in result.trials:
        steps = [r.clock.seconds("train") for r in trial.reports]
        assert steps == sorted(steps)
        assert 0 <= trial.seconds <= trial.spent_seconds + 1e-6 < lasted
        if trial.state is State.REACHED:
            assert trial.seconds >= 0.004 * len([r for r in trial.reports if r.metrics])
    assert isinstance(journal.read(folder)[0], Opened)
    assert isinstance(journal.read(folder)[-1], Closed)


def wait_for_lines(folder: Path, lines: int, process: subprocess.Popen[bytes]) -> None:
    end, path = time.monotonic() + 900, folder / JOURNAL
    while process.poll() is None:
        if path.is_file() and path.read_bytes().count(b"\n") >= lines:
            return
        assert time.monotonic() < end, "the driver does not get on"
        time.sleep(0.01)
