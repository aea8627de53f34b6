"""`autotune scale`: a study's batch size, time to target and cost on other numbers of workers."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from autotune.cli.columns import Column, table
from autotune.cli.console import DONE, UNREACHED, not_reached, say, study_in
from autotune.cli.screen import Screen, screen
from autotune.errors import UserError
from autotune.evaluation.scaling.document import CONSIDERED, document
from autotune.evaluation.scaling.fit import FITTED, MEASURED, NOT_MEASURED, RING, UNKNOWN
from autotune.evaluation.scaling.trials import fitted
from autotune.evaluation.scaling.values import TooLittleError
from autotune.trial.wording import aim

_FURTHER = (1, 2, 4)  # times the study's own workers, unless others are asked about
_MOST_WORKERS = 1_000_000
_COLUMNS = (
    Column("workers", right=True),
    Column("batch size", right=True),
    Column("95 %"),
    Column("time to target", right=True),
    Column("95 %"),
    Column("device-seconds", right=True),
    Column("95 %"),
    Column("communication"),
)
_SAID = {
    MEASURED: "measured",
    FITTED: "fitted",
    RING: "as over a ring, to none",
    NOT_MEASURED: "not measured",
    UNKNOWN: "unknown",
}


def run(folder: Path, also: Sequence[Path], workers: Sequence[int] | None, as_json: bool) -> int:
    """Print what the study's trials say of other numbers of workers.

    Args:
        also: studies of the same recipe on other numbers of workers.

    Raises:
        UserError: a folder holds no study, or its target counts no seconds.
    """
    asked = _checked(workers)
    studies = [study_in(place) for place in (folder, *also)]
    manifest, result = studies[0]
    missing = not_reached(result) if result.best is None else ""
    if not missing:
        try:
            fit = fitted(studies)
        except TooLittleError as error:
            missing = str(error)
    if missing:
        if as_json:
            print("null")
        say(missing)
        return UNREACHED
    assert result.best is not None, "else it is missing"
    own = result.best.hardware.num_workers
    counts = asked or [times * own for times in _FURTHER]
    found = document(fit, manifest, folder, counts, also)
    if as_json:
        print(json.dumps(found))
    else:
        _print(found, aim(manifest.target), screen(sys.stdout))
    return DONE


def _checked(workers: Sequence[int] | None) -> list[int]:
    for count in workers or ():
        if not 1 <= count <= _MOST_WORKERS:
            raise UserError(
                f"--workers must be whole numbers from 1 to {_MOST_WORKERS:,} but got {count}"
            )
    return sorted(set(workers or ()))


def _print(found: Mapping[str, Any], target: str, out: Screen) -> None:
    law, (low, high) = found["law"], found["measured"]["batch_sizes"]
    ranks = ", ".join(map(str, found["measured"]["workers"]))
    out.paragraph(
        f"{found['study']} ({target}): measured on {ranks} worker{'' if ranks == '1' else 's'}, "
        f"at batch sizes {low} to {high}"
    )
    out.paragraph(
        f"{_samples(law)}; 95 % of that size: {_ends(law['noise_batch_size_interval'], _size)}; "
        f"from {law['noise_from']}"
    )
    rows = [_cells(row) for row in found["workers"]]
    for lines in table(_COLUMNS, rows, out.width):
        out.lines(lines)
    out.paragraph(
        "times are of training only: set-up and evaluation come on top; " + _said(found["workers"])
    )
    for one in found["to_be_surer"]:
        out.lines([f"to be surer, as {one['why']}:", f"  {one['how']}"])


def _said(rows: Sequence[Mapping[str, Any]]) -> str:
    """What is to be known of the table as a whole."""
    ends = [str(row["workers"]) for row in rows if row["at_end"]]
    return CONSIDERED + (f", which ends the choice on {', '.join(ends)} workers" if ends else "")


def _cells(row: Mapping[str, Any]) -> list[str]:
    bound = "at least " if row["communication"] == UNKNOWN else ""
    return [
        str(row["workers"]),
        f"{row['batch_size']:,}",
        _ends(row["batch_size_interval"], _size),
        f"{bound}{_seconds(row['seconds'])}",
        _ends(row["seconds_interval"], _seconds),
        f"{bound}{_seconds(row['device_seconds'])}",
        _ends(row["device_seconds_interval"], _seconds),
        _SAID[row["communication"]],
    ]


def _ends(ends: Sequence[float | None], text: Any) -> str:
    return " to ".join(text(end) for end in ends)


def _samples(law: Mapping[str, Any]) -> str:
    """How many samples the target needs, with the gradient noise scale as a batch size.

    >>> _samples({"least_samples": 2000.0, "noise_batch_size": 50.0})
    'samples to the target: 2,000 x (1 + batch size / 50)'
    >>> _samples({"least_samples": 0.0, "samples_per_batch_size": 40.0, "noise_batch_size": 0.0})
    'samples to the target: 40 x batch size, as the noise scale is below what these runs can show'
    """
    noise, needed = law["noise_batch_size"], "samples to the target: "
    if noise is None or noise >= 1:
        return f"{needed}{law['least_samples']:,.0f} x (1 + batch size / {_size(noise)})"
    more = f"{law['samples_per_batch_size']:,.0f} x batch size"
    return f"{needed}{more}, as the noise scale is below what these runs can show"


def _size(value: float | None) -> str:
    """A batch size.

    >>> _size(None), _size(1234.4), _size(0.0)
    ('no end', '1,234', 'below 1')
    """
    if value is None:
        return "no end"
    return f"{value:,.0f}" if value >= 1 else "below 1"


def _seconds(value: float | None) -> str:
    """Seconds with three digits.

    >>> _seconds(0.01234), _seconds(12.345), _seconds(12345.6), _seconds(None)
    ('0.0123 s', '12.3 s', '12,346 s', 'no end')
    """
    if value is None:
        return "no end"
    digits = max(2 - math.floor(math.log10(value)), 0) if value > 0 else 0
    return f"{value:,.{digits}f} s"
