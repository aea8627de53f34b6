"""Batch size, time and cost on other numbers of workers, where their law is known."""

from __future__ import annotations

import doctest
import json
import math
import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sims import memory

import autotune as at
from autotune.backends.simulator import SimCurve, SimPoint, SimPool
from autotune.cli import main, scale
from autotune.cli.console import UNREACHED, USER
from autotune.evaluation.scaling.document import probes
from autotune.evaluation.scaling.fit import FITTED, MEASURED, NOT_MEASURED, RING, UNKNOWN, Fit, fit
from autotune.evaluation.scaling.law import Law
from autotune.evaluation.scaling.trials import batch_size_of, runs
from autotune.evaluation.scaling.values import Run, Timing, TooLittleError
from autotune.space.search_space import Choice, Float, SearchSpace
from autotune.study.manifest import Manifest
from autotune.trial import Checkpoint, Hardware, Origin, Report, State, Trial
from autotune.trial.scaling import Scaling

METRIC = "val_accuracy"
BATCHES = (16, 32, 64, 128, 256, 512)
KNOWN = Law(least=20_000, per_batch=200, overhead=4e-3, per_sample=1e-4, exchange=2e-3)
positive = st.floats(1e-3, 1e3)
laws = st.builds(Law, positive, positive, positive, positive, st.floats(0, 1e3))


# --- the law --------------------------------------------------------------------------------------


@given(laws, st.floats(1, 1e5), st.integers(1, 64), st.integers(1, 64))
def test_more_workers_cost_no_fewer_device_seconds_at_one_batch_size(
    law: Law, batch_size: float, one: int, other: int
) -> None:
    few, many = sorted((one, other))
    most = law.device_seconds(batch_size, many) * (1 + 1e-9)
    assert law.device_seconds(batch_size, few) <= most


@given(laws, st.integers(1, 64), st.floats(0.01, 100))
def test_no_batch_size_takes_less_time_than_the_best(law: Law, workers: int, factor: float) -> None:
    best = law.best_batch_size(workers)
    other = law.seconds(best * factor, workers)
    assert law.seconds(best, workers) <= other * (1 + 1e-9)


@given(laws, st.integers(1, 64))
def test_more_workers_take_no_smaller_batch(law: Law, workers: int) -> None:
    more = law.best_batch_size(workers + 1) * (1 + 1e-9)
    assert law.best_batch_size(workers) <= more
    low, high = 1.0, 1e4
    assert law.best_in(workers, low, high) % workers == 0
    assert low <= law.best_in(workers, low, high) <= max(high + workers, workers)


def test_at_the_noise_scale_a_training_needs_twice_the_samples() -> None:
    assert KNOWN.noise == 100
    assert KNOWN.samples(100) == 2 * KNOWN.least
    assert replace(KNOWN, per_batch=0.0).noise == math.inf
    assert replace(KNOWN, per_batch=0.0).best_batch_size(2) == math.inf
    assert replace(KNOWN, overhead=0.0, exchange=0.0).best_batch_size(2) == 0
    with pytest.raises(ValueError, match="overhead must be at least 0 but got -1"):
        replace(KNOWN, overhead=-1.0)


# --- fits -----------------------------------------------------------------------------------------


def exact(law: Law, workers: int, exposed: bool = True) -> tuple[list[Run], list[Timing]]:
    """What a study of the law would show without any noise."""
    runs = [Run(b, law.samples(b)) for b in BATCHES]
    shares = {b: law.exchange * 2 * (workers - 1) / workers / law.step_seconds(b, workers)
              for b in BATCHES}  # fmt: skip
    timings = [
        Timing(b, workers, law.step_seconds(b, workers) / b, shares[b] if exposed else None)
        for b in BATCHES
    ]
    return runs, timings


def fitted(runs: list[Run], timings: list[Timing]) -> Fit:
    return fit(runs, timings, np.random.default_rng(0))


