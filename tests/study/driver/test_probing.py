"""Searches in two stages on a virtual clock, where it is known how fast each plan is."""

from __future__ import annotations

import itertools
import json
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from planned import BASELINE, KNOBS, METRIC, SPACE, TWICE, curve, experiment, study, train
from sims import lines, memory

import autotune as at
from autotune.algorithms.plans import words
from autotune.algorithms.plans.choice import SHARE, chosen
from autotune.algorithms.plans.probed import probed_plans
from autotune.algorithms.ranking.repeats import probes
from autotune.backends.simulator import OUT_OF_MEMORY, SimCurve, SimPool
from autotune.evaluation import summary
from autotune.space.search_space import Choice, SearchSpace
from autotune.storage.journal import JOURNAL
from autotune.study import completed, continuing, stages
from autotune.study.driver import probing
from autotune.study.manifest import Manifest
from autotune.study.options import StudyOptions
from autotune.study.result import load_study
from autotune.trial import State, Trial

DEFAULT = {name: BASELINE[name] for name in KNOBS if name in BASELINE}


def plan(trial: Trial) -> dict[str, Any]:
    assert trial.params is not None
    return {name: trial.params[name] for name in KNOBS if name in trial.params}


def suggested(result: at.StudyResult) -> list[Trial]:
    return [t for t in result.searched if t.kind == "trial"]


def spans(folder: Path) -> dict[int, tuple[float, float]]:
    rows = [row for row in lines(folder) if row["event"] in ("started", "ended")]
    own = {row["trial"]: row["at"] for row in rows if row["event"] == "started"}
    return {row["trial"]: (own[row["trial"]], row["at"]) for row in rows if row["event"] == "ended"}


@pytest.fixture(scope="module")
def whole() -> Any:
    """A study in which two plans are faster, and together still more."""
    with memory() as folder:
        result = study(folder, 12)
        yield result, (folder / JOURNAL).read_bytes(), spans(folder), folder


def test_a_plan_that_is_faster_is_found_and_fixed(whole: Any) -> None:
    result = whole[0]
    kept = chosen(result.trials)
    assert kept is not None
    assert dict(kept.changes) == {"fused": True, "precision": "bf16"}
    assert kept.ratio == pytest.approx(2.6, rel=0.03)
    assert kept.interval is not None
    assert kept.interval[0] < 2.6 < kept.interval[1]
    wanted = {"precision": "bf16", "fused": True, "shard_degree": 1}
    assert [plan(t) for t in suggested(result)] == [wanted] * 11
    assert {t.params["batch_size"] for t in suggested(result)} == {16, 32}  # both: searched
    assert len({t.params["rate"] for t in suggested(result)}) == 11
    assert result.baseline is not None
    assert plan(result.baseline) == DEFAULT


def each_alone(result: at.StudyResult, times: dict[int, tuple[float, float]]) -> bool:
    """Whether nothing ran beside any probe."""
    own = {trial.number for trial in probes(result.trials)}
    return all(
        end <= other[0] or other[1] <= begin
        for number, (begin, end) in times.items()
        for beside, other in times.items()
        if number in own and beside != number
    )


def test_probes_come_after_the_baseline_and_each_alone(whole: Any) -> None:
    result, _, times, _ = whole
    own = probes(result.trials)
    assert [t.number for t in own] == list(range(1, len(own) + 1))
    assert each_alone(result, times)


def test_no_probe_runs_beside_a_race_or_a_confirmation(fast_path: Path) -> None:
    """Races are due before the first probe, as the given configurations alone pay for them."""
    given = [{**BASELINE, "rate": rate} for rate in (0.6, 0.7, 0.8)]
    made = experiment(configs=given)
    result = study(fast_path, 10, experiment=made, racing=0.5, repeats=1)
    assert {"probe", "race", "confirm", "trial"} <= {t.kind for t in result.trials}
    assert each_alone(result, spans(fast_path))


