"""Reports whose metrics come later: what the study sees is what it sees without, a milestone later.

The trainers here are driven in this process, and their metrics are computed when a test says so.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Future
from pathlib import Path
from typing import Any

import pytest
import torch
from toys import METRIC

import autotune as at
from autotune.backends.local.here import ThisProcess
from autotune.backends.protocol import (
    Finished,
    Launch,
    Progress,
    Raised,
    Signal,
    Stopped,
    WorkerFailed,
)
from autotune.backends.worker.checkpoint_io import restored
from autotune.storage.journal import JOURNAL
from autotune.trial import Change, Report, State

ONE = at.Scaling(max_concurrent_trials=1)
ENDS = 5  # milestones, after the one that ends the set-up
LAST = 100 * ENDS
NAP = 0.02


def later(compute: Callable[[], Any]) -> Future[Any]:
    """The result of a computation, which is made at once; or what it raised."""
    made: Future[Any] = Future()
    try:
        made.set_result(compute())
    except Exception as error:
        made.set_exception(error)
    return made


class Toy:
    """A trainer whose metric is its weight, a tenth more at each milestone, `beside` or not.

    `at` is when it came to each milestone, `left` when it went on from there. `fails` gives, by
    step, what its validation raises, once.
    """

    def __init__(self, beside: bool = True, fails: dict[int, Exception] | None = None) -> None:
        self.beside, self.fails = beside, fails or {}
        self.at: dict[int, float] = {}
        self.left: dict[int, float] = {}
        self.changes: list[tuple[int, Change]] = []
        self.closed = 0

    def __call__(self, config: dict[str, Any]) -> Iterator[at.Milestone]:
        state = config.get("state") or {"step": 0, "weight": torch.zeros(1, dtype=torch.float64)}
        step, weight = state["step"], state["weight"]
        try:
            while True:
                self.at[step] = time.perf_counter()
                change = yield at.Milestone(
                    step,
                    lambda step=step, own=float(weight): self.evaluate(step, own),
                    lambda step=step: {"step": step, "weight": weight},
                )
                self.left[step] = time.perf_counter()
                if change is not None:
                    self.changes.append((step, change))
                if step == LAST:
                    return
                time.sleep(NAP)
                step += 100
                weight.add_(0.1)  # in place, as optimizers do
        finally:
            self.closed += 1

    def evaluate(self, step: int, own: float) -> Any:
        def metrics() -> dict[str, float]:
            if step in self.fails:
                raise self.fails.pop(step)
            return {METRIC: own, "step": step}

        return later(metrics) if self.beside else metrics()


@pytest.fixture
def opened() -> Iterator[Callable[[Any], ThisProcess]]:
    pools: list[ThisProcess] = []

    def make(train: Any) -> ThisProcess:
        pools.append(ThisProcess(train, ONE))
        return pools[-1]

    yield make
    for pool in pools:
        pool.close()


def run(pool: ThisProcess, launch: Launch, save: Callable[[Report], str | None]) -> list[Signal]:
    """All signals of a trial that is never stopped."""
    pool.start(launch)
    found: list[Signal] = []
    while True:
        signal = pool.wait(None)
        assert signal is not None
        found.append(signal)
        if not isinstance(signal, Progress):
            return found
        path = save(signal.report) if signal.report is not None and signal.can_save else None
        pool.resume(launch.trial, None, path)


def reports(signals: list[Signal]) -> list[Report]:
    return [s.report for s in signals if isinstance(s, Progress) and s.report is not None]


def told(report: Report) -> tuple[int, dict[str, float]]:
    return report.step, dict(report.metrics)


def test_the_same_reports_come_a_milestone_later(opened: Any) -> None:
    inline = run(opened(Toy(beside=False)), Launch(0, {}, 1), lambda _: None)
    beside = run(opened(Toy()), Launch(0, {}, 1), lambda _: None)
    assert [*map(told, reports(beside))] == [*map(told, reports(inline))]
    assert [r.step for r in reports(beside)] == [100 * n for n in range(ENDS + 1)]
    assert [r.ahead for r in reports(beside)] == [None, 200, 300, 400, 500, None]
    assert [r.decided_at for r in reports(beside)] == [0, 200, 300, 400, 500, 500]
    nothing_yet = [n for n, s in enumerate(beside) if isinstance(s, Progress) and s.report is None]
    assert nothing_yet == [1], "all ranks return at every milestone, also at the first"
    assert isinstance(beside[-1], Finished)
    assert all(r.ahead is None for r in reports(inline))


@pytest.mark.parametrize("clock", ["train", "wall", "steps"])
def test_a_report_has_the_time_of_its_own_milestone(opened: Any, clock: str) -> None:
    """And not of the next one, at which it is made; evaluation beside training is on no clock."""
    toy = Toy()
    found = reports(run(opened(toy), Launch(0, {}, 1, clock=clock), lambda _: None))
    for report in found[1:]:
        if clock == "steps":
            assert report.seconds == report.step
            continue
        trained = report.clock.seconds("train")
        assert NAP * report.step / 100 - 0.001 <= trained <= toy.at[report.step] - toy.at[0]
        assert trained <= report.seconds == report.clock.seconds(clock)
        assert report.seconds <= toy.left[report.step] - toy.at[0]


def test_a_checkpoint_is_the_state_of_the_report_that_asked_for_it(
    opened: Any, tmp_path: Path
) -> None:
    signals = run(opened(Toy()), Launch(0, {}, 1), lambda r: str(tmp_path / f"step-{r.step}"))
    saved = [s.saved for s in signals if isinstance(s, Progress) and s.saved is not None]
    assert [c.step for c in saved] == [0, 100, 200, 300, 400]
    by_step = {r.step: r for r in reports(signals)}
    for checkpoint in saved:
        state = restored(checkpoint.path, checkpoint.sums)
        assert state["step"] == checkpoint.step
        assert float(state["weight"]) == pytest.approx(checkpoint.step / 1000, abs=1e-12)
        assert checkpoint.clock == by_step[checkpoint.step].clock
    pool = opened(Toy())
    again = run(pool, Launch(0, {}, 1, checkpoint=saved[2], base=saved[2].clock), lambda _: None)
    assert [*map(told, reports(again)[1:])] == [*map(told, reports(signals)[3:])]


def test_a_stopped_trial_is_saved_as_it_was_when_it_met_its_target(
    opened: Any, tmp_path: Path
) -> None:
    toy = Toy()
    pool = opened(toy)
    pool.start(Launch(0, {}, 1))
    while True:
        signal = pool.wait(None)
        assert isinstance(signal, Progress)
        if signal.report is not None and signal.report.step == 300:
            break
        pool.resume(0, None, None)
    pool.stop(0, str(tmp_path / "end"))
    stopped = pool.wait(None)
    assert isinstance(stopped, Stopped)
    assert stopped.saved is not None
    state = restored(stopped.saved.path, stopped.saved.sums)
    assert (state["step"], round(float(state["weight"]), 6)) == (300, 0.3)
    assert (max(toy.at), toy.closed) == (400, 1), "training had gone on"


def test_what_a_validation_raises_ends_the_trial_with_its_traceback(opened: Any) -> None:
    signals = run(opened(Toy(fails={300: KeyError("no label")})), Launch(0, {}, 1), lambda _: None)
    (end,) = signals[-1:]
    assert isinstance(end, Raised)
    assert end.reason == "KeyError: 'no label'"
    assert "raise self.fails.pop(step)" in end.error
    assert [r.step for r in reports(signals)] == [0, 100, 200]


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (BrokenExecutor("the process that validates was ended by SIGKILL"), WorkerFailed),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB"), Raised),
    ],
)
def test_a_dead_process_and_a_full_memory_are_no_fault_of_the_trainers(
    opened: Any, error: Exception, kind: type
) -> None:
    end = run(opened(Toy(fails={300: error})), Launch(0, {}, 1), lambda _: None)[-1]
    assert isinstance(end, kind)
    assert str(error) in end.reason
    if isinstance(end, Raised):
        assert end.out_of_memory


# --- a study --------------------------------------------------------------------------------------


def studied(folder: Path, toy: Toy, **more: Any) -> at.StudyResult:
    target = at.Target(METRIC, more.pop("value", 0.25), limit=6000)
    failure = at.FailurePolicy(checkpoint_interval=0.0)
    space = at.SearchSpace({"rate": at.Float(0.1, 10)})
    made = at.Experiment("b", toy, space, target, configs=[{"rate": 1.0}], failure=failure)
    fixed: dict[str, Any] = {"pruner": "none", "sampler": "random", "tracking_uri": "off"}
    fixed |= {"backend": "local", "max_concurrent_trials": 1, "out": folder}
    return at.run(made, trials=1, **fixed, **more)


def test_a_study_decides_a_milestone_late_and_says_so(tmp_path: Path) -> None:
    inline = studied(tmp_path / "inline", Toy(beside=False)).trials[0]
    toy = Toy()
    beside = studied(tmp_path / "beside", toy).trials[0]
    assert [*map(told, beside.reports)] == [*map(told, inline.reports)]
    assert (beside.state, beside.seconds) == (State.REACHED, beside.reports[-1].seconds)
    assert beside.seconds <= toy.at[300] - toy.at[0]
    assert beside.detail == f"{inline.detail}; decided at step 400, on the report of step 300"


def test_a_killed_process_loses_and_doubles_no_report(tmp_path: Path) -> None:
    died = BrokenExecutor("the process that validates was ended by SIGKILL")
    whole = studied(tmp_path / "whole", Toy(), value=0.45).trials[0]
    trial = studied(tmp_path / "died", Toy(fails={300: died}), value=0.45).trials[0]
    assert (trial.state, trial.attempts, trial.retries) == (State.REACHED, 2, 1)
    metrics = [told(r) for r in trial.reports if r.metrics]
    assert metrics == [told(r) for r in whole.reports if r.metrics]
    assert trial.reports[-1].step == LAST


def test_a_driver_that_is_started_again_loses_and_doubles_no_report(tmp_path: Path) -> None:
    """Whichever line the last driver wrote; it may have saved more than it had written down."""
    whole = studied(tmp_path / "whole", Toy(), value=0.45).trials[0]
    rows = (tmp_path / "whole" / JOURNAL).read_bytes().splitlines(keepends=True)
    begun = next(i for i, row in enumerate(rows) if b'"started"' in row)
    for cut in range(begun + 1, len(rows)):
        folder = tmp_path / str(cut)
        shutil.copytree(tmp_path / "whole", folder)
        (folder / JOURNAL).write_bytes(b"".join(rows[:cut]))
        trial = studied(folder, Toy(), value=0.45).trials[0]
        assert (trial.state, trial.retries) == (State.REACHED, 0), f"cut after line {cut}"
        metrics = [told(r) for r in trial.reports if r.metrics]
        assert metrics == [told(r) for r in whole.reports if r.metrics], f"cut after line {cut}"


def test_a_change_is_written_down_where_it_holds(tmp_path: Path) -> None:
    toy = Toy()

    def once(trial: at.Trial, others: Any, target: at.Target) -> Change | None:
        return Change(lr_factor=0.5) if trial.reports[-1].step == 100 else None

    trial = studied(tmp_path, toy, controller=once).trials[0]
    assert trial.changes == ((200, Change(lr_factor=0.5)),)
    assert toy.changes == [*trial.changes]


def test_a_model_is_not_measured_for_a_report_that_comes_later(tmp_path: Path) -> None:
    measured: list[int] = []

    def train(config: dict[str, Any]) -> Iterator[at.Milestone]:
        for step in range(3):
            yield at.Milestone(
                step,
                lambda step=step: later(lambda: {METRIC: step / 2}),  # type: ignore[misc]
                measure=lambda step=step: measured.append(step) or {"size": 1.0},  # type: ignore[misc]
            )

    train.measures = ("size",)  # type: ignore[attr-defined]
    tried = at.Experiment(
        "late",
        train,
        at.SearchSpace({"lr": at.Float(0.1, 1.0)}),
        at.Target(METRIC, limit_steps=2),
        scaling=ONE,
        limits=[at.Limit("size", 5)],
    )
    quiet: dict[str, Any] = {"progress": False, "tracking_uri": "off", "experience": "off"}
    with pytest.raises(at.StudyError, match="size cannot be measured: the report came after its"):
        at.run(tried, trials=1, out=tmp_path / "study", backend="local", **quiet)
    assert not measured
