"""Trials in this very process, and in children that need neither Ray nor torch."""

from __future__ import annotations

import contextlib
import os
import pty
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
from counting import blas_threads
from toys import METRIC, reporter, toy

import autotune as at
from autotune.backends.groups.environment import environment
from autotune.backends.local import machine
from autotune.backends.local.here import ThisProcess
from autotune.backends.local.processes import ChildProcesses
from autotune.backends.protocol import Launch, Progress, Raised, Stopped
from autotune.backends.worker import cpu_wait, reporting
from autotune.blas_threads import on_one_thread
from autotune.storage import journal
from autotune.storage.journal import Closed
from autotune.study import place
from autotune.study.manifest import Manifest, resolved
from autotune.study.options import StudyOptions
from autotune.trial import Checkpoint, Ended, State

ROOT = Path(__file__).parents[3]
SECONDS = 600.0  # a guard against hangs
ONE = at.Scaling(max_concurrent_trials=1)


def experiment(train: Any, *, value: float = 0.95, **options: Any) -> at.Experiment:
    space = at.SearchSpace({"rate": at.Float(0.1, 10), "fault": at.Choice([None, "raise"])})
    given = options.pop("configs", [{"rate": 1.0, "fault": None}])
    target = at.Target(METRIC, value, limit=6000)
    return at.Experiment("here", train, space, target, configs=given, **options)


def study(train: Any, folder: Path, **options: Any) -> at.StudyResult:
    made = experiment(train, configs=options.pop("configs", [{"rate": 1.0, "fault": None}]))
    options = {"backend": "local", "max_concurrent_trials": 1, **options}
    fixed = {"pruner": "none", "sampler": "random", "tracking_uri": "off", "out": folder}
    return at.run(made, trials=len(made.configs), **fixed, **options)


# --- this process ---------------------------------------------------------------------------------


def test_the_trainer_runs_in_this_process_and_leaves_it_as_it_was(tmp_path: Path) -> None:
    seen: list[tuple[int, str]] = []
    limited: list[set[int]] = []

    def train(config: dict[str, Any]) -> Iterator[at.Milestone]:
        seen.append((os.getpid(), threading.current_thread().name))
        os.environ["LEFT"] = str(len(seen))
        os.chdir("/")
        limited.append(blas_threads())
        yield at.Milestone(1, lambda: {METRIC: 1.0})

    before = dict(os.environ), os.getcwd(), signal.getsignal(signal.SIGINT)
    cores, threads = machine.usable_cores(), blas_threads()
    result = study(train, tmp_path, configs=[{"rate": r, "fault": None} for r in (1.0, 2.0)])
    assert [t.state for t in result.trials] == [State.REACHED] * 2
    assert seen == [(os.getpid(), "MainThread")] * 2
    assert (dict(os.environ), os.getcwd(), signal.getsignal(signal.SIGINT)) == before
    assert machine.usable_cores() == cores
    assert limited == [{1}] * 2, "as many as the trial has cores"
    assert blas_threads() == threads
    with ThreadPoolExecutor(1) as others:
        assert others.submit(on_one_thread(blas_threads)).result() == {1}, "others may limit them"
    assert Manifest.read(tmp_path).options.backend == "local"


def test_a_trainer_that_raises_here_fails_alone(tmp_path: Path) -> None:
    configs = [{"rate": 1.0, "fault": fault} for fault in ("raise", None)]
    result = study(toy, tmp_path, configs=configs)
    assert [t.state for t in result.trials] == [State.FAILED, State.REACHED]
    assert "rank 0:\nTraceback" in result.trials[0].error
    assert "worker/rank.py" not in result.trials[0].error


def test_a_reporting_trainer_runs_here_and_is_stopped(tmp_path: Path) -> None:
    trial = study(reporter, tmp_path).trials[0]
    assert (trial.state, trial.reports[-1].step) == (State.REACHED, 1000)


