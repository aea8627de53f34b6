"""Existing scripts as trainers: their command line, both kinds, their ends, their process."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import autotune as at
from autotune.backends.worker.reporting import steps
from autotune.backends.worker.torch_import import mentions_torch
from autotune.integrations.script import CalledScript, PrintingScript
from autotune.schedules import Cosine, from_json
from autotune.study import recipes
from autotune.study.experiment import check_trainer

EXAMPLE = Path(__file__).parents[2] / "examples" / "existing_script"
CALLS = """
import argparse, json, os, sys, threading
import autotune
from beside import WORD

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=1.0)
    parser.add_argument("--leave")
    parser.add_argument("--resume")
    args = parser.parse_args()
    print("started", file=sys.stderr)
    if args.leave == "raise":
        raise KeyError("lost")
    if args.leave is not None:
        sys.exit(int(args.leave) if args.leave.isdigit() else args.leave)
    first = 0
    if args.resume:
        import torch
        first = torch.load(args.resume, weights_only=True)["step"]
    for step in range(first, 4):
        autotune.report(step, {"acc": args.lr * step}, state=lambda: {"step": step})
"""
PRINTS = """
import argparse, json, os, signal, subprocess, sys, time

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=1.0)
parser.add_argument("--leave")
parser.add_argument("--log")
args = parser.parse_args()
print("an ordinary line")
print('{"no": "step"}')
if args.leave == "child":
    print(json.dumps({"step": 1, "pid": subprocess.Popen(["sleep", "600"]).pid}))
    time.sleep(600)
if args.leave == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if args.leave == "tidy":
    def end(*_):
        open(args.log, "w").write("tidied up")
        sys.exit(0)
    signal.signal(signal.SIGTERM, end)
for step in range(3):
    print(json.dumps({"step": step, "acc": args.lr * step, "loss": float("nan"), "at": "noon"}))
if args.leave in ("deaf", "tidy"):
    time.sleep(600)
if args.leave == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
if args.leave == "raise":
    raise KeyError("lost")
sys.exit(int(args.leave or 0))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "calls.py").write_text(CALLS)
    (tmp_path / "prints.py").write_text(PRINTS)
    (tmp_path / "beside.py").write_text("WORD = 1\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def reported(train: Any, config: Mapping[str, Any]) -> list[tuple[int, dict[str, float]]]:
    return [(m.step, dict(m.evaluate())) for m in steps(train, dict(config))]


def process_state() -> tuple[Any, ...]:
    return (sys.argv[:], sys.path[:], os.getcwd(), sys.stderr, sys.modules["__main__"])


def test_it_is_a_function_that_ends_by_itself_with_a_name_for_its_study(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[at.Experiment, dict[str, Any]]] = []
    monkeypatch.setattr("autotune.study.tune.run", lambda own, **how: made.append((own, how)))
    for name in ("prints.py", "calls.py"):
        at.tune(at.script(name), {"lr": at.Float(0, 1)}, metric="score", out=folder / "study")
        at.tune(at.script(name), {"lr": 1.0}, metric="score", workers=2, out=folder / "study")
    assert [own.name for own, _ in made] == ["prints", "prints", "calls", "calls"]
    assert all(not own.target.limited for own, _ in made)
    patience = [own.failure.hang_timeout for own, _ in made]
    assert patience[0] == patience[2] > patience[1] == patience[3], "it may be silent until its end"


# --- the command line -----------------------------------------------------------------------------


def test_a_configuration_becomes_words(folder: Path) -> None:
    args = {
        "--lr": "lr",
        "--amp/--no-amp": "amp",
        "--flag": "flag",
        "lr=": "lr",
        "-m": "steps",
    }
    train = at.script("prints.py", args={**args, "--none": "none", "--seed": "seed"}, words=["fit"])
    config = {"lr": -1e-7, "amp": False, "flag": True, "steps": [3, "x"], "none": None}
    words = ["fit", "--lr=-1e-07", "--no-amp", "--flag", "lr=-1e-07", "-m", "3", "x", "--seed", "5"]
    assert train.command({**config, "seed": 5, "state": None}) == [
        sys.executable,
        str(folder / "prints.py"),
        *words,
    ]
    assert train.command({**config, "flag": False, "steps": []})[2:] == words[:3] + words[4:5]


def test_without_args_each_key_is_an_option(folder: Path) -> None:
    train = at.script("prints.py")
    assert train.command({"lr": 0.5, "leave": "x", "seed": 1})[2:] == [
        "--lr",
        "0.5",
        "--leave",
        "x",
    ]


MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"path": "non.py"}, "there is no file"),
    ({"path": 3}, "path must be that of a file but got 3"),
    ({"args": ["--lr"]}, "args must be a dict like"),
    ({"args": {"lr": "lr"}}, "begins with '-' or ends with '=', not 'lr'"),
    ({"args": {"--lr": 0.1}}, "--lr must name a key, not 0.1 (see words)"),
    ({"reports": "print"}, "reports must be 'call' or 'json' but got 'print'"),
    ({"words": "fit"}, "words must be a list of words but got 'fit'"),
    ({"grace": -1}, "grace must be seconds, at least 0, but got -1"),
    ({"step": ""}, "step must be the name of a key but got ''"),
    ({"path": "broken.py"}, "is no Python: invalid syntax"),
]