def test_a_probe_stands_between_two_of_the_default(whole: Any) -> None:
    kinds = [plan(t) == DEFAULT for t in probes(whole[0].trials)]
    assert kinds[0]
    assert kinds[-1]
    assert all(one or other for one, other in itertools.pairwise(kinds))


def test_what_takes_many_times_as_long_is_out_after_one_probe(whole: Any) -> None:
    slow = next(
        f for f in probed_plans(whole[0].trials) if dict(f.changes) == {"precision": "fp16"}
    )
    assert slow.runs == 1
    assert slow.ratio == pytest.approx(0.11, rel=0.1)
    assert not slow.faster


def test_a_probe_counts_in_nothing_but_what_was_spent(whole: Any) -> None:
    result = whole[0]
    own = probes(result.trials)
    assert {(t.state, t.reason) for t in own} == {(State.CENSORED, "probed")}
    assert len(result.searched) == 12
    assert not {t.kind for t in result.ranked()} & {"probe"}
    assert result.spent_seconds > sum(t.spent_seconds for t in result.searched)
    assert {t.seed for t in own}.isdisjoint({t.seed for t in result.searched})
    assert summary.summary(result, "x")["counts"]["REACHED"] == 12


def test_what_is_said_of_it(whole: Any) -> None:
    told = summary.summary(whole[0], "planned")["plans"]
    json.dumps(told)
    assert told["decided"]
    assert told["said"].startswith("fused True, precision bf16 is kept, 2.")
    verdicts = {row["plan"]: row["verdict"] for row in told["plans"]}
    assert verdicts == {
        "precision bf16": "faster, but not the fastest",
        "fused True": "faster, but not the fastest",
        "precision fp16": "slower",
        "shard_degree 2": "within the noise",
        "fused True, precision bf16": "kept",
    }
    shown = [words.probed_plan(t, whole[0].trials) for t in probes(whole[0].trials)[:2]]
    assert shown == ["the default plan", "precision bf16"]


def test_the_budget_is_a_share_of_the_study(fast_path: Path) -> None:
    result = study(fast_path, 2)  # 2 trials of 100 s: 10 s
    spent = sum(t.spent_seconds for t in probes(result.trials))
    pair = 2 * spent / len(probes(result.trials))
    assert spent <= SHARE * 200 + pair
    same = study(fast_path / "same", 2, curve=curve({}), time_limit=60)  # 3 s
    assert len(probes(same.trials)) == 3  # the default, one other, and the default
    said = stages.resolve_stages(experiment(), StudyOptions(time_limit="60s"), None)[1]
    assert "3 s (5% of the study) or 3 to 5 probes if they take longer" in str(said)
    least = study(fast_path / "least", 2, time_limit=60)
    assert len(probes(least.trials)) == 5  # what is faster once more
    assert dict(getattr(chosen(least.trials), "changes", ())) == {"precision": "bf16"}


@pytest.mark.parametrize("noise", [0.0, 0.02, 0.2])
def test_the_default_is_kept_where_nothing_is_faster(noise: float, fast_path: Path) -> None:
    result = study(fast_path, curve=curve({}, noise))
    assert chosen(result.trials) is None
    assert {tuple(plan(t).items()) for t in suggested(result)} == {
        tuple({n: DEFAULT[n] for n in plan(suggested(result)[0])}.items())
    }
    assert "the default is kept, as nothing is faster" in words.decision(result.trials)


