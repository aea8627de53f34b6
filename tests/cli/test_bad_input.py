"""What is no study: one line, exit code 2, and a folder in which a mended study can begin."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import tiers

from autotune.cli import main

Run = Callable[..., tuple[int, list[str]]]
RECIPES = """
import autotune as at

SPACE = at.SearchSpace({"x": at.Float(0, 1)})


def nothing(config): ...
def text(config): return "0.9"
def nan(config): return float("nan")
def listed(config): return [0.9]
def other(config): return {"accuracy": 0.9}
def worded(config): return {"acc": "high"}
def good(config): return config["x"]
def endless(config): yield at.Milestone(1, lambda: {"acc": 0.9})


def study(train, **limits):
    return at.Experiment("bad", train, SPACE, at.Target("acc", **limits))


def none(): return study(nothing)
def a_text(): return study(text)
def all_nan(): return study(nan)
def a_list(): return study(listed)
def another(): return study(other)
def no_number(): return study(worded)
def no_limit(): return study(endless)
def limit_0(): return study(good, limit=0)
def a_value(): return at.Experiment("bad", good, SPACE, at.Target("acc", 60))
def exits(): return study(at.script("exits.py"))
def prints_nothing(): return study(at.script("silent.py"), limit=60)
def right(): return study(good)
"""
TRAINED = [
    ("none", "the trainer returned None and never reported the target's metric 'acc': return it"),
    ("a_text", "the trainer returned '0.9' and never reported the target's metric 'acc'"),
    ("a_list", "the trainer returned [0.9] and never reported the target's metric 'acc'"),
    ("all_nan", "the trainer returned 'acc' as nan in all of 2 trials: return a finite number"),
    ("another", "unknown target metric 'acc'; did you mean 'accuracy'? (allowed: accuracy)"),
    ("no_number", "returned a dict in which 'acc' is 'high', no number, and never reported"),
    ("exits", "exits.py called sys.exit(3): the data is not here"),
    ("prints_nothing", 'silent.py printed no line of JSON like {"step": 100, "val_accuracy": 0.9}'),
]
QUICK = ("none", "another", "all_nan", "exits")
REFUSED = [
    (["no_limit"], "has no limit, but its trainer is a generator, which may never end: Target('a"),
    (["limit_0"], "Target limit must be more than 0 seconds but got 0 (bad.py, line 18)"),
    (["a_value"], "60 is the value to reach, and no limit; the time to it is Target('acc', 60, li"),
    (
        ["right", "--pruner", "policy:mine.npz"],
        "pruner must be policy(weights='mine.npz') but got 'policy:mine.npz'",
    ),
    (["right", "--pruner", "policy(weights=a.npz)"], "a text in quotes: weights='a.npz'"),
    (["right", "--sampler", "Policy:mine.npz"], "policy weights mine.npz: No such file"),
    (["right", "--with", "data=x"], "recipe 'bad.py:right' takes no arguments but got data (--wit"),
]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs two trials of a recipe in this process: the exit code, and the lines on stderr."""
    (tmp_path / "bad.py").write_text(RECIPES)
    exits = "import autotune, sys\nprint('the data is not here', file=sys.stderr)\nsys.exit(3)\n"
    (tmp_path / "exits.py").write_text(exits)
    (tmp_path / "silent.py").write_text("print('hello')\n")
    monkeypatch.chdir(tmp_path)

    def ran(recipe: str, *more: str) -> tuple[int, list[str]]:
        words = f"run bad.py:{recipe} --trials 2 --local --max-concurrent-trials 1 --out study"
        code = main.main([*words.split(), "--tracking-uri", "off", *more])
        return code, capsys.readouterr().err.splitlines()

    return ran


@pytest.mark.parametrize(
    ("recipe", "says"), tiers.rows({recipe: (recipe, says) for recipe, says in TRAINED}, QUICK)
)
def test_a_trainer_without_the_metric_ends_the_study_in_one_line(
    recipe: str, says: str, run: Run
) -> None:
    code, lines = run(recipe)
    assert (code, says in lines[-1]) == (main.USER, True), lines
    assert [line for line in lines if line.startswith("autotune: ")] == lines[-1:]
    code, lines = run("right")
    assert code == main.DONE, lines


@pytest.mark.parametrize(("words", "says"), REFUSED, ids=[words[0] for words, _ in REFUSED])
def test_what_can_be_seen_before_a_trial_is_refused_before_it(
    words: list[str], says: str, run: Run, tmp_path: Path
) -> None:
    code, lines = run(*words)
    assert (code, len(lines), says in lines[0]) == (main.USER, 1, True), lines
    assert not (tmp_path / "study").exists()
