"""The table of faults names tests that there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = [r for r in (ROOT / "docs" / "faults.md").read_text().splitlines() if r.startswith("| ")]
FILE = re.compile(r"`((?:\w+/)?test_\w+\.py)`")
NAME = re.compile(r"`([a-z]\w+_\w+)(?:…)?(?:\[\w+\])?(?:…)?`")


@pytest.mark.parametrize("row", [r for r in ROWS if ".py" in r], ids=lambda r: r.split("|")[1])
def test_a_row_names_tests_that_there_are(row: str) -> None:
    files = FILE.findall(row)
    assert files
    source = "".join((ROOT / "tests" / file).read_text() for file in files)
    for name in NAME.findall(row.split("|")[3]):
        assert f"def test_{name}" in source, name