@pytest.mark.parametrize("workers", [2, 4])
def test_a_law_is_recovered_where_messages_are_measured(workers: int) -> None:
    found = fitted(*exact(KNOWN, workers))
    assert vars(found.law) == pytest.approx(vars(KNOWN), rel=1e-6)
    assert found.predict(workers).communication == MEASURED
    for count in (1, 2, 8):
        made = found.predict(count)
        best = KNOWN.best_batch_size(count)
        assert made.batch_size == pytest.approx(best, abs=count)
        assert made.seconds == pytest.approx(KNOWN.seconds(best, count), rel=1e-3)
        assert made.device_seconds == count * made.seconds
    away = found.predict(8)
    assert away.communication == RING
    silent = replace(KNOWN, exchange=0.0)
    assert away.seconds_interval[0] == pytest.approx(
        silent.seconds(silent.best_batch_size(8), 8), rel=1e-2
    )
    assert away.seconds_interval[1] == pytest.approx(away.seconds, rel=1e-6)


def test_what_messages_cost_elsewhere_is_open_where_they_are_not_measured() -> None:
    runs, timings = exact(KNOWN, 2, exposed=False)
    found = fitted(runs, timings)
    own, away = found.predict(2), found.predict(8)
    assert own.communication == MEASURED
    assert own.seconds_interval == pytest.approx((own.seconds, own.seconds), rel=1e-6)
    assert away.communication == NOT_MEASURED
    low, high = away.seconds_interval
    assert low < KNOWN.seconds(KNOWN.best_batch_size(8), 8) < high

    alone = fitted(*exact(KNOWN, 1, exposed=False))
    assert alone.predict(1).communication == MEASURED
    assert alone.predict(4).communication == UNKNOWN
    assert alone.predict(4).seconds <= KNOWN.seconds(KNOWN.best_batch_size(4), 4)
    assert alone.predict(4).seconds_interval[1] == math.inf
    assert alone.predict(4).device_seconds_interval[1] == math.inf

    both = fitted(runs, timings + exact(KNOWN, 8, exposed=False)[1][:1])
    assert vars(both.law) == pytest.approx(vars(KNOWN), rel=1e-5)
    assert both.predict(8).communication == MEASURED
    assert both.predict(4).communication == FITTED


def noisy(seed: int, law: Law, trials: int) -> tuple[list[Run], list[Timing]]:
    """A search that draws learning rates too, most of which are worse than the best, and seeds."""
    random, runs, timings = Random(seed), [], []
    for _ in range(trials):
        batch = random.choice(BATCHES)
        worse = random.expovariate(2.0) + random.gauss(0, 0.1)
        runs.append(Run(batch, law.samples(batch) * math.exp(worse), worse < 1.0))
        spent = law.step_seconds(batch, 2) * math.exp(random.gauss(0, 0.03))
        timings.append(Timing(batch, 2, spent / batch, 0.1))
    return runs, timings


def test_intervals_hold_what_is_true_as_often_as_they_say() -> None:
    held = []
    truth = replace(KNOWN, exchange=0.0)
    for seed in range(60):
        runs, timings = noisy(seed, truth, 24)
        made = fitted(runs, timings).predict(2)
        best = truth.best_batch_size(2)
        low, high = made.seconds_interval
        held.append(
            (
                made.batch_interval[0] <= best <= made.batch_interval[1],
                low <= truth.seconds(best, 2) <= high,
                high < 3 * low,
            )
        )
    shares = np.mean(held, axis=0)
    assert shares[0] >= 0.9
    assert shares[1] >= 0.85
    assert shares[2] >= 0.9  # and are not so wide that this is no feat