@pytest.mark.parametrize(("arguments", "says"), MISTAKES, ids=[says for _, says in MISTAKES])
def test_a_mistake_is_one_line(arguments: dict[str, Any], says: str, folder: Path) -> None:
    (folder / "broken.py").write_text("def broken(:\n")
    with pytest.raises(ValueError) as caught:
        at.script(**{"path": "prints.py", **arguments})
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("prints.py", {"momentum": 0.9}, "no argument of prints.py takes 'momentum': args must have"),
    ("calls.py", {"lr": {"a": 1}}, "'lr' must be a number, text or a list of these"),
    ("prints.py", {"lr": Cosine(1, 0)}, "'lr' is a schedule, which prints.py cannot take"),
]


@pytest.mark.parametrize(("name", "config", "says"), REFUSED, ids=[r[2] for r in REFUSED])
def test_what_the_script_cannot_be_given_is_refused_before_the_study(
    name: str, config: dict[str, Any], says: str, folder: Path
) -> None:
    space = at.SearchSpace({key: at.Fixed(1) for key in config})
    train = at.script(name, args={"--lr": "lr"})
    experiment = at.Experiment("x", train, space, at.Target("acc", 1, limit=1), baseline=config)
    with pytest.raises(at.UserError) as caught:
        check_trainer(experiment)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_schedule_reaches_a_script_that_reports_as_its_document(folder: Path) -> None:
    import json

    (word,) = at.script("calls.py").command({"lr": Cosine(1, 0)})[3:]
    assert from_json(json.loads(word)) == Cosine(1, 0)


def test_it_is_found_beside_the_file_that_names_it(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "recipe.py").write_text("import autotune as at\ntrain = at.script('prints.py')\n")
    monkeypatch.chdir("/")
    found = recipes.find(f"{folder / 'recipe.py'}:train", "trainer")
    assert isinstance(found, PrintingScript)
    assert found.line.path == str(folder / "prints.py")


def test_the_kind_is_seen_in_the_source_or_said(folder: Path) -> None:
    assert isinstance(at.script("calls.py"), CalledScript)
    assert isinstance(at.script("prints.py"), PrintingScript)
    assert isinstance(at.script("prints.py", reports="call"), CalledScript)
    assert isinstance(at.script("calls.py", reports="json"), PrintingScript)


@pytest.mark.parametrize("name", ["calls.py", "prints.py"])
def test_workers_get_it_whole_and_its_source_is_recorded(name: str, folder: Path) -> None:
    train = at.script(name, args={"--lr": "lr"})
    again = pickle.loads(pickle.dumps(train))
    assert again == train
    assert again.__qualname__ == f"<script {name}>"
    (folder / name).write_text((folder / name).read_text() + "\n")
    assert at.script(name, args={"--lr": "lr"}).source != train.source


def test_a_worker_imports_torch_only_for_a_script_that_names_it(folder: Path) -> None:
    (folder / "plain.py").write_text("import autotune\nautotune.report(1, {'acc': 1.0})\n")
    for name, needs in (("plain.py", False), ("prints.py", False), ("calls.py", True)):
        train = at.script(name)
        assert mentions_torch(partial(train), pickle.dumps(train)) is needs, name


# --- a script that reports ------------------------------------------------------------------------


def test_a_script_that_reports_is_the_main_program_for_a_while(folder: Path) -> None:
    before = process_state()
    train = at.script(folder / "calls.py", args={"--lr": "lr"})
    expected = [(step, {"acc": 0.5 * step}) for step in range(4)]
    assert reported(train, {"lr": 0.5}) == expected
    assert reported(train, {"lr": 0.5, "seed": 3}) == expected
    made = steps(train, {"lr": 0.5})
    next(made)
    made.close()
    assert process_state() == before


def test_an_exit_with_0_is_an_end_and_any_other_is_one_clear_line(folder: Path) -> None:
    before = process_state()
    train = at.script("calls.py")
    assert reported(train, {"leave": "0"}) == []
    for leave, says in (
        ("3", "calls.py called sys.exit(3): started"),
        ("bye", "calls.py called sys.exit('bye'): started"),
    ):
        with pytest.raises(at.UserError) as caught:
            reported(train, {"leave": leave})
        assert str(caught.value) == says
    with pytest.raises(KeyError, match="lost"):
        reported(train, {"leave": "raise"})
    with pytest.raises(at.UserError) as caught:
        reported(train, {"lrr": 1, "x": "y"})
    assert str(caught.value).endswith(": calls.py: error: unrecognized arguments: --lrr 1 --x y")
    assert process_state() == before


