"""A study on the real pool whose ranks and drivers are killed: afterwards every number agrees.

`make soak` runs the long one. `SOAK_TRIALS`, `SOAK_DRIVERS` and `SOAK_RANKS` (how many of which are
killed) and `SOAK_SEED` choose another. So do damaged studies, random commands (`SOAK_CASES`) and
trainers that misbehave: nothing of it may end in a traceback.
"""

from __future__ import annotations

import math
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest
import soak_study
from fuzz import fault_of, fault_of_study, fault_of_words
from misbehaving import FAILING, PASSING, study, wrong
from sims import memory
from soak import Count, Kill, counted, mean_times, plan, same, soak
from toys import METRIC

import autotune as at
from autotune.study import result as results
from autotune.trial import State

SEED = int(os.environ.get("SOAK_SEED", "3"))
VIEW_SECONDS = 900.0


@dataclass(frozen=True)
class Soaked:
    """A study that is done, in the three ways in which it can be read."""

    folder: Path
    result: at.StudyResult
    counts: Mapping[int, Count]
    runs: Mapping[int, Any]
    parent: Any
    client: Any


def number(name: str, otherwise: int) -> int:
    return int(os.environ.get(name, otherwise))


@pytest.mark.soak
def test_a_few_kills(bare_ray: str, tmp_path: Path) -> None:
    soaked_study(bare_ray, tmp_path, 25, plan(25, drivers=1, ranks=1, seed=SEED))


@pytest.mark.soak
def test_a_few_kills_without_ray(tmp_path: Path) -> None:
    soaked_study("", tmp_path, 25, plan(25, drivers=2, ranks=3, seed=SEED))


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_many_kills(bare_ray: str, tmp_path: Path) -> None:
    trials = number("SOAK_TRIALS", 500)
    kills = plan(trials, number("SOAK_DRIVERS", 20), number("SOAK_RANKS", 50), SEED)
    soaked_study(bare_ray, tmp_path, trials, kills)


def soaked_study(address: str, place: Path, trials: int, kills: list[Kill]) -> None:
    folder = place / "study"
    begin = time.monotonic()
    done = soak(folder, address, trials, kills)
    study = read(folder)
    print(f"{trials} trials in {time.monotonic() - begin:.0f} s; killed: {dict(done)}; "
          f"ended: {dict(Counter(t.reason for t in study.result.trials))}")  # fmt: skip
    assert done["driver"] == sum(k.what == "driver" for k in kills)
    assert done["rank"] >= sum(k.what == "rank" for k in kills) // 2
    every_trial_has_ended_once(study, trials)
    no_step_is_lost_or_done_twice(study)
    the_result_says_what_the_journal_says(study)
    mlflow_says_what_the_result_says(study)
    the_studys_own_run_has_the_sums(study)
    nothing_is_left_behind(study)


def read(folder: Path) -> Soaked:
    """The study once its view has caught up."""
    from mlflow import MlflowClient

    client, end = MlflowClient(f"sqlite:///{folder / 'mlflow.db'}"), time.monotonic() + VIEW_SECONDS
    while True:
        own = client.get_experiment_by_name("soaked")
        runs = list(client.search_runs([own.experiment_id], max_results=5000)) if own else []
        parents = [r for r in runs if r.data.tags["autotune.kind"] == "study"]
        if [p.info.status for p in parents] == ["FINISHED"]:
            break
        assert time.monotonic() < end, "the view does not catch up"
        time.sleep(0.5)
    numbers = [int(r.data.tags["autotune.trial"]) for r in runs if r is not parents[0]]
    assert len(numbers) == len(set(numbers)), "one run a trial"
    by_number = {int(r.data.tags["autotune.trial"]): r for r in runs if r is not parents[0]}
    result = results.read(folder, soak_study.experiment(folder).target)
    return Soaked(folder, result, counted(folder / "journal.jsonl"), by_number, parents[0], client)


def every_trial_has_ended_once(study: Soaked, trials: int) -> None:
    assert study.result.ended == "done"
    races = {n for n, c in study.counts.items() if c.repeats is not None}
    assert list(study.counts) == list(range(trials + len(races)))
    assert races == {t.number for t in study.result.trials if t.kind == "race"}
    for trial in study.counts.values():
        assert (trial.suggestions, trial.ends) == (1, 1)
        assert trial.state in ("REACHED", "CENSORED", "FAILED", "INFEASIBLE")
        assert trial.reason
        assert trial.retries <= 4


