"""Plans as functions of probes: what is measured, how surely, what is probed next, what is kept."""

from __future__ import annotations

import doctest
import math
from collections.abc import Mapping, Sequence
from random import Random
from types import ModuleType
from typing import Any

import pytest

import autotune as at
from autotune.algorithms.plans import choice, parameters, probed, words
from autotune.algorithms.plans.measured import blocks, enough, measured, usable
from autotune.algorithms.plans.parameters import (
    ProbedParameters,
    extended,
    probed_names,
    within,
    without,
)
from autotune.algorithms.plans.probed import ProbedPlan, changes, pareto, probed_plans, same
from autotune.algorithms.samplers.planned import PlannedSampler
from autotune.space.search_space import Choice, Constraint, Fixed, Float, Int, SearchSpace
from autotune.trial import Clock, Params, Report, State, Trial


def probe(
    number: int,
    params: Params,
    seconds: Sequence[float],
    *,
    reason: str = "probed",
    metrics: Mapping[str, float] | None = None,
    spent: float = 4.0,
    setup: float = 1.5,
) -> Trial:
    """A probe that has ended, whose blocks of 10 samples took so many seconds."""
    reports = [Report(0, 0.0, {}, Clock(setup=setup))]
    for i, took in enumerate(seconds, 1):
        trained = reports[-1].clock.train + took
        reports.append(Report(10 * i, trained, metrics or {}, Clock(setup=setup, train=trained)))
    state = State.CENSORED if reason == "probed" else State.FAILED
    return Trial(
        number,
        {},
        params,
        "probe",
        state=state,
        reason=reason,
        reports=tuple(reports),
        spent_seconds=spent,
    )


@pytest.mark.parametrize("module", [choice, probed, parameters, words])
def test_examples(module: ModuleType) -> None:
    found = doctest.testmod(module)
    assert found.attempted
    assert not found.failed


# --- one probe ------------------------------------------------------------------------------------


def test_the_first_block_warms_up_and_means_count() -> None:
    found = measured(probe(0, {}, [9.0, 1.0, 2.0, 3.0]))
    assert found is not None
    assert found.seconds == pytest.approx(6.0 / 30)  # no minimum
    assert found.blocks == 3
    assert found.setup_seconds == 1.5
    assert found.spread == pytest.approx(found.error * math.sqrt(3))
    assert found.peak is None


def test_what_else_a_trainer_reports_is_kept() -> None:
    seen = {"peak_memory_bytes": 100.0, "exposed_communication": 0.25}
    found = measured(probe(0, {}, [1.0] * 4, metrics=seen))
    assert found is not None
    assert (found.peak, found.exposed) == (100.0, 0.25)


def test_a_probe_that_failed_has_measured_nothing() -> None:
    assert measured(probe(0, {}, [1.0] * 5, reason="worker died")) is None
    assert measured(probe(0, {}, [])) is None


def test_a_probe_is_over_when_it_is_sure_or_took_long() -> None:
    assert not enough(probe(0, {}, [0.1, 0.1, 0.1]))  # two blocks, whatever they say
    assert enough(probe(0, {}, [9e-3, 0.1, 0.1, 0.1]))
    assert not enough(probe(0, {}, [0.1, 0.1, 0.2, 0.1]))
    assert not enough(probe(0, {}, [5.0, 2.9]))
    assert enough(probe(0, {}, [0.5, 1.0, 2.1]))  # 3 s
    assert enough(probe(0, {}, [12.1]))  # a milestone longer than any probe
    assert not enough(probe(0, {}, []))


def test_a_probe_is_sure_at_an_interval_of_3_percent() -> None:
    def sure(width: float) -> bool:
        apart = width / 2 * math.sqrt(3) / 4.3027  # Student's t: 95 %, two degrees of freedom
        return enough(probe(0, {}, [9e-3, *(0.1 * math.exp(x * apart) for x in (1, 0, -1))]))

    assert sure(0.029)
    assert not sure(0.031)


def test_what_came_before_the_first_report_is_no_block() -> None:
    late = Trial(0, {}, reports=(Report(10, 5.0, {}, Clock(train=5.0)),))
    assert blocks(late) == []
    assert not usable(late)
    assert usable(probe(0, {}, [1.0] * 4))


# --- probed plans ---------------------------------------------------------------------------------

SLOW, FAST = {"fused": False}, {"fused": True}