def test_a_plan_that_the_search_could_not_go_on_with_is_not_probed(
    fast_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(config: dict[str, Any]) -> None:
        if config["fused"] and config["batch_size"] == 16:  # the baseline has 32
            raise ValueError("fused True needs batch_size 32, got 16")

    monkeypatch.setattr(train, "check", check)
    result = study(fast_path, experiment=replace(experiment(), train=partial(train)))
    assert not any(t.params and t.params["fused"] for t in probes(result.trials))
    assert dict(getattr(chosen(result.trials), "changes", ())) == {"precision": "bf16"}


def test_a_plan_beside_which_a_limit_cannot_be_measured_is_not_probed(
    fast_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(config: dict[str, Any]) -> None:
        if config["fused"]:
            raise ValueError(f"{METRIC} cannot be measured with fused True")

    monkeypatch.setattr(train, "measures", (METRIC,), raising=False)
    monkeypatch.setattr(train, "check_measured", check, raising=False)
    result = study(fast_path, 12, experiment=experiment(limits=[at.Limit(METRIC, 2.0)]))
    assert probes(result.trials)
    assert not any(t.params and t.params["fused"] for t in probes(result.trials))


def test_a_check_that_raises_at_a_plan_is_one_line(
    fast_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(config: dict[str, Any]) -> None:
        if config["fused"] and config["rate"] == BASELINE["rate"]:  # no drawn point has it
            raise KeyError("kernel")

    monkeypatch.setattr(train, "check", check)
    with pytest.raises(at.UserError, match=r"trainer's check.*KeyError.*kernel") as raised:
        study(fast_path)
    assert "\n" not in str(raised.value)


def test_milestones_too_long_to_probe_leave_one_stage(fast_path: Path) -> None:
    """One probe shows it; no further one is paid for, and nothing is fixed unmeasured."""

    def slow(config: dict[str, Any], seed: int) -> SimCurve:
        made = curve()(config, seed)
        return replace(made, points=[replace(p, seconds=50 * p.seconds) for p in made.points])

    made = experiment(target=at.Target(METRIC, 0.95, limit=1000))
    result = study(fast_path, 8, curve=slow, experiment=made)
    (only,) = probes(result.trials)
    assert plan(only) == DEFAULT
    assert len({t.params["fused"] for t in suggested(result) if t.params}) == 2
    said = words.decision(result.trials)
    assert said.startswith("none is fixed, and all is searched together: 10 s between two reports")
    again = study(fast_path, 10, curve=slow, experiment=made)
    assert len(probes(again.trials)) == 1


@pytest.mark.parametrize("end", [OUT_OF_MEMORY, "ValueError: no such kernel"])
def test_a_plan_that_fails_is_out(end: str, fast_path: Path) -> None:
    result = study(fast_path, curve=curve({**TWICE}, ends={("precision", "bf16"): end}))
    failed = [t for t in probes(result.trials) if t.params and t.params["precision"] == "bf16"]
    assert len(failed) == 1
    state = State.INFEASIBLE if end == OUT_OF_MEMORY else State.FAILED
    assert failed[0].state is state
    kept = chosen(result.trials)
    assert kept is not None
    assert dict(kept.changes) == {"fused": True}
    line = next(one for one in words.lines(result.trials) if one.plan == "precision bf16")
    assert line.verdict == f"out: {failed[0].reason}"


def test_a_default_that_does_not_fit_into_memory_leaves_one_stage(fast_path: Path) -> None:
    """Fixed, it would fail in every trial; another plan may fit."""
    ends = {("shard_degree", 1): OUT_OF_MEMORY}
    result = study(fast_path, 12, curve=curve({}, ends=ends))
    (only,) = probes(result.trials)
    assert plan(only) == DEFAULT
    assert words.decision(result.trials).startswith(
        "none is fixed, and all is searched together: the probe of the default measured nothing ("
    )
    assert {t.params["shard_degree"] for t in suggested(result) if t.params} == {1, 2}
    assert result.best is not None
    assert plan(result.best)["shard_degree"] == 2
    again = study(fast_path, 14, curve=curve({}, ends=ends))
    assert len(probes(again.trials)) == 1


def failing(config: dict[str, Any], seed: int, *, again: list[bool]) -> SimCurve:
    """All fail but the probes, which have the baseline's rate: it is the first to run."""
    ends = not again or config["rate"] != BASELINE["rate"]
    again.append(True)
    return SimCurve([], end="ValueError: no such file") if ends else curve()(config, seed)


def test_probes_do_not_hide_that_every_trial_failed(fast_path: Path) -> None:
    """Nor keep the mended trainer from a study of its own."""
    with pytest.raises(at.StudyError, match="every trial failed; the last: ValueError: no such"):
        study(fast_path, 3, curve=partial(failing, again=[]))
    known = load_study(fast_path)
    assert {t.reason for t in probes(known.trials)} == {"probed"}
    assert {t.state for t in known.searched} == {State.FAILED}
    assert completed.all_failed(known.trials)
    assert continuing._all_failed(fast_path) == 3


def test_off_searches_all_of_it(fast_path: Path) -> None:
    result = study(fast_path, stages="off")
    assert not probes(result.trials)
    assert len({t.params["fused"] for t in suggested(result) if t.params}) == 2
    assert Manifest.read(fast_path).options.stages == "off"


def test_given_configurations_keep_their_plans(fast_path: Path) -> None:
    other = {**BASELINE, "shard_degree": 2, "prefetch": 2}
    result = study(fast_path, 5, experiment=experiment(configs=[other]))
    assert plan(result.trials[1]) == {**DEFAULT, "shard_degree": 2, "prefetch": 2}
    assert result.trials[2].kind == "probe"


# --- resume ---------------------------------------------------------------------------------------


def resumed(data: bytes, folder: Path, of: Path, **options: Any) -> at.StudyResult:
    shutil.copy(of / "experiment.json", folder)
    (folder / JOURNAL).write_bytes(data)
    return study(folder, **{"trials": 12, **options})


def test_a_driver_killed_while_it_probes_repeats_no_probe(whole: Any) -> None:
    result, data, _, of = whole
    rows = data.splitlines(keepends=True)
    last = next(i for i, row in enumerate(rows) if b'"kind":"trial"' in row)
    wanted = [(t.number, plan(t)) for t in probes(result.trials)]
    made_again: list[int] = []
    for cut in range(3, last, 90):
        with memory() as folder:
            again = resumed(b"".join(rows[:cut]), folder, of)
            own = probes(again.trials)
            ends = [row for row in lines(folder) if row["event"] == "ended"]
            assert len({row["trial"] for row in ends}) == len(ends)
            assert [(t.number, plan(t)) for t in own] == wanted
            twice = [t.number for t in own if t.attempts > 1]  # only the one that ran
            begun = sum(b'"kind":"probe"' in row for row in rows[:cut])
            assert twice in ([], [begun])
            made_again += twice
            assert {tuple(plan(t).items()) for t in suggested(again)} == {
                tuple(plan(suggested(result)[0]).items())
            }
    assert made_again


def test_the_plan_stays_whatever_the_study_is_resumed_with(whole: Any) -> None:
    result, data, _, of = whole
    with memory() as folder:
        again = resumed(data, folder, of, trials=14, stages="off", time_limit=10_000)
        assert probes(again.trials) == probes(result.trials)
        assert {tuple(plan(t).items()) for t in suggested(again)} == {
            tuple(plan(suggested(result)[0]).items())
        }
        assert len(again.searched) == 14


def test_a_study_from_before_stays_in_one_stage(fast_path: Path) -> None:
    study(fast_path, 4, stages="off")
    path = fast_path / "experiment.json"
    before = json.loads(path.read_text())
    del before["stages"]
    path.write_text(json.dumps(before))
    assert not probes(study(fast_path, 8).trials)


def test_probes_count_in_no_total(whole: Any) -> None:
    _, data, _, of = whole
    with memory() as folder, pytest.raises(at.UserError, match="has 12 trials already"):
        resumed(data, folder, of, trials=11)


# --- when -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"controller": "pbt"}, "controller pbt changes the points of running trials"),
        ({"trials": 1}, "only given configurations run"),
        ({}, ""),
    ],
)
def test_when_a_study_is_searched_in_two_stages(options: dict[str, Any], said: str) -> None:
    found, because = stages.resolve_stages(experiment(), StudyOptions(**options), None)
    assert found == ("off" if said else "auto")
    assert because is not None
    assert said in because


def test_a_limit_must_say_how_long_it_takes() -> None:
    made = experiment(target=at.Target(METRIC, limit_steps=1000, clock="train"))
    assert stages.resolve_stages(made, StudyOptions(), None)[0] == "off"
    timed = StudyOptions(time_limit="10m")
    assert stages.resolve_stages(made, timed, None)[0] == "auto"
    steps = experiment(target=at.Target(METRIC, 0.9, limit_steps=1000, clock="steps"))
    assert stages.resolve_stages(steps, timed, None)[0] == "off"


def test_without_such_parameters_nothing_is_said() -> None:
    plain = at.Experiment("x", lambda config: None, SPACE, at.Target(METRIC, 0.9, limit=9))
    assert stages.resolve_stages(plain, StudyOptions(), None) == ("off", None)


def test_without_anything_else_to_search_there_is_one_stage() -> None:
    alone = SearchSpace({"fused": Choice((False, True))})
    made = at.Experiment("x", train, alone, at.Target(METRIC, 0.9, limit=9))
    found, because = stages.resolve_stages(made, StudyOptions(), None)
    assert (found, "nothing else is searched" in str(because)) == ("off", True)


def test_stages_is_auto_or_off() -> None:
    assert StudyOptions(stages="None").stages == "off"
    assert StudyOptions(stages="AUTO").stages == "auto"
    with pytest.raises(at.UserError, match="stages must be auto or off but got 'on'"):
        StudyOptions(stages="on")


def test_a_probe_has_short_milestones() -> None:
    assert probing._shorter({"milestone": 2560})["milestone"] == 320
    assert probing._shorter({"milestone": 3})["milestone"] == 1
    assert probing._shorter({"lr": 1}) == {"lr": 1}


@pytest.mark.parametrize("sampler", ["widening", "convergence", "tpe", "policy:elite", "qmc"])
def test_every_sampler_samples_what_is_left(sampler: str, fast_path: Path) -> None:
    result = study(fast_path, 5, sampler=sampler)
    assert len({tuple(plan(t).items()) for t in suggested(result)}) == 1
    assert plan(suggested(result)[0])["fused"] is True


def test_memory_that_a_plan_would_not_have_is_not_tried(
    fast_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def needs(config: dict[str, Any], ranks: int, has: int) -> int:
        return 100 if config["fused"] else 10

    monkeypatch.setattr(train, "memory", needs, raising=False)
    result = study(fast_path, pool=SimPool(curve(), 2, rank_memory=50))
    fused = [t for t in probes(result.trials) if t.params and t.params["fused"]]
    assert [(t.state, t.reason, t.attempts) for t in fused] == [
        (State.INFEASIBLE, "out of memory", 0)
    ]
    kept = chosen(result.trials)
    assert kept is not None
    assert dict(kept.changes) == {"precision": "bf16"}


def test_a_mesh_that_memory_forbids_is_out_without_an_attempt(
    fast_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def needs(config: dict[str, Any], ranks: int, has: int) -> int:
        return 100 if config["shard_degree"] == 2 else 10

    monkeypatch.setattr(train, "memory", needs, raising=False)
    faster = curve({**TWICE, ("shard_degree", 2): 3.0})  # it would be kept
    result = study(fast_path, 12, pool=SimPool(faster, 2, rank_memory=50))
    sharded = [t for t in probes(result.trials) if t.params and t.params["shard_degree"] == 2]
    assert [(t.state, t.reason, t.attempts) for t in sharded] == [
        (State.INFEASIBLE, "out of memory", 0)
    ]
    assert {plan(t)["shard_degree"] for t in suggested(result)} == {1}