def no_step_is_lost_or_done_twice(study: Soaked) -> None:
    """What the trainers added up says that each attempt began at a checkpoint, on every path."""
    log = (study.folder.parent / "log").read_text().splitlines()
    starts: dict[int, list[int]] = {}
    for row in log:
        seed, _, _, what, step = row.split()
        assert what == "start"
        starts.setdefault(int(seed), []).append(int(step))
    for trial in study.result.trials:
        done = [r for r in trial.reports if r.metrics]
        assert [r.step for r in done] == list(range(100, 100 * len(done) + 1, 100))
        assert all(r.metrics["summed"] == r.step for r in done)
        rate = trial.config["rate"]
        assert all(r.metrics[METRIC] == soak_study.curve(rate, r.step) for r in done)
        count = study.counts[trial.number]
        assert set(starts.get(trial.seed, [])) <= set(count.saved)
        assert len(starts.get(trial.seed, [])) <= count.attempts
        fares_as_its_luck_wants(trial, done[-1].step if done else 0)


def fares_as_its_luck_wants(trial: at.Trial, step: int) -> None:
    wrong = soak_study.fault(trial.config["luck"])
    if trial.config["luck"] >= 0.98 and trial.kind == "trial":
        assert trial.state is State.INFEASIBLE
    elif step < 400 or (wrong in ("", "thread") and trial.state is not State.FAILED):
        return
    elif step == 400 and trial.state is State.FAILED:
        reason = {"raise": "RuntimeError: bad luck", "exit": "SystemExit: 3"}
        assert trial.reason.startswith(reason.get(wrong, "worker died"))
    elif wrong == "nan" and step >= 500:
        assert trial.reason == "diverged"


def the_result_says_what_the_journal_says(study: Soaked) -> None:
    frame = study.result.to_frame().set_index("trial")
    for trial in study.result.trials:
        count, row = study.counts[trial.number], frame.loc[trial.number]
        assert (str(trial.state), trial.reason) == (count.state, count.reason)
        assert (row["state"], row["reason"]) == (count.state, count.reason)
        assert (trial.seconds, trial.attempts, trial.retries) == (
            count.seconds,
            count.attempts,
            count.retries,
        )
        assert trial.spent_seconds == pytest.approx(count.spent, abs=1e-5)
        # A restored attempt's first report is at its checkpoint's step once more: its set-up.
        reports = [(r.step, r.seconds, dict(r.metrics)) for r in trial.reports]
        points = [
            (p["step"], p["seconds"], {k: float(v) for k, v in p["metrics"].items()})
            for p in count.points
        ]
        assert repr(reports) == repr(points)  # a NaN is itself
    spent = sum(c.spent for c in study.counts.values())
    assert study.result.spent_seconds == pytest.approx(spent, abs=1e-3)
    stands = mean_times(study.counts)
    best = study.result.best
    assert best is not None
    assert best.number == min(stands, key=lambda n: (stands[n], n))


def mlflow_says_what_the_result_says(study: Soaked) -> None:
    assert sorted(study.runs) == [t.number for t in study.result.trials]
    for trial in study.result.trials:
        run = study.runs[trial.number]
        tags, metrics = run.data.tags, run.data.metrics
        assert tags["autotune.state"] == str(trial.state)
        assert tags["autotune.reason"] == trial.reason
        assert tags["autotune.attempts"] == str(trial.attempts)
        assert run.info.status == ("FAILED" if trial.state is State.FAILED else "FINISHED")
        assert run.data.params["rate"] == str(trial.config["rate"])
        metric_states = {
            "time_to_target_seconds": State.REACHED,
            "censored_at_seconds": State.CENSORED,
        }
        for name, state in metric_states.items():
            shown = metrics.get(name, math.nan)
            assert same(shown, trial.seconds if trial.state is state else math.nan), name
        for part in fields(trial.clock):
            shown = metrics[f"clock/{part.name}"]
            assert same(shown, float(getattr(trial.clock, part.name)))
        the_curves_are_those_of_the_reports(study, trial, run)


def the_curves_are_those_of_the_reports(study: Soaked, trial: at.Trial, run: Any) -> None:
    """Of two points at one step, which an attempt that was lost leaves, the newer one counts."""
    expected: dict[str, dict[int, float]] = {"train_seconds": {}}
    for report in trial.reports:
        expected["train_seconds"][report.step] = report.clock.seconds("train")
        for name, value in report.metrics.items():
            expected.setdefault(name, {})[report.step] = value
    for name, points in expected.items():
        history = study.client.get_metric_history(run.info.run_id, name)
        shown = {p.step: p.value for p in sorted(history, key=lambda p: p.timestamp)}
        beyond = {s for s in shown if s > trial.reports[-1].step}  # of an attempt that got further
        assert shown.keys() - beyond == points.keys(), (trial.number, name)
        wrong = {s: (shown[s], v) for s, v in points.items() if not same(shown[s], v)}
        assert not wrong, (trial.number, name)