def test_where_nothing_arrived_the_batch_needs_more_than_was_trained() -> None:
    runs, timings = exact(KNOWN, 2)
    few = [run for run in runs if run.batch_size <= 64]
    stopped = Run(512, 3 * KNOWN.samples(512), reached=False)
    assert fitted([*few, stopped], timings).law.samples(512) > 1.5 * KNOWN.samples(512)
    early = replace(stopped, samples=KNOWN.samples(512) / 2)  # says nothing that is not known
    assert fitted([*few, early], timings).law.samples(512) == pytest.approx(KNOWN.samples(512))
    worse = replace(stopped, samples=9 * KNOWN.samples(512))  # another one was stopped sooner
    assert fitted([*few, worse, early], timings).law.noise == pytest.approx(KNOWN.noise)


def test_the_reported_noise_scale_serves_where_few_batch_sizes_arrived() -> None:
    runs, timings = exact(KNOWN, 2)
    own = [replace(run, noise_scale=scale) for run, scale in zip(runs[2:4], (80, 125), strict=True)]
    found = fitted(own, timings)
    assert found.source == "gradient_noise_scale"
    assert found.law.noise == pytest.approx(100)
    assert found.law.samples(64) == pytest.approx(KNOWN.samples(64))
    low, high = found.noise_interval
    assert 79.9 < low < 100 < high < 125.1
    assert fitted(runs, timings).source == "trials"


def test_what_is_missing_is_said() -> None:
    runs, timings = exact(KNOWN, 2)
    with pytest.raises(TooLittleError, match=r"at 2 batch sizes \(16, 32\), and must be at 3"):
        fitted(runs[:2], timings)
    with pytest.raises(TooLittleError, match="has reached the target"):
        fitted([replace(run, reached=False) for run in runs], timings)
    with pytest.raises(TooLittleError, match="1 trials have measured them at one"):
        fitted(runs, timings[:1])


def test_the_best_trial_is_as_fast_as_it_was() -> None:
    runs, timings = exact(KNOWN, 2)
    best = replace(timings[3], seconds=timings[3].seconds / 2)
    made = fit(runs, timings, np.random.default_rng(0), best)
    assert made.law.step_seconds(best.batch_size, 2) == pytest.approx(best.step)
    assert made.law.noise == pytest.approx(KNOWN.noise)


def test_the_batch_size_of_a_schedule_is_the_mean_over_its_steps() -> None:
    sizes = [(0, 32.0), (640, 32.0), (1920, 64.0)]  # 20 steps, and then 20
    reports = tuple(Report(step, 0.0, {"batch_size": size}) for step, size in sizes)
    assert batch_size_of(Trial(0, {"batch_size": "grows"}, reports=reports)) == 48
    assert batch_size_of(Trial(0, {"batch_size": 16}, reports=reports)) == 16
    assert batch_size_of(Trial(0, {})) is None


def test_a_trial_that_shares_its_beginning_counts_and_a_fork_does_not() -> None:
    """The first is one configuration from its first step on."""
    saved = Checkpoint(64, "there")
    config = {"batch_size": 32}
    reports = (Report(64, 1.0, {}), Report(128, 2.0, {}))
    ended = {"reports": reports, "state": State.REACHED, "seconds": 2.0}
    shared = Trial(1, config, config, origin=Origin(0, None, saved), **ended)
    fork = Trial(2, config, origin=Origin(0, 1, saved, config), **ended)
    assert [run.samples for run in runs([shared, fork])] == [pytest.approx(128)]
    assert runs([fork]) == []


# --- studies --------------------------------------------------------------------------------------


class Workers(SimPool):
    """A pool that says on how many workers its trials run."""

    ranks = 2

    def next_hardware(self, comparable_to: Hardware | None = None) -> Hardware:
        return Hardware("sim", self.ranks)