def paired(ratio: float, drift: Sequence[float], noise: float, seed: int = 0) -> list[Trial]:
    """Default, other, default, ...: the machine is so many times slower at each probe."""
    random = Random(seed)
    made = []
    for i, slower in enumerate(drift):
        each = 1.0 if i % 2 == 0 else 1 / ratio
        times = [each * slower * math.exp(random.gauss(0, noise)) for _ in range(6)]
        made.append(probe(i, SLOW if i % 2 == 0 else FAST, times))
    return made


def test_a_machine_that_slows_down_cancels() -> None:
    (found,) = probed_plans(paired(2.0, [1.0, 1.1, 1.2, 1.3, 1.4], 0.0))
    assert found.runs == 2
    assert found.ratio == pytest.approx(2.0, rel=0.01)
    assert dict(found.changes) == FAST


def test_the_interval_covers_the_truth() -> None:
    """Of many pairs of equal plans few are faster beyond chance, though each probe differs."""
    wrong = covered = 0
    for seed in range(200):
        random = Random(f"machine {seed}")
        drift = [math.exp(random.gauss(0, 0.05)) for _ in range(9)]
        (found,) = probed_plans(paired(1.0, drift, 0.03, seed))
        assert found.interval is not None
        covered += found.interval[0] <= 1 <= found.interval[1]
        wrong += found.faster
    assert covered >= 180
    assert wrong <= 10


def test_the_best_of_many_that_are_worth_nothing_is_not_faster() -> None:
    """Of many studies few call any of 20 plans faster that all are as fast as the default."""
    wrong = 0
    for seed in range(60):
        random = Random(f"many {seed}")
        points = [p for number in range(20) for p in ({"n": 99}, {"n": number})] + [{"n": 99}]
        trials = []
        for i, point in enumerate(points):
            slower = math.exp(random.gauss(0, 0.03))
            times = [slower * math.exp(random.gauss(0, 0.03)) for _ in range(6)]
            trials.append(probe(i, point, times))
        wrong += any(found.faster for found in probed_plans(trials))
    assert wrong <= 9  # 26 without the correction


def test_overlapping_differences_say_less_than_independent_ones() -> None:
    own = [m for t in paired(1.0, [1.0] * 9, 0.03)[::2] if (m := measured(t)) is not None]
    assert probed._noise(own, own[:2]).probes == 1
    assert probed._noise(own, own).probes == pytest.approx(2 * 4**2 / 11)  # of 5 probes


def test_one_pair_on_a_noisy_machine_decides_nothing() -> None:
    (found,) = probed_plans(paired(1.3, [1.0, 1.0, 1.5], 0.01))
    assert not found.faster


def test_what_failed_has_no_factor() -> None:
    failed = probe(1, FAST, [], reason="out of memory")
    (found,) = probed_plans([probe(0, SLOW, [1.0] * 5), failed])
    assert (found.ratio, found.reason) == (None, "out of memory")
    assert words.lines([probe(0, SLOW, [1.0] * 5), failed])[0].verdict == "out: out of memory"


def test_a_single_block_has_no_interval() -> None:
    trials = [probe(0, SLOW, [13.0]), probe(1, FAST, [1.0]), probe(2, SLOW, [13.0])]
    (found,) = probed_plans(trials)
    assert found.ratio == pytest.approx(13.0)
    assert not found.faster
    assert "too few blocks" in words.times(found)


def test_probes_that_the_time_limit_ended_do_not_count() -> None:
    assert probed_plans([probe(0, SLOW, [1.0] * 5, reason="budget")]) == []
    assert words.decision([]) == ""


def test_values_that_are_equal_and_differ() -> None:
    assert not same({"a": 1}, {"a": 1.0})
    assert not same(None, None)
    assert changes({"a": 2, "b": 1}, {"a": 1}) == (("a", 2),)
    assert changes({"a": 1, "b": 1}, {"a": 1}) == (("b", 1),)


def test_the_pareto_set_of_seconds_and_bytes() -> None:
    def plan(seconds: float | None, peak: float | None) -> ProbedPlan:
        return ProbedPlan({}, (), seconds=seconds, peak=peak)

    fast, small, worse, both = plan(1, 9), plan(3, 1), plan(4, 2), plan(2, 5)
    assert pareto([worse, fast, small, both]) == [fast, small, both]
    assert pareto([fast, plan(0.5, None)]) == [plan(0.5, None)]  # bytes that are not known
    assert pareto([plan(None, None)]) == []
    equal = plan(1, 9)
    assert len(pareto([fast, equal])) == 2


