"""Earlier studies as knowledge: canonical names, models of their trials, and the posterior."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from known_studies import SPACE, TARGET, ended, known, share

from autotune import Experiment, schedules
from autotune.algorithms.experience.canonical import CanonicalSpace
from autotune.algorithms.experience.features import names_of
from autotune.algorithms.experience.known_task import MARKS, KnownTask, curve_scores, log_times
from autotune.algorithms.experience.model import (
    KnownTasks,
    Predictions,
    explained,
    shared,
    similarity,
    useful,
)
from autotune.algorithms.experience.names import canonical_name
from autotune.algorithms.experience.posterior import (
    Evidence,
    expected_improvement,
    normalised,
    posterior,
    shifts,
)
from autotune.algorithms.experience.problems import by_problem
from autotune.algorithms.experience.translation import translated
from autotune.space.parameters import Choice, Fixed, Float, Int
from autotune.space.schedule_space import ScheduleSpace
from autotune.space.search_space import SearchSpace

LOGS = Float(1e-4, 1.0, log=True)


# --- canonical names ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        *(("learning_rate", "lr"), ("LR", "lr"), ("lr.peak", "lr"), ("x", "x")),
        *((name, "momentum") for name in ("beta1", "beta_1", "adam_beta1")),
        *((name, "beta2") for name in ("beta2", "beta_2", "adam_beta2")),
    ],
)
def test_names_that_mean_the_same(name: str, canonical: str) -> None:
    assert canonical_name(name) == canonical


def test_two_spaces_understand_each_other() -> None:
    """One searches a rate and a momentum, the other a schedule of the effective rate."""
    plain = CanonicalSpace(SearchSpace({"learning_rate": LOGS, "momentum": Float(0.0, 0.99)}))
    rate = ScheduleSpace(LOGS, effective="momentum")
    effective = CanonicalSpace(SearchSpace({"lr": rate, "momentum": Float(0.0, 0.99)}))
    one = plain.point({"learning_rate": 0.01, "momentum": 0.9})
    other = effective.point({"lr.peak": 0.1, "momentum": 0.9})
    assert one["lr"] == pytest.approx(other["lr"]) == pytest.approx(0.01)
    assert one["effective_lr"] == pytest.approx(other["effective_lr"]) == pytest.approx(0.1)


@pytest.mark.parametrize(("rule", "power"), [("linear", 1.0), ("sqrt", 0.5), ("none", 0.0)])
def test_a_rate_that_follows_the_batch_size_is_that_at_its_own(rule: str, power: float) -> None:
    """Spaces with other references, and one without, understand each other."""

    def space(reference: float) -> CanonicalSpace:
        rate = ScheduleSpace(LOGS, follows="batch_size", rule=rule, reference=reference)
        entries = {"lr": rate, "batch_size": Int(16, 512), "momentum": Fixed(0.9)}
        return CanonicalSpace(SearchSpace(entries))

    params = {"lr.peak": 0.1, "batch_size": 256}
    found = space(64).point(params)
    assert found["lr"] == pytest.approx(0.1 * 4**power)
    assert found["effective_lr"] == pytest.approx(found["lr"] / 0.1)
    assert space(64).space.config(params)["lr"](0.0) == pytest.approx(found["lr"])
    other = space(128)
    assert other.value("lr.peak", found) == pytest.approx(0.1 * 2**power)
    assert other.value("lr.peak", {"lr": 0.2}) == 0.2  # of an unknown batch size
    plain = CanonicalSpace(SearchSpace({"lr": LOGS, "batch_size": Int(16, 512)}))
    assert plain.value("lr", found) == found["lr"]
    # A study that has the rate itself shares it with one that searches it at a reference.
    rows = [plain.point({"lr": 0.01 * (i + 1), "batch_size": 16}) for i in range(6)]
    assert shared(task_of(rows), space(64)) == [space(64).names["lr.peak"]]
    effective = CanonicalSpace(SearchSpace({"lr": Float(0.01, 1, effective="momentum"),
                                            "momentum": Float(0.1, 0.9)}))  # fmt: skip
    assert shared(task_of(rows), effective) == ["effective_lr"]


def test_what_is_fixed_is_known_and_what_is_said_counts() -> None:
    space = SearchSpace(
        {
            "optimizer": Fixed("lars"),
            "wd": Fixed(schedules.Constant(0.1)),
            "path": Fixed("/somewhere"),
            "speed": LOGS,
            "lr": LOGS,
        }
    )
    canonical = CanonicalSpace(space, {"speed": "lr"})
    assert canonical.point({"speed": 0.1, "lr": 0.2}) == {
        "optimizer": "lars",
        "weight_decay": 0.1,
        "lr": 0.1,
    }
    assert "path" not in canonical.fixed
    assert canonical.optimizers() == ("lars",)


def test_what_is_said_may_be_a_name_that_means_the_same() -> None:
    assert canonical_name("speed", {"speed": "learning_rate"}) == "lr"


def task_of(points: Sequence[Mapping[str, Any]], name: str = "study") -> KnownTask:
    """A study of these points with the results of a made-up one."""
    task = known(name, 0.01)
    rows = [i % len(task.points) for i in range(len(points))]
    return replace(task.subset(rows), points=list(points))


def test_what_the_experiment_says_comes_before_usual_names() -> None:
    space = SearchSpace({"lr": LOGS, "speed": LOGS, "batch_size": Int(16, 64)})
    said = CanonicalSpace(space, {"speed": "lr"})
    assert said.names == {"speed": "lr", "batch_size": "batch_size"}
    assert said.point({"lr": 0.2, "speed": 0.1, "batch_size": 16})["lr"] == 0.1
    assert CanonicalSpace(space).names["lr"] == "lr"
    entries: dict[str, Any] = {"optimizer": Choice(("sgd", "muon"))}
    for optimizer in ("sgd", "muon"):
        entries[f"eta_0:{optimizer}"] = replace(LOGS, when={"optimizer": optimizer})
    of_key = CanonicalSpace(SearchSpace(entries), {"eta_0": "lr"})
    assert [*of_key.names.values()] == ["optimizer", "lr", "lr"]
    Experiment("x", print, of_key.space, TARGET, canonical=of_key.said)


def by_optimizer() -> CanonicalSpace:
    """Each optimizer has a rate, a momentum and a fixed value of its own."""

    def rate(low: float, high: float, rule: str, optimizer: str) -> ScheduleSpace:
        return ScheduleSpace(
            Float(low, high, log=True),
            family=Choice(("cosine", "constant")),
            final=Float(0.01, 0.3),
            follows="batch_size",
            rule=rule,
            reference=64,
            when={"optimizer": optimizer},
        )

    sgd, adamw = {"optimizer": "sgd"}, {"optimizer": "adamw"}
    entries = {
        "optimizer": Choice(("sgd", "adamw")),
        "batch_size": Int(16, 512),
        "lr:sgd": rate(0.01, 1.0, "linear", "sgd"),
        "momentum:sgd": Float(0.7, 0.98, when=sgd),
        "nesterov:sgd": Fixed(1, when=sgd),
        "lr:adamw": rate(1e-4, 0.03, "sqrt", "adamw"),
        "beta1:adamw": Float(0.8, 0.95, when=adamw),
        "beta_1": Float(0.0, 1.0),
    }
    return CanonicalSpace(SearchSpace(entries))


def test_entries_of_one_key_have_one_name_and_the_active_one_counts() -> None:
    space = by_optimizer()
    assert space.names["lr:sgd.peak"] == space.names["lr:adamw.peak"] == "lr_at_64"
    assert space.names["lr:sgd.final"] == space.names["lr:adamw.final"] == "lr.final"
    assert space.names["momentum:sgd"] == space.names["beta1:adamw"] == "momentum"
    assert "beta_1" not in space.names, "it may exist beside the others"
    sgd = {"optimizer": "sgd", "batch_size": 256, "momentum:sgd": 0.9, "beta_1": 0.5}
    sgd |= {"lr:sgd.family": "cosine", "lr:sgd.peak": 0.1, "lr:sgd.final": 0.1}
    adamw = {"optimizer": "adamw", "batch_size": 256, "beta1:adamw": 0.9, "beta_1": 0.5}
    adamw |= {"lr:adamw.family": "constant", "lr:adamw.peak": 0.01}
    for point, lr in ((sgd, 0.4), (adamw, 0.02)):
        found = space.point(space.space.check(point))
        assert found["lr"] == pytest.approx(lr)
        assert found["effective_lr"] == pytest.approx(lr / 0.1)
        back, outside = translated(found, space, {}, Random(0))
        assert {**back, "beta_1": 0.5} == {name: pytest.approx(v) for name, v in point.items()}
        assert outside == 0.0
    assert space.point(sgd)["nesterov"] == 1
    assert "nesterov" not in space.point(adamw)
    assert {*space.point(sgd), *space.point(adamw)} <= {*space.known}
    rate = space.searched["lr_at_64"]
    assert isinstance(rate, Float)
    assert (rate.low, rate.high) == (1e-4, 1.0)
    plain = CanonicalSpace(
        SearchSpace({"learning_rate": LOGS, "bs": Int(8, 99), "optim": Fixed("SGD")})
    )
    rows = [plain.point(p) for p in plain.space.sample(20)]
    task = useful(task_of(rows), space)
    assert task is not None
    assert shared(task, space) == ["batch_size", "lr_at_64"]
    models = KnownTasks(space, [task])
    assert {"lr", "batch_size"} <= {*names_of(task, space)}
    found = models.at([sgd, adamw])
    assert (found.logs[0, 1], found.deviations[0, 1]) == (0.0, 1.0), "it never had AdamW"
    assert found.logs[0, 0] != 0.0


def test_all_names_that_points_can_have_are_features() -> None:
    """A parameter that few of the points have, too."""
    entries = {"kind": Choice(tuple("abcdefgh")), "lr": LOGS, "batch_size": Int(8, 64)}
    for kind in "abcdefgh":
        entries[f"own_{kind}"] = Float(0, 1, when={"kind": kind})
    space = CanonicalSpace(SearchSpace(entries))
    task = task_of([space.point(point) for point in space.space.sample(60)])
    assert {f"own_{kind}" for kind in "abcdefgh"} <= {*names_of(task, space)}


@pytest.mark.parametrize(
    ("theirs", "ours", "is_used"),
    [
        ("torch.optim.AdamW", "adamw", True),
        ("AdamW", "adamw", True),
        ("adamw", "AdamW", True),
        ("adamw", "nadamw", True),
        ("nadamw", "adamw", False),
        ("adamw", "adam", False),
        ("sgd", "schedulefree_sgd", False),
    ],
)
def test_optimizers_by_any_spelling(theirs: str, ours: str, is_used: bool) -> None:
    entries = {"lr": LOGS, "weight_decay": LOGS, "optimizer": Choice((ours, "lars"))}
    space = CanonicalSpace(SearchSpace(entries))
    drawn = CanonicalSpace(SearchSpace({"lr": LOGS, "weight_decay": LOGS})).space.sample(9)
    task = useful(task_of([{**point, "optimizer": theirs} for point in drawn]), space)
    assert (task is not None) == is_used
    if task is not None:
        point, outside = translated(task.points[0], space, {}, Random(0))
        assert (point["optimizer"], outside) == (ours, 0.0)
        models = KnownTasks(space, [task])
        assert models.at([point]).logs[0, 0] != 0.0, "its trials count for this optimizer"
        assert models.at([{**point, "optimizer": "lars"}]).logs[0, 0] == 0.0
    without = CanonicalSpace(SearchSpace({"lr": LOGS, "optimizer": Fixed("Adam")}))
    assert without.adopted({"optimizer": "AdamW"}) == {"optimizer": "adam"}


def test_ambiguous_names_are_those_of_networks_beside_clear_ones_only() -> None:
    trees = {"eta": LOGS, "depth": Int(1, 9), "l2": LOGS, "subsample": Float(0.5, 1)}
    space = CanonicalSpace(SearchSpace(trees))
    assert not space.neural
    assert [*space.names.values()] == [*trees]
    network = CanonicalSpace(SearchSpace({"eta": LOGS, "layers": Int(1, 9), "l2": LOGS,
                                          "batch_size": Fixed(64)}))  # fmt: skip
    assert network.neural
    assert [*network.names.values()] == ["lr", "num_layers", "weight_decay"]
    said = CanonicalSpace(SearchSpace(trees), {"eta": "lr", "l2": "weight_decay"})
    assert said.neural
    assert said.names["depth"] == "num_layers"
    rows = [network.point(point) for point in network.space.sample(20)]
    assert useful(task_of(rows), space) is None


# --- what a study showed --------------------------------------------------------------------------


def test_log_times_order_all_trials() -> None:
    """Reached ones have their times; those that missed come behind, the nearest first."""
    task = known("study", 0.01)
    times = np.array([share({"lr": p["lr"], "drop": p["drop"]}, 0.01) for p in task.points])
    own = log_times(task)[:, 0]
    reached = np.isfinite(task.times)
    assert 0 < reached.sum() < len(times)
    assert np.allclose(own[reached], np.log(times[reached]))
    order = np.argsort(own, kind="stable")
    assert (np.diff(times[order]) > -1e-9).all()


@given(st.integers(0, 59), st.floats(0.05, 0.3))
def test_a_trial_that_was_stopped_has_the_time_of_those_that_were_as_good(
    row: int, stop: float
) -> None:
    whole = known("study", 0.01)
    curves, times, seen = whole.curves.copy(), whole.times.copy(), whole.ended.copy()
    if times[row] < stop:
        return
    curves[row, stop < MARKS], times[row], seen[row] = np.nan, np.inf, stop
    stopped = log_times(KnownTask("study", whole.points, times, seen, curves))[row, 0]
    assert stopped >= math.log(stop)
    if stop > 2 * MARKS[0]:  # its curve tells
        assert abs(stopped - log_times(whole)[row, 0]) < 0.7


def test_scores_at_equal_times_and_of_trials_that_are_gone() -> None:
    curves = np.tile(np.linspace(0.1, 0.9, 12), (3, 1)) + np.array([[0.0], [0.02], [0.01]])
    curves[0, 6:] = np.nan
    scores = curve_scores(KnownTask("s", [{}] * 3, np.full(3, np.inf), np.ones(3), curves))
    assert (scores[1] < scores[2]).all()
    assert (scores[0, :6] > scores[2, :6]).all()
    assert (scores[0, 6:] == scores[0, 5]).all()


# --- studies of one problem -----------------------------------------------------------------------

EITHER = SearchSpace({"optimizer": Choice(("sgd", "adamw")), "lr": LOGS, "drop": Float(0.0, 1.0)})


def of_optimizer(name: str, best: float, faster: float = 1.0, **more: Any) -> KnownTask:
    """A study of one optimizer, `faster` times as fast at each point as another one."""
    space = SearchSpace({**SPACE.entries, "optimizer": Fixed(name)})
    needs = lambda point, best: share(point, best) / faster  # noqa: E731
    return known(f"study-{name}", best, space=space, needs=needs, **more)


def whole(name: str, best: float, faster: float = 1.0, **more: Any) -> KnownTask:
    """A study of one optimizer whose trials were not stopped, and are all different to the end."""
    task = of_optimizer(name, best, faster, **more)
    needed = np.array([share(point, best) / faster for point in task.points])
    return replace(task, curves=1 - np.exp(-MARKS / needed[:, None]), ended=np.ones(len(needed)))


def test_studies_of_one_problem_say_which_optimizer_is_faster() -> None:
    tasks = [whole("sgd", 0.1, problem="p"), whole("adamw", 0.001, faster=3.0, problem="p")]
    canonical = CanonicalSpace(EITHER)
    (one,) = by_problem(tasks, canonical)
    assert one.name == "p"
    assert len(one.points) == len(one.curves) == len(one.ended) == len(one.times) == 120
    best = [{"optimizer": "sgd", "lr": 0.1, "drop": 0.2}]
    best += [{"optimizer": "adamw", "lr": 0.001, "drop": 0.2}]
    together, apart = KnownTasks(canonical, [one]), KnownTasks(canonical, tasks)
    slow, fast = together.at(best).logs[0]
    assert slow - fast > 0.5 * math.log(3.0)
    logs = apart.at(best).logs
    assert logs[0].argmin() == 0, "each study alone knows its own optimizer only"
    assert logs[-1].argmin() == 1


def test_a_tenth_of_all_trials_reach_the_common_target_at_their_own_time() -> None:
    two = [whole("sgd", 0.01, problem="p"), whole("adamw", 0.01, faster=2.0, problem="p")]
    (one,) = by_problem(two, CanonicalSpace(EITHER))
    final, reached = one.curves[:, -1], np.isfinite(one.times)
    level = np.quantile(final, 0.9)
    assert (reached == (final >= level)).all()
    assert reached.sum() == 12
    needed = np.array([share(p, 0.01) / (1 + (p["optimizer"] == "adamw")) for p in one.points])
    assert np.allclose(one.times[reached], -needed[reached] * math.log(1 - level), rtol=0.1)


def test_what_is_joined() -> None:
    two = [whole(name, 0.01, problem="p") for name in ("sgd", "adamw")]
    canonical = CanonicalSpace(EITHER)
    assert by_problem(two, CanonicalSpace(SPACE)) == two, "a space that does not say its optimizer"
    fixed = CanonicalSpace(SearchSpace({**SPACE.entries, "optimizer": Fixed("sgd")}))
    assert by_problem(two, fixed) == two, "a space of one optimizer"
    for other in ("q", ""):
        apart = [two[0], replace(two[1], problem=other)]
        assert by_problem(apart, canonical) == apart
    unknown = [replace(task, problem="") for task in two]
    assert by_problem(unknown, canonical) == unknown


# --- models ---------------------------------------------------------------------------------------


def test_a_model_knows_where_the_fast_configurations_are() -> None:
    models = KnownTasks(CanonicalSpace(SPACE), [known("study", 0.01)])
    rates = [1e-4, 1e-3, 1e-2, 1e-1, 1.0]
    found = models.at([{"lr": rate, "drop": 0.2} for rate in rates])
    assert found.logs.shape == (len(models.owner), 5)
    assert (found.logs.argmin(axis=1) == 2).all()
    assert (found.scores[:, :, -1].argmin(axis=1) == 2).all()


def mixed(task: KnownTask, seed: int) -> KnownTask:
    """The task with the points of its trials in another order."""
    order = Random(seed).sample(range(len(task.points)), len(task.points))
    return replace(task, points=[task.points[i] for i in order])


@pytest.mark.parametrize(("count", "most"), [(60, 0.15), (250, 0.02)])
def test_results_that_were_mixed_up_are_seldom_explained(count: int, most: float) -> None:
    task, canonical = known("study", 0.01, count), CanonicalSpace(SPACE)
    assert explained(task, canonical)
    passed = [explained(mixed(task, seed), canonical) for seed in range(100)]
    assert sum(passed) <= most * 100


def test_what_explains_results() -> None:
    task, canonical = known("study", 0.01), CanonicalSpace(SPACE)
    wrong = mixed(task, 0)
    assert not explained(wrong, canonical)
    assert explained(wrong.subset(range(59)), canonical), "too few to tell"
    some = [{**p, "lr": q["lr"]} for p, q in zip(wrong.points, task.points, strict=True)]
    assert explained(replace(task, points=some), canonical), "the rate alone does"
    hidden = CanonicalSpace(SearchSpace({"drop": Float(0.0, 1.0)}))
    assert not explained(task, hidden), "a space without the rate"
    same = replace(task, times=np.full(60, 0.5), curves=np.tile(task.curves[0], (60, 1)))
    assert not explained(same, canonical), "all alike"


def test_an_option_is_explained_in_any_order_of_trials() -> None:
    """Trials with equal settings are equally near: all of them count."""
    options = SearchSpace({"act": Choice(("relu", "tanh", "gelu"))})
    times = {"relu": 0.2, "tanh": 0.4, "gelu": 0.6}
    task = known("study", 0.01, 60, options, lambda p, _: times[p["act"]])
    for seed in range(5):
        order = Random(seed).sample(range(60), 60)
        assert explained(task.subset(order), CanonicalSpace(options))
    assert not explained(mixed(task, 1), CanonicalSpace(options))


def test_what_can_be_of_use() -> None:
    task, canonical = known("study", 0.01), CanonicalSpace(SPACE)
    assert useful(task, canonical) is not None
    assert shared(task, canonical) == ["lr", "drop"]
    assert useful(task.subset(range(4)), canonical) is None, "too few trials"
    other = CanonicalSpace(SearchSpace({"lr": LOGS, "size": Int(1, 9)}))
    assert useful(task, other) is None, "one parameter of two in common"
    assert useful(task, CanonicalSpace(SearchSpace({"lr": LOGS}))) is not None
    some = [{**p, "drop": None if i % 2 else 0.3} for i, p in enumerate(task.points)]
    assert shared(replace(task, points=some), canonical) == ["lr"], "what is missing is no value"
    optional = SearchSpace({"lr": LOGS, "drop": Choice((None, 0.3))})
    assert shared(replace(task, points=some), CanonicalSpace(optional)) == ["lr", "drop"]
    lars = [{**p, "optimizer": "lars"} for p in task.points]
    with_lars = KnownTask("study", lars, task.times, task.ended, task.curves)
    for options, counts in ((("sgd",), False), (("sgd", "lars"), True)):
        entries = {**SPACE.entries, "optimizer": Choice(options)}
        found = useful(with_lars, CanonicalSpace(SearchSpace(entries)))
        assert (found is not None) == counts, "a rate of LARS says nothing about SGD's"


def test_ranges_in_common_make_studies_alike() -> None:
    task = known("study", 0.01)
    low, high = min(p["lr"] for p in task.points), max(p["lr"] for p in task.points)
    assert similarity(task, CanonicalSpace(SPACE)) == pytest.approx(2, abs=0.15)
    for rate, part in ((Float(low, high, log=True), 1.0), (Float(high, 9e3), 0.0)):
        space = CanonicalSpace(SearchSpace({"lr": rate}))
        assert similarity(task, space) == pytest.approx(part)
    chosen = SearchSpace({"lr": Choice((0.01, 0.1, 50.0, 70.0))})
    assert similarity(task, CanonicalSpace(chosen)) == 0.5


def test_values_far_out_of_range_are_no_obstacle() -> None:
    task = known("study", 0.01)
    points = [{**p, "drop": 1e29 * p["drop"]} for p in task.points]
    far = KnownTask("study", points, task.times, task.ended, task.curves)
    found = KnownTasks(CanonicalSpace(SPACE), [far]).at(SPACE.sample(3))
    assert np.isfinite(found.logs).all()


def test_predictions_do_not_depend_on_what_else_is_asked() -> None:
    small = known("abc", 0.3, count=6)  # too few trials for more than one level
    tasks = [known("a", 0.01), known("bc", 0.1), replace(small, times=np.full(6, np.inf))]
    models = KnownTasks(CanonicalSpace(SPACE), tasks)
    assert models.owner.count(2) == 1
    points = SPACE.sample(9, seed=5)
    together, each = models.at(points), [models.at([point]) for point in points]
    for i, alone in enumerate(each):
        assert np.array_equal(together.of([i]).logs, alone.logs)
        assert np.array_equal(together.of([i]).deviations, alone.deviations)
        assert np.array_equal(together.joined(alone).scores[:, 9], together.scores[:, i])


# --- the posterior --------------------------------------------------------------------------------


def judged(best: float, count: int, **more: object) -> np.ndarray:
    """The probabilities of studies with best rates 0.001, 0.03 and 1, and of none of them."""
    tasks = [known("a", 0.001), known("bc", 0.03), known("def", 1.0)]
    models = KnownTasks(CanonicalSpace(SPACE), tasks)
    points = SPACE.sample(count, seed=11)
    trials = [ended(i, p, share(p, best), **more) for i, p in enumerate(points)]
    now = posterior(trials, models.at(points), TARGET, models.weights, Evidence())
    assert now.weights.sum() + now.none == pytest.approx(1.0)
    return np.append(now.of_tasks(models.owner, 3), now.none)


def test_the_posterior_finds_the_study_that_this_one_is_like() -> None:
    before = judged(0.03, 0)
    assert before[3] == pytest.approx(0.2)
    assert np.allclose(before[:3], before[0])
    for place, best in enumerate((0.001, 0.03, 1.0)):
        assert judged(best, 8)[place] > 0.8
        assert judged(best, 8, cap=0.15)[place] > 0.6, "stopped trials tell by their curves"


def test_what_is_kept_from_ask_to_ask_changes_no_bit() -> None:
    """Trials are stopped later and later, so that the limit moves; one is shown anew."""
    models = KnownTasks(CanonicalSpace(SPACE), [known("a", 0.001), known("bc", 0.03)])
    points = SPACE.sample(12, seed=11)
    trials = [ended(i, p, share(p, 0.03), cap=0.02 + 0.01 * i) for i, p in enumerate(points)]
    shown = [trials[:n] for n in range(12)]
    shown += [[*trials[:3], replace(trials[3], seconds=trials[3].seconds / 2), *trials[4:]]]
    shown += [trials, [*trials, ended(12, points[0], 30.0)], trials[::-1], trials[:5], []]
    long = [replace(trials[0], seconds=60.0), *trials[1:]]  # the limit stays
    shown += [long[:n] for n in range(1, 13)]
    evidence = Evidence()
    for some in shown:
        predicted = models.at([dict(t.params or {}) for t in some])
        one, other = (
            posterior(some, predicted, TARGET, models.weights, each)
            for each in (evidence, Evidence())
        )
        assert np.array_equal(one.weights, other.weights)
        assert one.none == other.none
    assert len(evidence.of(long, TARGET.limit)) == 12, "nothing is added up anew"
    assert len(evidence.of(long[:5], TARGET.limit)) == 5


def test_a_study_like_none_of_them() -> None:
    """What should be fast never arrives."""
    tasks = [known("a", 0.01)]
    models = KnownTasks(CanonicalSpace(SPACE), tasks)
    points = [{"lr": rate, "drop": 0.2} for rate in (0.008, 0.01, 0.012, 0.009)]
    trials = [ended(i, p, 30.0) for i, p in enumerate(points)]
    assert posterior(trials, models.at(points), TARGET, models.weights, Evidence()).none > 0.8


def test_trials_that_end_long_before_a_generous_limit_tell_as_much() -> None:
    """Trainers come to their end after a hundredth of the limit."""
    tasks = [known("a", 0.001), known("bc", 0.03), known("def", 1.0)]
    models = KnownTasks(CanonicalSpace(SPACE), tasks)
    points = SPACE.sample(10, seed=11)
    generous = replace(TARGET, limit=100 * 100.0)
    trials = [replace(ended(i, p, share(p, 0.03)), reason="finished") for i, p in enumerate(points)]
    now = posterior(trials, models.at(points), generous, models.weights, Evidence())
    assert now.of_tasks(models.owner, 3)[1] > 0.8


def test_studies_more_like_the_new_one_count_for_more_before_any_trial() -> None:
    """The same trainer and space; and more parameters in common."""
    task = known("a", 0.01)
    fewer = [{k: v for k, v in p.items() if k != "drop"} for p in task.points]
    half = KnownTask("b", fewer, task.times, task.ended, task.curves)
    models = KnownTasks(CanonicalSpace(SPACE), [task, known("a", 0.01, same=True), half])
    now = posterior([], models.at([]), TARGET, models.weights, Evidence())
    each = now.of_tasks(models.owner, 3)
    assert each[1] == pytest.approx(4 * each[0])
    assert each[2] == pytest.approx(0.5 * each[0])


def test_probabilities_of_logarithms() -> None:
    now = normalised(np.log([[0.1, 0.3]]) - 1000, math.log(0.6) - 1000)
    assert np.allclose(now.weights, [[0.1, 0.3]])
    assert now.none == pytest.approx(0.6)


def test_expected_improvement_is_the_mean_of_what_is_gained() -> None:
    draws = np.random.default_rng(0).standard_normal(400_000)
    logs, deviations = np.array([[-1.0, -0.2]]), np.array([[0.3, 0.0]])
    predicted = Predictions(logs, deviations, np.zeros((1, 2, 12)))
    weights = np.array([[0.2, 0.5, 0.3, 0.0, 0.0]])
    best = np.full((1, 5), -0.4)
    found = expected_improvement(predicted, weights, best)
    for place in range(2):
        spread = math.hypot(0.5, deviations[0, place])
        gains = [
            np.maximum(-0.4 - (logs[0, place] + shift + spread * draws), 0).mean()
            for shift in shifts()
        ]
        assert found[place] == pytest.approx(float(weights[0] @ gains), abs=5e-3)