def test_a_state_comes_back_as_a_file_for_the_argument_that_takes_it(folder: Path) -> None:
    config = {"state": {"step": 2}}
    resumed = reported(at.script("calls.py", args={"--resume": "state"}), config)
    assert [step for step, _ in resumed] == [2, 3]
    with pytest.raises(at.UserError, match="no argument takes its file"):
        reported(at.script("calls.py", args={}), config)


# --- a script that prints -------------------------------------------------------------------------


def test_lines_of_json_are_reports(folder: Path) -> None:
    found = reported(at.script("prints.py"), {"lr": 0.5})
    assert [(step, values["acc"]) for step, values in found] == [(0, 0), (1, 0.5), (2, 1.0)]
    assert {*found[0][1]} == {"acc", "loss"}


def test_any_program_that_prints_is_a_script(folder: Path) -> None:
    shell = folder / "train.sh"
    shell.write_text("#!/bin/sh\necho '{\"epoch\": 7, \"acc\": '$2'}'\n")
    train = at.script("train.sh", step="epoch")
    with pytest.raises(RuntimeError, match=r"train\.sh cannot be started: Permission denied"):
        reported(train, {"lr": 0.5})
    shell.chmod(0o755)
    assert reported(train, {"lr": 0.5}) == [(7, {"acc": 0.5})]


@pytest.mark.parametrize(
    ("leave", "line"),
    [
        ("3", "prints.py ended with exit code 3"),
        ("raise", "prints.py ended with exit code 1: KeyError: 'lost'"),
        ("killed", "prints.py was ended by SIGKILL"),
    ],
)
def test_how_it_failed_is_told_with_the_end_of_its_errors(
    leave: str, line: str, folder: Path
) -> None:
    with pytest.raises((at.UserError, RuntimeError)) as caught:
        reported(at.script("prints.py"), {"leave": leave})
    assert str(caught.value) == line
    assert isinstance(caught.value, at.UserError) == (leave == "3")
    assert ('raise KeyError("lost")' in str(caught.value.__cause__)) == (leave == "raise")


def test_a_script_that_prints_no_such_line_is_told_what_to_print(folder: Path) -> None:
    with pytest.raises(at.UserError) as caught:
        reported(at.script("prints.py", step="epoch"), {})
    assert 'printed no line of JSON like {"epoch": 100, "val_accuracy": 0.9}' in str(caught.value)


def test_it_waits_for_the_decision(folder: Path) -> None:
    """It is suspended at each milestone, so that no training is left out of the clock."""
    made = steps(at.script("prints.py"), {"leave": "child"})
    child = int(next(made).evaluate()["pid"])
    try:
        assert came_to(child, "T")
    finally:
        made.close()


def state_of(pid: int) -> str:
    """The state of a process, empty where there is none, or only its entry is left."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""
    return "" if state in "ZX" else state


def came_to(pid: int, state: str) -> bool:
    end = time.monotonic() + 60
    while state_of(pid) != state and time.monotonic() < end:
        time.sleep(0.01)
    return state_of(pid) == state


def test_it_is_ended_by_sigterm_with_all_that_it_has_started(folder: Path) -> None:
    made = steps(at.script("prints.py"), {"leave": "child"})
    child = int(next(made).evaluate()["pid"])
    made.close()
    assert came_to(child, "")
    made = steps(at.script("prints.py"), {"leave": "tidy", "log": str(folder / "log")})
    next(made)
    made.close()
    assert (folder / "log").read_text() == "tidied up"


def test_one_that_does_not_listen_is_killed_after_the_grace_time(folder: Path) -> None:
    made = steps(at.script("prints.py", grace=0.1), {"leave": "deaf"})
    next(made)
    made.close()


def test_it_does_not_outlive_a_worker_that_is_killed(folder: Path) -> None:
    program = (
        f"import sys; sys.path.insert(0, {str(EXAMPLE.parents[1])!r})\n"
        "import autotune as at\n"
        "from autotune.backends.worker.reporting import steps\n"
        "made = steps(at.script('prints.py'), {'leave': 'deaf'})\n"
        "next(made)\n"
        "import psutil; print(psutil.Process().children()[0].pid, flush=True)\n"
        "input()\n"
    )
    worker = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert worker.stdout is not None
    pid = next(int(line) for line in worker.stdout if line.strip().isdigit())
    worker.kill()
    worker.communicate()
    assert came_to(pid, "")


# --- in a rank, and in several --------------------------------------------------------------------


@pytest.fixture(scope="module")
def pair() -> list[dict[str, str]]:
    """The variables of two ranks, as a worker group has them."""
    with socket.socket() as free:
        free.bind(("", 0))
        port = str(free.getsockname()[1])
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": port, "LOCAL_RANK": "0"}
    return [{**os.environ, **shared, "RANK": str(rank)} for rank in range(2)]


GROUPED = """
import os
import torch
import torch.distributed as dist
{imports}

