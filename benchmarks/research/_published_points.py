"""Published settings as canonical points: facts from the named sources, without curves.

A document of kind `points` has no trials: a sampler may add its points to those it chooses from.
`warmup` is a share of the schedule; a rate belongs to the batch that is named with it, if any.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from _recorded import rounded, with_effective

from autotune.schedules import Constant, Schedule
from search_spaces.published import RECORDS, Record

Point = dict[str, Any]
_ALGOPERF = "https://github.com/mlcommons/submissions_algorithms/tree/main/previous_leaderboards"
_DAWNBENCH = "https://github.com/stanford-futuredata/dawn-bench-entries"
_GRID = tuple(i / 400 for i in range(401))
_COLUMNS = ("lr", "momentum", "beta2", "weight_decay", "warmup", "label_smoothing", "dropout")
_NADAMW = (
    (0.001308209823, 0.97313336939, 0.9981232922, 0.1637531123, 0.1, 0.1, 0.0),
    (0.000844507456, 0.88957581535, 0.9978504782, 0.0813540276, 0.05, 0.2, 0.0),
    (0.001308209823, 0.97313336939, 0.9981232922, 0.1637531123, 0.1, 0.0, 0.0),
    (0.004958460850, 0.86374424257, 0.6291854735, 0.1147386262, 0.02, 0.0, 0.0),
    (0.001748638754, 0.93266073836, 0.9955159690, 0.0812161652, 0.02, 0.0, 0.1),
)
"""AlgoPerf's NAdamW baseline: five settings for all workloads, with a warm-up and a cosine."""
_SCHEDULE_FREE = (
    (0.003, 0.9, 0.9955, 0.08, 0.02, 0.2, 0.0),
    (0.004, 0.9, 0.9955, 0.08, 0.02, 0.4, 0.1),
    (0.005, 0.9, 0.62918, 0.08, 0.02, 0.4, 0.0),
    (0.01, 0.925, 0.99, 0.04, 0.02, 0.1, 0.0),
    (0.002, 0.9, 0.9955, 0.08, 0.02, 0.2, 0.0),
)
"""Schedule-free AdamW, second version (Defazio et al. 2024, arXiv 2405.15682): five settings."""


def documents() -> list[dict[str, Any]]:
    """All documents of kind `points`."""
    return [
        _document("algoperf-nadamw", _ALGOPERF, _portfolio(_NADAMW, "nadamw", "cosine")),
        _document(
            "algoperf-schedulefree-adamw",
            _ALGOPERF,
            _portfolio(_SCHEDULE_FREE, "schedulefree_adamw", "constant"),
        ),
        _document("dawnbench", _DAWNBENCH, [_of(record) for record in RECORDS.values()]),
    ]


def _document(name: str, source: str, points: list[Point]) -> dict[str, Any]:
    short = [{key: rounded(value) for key, value in point.items()} for point in points]
    return {"kind": "points", "name": name, "source": source, "points": short}


def _portfolio(rows: tuple[tuple[float, ...], ...], optimizer: str, family: str) -> list[Point]:
    shape = {"optimizer": optimizer, "lr_family": family}
    return [with_effective({**dict(zip(_COLUMNS, row, strict=True)), **shape}) for row in rows]


def _of(record: Record) -> Point:
    """A published run by the greatest learning rate and batch of its schedules."""
    settings: Mapping[str, Any] = record.settings
    names = {"optimizer": "optimizer", "weight_decay": "weight_decay", "nesterov": "nesterov"}
    names |= {"label_smoothing": "label_smoothing", "trust_coefficient": "trust"}
    point = {names[key]: value for key, value in settings.items() if key in names}
    point |= {"lr": _greatest(record.lr), "batch_size": round(_greatest(record.batch_size))}
    point["epochs"] = record.epochs
    if isinstance(record.momentum, Constant):
        return with_effective({**point, "momentum": record.momentum.value})
    return point


def _greatest(schedule: Schedule) -> float:
    return max(float(schedule(place)) for place in _GRID)