def test_the_default_is_one_of_those_compared() -> None:
    """What is slower and no smaller leads nowhere; what is smaller does."""

    def shown(seconds: float, peaks: tuple[float, float] | None) -> tuple[bool, str]:
        seen = [{"peak_memory_bytes": peak} for peak in peaks] if peaks else [{}, {}]
        times = [1.0, 1.001, 1.0, 1.001, 1.0]
        default = probe(0, SLOW, times, metrics=seen[0])
        other = probe(1, FAST, [seconds * t for t in times], metrics=seen[1])
        trials = [default, other, probe(2, SLOW, times, metrics=seen[0])]
        (line,) = words.lines(trials)
        return line.leading, words.pareto_text(trials)

    alone, both = "seconds per sample (bytes are not known)", "seconds per sample and peak bytes"
    assert shown(1.25, None) == (False, f"Pareto set of {alone}: the default")
    assert shown(0.8, None) == (True, f"Pareto set of {alone}: fused True")
    assert shown(1.25, (9.0, 9.0)) == (False, f"Pareto set of {both}: the default")
    assert shown(1.25, (9.0, 3.0)) == (True, f"Pareto set of {both}: the default; fused True")
    assert words.pareto_text([]) == ""


# --- what is probed next --------------------------------------------------------------------------

SPACE = SearchSpace(
    {
        "rate": Float(0.0, 1.0),
        "a": Choice((1, 2)),
        "b": Choice((1, 2)),
        "c": Choice((1, 2)),
    }
)
START = {"rate": 0.5, "a": 1, "b": 1, "c": 1}
ABC = ProbedParameters(SPACE, ("a", "b", "c"), {}, START)


def followed(
    speeds: Mapping[str, float], seconds: float, cost: float = 4.0, about: ProbedParameters = ABC
) -> list[Trial]:
    """All probes of a study on an idle machine, where value 2 is so many times as fast."""
    trials: list[Trial] = []
    while len(trials) < 100:
        point = choice.next_probe(
            trials, about.default, about.alternatives(), about.together, seconds
        )
        if point is None:
            return trials
        speed = math.prod(speed for name, speed in speeds.items() if point.get(name) == 2)
        took = [(1 + 0.001 * (i % 3)) / speed for i in range(6)]
        trials.append(probe(len(trials), point, took, spent=cost))
    raise AssertionError("it never ends")


def kept(trials: Sequence[Trial]) -> dict[str, Any]:
    plan = choice.chosen(trials)
    return dict(plan.changes) if plan is not None else {}


def test_all_that_is_faster_is_put_together() -> None:
    trials = followed({"a": 2.0, "b": 0.5, "c": 1.5}, 1e9)
    assert kept(trials) == {"a": 2, "c": 2}
    runs = {tuple(sorted(dict(f.changes))): f.runs for f in probed_plans(trials)}
    assert runs[("b",)] == 1  # what is slower is never probed again
    assert runs[("a", "c")] >= 2


def test_a_small_budget_goes_to_all_that_is_faster_together() -> None:
    """What is left once each value was probed pays for the combination, not for the best again."""
    trials = followed({"a": 2.0, "b": 1.2, "c": 1.5}, 44.0)  # five pairs: three values, two of all
    assert kept(trials) == {"a": 2, "b": 2, "c": 2}
    runs = {len(f.changes): f.runs for f in probed_plans(trials)}
    assert runs == {1: 1, 3: 2}


def test_what_is_slower_together_is_not_kept() -> None:
    trials: list[Trial] = []
    while (
        point := choice.next_probe(trials, ABC.default, ABC.alternatives(), ABC.together, 1e9)
    ) is not None:
        fast = {1: 1.0, 2: 2.0}[point["a"]] * {1: 1.0, 2: 1.5}[point["b"]]
        fast = 1.2 if point["a"] == point["b"] == 2 else fast
        trials.append(probe(len(trials), point, [(1 + 0.001 * (i % 3)) / fast for i in range(6)]))
    assert kept(trials) == {"a": 2}


