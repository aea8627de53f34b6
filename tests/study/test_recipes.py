"""Recipes by module and by file, and what is said when there is none."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from pathlib import Path

import cloudpickle
import pytest

import autotune as at
from autotune.backends import recipe_modules
from autotune.study import recipes
from autotune.study.options import StudyOptions, options_from_json
from autotune.study.recipe_arguments import pair

GOOD = """
import autotune as at
from functools import partial
from neighbour import RATE

def train(config):
    yield at.Milestone(0, dict)

def fast():
    space = at.SearchSpace({"rate": at.Float(0, RATE)})
    return at.Experiment("fast", train, space, at.Target("acc", 0.9, limit=1))

def part():
    space = at.SearchSpace({"rate": at.Float(0, RATE)})
    return at.Experiment("part", partial(train), space, at.Target("acc", 0.9, limit=1))

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

from pathlib import Path
from typing import Any, Literal, Optional

def tuned(data: Path, model: Literal["small", "large"] = "small", rate: float = 2.0,
          epochs: int = 3, *, augment: bool = False, name: str = "tuned",
          cache: Path | None = None, limit: Optional[int] = None, plain="x", whole=3):
    made = [data, model, rate, epochs, augment, name, cache, limit, plain, whole]
    space = at.SearchSpace({"made": at.Fixed(repr(made)), "rate": at.Float(0, rate)})
    return at.Experiment(name, train, space, at.Target("acc", 0.9, limit=1))

def odd(shape: list[int]):
    return fast()

def unreadable(data: "NoSuchType"):
    return fast()

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


@pytest.mark.parametrize("name", ["fast", "part"])
def test_workers_need_no_file_of_the_recipe(folder: Path, name: str) -> None:
    experiment = recipes.load(f"mine.py:{name}")
    sent = recipe_modules.pickled(experiment.train, cloudpickle)
    loaded = [module for module in sys.modules if module.startswith(recipe_modules.FILE_PREFIX)]
    for module in loaded:  # as in a worker
        del sys.modules[module]
    assert next(iter(pickle.loads(sent)({}))).step == 0


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


@pytest.mark.parametrize("what", ["pruner", "controller", "trainer"])
@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("mine", " 'mine' must be module:function or path/file.py:function"),
        ("mine.py:fest", " 'mine.py:fest': unknown function 'fest'; did you mean 'fast'?"),
        ("nine.py:fast", " file 'nine.py' does not exist"),
        ("broken.py:rule", " file '{}/broken.py' cannot be imported: ZeroDivisionError"),
        ("search_spaces.digit:rule", " module 'search_spaces.digit' does not exist"),
        ("nine:fast", " module 'nine' does not exist"),
        ("broken:rule", " module 'broken' cannot be imported: ZeroDivisionError"),
        ("needs:rule", " module 'needs' cannot be imported: ModuleNotFoundError"),
    ],
)
def test_what_is_no_recipe_is_called_what_it_is(
    folder: Path, path: str, says: str, what: str
) -> None:
    """And a recipe is not suggested in its place."""
    with pytest.raises(at.UserError) as error:
        recipes.find(path, what)
    assert str(error.value).startswith(f"{what}{says.format(folder)}")
    assert "recipe" not in str(error.value).replace(str(folder), "")
    assert "did you mean 'search_spaces" not in str(error.value)


def test_what_a_recipe_raised_is_the_cause(folder: Path) -> None:
    with pytest.raises(at.UserError) as error:
        recipes.load("mine.py:crashes")
    assert isinstance(error.value.__cause__, KeyError)
    with pytest.raises(KeyboardInterrupt):
        recipes.load("mine.py:interrupted")


def arguments(*words: str) -> dict[str, str]:
    return dict(pair(word) for word in words)


def test_arguments_are_read_by_the_annotations(folder: Path) -> None:
    words = ["data=images", "model=Large", "rate=1e-3", "epochs=7", "augment=yes", "name=mine"]
    more = ["cache=/c", "limit=none", "plain=y", "whole=4"]
    made = recipes.loaded("mine.py:tuned", arguments(*words, *more))
    read = [folder / "images", "large", 1e-3, 7, True, "mine", Path("/c"), None, "y", 4]
    assert made.experiment.space.entries["made"] == at.Fixed(repr(read))
    assert made.recipe == f"{folder / 'mine.py'}:tuned"
    kept = [f"data={folder / 'images'}", "model=large", *words[2:]]
    assert made.arguments == arguments(*kept, *more)


def test_a_study_s_recipe_is_found_again_with_its_arguments(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = recipes.loaded("mine.py:tuned", arguments("data=images"))
    options = StudyOptions(recipe=made.recipe, recipe_arguments=made.arguments)
    written = options.to_json()
    assert written["recipe_arguments"] == {"data": str(folder / "images")}
    monkeypatch.chdir("/")
    assert recipes.load_again(options_from_json(written)).space == made.experiment.space
    del written["recipe_arguments"]  # as in the manifests of older studies
    older = options_from_json({**written, "recipe": f"{folder / 'mine.py'}:fast"})
    assert recipes.load_again(older).name == "fast"


@pytest.mark.parametrize(
    ("recipe", "words", "says"),
    [
        ("fast", ["rate=1"], "takes no arguments but got rate (--with)"),
        ("tuned", [], "needs --with data=PATH"),
        ("tuned", ["dat=x"], "unknown argument (--with) 'dat'; did you mean 'data'? (allowed: "),
        ("tuned", ["data=x", "model=big"], "unknown model 'big' (allowed: large, small)"),
        ("tuned", ["data=x", "model=lage"], "unknown model 'lage'; did you mean 'large'?"),
        ("tuned", ["data=x", "rate=fast"], "rate must be a number but got 'fast'"),
        ("tuned", ["data=x", "rate=nan"], "rate must be a number but got 'nan'"),
        ("tuned", ["data=x", "epochs=1.5"], "epochs must be a whole number but got '1.5'"),
        ("tuned", ["data=x", "augment=maybe"], "augment must be true or false but got 'maybe'"),
        ("tuned", ["data=x", "limit=soon"], "limit must be a whole number but got 'soon'"),
        ("tuned", ["data=~no-user/x"], "data must be a path but got '~no-user/x'"),
        ("tuned", ["data=x", "whole=no"], "whole must be a whole number but got 'no'"),
        ("odd", ["shape=[1]"], "shape is annotated with list[int], which no text can be read as"),
        ("unreadable", ["data=x"], "its annotations cannot be read: name 'NoSuchType'"),
    ],
)
def test_a_wrong_argument_is_one_line(
    recipe: str, words: list[str], says: str, folder: Path
) -> None:
    with pytest.raises(at.UserError) as caught:
        recipes.load(f"mine.py:{recipe}", arguments(*words))
    assert f"recipe 'mine.py:{recipe}'" in str(caught.value)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("word", ["data", "=x", "data=", "da ta=x", "data= "])
def test_an_argument_is_a_name_and_a_value(word: str) -> None:
    with pytest.raises(ValueError, match="must be like data=DIR but got"):
        pair(word)


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
