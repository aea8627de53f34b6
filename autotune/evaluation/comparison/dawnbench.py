"""Published runs in DAWNBench's form: a table of epoch, hours and accuracies, one line an epoch.

The first line names the columns; they are separated by tabs. A file of the same name that ends in
`.json` says what the run was: its `hardware` is what its times are compared by. As DAWNBench has
it, the clock stops for validation and checkpoints, and the time is that of the first line that
meets the target.

Source: Coleman et al., DAWNBench, NeurIPS ML Systems Workshop (2017).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from autotune.errors import UserError, unknown
from autotune.evaluation.comparison.model import (
    PUBLISHED,
    Candidate,
    ComparedTarget,
    Conditions,
    Run,
)

TOP5 = ComparedTarget("top5", 93.0)  # DAWNBench's target for ImageNet
_UNITS = {"hours": 3600.0, "minutes": 60.0, "seconds": 1.0}
_PROGRESS = "epoch"


def read(file: Path, target: ComparedTarget = TOP5) -> Candidate:
    """The published run in `file`, timed to `target`.

    Raises:
        UserError: no such file, a line that is torn or no numbers, a time that runs backwards, a
            column that is not there, a damaged description.
    """
    columns, lines = _table(file)
    unit = next((u for u in _UNITS if u in columns), None)
    if unit is None:
        raise UserError(f"{file} has no column of time: {_either(_UNITS)}, but {_listed(columns)}")
    if _PROGRESS not in columns:
        raise UserError(f"{file} has no column {_PROGRESS!r}, but {_listed(columns)}")
    metrics = {_plain(c): c for c in columns if c not in (unit, _PROGRESS)}
    metric = metrics.get(_plain(target.metric))
    if metric is None:
        raise UserError(f"{file}: {unknown('column', target.metric, metrics)}")
    curve = tuple(
        (row[_PROGRESS], round(row[unit] * _UNITS[unit], 6), row[metric]) for row in lines
    )
    for i, ((_, before, _), (_, now, _)) in enumerate(pairwise(curve), 3):
        if now < before:
            where = f"{file}, line {i}"
            raise UserError(f"{where}: time runs backwards, {now:g} s after {before:g} s")
    described = _description(file.with_suffix(".json"))
    hardware = described.get("hardware")
    return Candidate(
        file.stem,
        str(file),
        PUBLISHED,
        (run(str(file), curve, target),),
        Conditions(str(hardware) if hardware else None, None, None, "train", target),
        config=described,
    )


def run(
    name: str,
    curve: tuple[tuple[float, float, float], ...],
    target: ComparedTarget,
    unit: str = "epochs",
) -> Run:
    """The run with this curve of (samples, seconds, value), timed to `target`."""
    end, reached = crossing(curve, target)
    amount, seconds, _ = curve[end]
    rate = amount / seconds if seconds > 0 and amount > 0 else None
    return Run(
        name,
        seconds,
        reached,
        samples=amount,
        unit=unit,
        samples_per_second=rate,
        reason="" if reached else "ended",
        curve=curve,
    )


def crossing(
    curve: tuple[tuple[float, float, float], ...], target: ComparedTarget
) -> tuple[int, bool]:
    """Where the curve meets `target`, as often in a row as it asks, or its last place and False."""
    row = 0
    for i, (_, _, value) in enumerate(curve):
        row = row + 1 if _meets(value, target) else 0
        if row == target.confirm:
            return i, True
    return len(curve) - 1, False


def _meets(value: float, target: ComparedTarget) -> bool:
    return value >= target.value if target.mode == "max" else value <= target.value


def parse_target(text: str) -> ComparedTarget:
    """What `top5=93`, `top5>=93` or `val_loss<=3.28` asks for.

    >>> str(parse_target("top5=93")), str(parse_target("val_loss<=3.28"))
    ('top5 >= 93', 'val_loss <= 3.28')

    Raises:
        UserError: it is of no such form.
    """
    found = re.fullmatch(r"\s*([^<>=\s]+)\s*(<=|>=|=)\s*(\S+)\s*", text)
    value = _number(found[3]) if found else None
    if found is None or value is None:
        raise UserError(f"--target must be like top5=93 or val_loss<=3.28 but got {text!r}")
    return ComparedTarget(found[1], value, "min" if found[2] == "<=" else "max")


# --- the file -------------------------------------------------------------------------------------


def _table(file: Path) -> tuple[list[str], list[dict[str, float]]]:
    """The columns' names and the lines' numbers by name."""
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"{file} does not exist") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{file} cannot be read: {error}") from None
    head, *rest = text.splitlines() or [""]
    columns = [c.strip() for c in head.split("\t")]
    if len(set(columns)) < 2:
        raise UserError(f"{file} is no table of published results: its first line is {head!r:.60}")
    lines = []
    for number, line in enumerate(rest, 2):
        if not line.strip():
            continue
        cells = line.split("\t")
        if len(cells) != len(columns):
            had = f"{len(cells)} columns where the first line has {len(columns)}"
            raise UserError(f"{file}, line {number}: {had}")
        row = {c: _number(cell) for c, cell in zip(columns, cells, strict=True)}
        bad = next((c for c, v in row.items() if v is None), None)
        if bad is not None:
            cell = cells[columns.index(bad)]
            raise UserError(f"{file}, line {number}: {bad} must be a number but got {cell!r:.40}")
        lines.append({c: v for c, v in row.items() if v is not None})
    if not lines:
        raise UserError(f"{file} has no line of results")
    return columns, lines


def _number(cell: str) -> float | None:
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _plain(column: str) -> str:
    """A column's name as people type it: `top5Accuracy` and `top-5` are `top5`."""
    return re.sub(r"[^a-z0-9]|accuracy", "", column.lower()) or column


def _either(names: Mapping[str, Any]) -> str:
    return " or ".join(names)


def _listed(names: list[str]) -> str:
    return ", ".join(names)


def _description(file: Path) -> dict[str, Any]:
    try:
        described = json.loads(file.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UserError(f"{file} cannot be read: {error}") from None
    return described if isinstance(described, dict) else {}
