"""The table of faults names existing tests and the tier in which each runs."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest
from documents import ROOT

ROWS = [
    line for line in (ROOT / "docs" / "faults.md").read_text().splitlines() if line.startswith("| ")
]
FAULTS = [row for row in ROWS if "`test_" in row]


@cache
def tiers() -> dict[str, set[str]]:
    """The tiers of all test functions of the repository by name: quick, slow or soak."""
    found: dict[str, set[str]] = {}
    for path in (ROOT / "tests").rglob("test_*.py"):
        tree = ast.parse(path.read_text())
        own = [n.value for n in tree.body if isinstance(n, ast.Assign) and _is_mark(n)]
        file_marks = " ".join(ast.unparse(value) for value in own)
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                marks = [ast.unparse(decorator) for decorator in node.decorator_list]
                slow = "pytest.mark.slow" in (*marks, *re.findall(r"pytest\.mark\.\w+", file_marks))
                tier = "soak" if "pytest.mark.soak" in marks else "slow" if slow else "quick"
                found.setdefault(node.name, set()).add(tier)
    return found


def _is_mark(node: ast.Assign) -> bool:
    return ast.unparse(node.targets[0]) == "pytestmark"


@pytest.mark.parametrize("row", FAULTS, ids=lambda row: row.split("|")[1].strip())
def test_a_row_names_tests_that_there_are_with_their_tiers(row: str) -> None:
    named = re.findall(r"`(test_\w+)(…?)`(?: \(\*(\w+)\*\))?", row.split("|")[3])
    assert named
    for name, cut, tier in named:
        found = [test for test in tiers() if test == name or (cut and test.startswith(name))]
        assert len(found) == 1, f"{name}: {found}"
        assert (tier or "slow") in tiers()[found[0]], f"{name}: {tiers()[found[0]]}"


def test_every_fault_has_a_test() -> None:
    faults = [r for r in ROWS if not r.startswith(("| fault |", "| what it does |"))]
    assert faults == FAULTS
    assert len(FAULTS) >= 30
