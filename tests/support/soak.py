"""Kills ranks and drivers of a study at seeded moments until it is done, and counts it all again.

What is counted here is read from the journal's lines as plain JSON, without the project's own code.
"""

from __future__ import annotations

import json
import math
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import soak_study

PATIENCE_SECONDS = 900.0  # without a line of the journal
_BEATS = 0.01


@dataclass(frozen=True)
class Kill:
    """After so many trials have ended, and a moment more, a `driver` or a `rank` is killed."""

    ended: int
    what: str
    delay_seconds: float


def plan(trials: int, drivers: int, ranks: int, seed: int) -> list[Kill]:
    """When to kill whom: a function of the seed."""
    rng = random.Random(seed)
    kinds = ["driver"] * drivers + ["rank"] * ranks
    made = [Kill(rng.randrange(1, trials - 1), kind, rng.uniform(0.0, 0.3)) for kind in kinds]
    return sorted(made, key=lambda kill: kill.ended)


@dataclass
class Tail:
    """A journal, read on as it grows."""

    path: Path
    rows: list[dict[str, Any]] = field(default_factory=list)
    _offset: int = 0

    def read(self) -> list[dict[str, Any]]:
        """The lines that are new; a torn last one may yet be taken back."""
        if not self.path.is_file():
            return []
        with open(self.path, "rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        news = [json.loads(line) for line in whole.splitlines()]
        self.rows += news
        return news

    @property
    def ended(self) -> int:
        """How many trials have ended for good."""
        return sum(r["event"] == "ended" and r["reason"] != "interrupted" for r in self.rows)

    def victims(self) -> list[int]:
        """The processes that have reported last, the newest first."""
        pids = (r["report"]["metrics"].get("pid") for r in reversed(self.rows[-200:])
                if r["event"] == "reported")  # fmt: skip
        return [int(pid) for pid in dict.fromkeys(p for p in pids if p)]


def soak(folder: Path, address: str, trials: int, kills: list[Kill]) -> Counter[str]:
    """Drive the study to its end, whoever is killed; how many really were."""
    tail, done, left = Tail(folder / "journal.jsonl"), Counter[str](), list(kills)
    process = _drive(folder, address, trials)
    last_progress = time.monotonic()
    try:
        while process.poll() is None:
            if tail.read():
                last_progress = time.monotonic()
            assert time.monotonic() - last_progress < PATIENCE_SECONDS, "the study does not get on"
            if left and tail.ended >= left[0].ended:
                kill = left.pop(0)
                time.sleep(kill.delay_seconds)
                if kill.what == "rank":
                    done["rank"] += _kill_rank(tail)
                elif process.poll() is None:
                    process.kill()
                    process.communicate()
                    done["driver"] += 1
                    process = _drive(folder, address, trials)
            time.sleep(_BEATS)
        out, error = process.communicate()
        assert out.splitlines()[-1:] == ["done"], (
            f"code {process.returncode}: {out[-500:]} {error[-3000:]}"
        )
    finally:
        process.kill()
        process.wait()
    return done


def _drive(folder: Path, address: str, trials: int) -> subprocess.Popen[str]:
    command = [sys.executable, soak_study.__file__, str(folder), address, str(trials)]
    temporary = folder.parent / "tmp"
    temporary.mkdir(exist_ok=True)
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "TMPDIR": str(temporary)},
    )


def _kill_rank(tail: Tail) -> bool:
    """SIGKILL the rank that reported last and is still there."""
    for pid in tail.victims():
        try:
            words = Path(f"/proc/{pid}/cmdline").read_bytes()
            if b"ray::" in words or b"backends.local.child" in words:
                os.kill(pid, signal.SIGKILL)
                return True
        except OSError:
            continue
    return False


@dataclass
class Count:
    """One trial, counted up from its lines."""

    state: str = ""
    reason: str = ""
    seconds: float = 0.0
    attempts: int = 0
    retries: int = 0
    spent: float = 0.0
    ends: int = 0
    suggestions: int = 0
    repeats: int | None = None
    points: list[dict[str, Any]] = field(default_factory=list)
    saved: list[int] = field(default_factory=lambda: [0])
    since: float | None = None
    checkpoint: int = -1


def counted(path: Path) -> dict[int, Count]:
    """All trials of a journal."""
    trials: dict[int, Count] = {}
    for line in path.read_bytes().splitlines():
        row = json.loads(line)
        if row["event"] in ("opened", "closed"):
            continue
        _count(trials.setdefault(row["trial"], Count()), row)
    return trials


def _count(trial: Count, row: dict[str, Any]) -> None:
    event = row["event"]
    if event in ("lost", "ended") and trial.since is not None:
        trial.spent += row["at"] - trial.since
        trial.since = None
    if event == "suggested":
        trial.suggestions += 1
        trial.repeats = row.get("repeats")
    elif event == "started":
        trial.attempts += 1
        trial.since = row["at"]
        trial.points = [p for p in trial.points if p["step"] <= trial.checkpoint]
    elif event == "reported":
        trial.points.append(row["report"])
    elif event == "saved":
        trial.checkpoint = row["checkpoint"]["step"]
        trial.saved.append(trial.checkpoint)
    elif event == "lost":
        trial.retries += row["broke"]
        trial.state = trial.reason = ""
    elif event == "ended":
        trial.state, trial.reason, trial.seconds = row["state"], row["reason"], row["seconds"]
        trial.ends += row["reason"] != "interrupted"


def mean_times(trials: dict[int, Count]) -> dict[int, float]:
    """The searched trials that reached the target, with their times; the study has no races."""
    times: dict[int, list[float]] = {n: [] for n, c in trials.items() if c.repeats is None}
    for number, count in trials.items():
        if count.state in ("REACHED", "CENSORED"):
            own = number if count.repeats is None else count.repeats
            times[own].append(count.seconds if count.state == "REACHED" else math.inf)
    medians = {n: statistics.median(runs) for n, runs in times.items() if runs}
    return {n: seconds for n, seconds in medians.items() if seconds < math.inf}


def same(one: float, other: float) -> bool:
    """Equal as far as a database's numbers are; NaN is NaN."""
    return (math.isnan(one) and math.isnan(other)) or math.isclose(one, other, rel_tol=1e-12)