def test_a_function_that_swallows_its_stop_ends_a_study_here_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This process cannot be replaced, and no other trial may train beside it."""
    monkeypatch.setattr(reporting, "_END_SECONDS", 0.01)
    over = threading.Event()

    def deaf(config: dict[str, Any]) -> None:
        step = 0
        while not over.wait(0.001):
            step += 100
            with contextlib.suppress(BaseException):
                at.report(step, {METRIC: step / 1000})

    says = (
        "^no other trial can start in this process: a trainer reports on, .* after it was stopped"
    )
    try:
        with pytest.raises(at.StudyError, match=says):
            study(deaf, tmp_path, configs=[{"rate": r, "fault": None} for r in (1.0, 2.0)])
    finally:
        over.set()
        for thread in [t for t in threading.enumerate() if t.name == "autotune-trainer"]:
            thread.join(SECONDS)
    ends = [entry for entry in journal.read(tmp_path) if isinstance(entry, Ended)]
    assert [end.state for end in ends] == [State.REACHED, State.CENSORED]
    assert ends[1].reason == "interrupted", "it can be resumed"
    assert reporting.left_running() == "", "another study can begin"


def test_without_gpus_a_trainer_here_sees_none_whatever_this_process_sees(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a process of its own; afterwards the variables are what they were."""
    given = {
        "CUDA_VISIBLE_DEVICES": "0",
        "OMP_NUM_THREADS": "7",
        "TORCHINDUCTOR_COMPILE_THREADS": "7",
    }
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    own = {**given, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    seen: list[dict[str, str | None]] = []

    def train(config: dict[str, Any]) -> Iterator[at.Milestone]:
        seen.append({name: os.environ.get(name) for name in given})
        yield at.Milestone(1, lambda: {METRIC: 1.0})

    trial = study(train, tmp_path, gpus_per_worker=0).trials[0]
    assert seen == [own]
    assert trial.hardware.gpus_per_worker == 0
    assert {name: os.environ[name] for name in given} == given
    made = environment(at.Scaling(gpus_per_worker=0))
    assert {name: made[name] for name in given} == own, "in a process of its own"


def test_a_functions_waits_are_read_before_its_thread_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The kernel forgets then how long the thread waited for a core."""
    names: list[str] = []
    read = cpu_wait.WaitMeter.end

    def end(meter: cpu_wait.WaitMeter) -> float:
        names.append(threading.current_thread().name)
        return read(meter)

    monkeypatch.setattr(cpu_wait.WaitMeter, "end", end)
    at.tune(lambda _: 1.0, {"x": 1}, metric=METRIC, trials=1, out=tmp_path, tracking_uri="off",
            backend="local", max_concurrent_trials=1)  # fmt: skip
    assert names == ["autotune-trainer"]
    assert f": the study is in {tmp_path}\n" in capsys.readouterr().err


def test_a_trial_here_is_saved_and_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    pool = ThisProcess(toy, ONE)
    try:
        pool.start(Launch(0, {}, 1))
        steps = []
        for _ in range(3):
            signal_ = pool.wait(SECONDS)
            assert isinstance(signal_, Progress)
            steps.append(signal_.report.step)
            if len(steps) < 3:
                pool.resume(0, None, None)
        pool.stop(0, str(tmp_path / "end"))
        stopped = pool.wait(SECONDS)
        assert isinstance(stopped, Stopped)
        assert steps == [0, 100, 200]
        assert isinstance(stopped.saved, Checkpoint)
        pool.start(Launch(0, {}, 1, checkpoint=stopped.saved))
        again = pool.wait(SECONDS)
        assert isinstance(again, Progress)
        assert again.report.step == 200
    finally:
        pool.close()
        pool.close()


def test_the_error_can_be_looked_at_before_it_is_cleaned() -> None:
    seen: list[BaseException] = []
    pool = ThisProcess(toy, ONE, on_error=seen.append)
    try:
        pool.start(Launch(0, {"fault": "raise"}, 1))
        while not isinstance(signal_ := pool.wait(SECONDS), Raised):
            pool.resume(0, None, None)
        assert signal_.reason == "RuntimeError: bad thing"
        assert seen[0].__traceback__ is not None
    finally:
        pool.close()


SCRIPT = """
    import os, signal, sys, time
    import autotune as at

    def train(config):
        with open(sys.argv[2], "a") as file:
            file.write("started\\n")
        if sys.argv[3] == "pdb":
            breakpoint()
        for step in range(1, 10_000):
            if sys.argv[3] == "signal":
                os.kill(os.getpid(), signal.SIGINT)
            if sys.argv[3] == "twice":
                os.kill(os.getpid(), signal.SIGINT)
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(1000)
            yield at.Milestone(step, lambda: {"score": 0.0}, lambda: {"step": step})

    if __name__ == "__main__":
        experiment = at.Experiment(
            "script", train, at.SearchSpace({"x": at.Float(0, 1)}), at.Target("score", 1, limit=600)
        )
        result = at.run(experiment, trials=3, out=sys.argv[1], tracking_uri="off",
                        backend="local", max_concurrent_trials=1)
        print("the script goes on", result.ended)
"""


def script(tmp_path: Path, how: str, typed: str = "") -> subprocess.CompletedProcess[str]:
    (tmp_path / "script.py").write_text(textwrap.dedent(SCRIPT))
    words = [sys.executable, "script.py", str(tmp_path / "study"), str(tmp_path / "log"), how]
    ray = {"PYTHONBREAKPOINT": "ray.util.rpdb.set_trace"}  # as where Ray has been started
    return subprocess.run(
        words,
        cwd=tmp_path,
        input=typed,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        env={**os.environ, **ray},
    )


def test_ctrl_c_ends_the_study_at_the_next_milestone(tmp_path: Path) -> None:
    done = script(tmp_path, "signal")
    assert (done.returncode, done.stdout) == (-signal.SIGINT, ""), done.stderr
    said = f"interrupted; go on with out={str(tmp_path / 'study')!r}\n"
    after = done.stderr.partition(said)[2]
    assert after.startswith("Traceback"), done.stderr
    assert after.endswith("KeyboardInterrupt\n")
    assert "autotune/study/driver" not in after
    entries = journal.read(tmp_path / "study")
    assert entries[-1] == Closed("interrupted", entries[-1].at)
    assert [e.reason for e in entries if isinstance(e, Ended)] == ["interrupted"]
    assert (tmp_path / "log").read_text() == "started\n"
    assert list((tmp_path / "study" / "checkpoints").rglob("rank-0.pt")), "it can be resumed"


def test_ctrl_c_twice_ends_it_within_the_trainer(tmp_path: Path) -> None:
    done = script(tmp_path, "twice")
    assert done.returncode != 0
    assert done.stderr.count("interrupted; go on with out=") == 1
    assert done.stderr.endswith("KeyboardInterrupt\n")
    assert (tmp_path / "log").read_text() == "started\n"


def test_a_breakpoint_in_the_trainer_works_and_quitting_it_ends_the_study(tmp_path: Path) -> None:
    done = script(tmp_path, "pdb", "p 'x is', config['x'] >= 0\nq\n")
    assert "('x is', True)" in done.stdout, done.stderr
    assert done.stderr.count("interrupted; go on with out=") == 1
    assert done.stderr.endswith("KeyboardInterrupt\n")
    assert (tmp_path / "log").read_text() == "started\n"


RECIPE = """
    import autotune as at

    def train(config):
        print("hello from", config["seed"])
        breakpoint()
        yield at.Milestone(1, lambda: {"score": 1.0})

    def recipe():
        target = at.Target("score", 1, limit=600)
        return at.Experiment("here", train, at.SearchSpace({"x": at.Float(0, 1)}), target)
"""


def test_the_debugger_has_the_terminal(tmp_path: Path) -> None:
    """`run --local --max-concurrent-trials 1` in a pseudo-terminal, where others draw a table."""
    (tmp_path / "recipe.py").write_text(textwrap.dedent(RECIPE))
    words = ["run", "recipe.py:recipe", "--local", "--max-concurrent-trials", "1", "--trials", "1"]
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "autotune", *words, "--tracking-uri", "off", "--out", "s"],
        cwd=tmp_path,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
    )
    os.close(slave)
    text = b""
    while True:
        try:
            text += os.read(master, 65536)
        except OSError:  # the process has ended
            break
        if text.endswith(b"(Pdb) "):
            os.write(master, b"p config['x'] >= 0\n" if text.count(b"(Pdb) ") == 1 else b"c\n")
    os.close(master)
    assert process.wait(SECONDS) == 0, text.decode()
    shown = text.decode()
    assert "hello from" in shown
    assert "True" in shown
    assert "1 of 1" in shown or "rank" in shown


# --- children -------------------------------------------------------------------------------------


PLAIN = """
    import os, sys
    import autotune as at

    def train(config):
        print("printed by", os.getpid())
        yield at.Milestone(1, lambda: {"score": float("".join(("torc", "h")) in sys.modules)})

    if __name__ == "__main__":
        target = at.Target("score", 2.0, limit=600)
        experiment = at.Experiment("plain", train, at.SearchSpace({"x": at.Float(0, 1)}), target)
        result = at.run(experiment, trials=4, out=sys.argv[1], tracking_uri="off")
        assert {t.reason for t in result.trials} == {"finished"}, result.trials
        print([t.reports[0].metrics["score"] for t in result.trials])
        print({"ray", "".join(("torc", "h")), "mlflow", "optuna"} & set(sys.modules))
"""


def test_a_plain_function_needs_neither_ray_nor_torch(tmp_path: Path) -> None:
    """Chosen by itself, and said in one line; what trainers print is in the study folder."""
    (tmp_path / "script.py").write_text(textwrap.dedent(PLAIN))
    words = [sys.executable, "script.py", str(tmp_path / "study")]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS)
    assert done.stdout == "[0.0, 0.0, 0.0, 0.0]\nset()\n", done.stderr
    assert "backend: local, as trials of one rank on CPUs need no cluster" in done.stderr
    printed = [file.read_text() for file in (tmp_path / "study" / "output").iterdir()]
    assert sum(text.count("printed by") for text in printed) == 4


WITHOUT = """
    import os, signal
    for name in ("fdatasync", "memfd_create", "sched_getaffinity", "sched_setaffinity"):
        delattr(os, name)
"""
RANKS = """
    import os, sys
    import torch
    import torch.distributed as dist
    import autotune as at

    def train(config):
        for step in range(1, 4):
            summed = torch.ones(1)
            dist.all_reduce(summed)
            if config["dies"] and step == 2 and dist.get_rank() == 1:
                os.kill(os.getpid(), 9)
            metrics = {"score": float(summed), "affinity": float(hasattr(os, "memfd_create"))}
            yield at.Milestone(step, lambda: metrics)

    if __name__ == "__main__":
        space = at.SearchSpace({"dies": at.Choice([False, True])})
        experiment = at.Experiment(
            "ranks", train, space, at.Target("score", 3, limit=600), scaling=at.Scaling(2),
            configs=[{"dies": False}, {"dies": True}], failure=at.FailurePolicy(max_retries=0),
        )
        result = at.run(experiment, trials=2, out=sys.argv[1], tracking_uri="off", backend="local")
        print([(t.state.value, t.reason[:11]) for t in result.trials])
        print(result.trials[0].reports[-1].metrics)
"""


@pytest.mark.slow
def test_what_only_linux_has_is_not_needed(tmp_path: Path) -> None:
    """As on macOS: no binding to cores, no files in memory. Two ranks, one of which is killed."""
    (tmp_path / "sitecustomize.py").write_text(textwrap.dedent(WITHOUT))
    (tmp_path / "script.py").write_text(textwrap.dedent(RANKS))
    words = [sys.executable, "script.py", str(tmp_path / "study")]
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    done = subprocess.run(
        words,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        env={**os.environ, "PYTHONPATH": path},
    )
    ended = [("CENSORED", "finished"), ("FAILED", "worker died")]
    metrics = {"score": 2.0, "affinity": 0.0}
    assert done.stdout == f"{ended}\n{metrics}\n", done.stderr


def test_children_end_with_their_driver(tmp_path: Path) -> None:
    code = (
        "import os, time, cloudpickle\n"
        "from autotune.backends.local.processes import Child\n"
        "import autotune as at\n"
        "child = Child({}, None)\n"
        "child.call('become', cloudpickle.dumps(time.sleep), [], 0, 1).result(600)\n"
        "print(child.process.pid, flush=True)\n"
        "child.call('start', None)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    pid = int(done.stdout)
    if psutil.pid_exists(pid):
        assert not psutil.wait_procs([psutil.Process(pid)], timeout=SECONDS)[1]


def test_gpus_are_shared_out_to_ranks() -> None:
    whole = ChildProcesses(b"", at.Scaling(2, 1, 1), ["0", "1", "2", "3"], None)
    first, second = whole.reserve("PACK"), whole.reserve("PACK")
    assert (first.gpus, second.gpus) == ((("0",), ("1",)), (("2",), ("3",)))
    whole.release(first)
    assert whole.reserve("PACK").gpus == first.gpus
    half = ChildProcesses(b"", at.Scaling(1, 1, 0.5), ["0", "1"], None)
    assert [half.reserve("PACK").gpus for _ in range(4)] == [(("0",),)] * 2 + [(("1",),)] * 2


def test_what_does_not_fit_on_this_machine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(at.UserError, match="5000 CPU each can never fit: this machine has"):
        study(toy, tmp_path / "study", cpus_per_worker=5000)
    assert not (tmp_path / "study").exists()


# --- which backend --------------------------------------------------------------------------------


def chosen(scaling: at.Scaling, before: StudyOptions | None = None, **options: Any) -> str:
    made = experiment(toy, scaling=scaling)
    existing = resolved(made, before) if before is not None else None
    return place.backend_for(made, StudyOptions(**options), existing).name


def test_auto_chooses_by_what_a_trial_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "ray", raising=False)
    monkeypatch.setattr(machine, "gpus", tuple)
    assert chosen(at.Scaling()) == "local"
    assert chosen(at.Scaling(2)) == "ray"
    assert chosen(at.Scaling(gpus_per_worker=1)) == "ray"
    assert chosen(at.Scaling(), ray_address="auto") == "ray"
    assert chosen(at.Scaling(2), backend="local") == "local"
    assert chosen(at.Scaling(), StudyOptions(backend="ray")) == "ray", "as it was"
    assert chosen(at.Scaling(), StudyOptions(backend="ray"), backend="local") == "local"
    monkeypatch.setattr(machine, "gpus", lambda: ("0",))
    assert chosen(at.Scaling()) == "ray"
    assert chosen(at.Scaling(gpus_per_worker=0)) == "local"


def test_only_who_names_it_gets_trials_in_this_process() -> None:
    made = experiment(toy, scaling=ONE)
    assert place.runs_here(made, place.Backend("local"))
    assert not place.runs_here(made, place.Backend("local", "trials of one rank", is_new=True))
    assert not place.runs_here(experiment(toy), place.Backend("local"))
    before = resolved(made, StudyOptions(backend="local"), backend_chosen_because="x")
    for named, here in (("auto", False), ("local", True)):  # it goes on, and the user names it now
        found = place.backend_for(made, StudyOptions(backend=named), before)
        assert place.runs_here(made, found) is here
    assert place.as_named("local", "x") == "auto"
    assert place.as_named("local", None) == "local"
