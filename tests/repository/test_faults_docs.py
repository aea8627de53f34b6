"""The document of faults names tests that there are."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest
from documents import ROOT

ROWS = [
    line for line in (ROOT / "docs" / "faults.md").read_text().splitlines() if line.startswith("| ")
]
FAULTS = [row for row in ROWS if "`test_" in row]


@cache
def known() -> frozenset[str]:
    """The names of all test functions of the repository, wherever they are."""
    trees = (ast.parse(path.read_text()) for path in Path(ROOT / "tests").rglob("test_*.py"))
    nodes = (node for tree in trees for node in ast.walk(tree))
    return frozenset(n.name for n in nodes if isinstance(n, ast.FunctionDef))


@pytest.mark.parametrize("row", FAULTS, ids=lambda row: row.split("|")[1].strip())
def test_a_row_names_tests_that_there_are(row: str) -> None:
    named = re.findall(r"`(test_\w+)(…?)`", row.split("|")[3])
    assert named
    for name, cut in named:
        found = [test for test in known() if test == name or (cut and test.startswith(name))]
        assert len(found) == 1, f"{name}: {found}"


def test_every_fault_has_a_test() -> None:
    faults = [r for r in ROWS if not r.startswith(("| fault |", "| what it does |"))]
    assert faults == FAULTS
    assert len(FAULTS) >= 30
