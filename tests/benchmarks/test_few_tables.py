"""The tables and the aims of `few_trials.py`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def study(row: str, task: str, at_5: float, at_10: float, **more: Any) -> dict[str, Any]:
    """A study by what its best is worth in seconds; the best there is is 1 s, the limit 10 s."""
    seconds = {"3": 10.0, "5": at_5, "10": at_10}
    about = {"seed": 0, "workers": 1, "target": "quantile", "limit": 10.0, "best": 1.0}
    return {"row": row, "task": task, "seconds": seconds, "trials": 9, "cpu": 1.0, **about, **more}


def test_regret_is_over_the_best_that_is_known(module: Any) -> None:
    tables = module("tables")
    first, second = tables.with_regrets([study("a", "x", 4.0, 0.5), study("b", "x", 10.0, 2.0)])
    assert first["regret"] == {"3": 20.0, "5": 8.0, "10": 1.0}  # 0.5 s is less than the best known
    assert second["regret"] == {"3": 20.0, "5": 20.0, "10": 4.0}
    (other,) = tables.with_regrets([study("a", "y", 4.0, 2.0)])
    assert other["regret"]["10"] == 2.0


def test_aims(module: Any) -> None:
    tables = module("tables")
    studies = [
        *(study("random", task, 8.0, 4.0) for task in "xy"),
        *(study("convergence", task, 4.0, 4.0) for task in "xy"),
        *(study("the new default", task, 4.0, worth) for task, worth in (("x", 1.0), ("y", 2.0))),
        *(study("posterior, reversed", task, 5.0, 4.0) for task in "xy"),
        study("random", "x", 1.0, 1.0, workers=4),  # judged with one worker only
    ]
    judged = tables.aims(studies, recorded=True)
    assert judged == [
        (True, "regret at 5 over random's 0.50 (aim: 0.5)"),
        (True, "regret at 10 1.41 (aim: 1.5)"),
        (
            False,
            "posterior, reversed: regret at 5 over the better of random's and convergence's 1.25 "
            "(aim: 1.1)",
        ),
    ]
    assert [text for _, text in tables.aims(studies, recorded=False)] == [
        judged[0][1],
        judged[2][1],
    ]


@pytest.mark.parametrize(("worth", "code"), [(1.0, 0), (6.0, 1)])
def test_exit_code_of_missed_aims(
    run: Callable[..., int],
    tmp_path: Path,
    capsys: Any,
    worth: float,
    code: int,
) -> None:
    runs = [study("random", "x", 8.0, 4.0), study("the new default", "x", worth, 1.0)]
    about = {"problem": "recorded", "not_run": {"Syne Tune BoundingBox": "it is absent"}}
    file = tmp_path / "studies.json"
    file.write_text(json.dumps({**about, "runs": runs}))
    assert run("--merge", file) == code
    said = capsys.readouterr().out
    assert ("MISSED: regret at 5 over random's 0.75" in said) == (code == 1)
    assert "Syne Tune BoundingBox  not run: it is absent" in said


def test_pairs_have_one_task_and_seed(module: Any) -> None:
    tables = module("tables")
    rows = [study("a", "x", 2.0, 1.0), study("a", "y", 3.0, 1.0), study("b", "x", 4.0, 1.0)]
    (group,) = tables.groups(tables.with_regrets(rows)).values()
    assert tables.paired(group, "b", "a", "5") == [{"task": "x", "ratio": 2.0}]