def the_studys_own_run_has_the_sums(study: Soaked) -> None:
    metrics = study.parent.data.metrics
    states = Counter(c.state for c in study.counts.values() if c.repeats is None)
    for state in ("REACHED", "CENSORED", "FAILED", "INFEASIBLE", "RUNNING"):
        assert metrics[f"trials_{state.lower()}"] == states[state]
    assert metrics["spent_seconds"] == pytest.approx(study.result.spent_seconds)
    assert study.result.best is not None
    assert metrics["best_time_to_target_seconds"] == study.result.best.seconds


def nothing_is_left_behind(study: Soaked) -> None:
    end = time.monotonic() + 600
    while left := processes_of(study.folder):
        assert time.monotonic() < end, left
        time.sleep(0.2)
    assert not list(study.folder.rglob("*.part"))
    cores = f"autotune-cores-{os.getuid()}"  # the locks of cores, which belong to the machine
    assert set(os.listdir(study.folder.parent / "tmp")) <= {cores}
    best = study.result.best
    assert best is not None
    reached = (t for t in study.result.searched if t.state is State.REACHED)
    fastest = min(reached, key=lambda t: (t.seconds, t.number))  # it may have been lucky
    left = sorted(os.listdir(study.folder / "checkpoints"))
    assert left == sorted({f"trial-{t.number:04d}" for t in (best, fastest)})


def processes_of(folder: Path) -> list[str]:
    """Processes that work on the study, and all that its drivers have started."""
    found, started = [], f"TMPDIR={folder.parent / 'tmp'}"
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words, environ = (
                (process / name).read_bytes().decode(errors="replace").split("\0")
                for name in ("cmdline", "environ")
            )
        except OSError:
            continue
        if str(folder) in words or started in environ:
            found.append(" ".join(words))
    return found


# --- damaged studies, random commands, trainers that misbehave ------------------------------------


def faults(find: Callable[[Path, int], str], cases: int) -> list[str]:
    """What goes wrong in so many cases from the seed on."""
    found = []
    for seed in range(1000 * SEED, 1000 * SEED + cases):
        with memory() as place:
            found.append(find(place, seed))
    return [fault for fault in found if fault]


@pytest.mark.parametrize("find", [fault_of_study, fault_of_words])
def test_a_few_damaged_studies_and_random_commands(find: Callable[[Path, int], str]) -> None:
    assert not faults(find, 12)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("find", [fault_of_study, fault_of_words])
def test_many_damaged_studies_and_random_commands(find: Callable[[Path, int], str]) -> None:
    assert not faults(find, number("SOAK_CASES", 600))


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_trainers_that_misbehave(ray_address: str, tmp_path: Path) -> None:
    """Each fails for a reason in one line, or reaches its target; the study goes on to its end."""
    whats = random.Random(SEED).sample([*FAILING], len(FAILING))
    between = [[what, name] for what, name in zip(whats, [*PASSING] * len(whats), strict=False)]
    configs = [{"what": w, "n": n} for n, w in enumerate(w for pair in between for w in pair)]
    result = study(wrong, tmp_path / "study", configs)
    assert result.ended == "done"
    wrongs = [wrong_in(trial) for trial in result.trials]
    assert not [found for found in wrongs if found]
    for words in (
        ["status"],
        ["best", "--json"],
        ["report", "--to", str(tmp_path / "report.html")],
    ):
        assert not fault_of([words[0], str(result.folder), *words[1:]])


def wrong_in(trial: at.Trial) -> str:
    """What a trial of a trainer that misbehaves is not, and should be."""
    what = trial.config["what"]
    fails = what in FAILING
    expected = {
        "state": trial.state is (State.FAILED if fails else State.REACHED),
        "one line": "\n" not in trial.reason and len(trial.reason) < 400,
        "short": len(trial.error) < 100_000,
        "traceback": ("Traceback" in trial.error) == fails,
        "checkpoint": trial.checkpoint is None,
    }
    missed = [name for name, is_so in expected.items() if not is_so]
    return f"{what!r}: {', '.join(missed)}: {trial.state} {trial.reason:.300}" if missed else ""
