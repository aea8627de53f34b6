"""The pruner `policy`: what its network sees, and which trials it stops."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sims import METRIC, learning, lines, simulate, wide

import autotune as at
from autotune.algorithms.experience.known_task import MARKS
from autotune.algorithms.pruners.policy import Curve, inputs, trained
from autotune.algorithms.pruners.rules import make_pruner
from autotune.algorithms.samplers.trained_policy import network
from autotune.cli import main
from autotune.cli.console import study_in
from autotune.errors import UserError
from autotune.evaluation import experience as status
from autotune.space.search_space import Fixed, SearchSpace
from autotune.trial import Hardware, Report, State, Stop, Target, Trial

TARGET = Target("acc", 0.9, limit=100)
CPU = Hardware("cpu")


def trial(
    number: int,
    values: Sequence[float],
    state: State = State.RUNNING,
    every: float = 5.0,
    on: Hardware = CPU,
) -> Trial:
    """A trial that has reported these values of the metric, one each `every` seconds."""
    times = [every * (i + 1) for i in range(len(values))]
    reports = tuple(
        Report(i + 1, t, {"acc": v}) for i, (t, v) in enumerate(zip(times, values, strict=True))
    )
    return Trial(number, {}, state=state, seconds=times[-1], reports=reports, hardware=on)


LEADER = trial(0, [0.5, 0.7, 0.8, 0.85, 0.9], State.REACHED)
OTHERS = [LEADER, *(trial(i, [0.1 + i / 50, 0.2 + i / 50], State.CENSORED) for i in range(1, 12))]


def certain(chance: float) -> dict[str, np.ndarray]:
    """Weights with which each trial has this chance."""
    shapes = {**network.SHAPES, **network.STOP_SHAPES}
    weights = {name: np.zeros(shape) for name, shape in shapes.items()}
    weights["stop_3"][-1] = math.log(chance / (1 - chance))
    return weights


# --- what is seen ---------------------------------------------------------------------------------


def test_a_curve_is_known_from_its_first_report_until_it_was_seen_last() -> None:
    curve = Curve([0.1, 0.2, 0.4], [3.0, 2.0, 1.0], until=0.5)
    assert [curve.at(t) for t in (0.05, 0.1, 0.3, 0.5, 0.6)] == [None, 3.0, 2.0, 1.0, None]
    assert curve.first(5.0) == 0.1
    assert curve.first(2.0) == pytest.approx(0.2)
    assert curve.first(1.5) == pytest.approx(math.sqrt(0.2 * 0.4))
    assert curve.first(0.5) == math.inf
    ended = replace(curve, until=0.45, took=0.45)
    assert (ended.at(0.45), ended.at(9.0), ended.first(0.0)) == (-math.inf, -math.inf, 0.45)


curves = st.lists(st.floats(0.01, 10.0), min_size=1, max_size=6).map(
    lambda gaps: Curve(
        [0.1 * (i + 1) for i in range(len(gaps))], sorted(gaps, reverse=True), 0.1 * len(gaps)
    )
)


@given(own=curves, others=st.lists(curves, max_size=5), scale=st.floats(0.01, 100.0))
def test_what_is_seen_has_no_unit_and_does_not_depend_on_the_order(
    own: Curve, others: list[Curve], scale: float
) -> None:
    others = [
        replace(c, took=c.until + (50 + i) / 1000) if i % 2 else c for i, c in enumerate(others)
    ]
    seen = inputs(0.3, own, others, len(others))
    if own.until < 0.3 - 1e-9:
        return
    assert seen is not None
    assert seen.shape == (network.STOP,)
    assert np.isfinite(seen).all()

    def scaled(curve: Curve) -> Curve:
        return replace(curve, gaps=[scale * gap for gap in curve.gaps])

    again = inputs(0.3, scaled(own), [scaled(c) for c in reversed(others)], len(others))
    assert again == pytest.approx(seen, abs=1e-6)


def test_nothing_is_seen_before_the_first_report() -> None:
    assert inputs(0.05, Curve([0.1], [1.0], 0.1), [], 0) is None


# --- which trials are stopped ---------------------------------------------------------------------


def test_a_trial_stops_where_its_chance_is_below_that_of_a_new_one() -> None:
    running = trial(20, [0.3])
    for ended in (2, 5, 8, 10, 12):
        stop = trained(1.0, certain(0.1))(running, OTHERS[:ended], TARGET)
        assert (stop is not None) == (1 / (ended + 1) > 0.1)
        twice = trained(2.0, certain(0.1))(running, OTHERS[:ended], TARGET)
        assert (twice is not None) == (2 / (ended + 1) > 0.1)
        if stop is not None:
            says = "acc 0.3 after 5.00 s: 10.0% chance to reach the target before trial 0"
            least = f"less than the {1 / (ended + 1):.1%} of a new trial"
            assert stop == Stop("policy", f"{says}, {least}")


def test_nothing_stops_before_two_trials_have_ended() -> None:
    prune = trained(1.0, certain(1e-6))
    alone = [trial(i, [0.3], State.RUNNING) for i in range(1, 8)]
    assert prune(trial(20, [0.3]), alone, TARGET) is None
    assert prune(trial(20, [0.3]), [LEADER, *alone], TARGET) is None
    assert prune(trial(20, [0.3]), [LEADER, OTHERS[1]], TARGET) is not None


def test_a_trial_is_judged_when_a_report_passes_a_share_of_the_limit() -> None:
    prune = trained(1.0, certain(1e-6))
    judged = [
        prune(trial(20, [0.3] * count, every=0.5), OTHERS, TARGET) is not None
        for count in range(1, 201)
    ]
    passed = {math.ceil(round(100 * mark / 0.5, 6)) for mark in MARKS}
    assert {i for i, yes in enumerate(judged, start=1) if yes} == passed
    bare = replace(trial(20, [0.3]), reports=(Report(0, 5.0, {}),))
    assert prune(bare, OTHERS, TARGET) is None


def test_the_fastest_trial_counts_however_long_ago_it_ended() -> None:
    later = [
        replace(trial(i, [0.1, 0.2], State.CENSORED), ended_at=float(i)) for i in range(1, 1100)
    ]
    stop = trained(1.0, certain(1e-6))(trial(2000, [0.3]), [LEADER, *later], TARGET)
    assert stop is not None
    assert "before trial 0, less than the 0.1% of a new trial" in stop.detail


def test_a_trial_with_several_runs_has_a_curve_of_their_mean_time() -> None:
    """Pruners see it with the mean of its times, and with the reports of its first run."""
    prune = make_pruner("policy", TARGET)
    slower = [replace(LEADER, seconds=2 * LEADER.seconds), *OTHERS[1:]]
    as_slow = [trial(0, [0.5, 0.7, 0.8, 0.85, 0.9], State.REACHED, every=10.0), *OTHERS[1:]]
    for values in ([0.3], [0.5], [0.45, 0.55], [0.4, 0.5, 0.6], [0.5, 0.6, 0.7, 0.75]):
        one = trial(20, values)
        assert prune(one, slower, TARGET) == prune(one, as_slow, TARGET)


def test_failed_trials_and_those_on_other_hardware_do_not_count() -> None:
    prune = trained(1.0, certain(0.2))
    failed = [replace(t, state=State.FAILED) for t in OTHERS[1:]]
    elsewhere = [replace(t, hardware=Hardware("gpu")) for t in OTHERS[1:]]
    assert prune(trial(20, [0.3]), OTHERS, TARGET) is None
    for few in (failed, elsewhere):
        assert prune(trial(20, [0.3]), [LEADER, OTHERS[1], *few], TARGET) is not None


def test_the_packages_network_keeps_leaders_and_stops_who_is_far_behind() -> None:
    prune = make_pruner("policy", TARGET)
    assert prune(trial(20, [0.6, 0.85]), OTHERS, TARGET) is None
    behind = prune(trial(20, [0.1, 0.12]), OTHERS, TARGET)
    assert behind is not None
    assert behind.reason == "policy"
    assert behind == make_pruner("policy", TARGET)(trial(20, [0.1, 0.12]), OTHERS, TARGET)
    late = make_pruner("policy(ratio=1e-9)", TARGET)(trial(20, [0.1] * 6), OTHERS, TARGET)
    assert late is not None
    assert late.reason == "capped"


@given(scale=st.floats(0.01, 1000.0), unit=st.sampled_from([0.01, 1.0, 100.0]))
def test_neither_seconds_nor_the_metrics_unit_matter(scale: float, unit: float) -> None:
    def moved(one: Trial) -> Trial:
        reports = tuple(
            replace(r, seconds=scale * r.seconds, metrics={"acc": unit * r.metrics["acc"]})
            for r in one.reports
        )
        return replace(one, seconds=scale * one.seconds, reports=reports)

    target = Target("acc", 0.9 * unit, limit=100 * scale)
    for values in ([0.6, 0.85], [0.1, 0.12], [0.4, 0.6], [0.5, 0.66]):
        one = trial(20, values)
        stops = make_pruner("policy")(one, OTHERS, TARGET)
        again = make_pruner("policy")(moved(one), [moved(t) for t in OTHERS], target)
        assert (stops is None) == (again is None)


@pytest.mark.parametrize(
    ("spec", "target", "says"),
    [
        ("policy(ratio=0)", TARGET, "policy ratio must be more than 0 but got 0"),
        ("policy(weights='no.npz')", TARGET, "policy weights no.npz: No such file"),
        ("policy(weights='~nobody-here/x')", TARGET, "policy weights .*nobody-here"),
        ("policy(weights='a\\0b')", TARGET, "policy weights .*null byte"),
        ("policy(weights=3)", TARGET, "must be the path of a file, in quotes, or None but got 3"),
        ("policy(weights='')", TARGET, "must be the path of a file, in quotes, or None but got ''"),
        ("policy(weights=b'x')", TARGET, "in quotes, or None but got b'x'"),
        ("policy", Target("acc", limit=9), "pruner 'policy' needs a Target with a value"),
    ],
)
def test_what_it_cannot_do_is_one_line(
    spec: str, target: Target, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=says) as caught:
        make_pruner(spec, target)
    assert "\n" not in str(caught.value)


def test_weights_of_a_sampler_alone_are_one_line(tmp_path: Path) -> None:
    file = tmp_path / "old.npz"
    network.write(file, {name: np.zeros(shape) for name, shape in network.SHAPES.items()})
    with pytest.raises(UserError, match=r"old\.npz: they are of a sampler alone; make new ones"):
        make_pruner(f"policy(weights={str(file)!r})")


def test_a_study_keeps_its_weights(fast_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on as it would have, whatever became of the file, and with a later package."""
    file = fast_path / "mine.npz"
    spec = f"policy(weights={str(file)!r})"
    stops = {}
    for folder, first, chance in (("whole", 8, 0.001), ("parts", 4, 0.001), ("none", 8, 0.999)):
        network.write(file, certain(chance))
        simulate(wide(), fast_path / folder, first, learning, pruner=spec, seed=5)
        file.unlink()
        simulate(wide(), fast_path / folder, 8, learning, pruner=spec, seed=5)
        stops[folder] = [row for row in lines(fast_path / folder) if row["event"] == "ended"]
    assert stops["whole"] == stops["parts"] != stops["none"]
    assert "chance to" in str(stops["whole"])
    with pytest.raises(UserError, match=r"policy weights .*mine\.npz: No such file"):
        simulate(wide(), fast_path / "new", 4, learning, pruner=spec)
    with pytest.raises(UserError, match=r"policy weights other\.npz: No such file"):
        simulate(wide(), fast_path / "parts", 9, learning, pruner="policy(weights='other.npz')")
    assert status.now(*study_in(fast_path / "parts")) == {"off": True}

    def of_package(pruner: str, trials: int) -> None:
        simulate(wide(), fast_path / "package", trials, learning, pruner=pruner)

    of_package("policy", 4)
    monkeypatch.setattr(network, "shipped_bytes", lambda: b"of a later version")
    for trials, pruner in enumerate(("policy", "policy()", "policy(ratio=0.9)"), 5):
        of_package(pruner, trials)