def test_three_that_are_faster_are_halved() -> None:
    trials = followed({"a": 2.0, "b": 1.2, "c": 1.5}, 1e9)
    assert kept(trials) == {"a": 2, "b": 2, "c": 2}
    by_size = {len(f.changes): f.runs for f in probed_plans(trials)}
    assert by_size[3] > by_size[2]  # the last round was its own


def test_what_seconds_pay_for() -> None:
    assert len(followed({}, 0.0)) == 3  # the default, one other, and the default
    assert len(followed({}, 20.0)) == 3  # a pair is kept back
    assert len(followed({}, 28.0)) == 5
    assert len(followed({}, 1e9)) == 7
    assert kept(followed({}, 1e9)) == {}


@pytest.mark.parametrize(
    "speeds",
    [
        {},
        {"c": 2.0},
        pytest.param({"a": 2.0}, marks=pytest.mark.slow),
        pytest.param({"a": 2.0, "b": 1.2, "c": 1.5}, marks=pytest.mark.slow),
    ],
)
def test_probes_and_their_repeats_take_no_more_than_the_budget(speeds: dict[str, float]) -> None:
    for seconds in range(20, 100, 2):  # less pays for no repeat of the one that is always probed
        trials = followed(speeds, seconds)
        assert math.fsum(t.spent_seconds for t in trials) <= seconds
        assert bool(kept(trials)) == any(f.faster for f in probed_plans(trials))


def test_what_is_left_goes_to_what_looks_fastest() -> None:
    """It is probed twice although its interval holds 1, and the others are not."""
    trials: list[Trial] = []
    while point := choice.next_probe(trials, ABC.default, ABC.alternatives(), ABC.together, 28.0):
        speed = {1: 1.0, 2: 1.1}[point["a"]]
        took = [(1 + 0.2 * (i % 3)) / speed for i in range(6)]
        trials.append(probe(len(trials), point, took))
    assert [(dict(f.changes), f.runs) for f in probed_plans(trials)] == [
        ({"a": 2}, 2),
        ({"b": 2}, 1),
    ]


def test_a_pair_is_kept_back_for_what_is_faster() -> None:
    trials = followed({"a": 2.0}, 28.0)  # 7 probes: without it the third would take them
    runs = {tuple(sorted(dict(f.changes))): f.runs for f in probed_plans(trials)}
    assert runs == {("a",): 2, ("b",): 1}


def test_the_plan_that_is_kept_was_probed_twice() -> None:
    """Where a probe took more than expected this comes after the budget, and one time only."""
    trials = followed({"a": 2.0}, 0.0)
    assert [f.runs for f in probed_plans(trials)] == [2]
    assert (len(trials), kept(trials)) == (5, {"a": 2})
    assert kept(trials[:3]) == {}
    (line,) = words.lines(trials[:3])
    assert line.verdict == "faster, but probed once only"
    default, a, b = ABC.default, {**START, "a": 2}, {**START, "b": 2}
    order = [(default, 1.0), (a, 2.0), (default, 1.0), (b, 3.0), (default, 1.0)]
    trials = [
        probe(i, p, [(1 + j % 3 / 1000) / v for j in range(6)]) for i, (p, v) in enumerate(order)
    ]

    def following() -> Params | None:
        return choice.next_probe(trials, default, ABC.alternatives(), ABC.together, 20.0)

    assert kept(trials) == {}
    assert following() == b
    trials += [probe(5, b, [9.0] * 6), probe(6, default, [1.0] * 6)]  # it was luck
    assert [f.faster for f in probed_plans(trials)] == [True, False]
    assert following() is None
    assert kept(trials) == {}


def test_a_plan_whose_last_probe_failed_is_not_asked_again() -> None:
    """Nor kept, whatever the probes before said."""
    trials = followed({"a": 2.0}, 1e9)
    first = next(i for i, t in enumerate(trials) if t.params and t.params["a"] == 2)
    again = next(i for i, t in enumerate(trials) if i > first and t.params == trials[first].params)
    failed = probe(again, {**START, "a": 2}, [], reason="out of memory")
    trials = [*trials[:again], failed]
    point = choice.next_probe(trials, ABC.default, ABC.alternatives(), ABC.together, 1e9)
    assert point is None
    assert kept(trials) == {}
    assert words.lines(trials)[0].verdict == "out: out of memory"


