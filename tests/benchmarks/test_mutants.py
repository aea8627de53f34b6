"""The recorded mutants apply to the code as it is; what a run of tests says of one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def mutants(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("mutants")


def test_every_mutant_occurs_once_in_its_file(mutants: ModuleType) -> None:
    assert mutants.outdated(mutants.MUTANTS, ROOT) == []
    assert len({m.name for m in mutants.MUTANTS}) == len(mutants.MUTANTS) == 30


def test_every_mutant_is_valid_python(mutants: ModuleType) -> None:
    for mutant in mutants.MUTANTS:
        changed = (ROOT / mutant.file).read_text().replace(mutant.before, mutant.after)
        compile(changed, mutant.file, "exec")


def test_the_tests_of_every_part_are_there(mutants: ModuleType) -> None:
    assert {m.part for m in mutants.MUTANTS} == set(mutants.TESTS)
    assert all((ROOT / path).exists() for paths in mutants.TESTS.values() for path in paths)


def test_a_text_that_is_missing_or_not_unique_is_outdated(
    mutants: ModuleType, tmp_path: Path
) -> None:
    (tmp_path / "code.py").write_text("a = 1\nb = 1\nc = 2\n")
    faults = [
        mutants.Mutant(name, "loop", file, before, "")
        for name, file, before in (
            ("once", "code.py", "c = 2"),
            ("twice", "code.py", " = 1"),
            ("never", "code.py", "d"),
            ("no file", "gone.py", "a"),
        )
    ]
    assert mutants.outdated(faults, tmp_path) == ["twice", "never", "no file"]


def test_a_mutant_is_applied_and_undone(mutants: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "code.py"
    file.write_text("limit = 3\n")
    with mutants.applied(mutants.Mutant("off by one", "loop", "code.py", "3", "4"), tmp_path):
        assert file.read_text() == "limit = 4\n"
    assert file.read_text() == "limit = 3\n"


def test_only_a_failing_test_kills(mutants: ModuleType) -> None:
    failed = "FAILED tests/a.py::test_b[x is 1] - assert 1 == 2\n1 failed"
    late = "FAILED tests/a.py::test_b - Failed: Timeout (>1800.0s) from pytest-timeout.\n1 failed"
    found = [
        mutants.verdict(0, "3 passed", 1.0),
        mutants.verdict(1, failed, 1.0),
        mutants.verdict(1, late, 1.0),
        mutants.verdict(5, "no tests ran", 1.0),
    ]
    assert [v.outcome for v in found] == ["survived", "killed", "not decided", "not decided"]
    assert found[1].test == "tests/a.py::test_b[x is 1]"


def test_a_fault_in_a_small_tree_is_found(mutants: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "plus.py").write_text("def more(a):\n    return a + 1\n")
    test = "from plus import more\n\n\ndef test_more():\n    assert more(1) == 2\n"
    (tmp_path / "test_plus.py").write_text(test)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    slow\n    soak\n")
    fault = mutants.Mutant("wrong sign", "loop", "plus.py", "a + 1", "a - 1")
    with mutants.applied(fault, tmp_path):
        found = mutants.run_tests(tmp_path, ("test_plus.py",), 600)
    assert (found.outcome, found.test) == ("killed", "test_plus.py::test_more")
    assert mutants.run_tests(tmp_path, ("test_plus.py",), 600).outcome == "survived"
