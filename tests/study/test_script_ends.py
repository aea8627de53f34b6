"""How a script ends that does not catch an error of ours: one line and the command line's codes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import autotune as at
from autotune import errors

HEAD = """
import autotune as at

def train(config):
    return config["y"]

def search(**settings):
    space = {"x": at.Float(0, 1)}
    local = {"backend": "local", "max_concurrent_trials": 1, "tracking_uri": "off", "out": "s"}
    return at.tune(train, space, metric="score", **{**local, **settings})

"""
LINE = HEAD.count("\n") + 1
CALL = LINE - 2
BROKEN = (
    "autotune: the study could not go on: 5 trials failed in a row; the last: KeyError: 'y' "
    f"(script.py:{CALL})\n"
)
TRACEBACK = "    return config[\"y\"]\n           ~~~~~~^^^^^\nKeyError: 'y'\n"


def ends(line: str, folder: Path) -> tuple[int, str]:
    """The exit code and stderr of a script that ends with a line."""
    (folder / "script.py").write_text(f"{HEAD}{line}\n")
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=folder, capture_output=True, text=True, timeout=900
    )
    return done.returncode, done.stderr.replace(f"{folder}/", "")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("search(trials=0)", "trials must be a whole number >= 1 but got 0"),
        ("at.tune(train, {}, metric='loss')", "Target mode must be given for 'loss'"),
        ("at.Float(1, 0)", "Float(1, 0) is an empty range: low is above high"),
        ("at.ScheduleSpace(1, family='cosin')", "unknown schedule family 'cosin'; did you mean"),
        ("at.Target('acc', 60)", "Target('acc', 60) needs a limit"),
        ("at.script('no.py')", "script: there is no file"),
        ("at.tune(1, {}, metric='a')", "Experiment train must be a function"),
        ("for x in [1]:\n    at.SearchSpace({'x': 1})", "x must be a Float, Int, Choice"),
    ],
)
def test_a_mistake_ends_a_script_with_one_line(line: str, said: str, tmp_path: Path) -> None:
    code, err = ends(line, tmp_path)
    assert code == 2, err
    assert err.count("\n") == 1
    assert err.startswith(f"autotune: {said}")
    place = CALL if line.startswith("search") else LINE + line.count("\n")
    assert err.endswith(f"(script.py:{place})\n")


def test_a_broken_trainer_ends_a_script_with_its_traceback_and_one_line(tmp_path: Path) -> None:
    code, err = ends("search()", tmp_path)
    assert code == 4, err
    traceback, first = err.index(TRACEBACK), err.index("failed; the study goes on")
    assert traceback < first < err.index("the study ends")
    assert err.count(TRACEBACK) == 1
    assert err.endswith(BROKEN)
    assert "autotune/study" not in err


def test_without_progress_only_the_end_is_said(tmp_path: Path) -> None:
    code, err = ends("search(progress=False)", tmp_path)
    assert code == 4
    assert "the study goes on" not in err
    assert err.endswith(TRACEBACK + BROKEN)


def test_a_caught_mistake_and_other_errors_are_as_ever(tmp_path: Path) -> None:
    lines = (
        "try:\n    search(trials=0)\nexcept at.UserError as error:\n    raise KeyError(1) from None"
    )
    code, err = ends(lines, tmp_path)
    assert code == 1
    assert err.startswith("Traceback (most recent call last):")
    assert err.endswith("KeyError: 1\n")


def test_a_hook_that_is_not_ray_s_and_a_session_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def own(_: object, error: BaseException, trace: object) -> None:
        seen.append(error)

    monkeypatch.setattr(sys, "excepthook", own)
    errors.end_script_in_one_line()
    assert sys.excepthook is own
    monkeypatch.setattr(own, "__module__", "ray._private.worker")
    errors.end_script_in_one_line()
    with pytest.raises(SystemExit, match="4"):
        sys.excepthook(at.StudyError, at.StudyError("x"), None)
    other = KeyError("x")
    sys.excepthook(KeyError, other, None)
    assert seen == [other]
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    with pytest.raises(at.UserError, match="trials must be"):
        at.tune(len, {"x": at.Float(0, 1)}, metric="score", trials=0)
    assert sys.excepthook is sys.__excepthook__