def test_without_alternatives_nothing_is_probed() -> None:
    assert choice.next_probe([], START, [], ABC.together, 1e9) is None
    begun = [probe(0, START, [1.0] * 6)]  # by a version that had some
    assert choice.next_probe(begun, START, [], ABC.together, 1e9) is None


def test_what_compiling_adds_to_every_trial_is_said() -> None:
    """The first probe of each may start processes, or compile what is cached then."""
    trials = [
        probe(0, START, [1.0] * 6, setup=9.0),
        probe(1, {**START, "a": 2}, [0.5] * 6, setup=20.0),
        probe(2, START, [1.0] * 6, setup=1.5),
        probe(3, {**START, "a": 2}, [0.5] * 6, setup=4.5),
        probe(4, {**START, "b": 2}, [1.0] * 6, setup=2.0),
        probe(5, START, [1.0] * 6, setup=1.5),
    ]
    found = {line.plan: line.verdict for line in words.lines(trials)}
    assert found == {"a 2": "kept; set-up 3 s longer", "b 2": "within the noise"}


def test_the_budget() -> None:
    assert choice.budget(20, 30.0, None) == pytest.approx(30.0)
    assert choice.budget(20, 30.0, 60.0) == pytest.approx(3.0)
    assert choice.budget(20, 30.0, 3600.0) == pytest.approx(30.0)  # the trials are over sooner
    assert choice.budget(20, None, 60.0) == pytest.approx(3.0)
    assert choice.budget(20, math.inf, None) is None


# --- the space ------------------------------------------------------------------------------------

EFFECTS = {"a": "exact", "b": "rounding", "c": "both", "rate": "statistical"}


@pytest.mark.parametrize(
    ("effects", "says"),
    [
        ({"a": "exakt"}, "a has an unknown effect 'exakt'; did you mean 'exact'? (allowed: both, "),
        ({"a": None}, "a has an unknown effect None"),
        (["a"], "the trainer's effects must be a dict of keys but got ['a']"),
    ],
)
def test_an_effect_that_there_is_none_of_is_one_line(effects: Any, says: str) -> None:
    def train(config: object) -> None: ...

    train.effects = effects  # type: ignore[attr-defined]
    with pytest.raises(at.UserError) as raised:
        parameters.effects_of(train)
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)


def test_only_what_changes_the_seconds_alone_is_ever_probed() -> None:
    """What changes how many samples a training needs is never fixed by a probe."""
    assert probed_names(SPACE, EFFECTS) == ["b", "a"]  # fewer bits first
    assert probed_names(SPACE, {}) == []
    assert probed_names(SearchSpace({"a": Fixed(1), "b": Choice((1,))}), EFFECTS) == []
    named = SearchSpace({"o": Choice(("x", "y")), "a:x": Choice((1, 2), when={"o": "x"})})
    assert probed_names(named, EFFECTS) == []  # it exists at some points of the search only
    below = {"d": Fixed(1, when={"c": 2}), "a": Choice((1, 2), when={"d": 1})}
    searched = SearchSpace({"c": Choice((1, 2)), **below})
    assert probed_names(searched, EFFECTS) == []
    given = SearchSpace({"c": Fixed(2), **below})
    assert probed_names(given, EFFECTS) == ["a"]
    probed = SearchSpace({"b": Choice((1, 2)), "a": Choice((1, 2), when={"b": 2})})
    assert probed_names(probed, EFFECTS) == ["b", "a"]


def test_a_few_values_of_a_range() -> None:
    assert parameters.values(Int(1, 100)) == [1, 26, 51, 75, 100]
    assert parameters.values(Float(2.0, 4.0)) == [2.0, 3.0, 4.0]
    assert parameters.values(Choice((None, 5))) == [None, 5]


MESH = SearchSpace(
    {
        "shard_degree": Choice((1, 2, 4)),
        "tensor_degree": Choice((1, 2, 4)),
        "prefetch": Choice((1, 2), when={"shard_degree": (2, 4)}),
        "precision": Choice(("fp32", "bf16")),
    }
)


def meshes(ranks: int, copies: int, **more: Any) -> set[tuple[int, int]]:
    about = ProbedParameters(
        MESH,
        ("precision", "shard_degree", "tensor_degree", "prefetch"),
        {"shard_degree": 1, "tensor_degree": 1, "copies_degree": copies},
        {"shard_degree": 1 if copies == -1 else ranks, "tensor_degree": 1, "precision": "fp32"},
        ranks,
        **more,
    )
    points = about.alternatives()
    assert points[0]["precision"] == "bf16"
    others = [p for p in points if p["precision"] == "fp32" and p.get("prefetch", 1) == 1]
    return {(p["shard_degree"], p["tensor_degree"]) for p in others}