def learns(law: Law, workers: int, reaches: float = 1.0) -> Callable[..., SimCurve]:
    """Curves of 50 milestones, of which the 40th meets the target at a learning rate of 1."""

    def curve(config: Mapping[str, Any], seed: int) -> SimCurve:
        batch, random = config["batch_size"], Random(seed)
        worse = 0.5 * math.log(config["rate"]) ** 2 + 0.03 * random.gauss(0, 1)
        needed = law.samples(batch) * math.exp(worse)
        step = law.step_seconds(batch, workers) * (3 if config["precision"] == "fp16" else 1)
        shares = {"exposed_communication": law.exchange * 2 * (workers - 1) / workers / step}
        points = [SimPoint(0, 0.0, {})]
        for i in range(1, 51):
            samples = round(needed * i / 40)
            value = {METRIC: reaches * i / 40, **shares}
            points.append(SimPoint(samples, samples / batch * step, value))
        return SimCurve(points)

    return curve


def train(config: dict[str, Any]) -> Any:
    """Stands for a trainer, which is not run."""


def study(folder: Path, trials: int = 40, **more: Any) -> at.StudyResult:
    space: dict[str, Any] = {
        "batch_size": Choice(BATCHES),
        "rate": Float(0.25, 4.0, log=True),
        "precision": Choice(("fp32", "fp16")),
    }
    baseline = {"batch_size": 32, "rate": 0.6, "precision": "fp32"}
    workers, reaches = more.pop("workers", 2), more.pop("reaches", 1.0)
    target = more.pop("target", at.Target(METRIC, 1.0, limit=300.0))
    made = at.Experiment(
        "scaled", train, SearchSpace(space), target,
        baseline=baseline, scaling=Scaling(num_workers=workers),
    )  # fmt: skip
    pool = Workers(learns(more.pop("law", KNOWN), workers, reaches), 1)
    pool.ranks = workers
    return at.run(
        made, trials=trials, out=folder, pool=pool, sampler="random", pruner="none",
        racing=0, seed=3, tracking_uri="off", **more,
    )  # fmt: skip


@pytest.fixture(scope="module")
def folder() -> Any:
    with memory() as place:
        study(place / "two")
        study(place / "eight", 1, workers=8)
        study(place / "never", 3, reaches=0.5)
        study(place / "few", 1)
        steps = at.Target(METRIC, 1.0, clock="steps", limit_steps=10**6)
        study(place / "steps", 1, target=steps)
        study(place / "easier", 1, target=at.Target(METRIC, 0.5, limit=300.0))
        yield place