def test_a_study_where_nothing_is_searched_keeps_its_weights(fast_path: Path) -> None:
    file = fast_path / "mine.npz"
    network.write(file, certain(0.5))
    fixed = at.Experiment(
        "fixed", wide().train, SearchSpace({"rate": Fixed(0.1)}), Target(METRIC, 0.9, limit=100)
    )
    spec = f"policy(weights={str(file)!r})"
    simulate(fixed, fast_path / "study", 2, pruner=spec)
    file.unlink()
    assert len(simulate(fixed, fast_path / "study", 3, pruner=spec).trials) == 3


RECIPE = """
import autotune as at

def train(config):
    at.report(0, {})
    for step in range(1, 9):
        at.report(step, {"acc": config["rate"] * step})

def study():
    space = at.SearchSpace({"rate": at.Float(0.1, 0.2)})
    return at.Experiment("kept", train, space, at.Target("acc", 0.5, limit=60.0))
"""


def test_the_command_line_goes_on_without_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("recipe.py").write_text(RECIPE)
    network.write(Path("mine.npz"), certain(0.5))
    usual = ["run", "recipe.py:study", "--backend", "local", "--workers", "1"]
    usual += ["--tracking-uri", "off", "--experience", "off", "--out", "study"]
    usual += ["--pruner", "policy(weights='mine.npz')"]
    assert main.main([*usual, "--trials", "2"]) == 0
    Path("mine.npz").unlink()
    assert main.main(["resume", "study", "--trials", "3"]) == 0
    assert main.main([*usual, "--trials", "4"]) == 0
    assert main.main(["confirm", "study", "--repeats", "1"]) == 0
    assert len(at.load_study("study").trials) > 4
    assert "error" not in capsys.readouterr().err