def test_all_meshes_that_make_up_the_ranks() -> None:
    assert meshes(4, -1) == {(1, 2), (1, 4), (2, 1), (2, 2), (4, 1)}
    assert meshes(4, 1) == {(1, 4), (2, 2)}
    assert meshes(2, -1) == {(1, 2), (2, 1)}
    assert meshes(4, -1, allowed=lambda c: c["tensor_degree"] == 1) == {(2, 1), (4, 1)}


def test_a_plan_that_is_refused_beside_searched_values_is_left_out() -> None:
    def takes(config: Mapping[str, Any]) -> bool:
        if config["rate"] < 0.3:
            return False  # whatever the plan is
        return not (config["rate"] > 0.6 and (config["b"] == 2 or config["a"] == config["c"] == 2))

    about = ProbedParameters(SPACE, ("a", "b", "c"), {}, START, allowed=takes, seed=3)
    changed = [dict(changes(point, START)) for point in about.alternatives()]
    assert changed == [{"a": 2}, {"c": 2}]
    plans = [ProbedPlan(p, changes(p, START)) for p in about.alternatives()]
    assert about.together(plans) is None
    assert about.together(plans[:1]) == {**START, "a": 2}
    slow = Constraint("b 2 needs a rate below 0.6", lambda c: c["b"] == 1 or c["rate"] <= 0.6)
    kept_away = ProbedParameters(
        SearchSpace(SPACE.entries, (slow,)), ("b",), {}, START, allowed=takes
    )
    assert len(kept_away.alternatives()) == 1  # from those points the search keeps away itself


def test_what_exists_only_then_has_the_trainers_default() -> None:
    about = ProbedParameters(
        MESH, ("shard_degree", "prefetch"), {"prefetch": 2}, {"shard_degree": 1}, 2
    )
    point = next(p for p in about.alternatives() if p["shard_degree"] == 2)
    assert point["prefetch"] == 2
    assert about.fixed(about.default) == {"shard_degree": 1, "prefetch": 2}


def test_the_space_without_a_plan() -> None:
    narrow = without(MESH, {"shard_degree": 1, "tensor_degree": 2, "prefetch": 1})
    assert [*narrow.parameters()] == ["precision"]
    assert narrow.config({"precision": "bf16"}) == {
        "shard_degree": 1,
        "tensor_degree": 2,
        "precision": "bf16",
    }
    assert "prefetch" in without(MESH, {"shard_degree": 2, "prefetch": 2}).entries
    assert within(narrow, {"shard_degree": 4, "precision": "fp32"}) == {"precision": "fp32"}
    assert within(narrow, {}) is None
    assert within(narrow, None) is None
    fixed = {"shard_degree": 2, "tensor_degree": 1, "prefetch": 2}
    assert extended(MESH, {"precision": "fp32"}, fixed) == {**fixed, "precision": "fp32"}


class Echo:
    """Proposes the middle of its space, and keeps what it is told."""

    def __init__(self, space: SearchSpace) -> None:
        self.space = space
        self.told: Sequence[Trial] = ()

    def ask(self, number: int, trials: Sequence[Trial]) -> Params | None:
        self.told = trials
        return self.space.sample(1, number)[0] if number < 5 else None


def test_a_sampler_of_what_is_left() -> None:
    sampler = PlannedSampler(SPACE, Echo, {"a": 1, "b": 1})
    sampler.fix({"a": 2, "b": 1})
    other = Trial(0, {}, {"rate": 0.25, "a": 1, "b": 2, "c": 2})
    point = sampler.ask(0, [other])
    assert point is not None
    assert {name: point[name] for name in ("a", "b")} == {"a": 2, "b": 1}
    assert [*SPACE.check(point)] == ["rate", "a", "b", "c"]
    inner = sampler.then
    assert isinstance(inner, Echo)
    assert [t.params for t in inner.told] == [{"rate": 0.25, "c": 2}]
    first = inner.told[0]
    sampler.ask(1, [other])
    assert inner.told[0] is first  # samplers look for what is new
    assert sampler.ask(7, []) is None
