"""Recipes by module and by file, and what is said when there is none."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import autotune as at
from autotune.backends import recipe_modules
from autotune.study import recipes

GOOD = """
import autotune as at
from neighbour import RATE

def train(config):
    yield at.Milestone(0, dict)

def fast():
    space = at.SearchSpace({"rate": at.Float(0, RATE)})
    return at.Experiment("fast", train, space, at.Target("acc", 0.9, limit=1))

def wrong():
    return at.Experiment("wr ong", train, at.SearchSpace({}), at.Target("acc", 0.9, limit=1))

def mistyped():
    return at.Target("acc", 0.9, limits=1)

def other():
    return 3

def crashes():
    return {}["x"]

def runtime():
    raise RuntimeError("two\\nlines")

def unmet():
    import no_such_package

def denied():
    open("/proc/no/such")

def inside():
    import json
    return json.loads("{")

def leaves():
    raise SystemExit(7)

def interrupted():
    raise KeyboardInterrupt

NUMBER = 3
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "mine.py").write_text(GOOD)
    (tmp_path / "neighbour.py").write_text("RATE = 2\n")
    (tmp_path / "broken.py").write_text("import autotune\n1 / 0\n")
    (tmp_path / "unfinished.py").write_text("def study(:\n")
    (tmp_path / "leaving.py").write_text("import sys\nsys.exit(0)\n")
    (tmp_path / "needs.py").write_text("import no_such_package\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.mark.parametrize("place", ["mine.py", "mine", "{}/mine.py", "./mine.py"])
def test_a_recipe_is_found_by_file_and_by_module(folder: Path, place: str) -> None:
    experiment = recipes.load(f"{place.format(folder)}:fast")
    assert experiment.name == "fast"
    by_file = place.endswith(".py")
    assert recipe_modules.is_recipe_file(sys.modules[experiment.train.__module__]) == by_file


def test_an_absolute_recipe_is_found_from_anywhere(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = recipes.absolute("mine.py:fast")
    monkeypatch.chdir("/")
    assert recipes.load(name).name == "fast"
    assert recipes.absolute("package.module:fast") == "package.module:fast"


@pytest.mark.parametrize(
    ("recipe", "says"),
    [
        ("mine", "recipe 'mine' must be module:function or path/file.py:function"),
        ("mine:", "must be module:function"),
        (":fast", "must be module:function"),
        ("mine.py:fest", "unknown function 'fest'; did you mean 'fast'?"),
        ("mine.py:NUMBER", "unknown function 'NUMBER'"),
        ("nine.py:fast", "recipe file 'nine.py' does not exist"),
        ("nine:fast", "unknown module 'nine'"),
        ("mine.py:wrong", "name must be letters"),
        ("mine.py:mistyped", "unknown argument of Target 'limits'; did you mean 'limit'?"),
        ("mine.py:other", "must return an Experiment but got 3"),
        ("broken.py:study", "cannot be imported: ZeroDivisionError: division by zero"),
        ("broken:study", "'broken' cannot be imported: ZeroDivisionError"),
        ("unfinished.py:study", "cannot be imported: SyntaxError"),
        ("needs.py:study", "No module named 'no_such_package'"),
        ("needs:study", "'needs' cannot be imported: ModuleNotFoundError: No module named"),
        ("mine.py:crashes", "recipe 'mine.py:crashes': KeyError: 'x' (mine.py, line {})"),
        ("mine.py:runtime", "RuntimeError: two (mine.py, line {})"),
        ("mine.py:unmet", "No module named 'no_such_package' (mine.py, line {})"),
        ("mine.py:denied", "No such file or directory: '/proc/no/such' (mine.py, line {})"),
        ("mine.py:inside", "Expecting property name"),
        ("mine.py:inside", "(mine.py, line {})"),
        ("mine:crashes", "KeyError: 'x' (mine.py, line {})"),
        ("mine.py:leaves", "it called sys.exit(7) (mine.py, line {})"),
        ("leaving.py:study", "it called sys.exit(0) (leaving.py, line 2)"),
        ("leaving:study", "it called sys.exit(0) (leaving.py, line 2)"),
        (".mine:study", "'.mine' cannot be imported"),
    ],
)
def test_what_cannot_be_found_is_one_line(folder: Path, recipe: str, says: str) -> None:
    with pytest.raises(at.UserError) as error:
        recipes.load(recipe)
    lines = GOOD.splitlines()
    begin = next((i for i, x in enumerate(lines) if x == f"def {recipe.rpartition(':')[2]}():"), 0)
    last = lines.index("", begin) if begin else 0
    assert says.format(last) in str(error.value)
    assert "\n" not in str(error.value)


def test_what_a_recipe_raised_is_the_cause(folder: Path) -> None:
    with pytest.raises(at.UserError) as error:
        recipes.load("mine.py:crashes")
    assert isinstance(error.value.__cause__, KeyError)
    with pytest.raises(KeyboardInterrupt):
        recipes.load("mine.py:interrupted")


def test_two_files_of_one_name_are_two_modules(folder: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "sub" / "mine.py").write_text(GOOD.replace('"fast"', '"second"'))
    assert recipes.load("mine.py:fast").name == "fast"
    assert recipes.load("sub/mine.py:fast").name == "second"


def test_a_recipe_that_a_study_names_elsewhere_is_found_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "own.py").write_text("")
    (tmp_path / "own.py").write_text("")
    there = "/somewhere/else/mine/own.py:study"
    assert recipes.moved(there) == f"{tmp_path / 'mine' / 'own.py'}:study"
    assert recipes.moved("/somewhere/other.py:study") == "/somewhere/other.py:study"
    assert recipes.moved("search_spaces.digits:lars") == "search_spaces.digits:lars"
    stands = f"{tmp_path / 'own.py'}:study"
    assert recipes.moved(stands) == stands