def scaled(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main.main(["scale", *words, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_study_predicts_other_numbers_of_workers(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = scaled(capsys, str(folder / "two"), "--workers", "8", "2", "4", "2")
    assert found["law"]["noise_from"] == "trials"
    low, high = found["law"]["noise_batch_size_interval"]
    assert low < KNOWN.noise < high
    assert low * 2 > KNOWN.noise > high / 4
    assert [row["workers"] for row in found["workers"]] == [2, 4, 8]
    for row in found["workers"]:
        count = row["workers"]
        true = KNOWN.seconds(KNOWN.best_batch_size(count), count)
        assert row["seconds"] == pytest.approx(true, rel=0.2)
        assert row["seconds_interval"][0] < true < row["seconds_interval"][1]
        assert row["device_seconds"] == pytest.approx(count * row["seconds"])
        low, high = row["device_seconds_interval"]
        assert low < count * true < high
        ends = [count * end for end in row["seconds_interval"]]
        assert [low, high] == pytest.approx(ends)
    first = found["to_be_surer"][0]
    assert first["why"] == "what messages cost on 8 workers is not measured"
    run, _, scale_again = first["how"].partition("; ")
    assert run.startswith("autotune run RECIPE --workers 8 --from ")
    assert shlex.split(run)[7:] == [
        *("--trials", "2", "--stages", "off", "--pruner", "none"),
        *("--out", f"{folder / 'two'}-8-workers"),
    ]
    assert shlex.split(scale_again)[-2:] == ["--also", f"{folder / 'two'}-8-workers"]
    fit, manifest = fitted(*exact(KNOWN, 2)), Manifest.read(folder / "two")
    given = replace(manifest.options, recipe="images:folder", recipe_arguments={"data": "my data"})
    manifest = replace(manifest, options=given)
    how = probes(fit, [fit.predict(8)], manifest, folder, [folder / "four"])[0]["how"]
    assert how.startswith("autotune run images:folder --with 'data=my data' --workers 8 --from ")
    assert shlex.split(how)[-3:-1] == ["--also", str(folder / "four")]


def test_a_batch_size_that_nobody_has_trained_is_to_be_probed(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = scaled(capsys, str(folder / "two"), "--workers", "2", "64", "16")
    most = found["workers"][-1]
    assert (most["workers"], most["batch_size"] > max(BATCHES)) == (64, True)
    hint = found["to_be_surer"][1]
    assert hint["why"] == f"batch size {most['batch_size']} is outside of the measured 16 to 512"
    assert hint["how"].startswith(f"train at batch size {most['batch_size']} to the target")
    assert scaled(capsys, str(folder / "two"), "--workers", "2")["to_be_surer"] == []


def test_a_batch_size_whose_time_is_open_is_to_be_probed(folder: Path) -> None:
    alone = fitted(*exact(KNOWN, 1, exposed=False)).predict(2)  # no end: nobody has sent messages
    own = fitted(*exact(KNOWN, 2)).predict(2)
    fit, manifest = fitted(*exact(KNOWN, 2)), Manifest.read(folder / "two")
    assert probes(fit, [own], manifest, folder) == []
    last = probes(fit, [own, alone], manifest, folder)[-1]
    assert last["why"] == f"batch size {alone.batch_size} is known roughly"
    rough = replace(own, seconds_interval=(1.0, 2.1))
    assert [p["why"] for p in probes(fit, [rough], manifest, folder)] == [
        f"batch size {own.batch_size} is known roughly"
    ]
    assert probes(fit, [replace(own, seconds_interval=(1.0, 1.9))], manifest, folder) == []


def test_another_study_measures_messages_there(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    also = ("--also", str(folder / "eight"))
    found = scaled(capsys, str(folder / "two"), "--workers", "2", "4", "8", *also)
    assert [row["communication"] for row in found["workers"]] == ["measured", "fitted", "measured"]
    assert found["measured"]["workers"] == [2, 8]
    true = KNOWN.seconds(KNOWN.best_batch_size(8), 8)
    assert found["workers"][2]["seconds"] == pytest.approx(true, rel=0.1)


def test_the_table_of_a_study(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["scale", str(folder / "two")]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith("scaled (val_accuracy 1): measured on 2 workers, at batch sizes 16")
    rows = [line.split() for line in shown if line.split()[0] in ("2", "4", "8")]
    assert [row[0] for row in rows] == ["2", "4", "8"]
    assert rows[0][-1] == "measured"
    assert any(line.startswith("to be surer, as what messages cost on 8") for line in shown)


def test_a_noise_scale_of_nothing_is_not_printed_as_0() -> None:
    found = doctest.testmod(scale)
    assert found.attempted >= 4
    assert not found.failed


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("never", UNREACHED, "no trial has reached"),
        ("few", UNREACHED, "known at 1 batch size (32), and must be at 3"),
        ("steps", USER, "scale is for a target with a value, on a clock of seconds"),
    ],
)
def test_a_study_that_says_too_little(
    name: str, code: int, said: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["scale", str(folder / name), "--json"]) == code
    out, err = capsys.readouterr()
    assert said in err
    assert err.count("\n") == 1
    assert out == ("null\n" if code == UNREACHED else "")


def test_studies_of_other_targets_do_not_go_together(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = [str(folder / "two"), "--also", str(folder / "easier")]
    assert main.main(["scale", *both]) == USER
    assert "--also must be a study with the target val_accuracy 1" in capsys.readouterr().err