dist.init_process_group("gloo", init_method="env://")
one = torch.full((1,), float(os.environ["RANK"]) + 1)
dist.all_reduce(one)
{report}
dist.destroy_process_group()
"""
SCRIPTS = {
    "calls": GROUPED.format(
        imports="import autotune", report='autotune.report(1, {"sum": one.item()})'
    ),
    "prints": GROUPED.format(
        imports="import json",
        report='dist.get_rank() or print(json.dumps({"step": 1, "sum": one.item()}))',
    ),
}


@pytest.mark.parametrize("kind", ["calls", pytest.param("prints", marks=[pytest.mark.slow])])
def test_two_ranks_open_a_group_of_their_own(
    kind: str, pair: list[dict[str, str]], tmp_path: Path
) -> None:
    """Twice: with the variables of torchrun, and although the workers have a group already."""
    (tmp_path / "train.py").write_text(SCRIPTS[kind])
    program = Path(__file__).parents[1] / "support" / "script_ranks.py"
    ranks = [
        subprocess.Popen(
            [sys.executable, str(program), str(tmp_path / "train.py")],
            env=env,
            stdout=subprocess.PIPE,
            text=True,
        )
        for env in pair
    ]
    printed = [rank.communicate(timeout=600)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    for text in printed:
        assert text.splitlines()[-1] == "[[(1, {'sum': 3.0})], [(1, {'sum': 3.0})]]"


def test_the_trainer_is_a_rank_s_as_any_other(folder: Path) -> None:
    from ranks import Remote

    remote = Remote(at.script("calls.py", args={"--lr": "lr", "--leave": "leave"}))
    try:
        for _ in range(2):
            assert remote.start({"lr": 0.5}).kind == "milestone"
            assert remote("resume", None, None).metrics == {"acc": 0.5}
            end = remote("stop", None)
            assert (end.kind, end.must_restart) == ("stopped", "")
        failed = remote.start({"leave": "3"})
        assert failed.kind == "raised"
        assert failed.reason == "UserError: calls.py called sys.exit(3): started"
    finally:
        remote.close()


# --- the example ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["reports", "prints"])
def test_the_example_learns(name: str) -> None:
    experiment = recipes.load(f"{EXAMPLE / 'study.py'}:{name}")
    check_trainer(experiment)
    config, _ = experiment.space.complete(experiment.baseline or {})
    made = steps(experiment.train, {**config, "seed": 1})
    accuracy, before = 0.0, signal.getsignal(signal.SIGTERM)
    for _ in range(20):
        accuracy = next(made).evaluate().get("val_accuracy", 0.0)
        if accuracy >= experiment.target.value:
            break
    made.close()
    assert accuracy >= experiment.target.value
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.slow
def test_a_script_that_leaves_ends_the_study_with_one_line(
    folder: Path, ray_address: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from autotune.cli import main

    (folder / "leaves.py").write_text("import autotune, sys\nsys.exit(3)\n")
    (folder / "recipe.py").write_text(
        "import autotune as at\n"
        "def study():\n"
        "    space = at.SearchSpace({'lr': at.Float(0, 1)})\n"
        "    target = at.Target('acc', 1, limit=9)\n"
        "    return at.Experiment('leaves', at.script('leaves.py'), space, target)\n"
    )
    where = ["--out", str(folder / "study"), "--tracking-uri", "off"]
    assert main.main(["run", "recipe.py:study", *where]) == main.USER
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == "autotune: leaves.py called sys.exit(3)"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["reports", "prints"])
def test_the_example_is_a_study(name: str, tmp_path: Path, ray_address: str) -> None:
    from autotune.cli import main

    where = ["--out", str(tmp_path / "study"), "--tracking-uri", "off", "--trials", "3"]
    assert main.main(["run", f"{EXAMPLE / 'study.py'}:{name}", *where]) == main.DONE
    out = tmp_path / "out"
    assert main.main(["export", str(tmp_path / "study"), "--to", str(out)]) == main.DONE
    done = subprocess.run([sys.executable, "train.py"], cwd=out, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "0.9" in done.stdout
    again = ["--repeats", "1", "--out", str(tmp_path / "again"), "--tracking-uri", "off"]
    assert main.main(["replay", str(out), *again]) == main.DONE
