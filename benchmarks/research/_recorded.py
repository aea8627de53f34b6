"""Learning curves of trials, kept in a file while a study grows, and made into its summary."""

from __future__ import annotations

import hashlib
import json
import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import autotune
from autotune.algorithms.experience.known_task import MARKS
from autotune.study.experience.document import Summary

Point = Mapping[str, Any]
_LATE = 1 + 1e-9
_DIGITS = 4  # significant ones, of all numbers that are kept
_LEAST_FRICTION = 1e-4  # the least 1 - momentum, as in `experience.canonical`


@dataclass(frozen=True)
class Study:
    """What is equal for all trials of a study.

    Args:
        name: of the study.
        trainer: what trained: the module of a function, or the table.
        metric: what was measured; with its `mode`, "max" or "min".
        limit: of a trial, on the clock: "train" (seconds) or "steps".
        share: of the trials that reach the target within the limit.
        hardware: what they were trained on, in words.
        problem: the model, data and limit, where there are studies with other optimizers.
    """

    name: str
    trainer: str
    metric: str
    mode: str
    limit: float
    clock: str = "train"
    share: float = 0.05
    hardware: str = ""
    problem: str = ""

    def seeded(self, seed: int) -> int:
        """The seed of its own points: studies have different ones."""
        return zlib.crc32(f"{seed}/{self.name}".encode()) // 2


@dataclass
class Curves:
    """The trials of a study as far as there are any.

    Args:
        points: their canonical points.
        seconds, values: of each trial the times of its readings and the metric at each.
        cpu: seconds of processor time that they took.
    """

    points: list[Point] = field(default_factory=list)
    seconds: list[list[float]] = field(default_factory=list)
    values: list[list[float]] = field(default_factory=list)
    cpu: float = 0.0

    def add(self, point: Point, seconds: Iterable[float], values: Iterable[float]) -> None:
        """Add a trial; readings that are not finite are left out."""
        pairs = [(float(s), float(v)) for s, v in zip(seconds, values, strict=True)]
        pairs = [(s, v) for s, v in pairs if math.isfinite(v)]
        self.points.append({name: rounded(value) for name, value in point.items()})
        self.seconds.append([rounded(s) for s, _ in pairs])
        self.values.append([rounded(v) for _, v in pairs])

    def write(self, file: Path) -> None:
        """Keep them; the file is whole at any time."""
        fresh = file.with_suffix(".part")
        fresh.write_text(json.dumps(vars(self)))
        fresh.replace(file)


def kept(file: Path) -> Curves:
    """What was written before; none where there is no file."""
    return Curves(**json.loads(file.read_text())) if file.exists() else Curves()


def summary(study: Study, curves: Curves) -> Summary:
    """The summary of a study whose target is the value that a share of its trials reach.

    The curves are whole: those of trials that reached the target go on to the limit, and what a
    trial reached by its own end, or before it diverged, stays its best.
    """
    sign = 1.0 if study.mode == "max" else -1.0
    signed = [sign * np.asarray(values, dtype=float) for values in curves.values]
    shares = [np.asarray(seconds) / study.limit for seconds in curves.seconds]
    pairs = list(zip(shares, signed, strict=True))
    best = [values[times <= _LATE].max(initial=-math.inf) for times, values in pairs]
    goal = float(np.quantile(best, 1 - study.share, method="lower"))
    goal = goal if math.isfinite(goal) else 0.0
    text = json.dumps([study.name, curves.points, curves.values], sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()
    return Summary(
        name=study.name,
        study_id=digest[:32],
        trainer=study.trainer,
        source="",
        fingerprint=digest,
        target={
            "metric": study.metric,
            "mode": study.mode,
            "clock": study.clock,
            "value": sign * goal,
            "limit": rounded(study.limit),
            "longest": rounded(study.limit),
        },
        hardware=study.hardware,
        version=autotune.__version__,
        points=curves.points,
        times=[_reached(times, values, goal) for times, values in pairs],
        ended=[1.0] * len(pairs),
        curves=[_at_marks(times, values) for times, values in pairs],
        problem=study.problem,
    )


def with_effective(point: Point) -> dict[str, Any]:
    """A canonical point with its effective learning rate, lr / (1 - momentum)."""
    friction = max(1.0 - float(point["momentum"]), _LEAST_FRICTION)
    return {**point, "effective_lr": point["lr"] / friction}


def rounded(value: Any) -> Any:
    """A number with few digits; a whole one without a fraction, and all else as it is."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        return value
    short = float(f"{float(value):.{_DIGITS}g}")
    return int(short) if short.is_integer() and abs(short) < 1e6 else short


def _reached(times: np.ndarray, values: np.ndarray, goal: float) -> float | None:
    met = np.flatnonzero((values >= goal) & (times <= _LATE))
    return rounded(max(times[met[0]], 1e-6)) if len(met) else None


def _at_marks(times: np.ndarray, values: np.ndarray) -> list[float | None]:
    """The best value until each mark; None before the first reading."""
    seen = [values[times <= mark * _LATE] for mark in MARKS]
    return [rounded(float(own.max())) if len(own) else None for own in seen]


def drawn(count: int, rows: int, seed: Sequence[int]) -> list[int]:
    """Which rows of a table are taken, in rising order; the same for the same seed."""
    order = np.random.default_rng(list(seed)).permutation(count)
    return sorted(int(i) for i in order[:rows])
