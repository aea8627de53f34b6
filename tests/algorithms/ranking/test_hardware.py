"""Only equal hardware is ranked together: fingerprints, scores and equal-time ranks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sims import METRIC, race, racing, simulate

import autotune as at
from autotune.algorithms.ranking.equal_time import equal_time_ranks
from autotune.algorithms.ranking.hardware import (
    began_on,
    comparable_hardware,
    scores,
    trial_fingerprint,
)
from autotune.algorithms.ranking.racing import for_pruning
from autotune.algorithms.ranking.repeats import with_mean_times
from autotune.algorithms.samplers.optuna import OptunaSampler
from autotune.backends.monitoring import Meter
from autotune.backends.simulator import SimCurve, SimPool
from autotune.storage import journal
from autotune.study.driver.microbatch import fitting
from autotune.study.result import StudyResult
from autotune.tracking.run_content import tags
from autotune.trial import (
    Checkpoint,
    Ended,
    Hardware,
    Origin,
    Report,
    Started,
    State,
    Target,
    Trial,
)
from dashboards.tables import leaderboard

SLOW, FAST = Hardware("slow"), Hardware("fast")
TARGET = Target(METRIC, 0.9, limit=100)


def reached(number: int, seconds: float, on: Hardware = SLOW, **more: Any) -> Trial:
    shown = {
        "config": {"x": seconds},
        "state": State.REACHED,
        "reason": "target",
        "seconds": seconds,
        "attempts": 1,
        "hardware": on,
        "ended_at": float(number),
        "reports": (Report(1, seconds, {METRIC: 0.95}),),
    }
    return Trial(number, **{**shown, **more})


# --- fingerprints ---------------------------------------------------------------------------------


def test_a_fingerprint_says_what_is_compared() -> None:
    full = Hardware("H100", 4, 8, gpus_per_worker=2, cpu="Xeon", nodes=2, interconnect="NVLink")
    assert str(full) == "4 x H100 (2 GPU, 8 CPU, Xeon, 2 nodes, NVLink)"
    assert full.model == "H100 (2 GPU a worker, 8 CPU a worker, Xeon, 2 nodes, NVLink)"
    for name in ("cpu", "interconnect", "label", "before", "device"):
        other = replace(full, **{name: "other"})
        assert other != full
        assert "other" in str(other)


def test_hardware_that_is_mixed_on_purpose_is_all_comparable() -> None:
    slow, fast = replace(SLOW, mixed=True), replace(FAST, mixed=True)
    assert slow == fast
    assert len({slow, fast}) == 1
    assert slow != SLOW
    assert str(slow) != str(fast), "the journal still has what it ran on"


FORK = Trial(1, {}, seconds=1.0, origin=Origin(0, 1, Checkpoint(1, "x")))


@pytest.mark.parametrize(
    ("trial", "parent", "before"),
    [
        (Trial(0, {}), None, ""),  # a first attempt
        (Trial(0, {}, attempts=1, hardware=SLOW), None, ""),  # it starts over
        (Trial(0, {}, attempts=1, seconds=1.0, hardware=FAST), None, ""),
        (Trial(0, {}, attempts=1, seconds=1.0, hardware=SLOW), None, str(SLOW)),
        (FORK, reached(0, 3.0, SLOW), str(SLOW)),  # of an older journal
        (FORK, reached(0, 3.0, FAST), ""),
        (replace(FORK, checkpoint=Checkpoint(1, "x", hardware=SLOW)), None, str(SLOW)),
    ],
)
def test_time_on_two_kinds_of_hardware_is_comparable_to_neither(
    trial: Trial, parent: Trial | None, before: str
) -> None:
    began = began_on(trial, {0: parent} if parent is not None else {})
    assert trial_fingerprint(FAST, began) == replace(FAST, before=before)
    assert trial_fingerprint(FAST, began, mixed=True) == replace(SLOW, mixed=True)


def test_going_on_at_the_same_place_changes_no_fingerprint() -> None:
    moved = trial_fingerprint(FAST, SLOW)
    assert moved != FAST
    assert trial_fingerprint(FAST, moved) == moved


def test_trials_go_on_fork_and_are_repeated_where_they_can_be_ranked() -> None:
    moved = Trial(1, {}, attempts=1, seconds=1.0, hardware=replace(SLOW, before="1 x other"))
    trials = {0: reached(0, 3.0, FAST), 1: moved}
    assert comparable_hardware(Trial(2, {}), trials) is None
    assert comparable_hardware(moved, trials) == SLOW
    assert comparable_hardware(Trial(2, {}, repeats=0), trials) == FAST
    fork = Trial(2, {}, seconds=1.0, origin=Origin(0, 1, Checkpoint(1, "x")))
    assert comparable_hardware(fork, trials) == FAST
    assert comparable_hardware(replace(fork, attempts=1, hardware=SLOW), trials) == SLOW
    starts_over = Trial(2, {}, repeats=0, attempts=1, hardware=SLOW)
    assert comparable_hardware(starts_over, trials) == FAST, (
        "of its earlier attempt no time is left"
    )
    assert comparable_hardware(replace(starts_over, repeats=None), trials) is None


def test_a_confirmation_runs_where_its_trial_did(fast_path: Path) -> None:
    class Chosen(Two):
        """Both kinds are idle; what nobody wants elsewhere runs on the slow one, but the first."""

        def start(self, launch: Any) -> Hardware:
            super().start(launch)
            return launch.comparable_to or (FAST if launch.trial < 2 else SLOW)

    made = racing([1.0, 10.0])
    done = simulate(made, fast_path, 2, pool=Chosen(race, 1), pruner="none", repeats=2, top=2)
    again = {(t.repeats, t.hardware.device) for t in done.trials if t.repeats is not None}
    assert again == {(0, "fast"), (1, "fast")}


class Moving(SimPool):
    """Its trials' attempts are on the fast node where `fast` says so, else on the slow one."""

    fast: frozenset[tuple[int, int]] = frozenset()

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.asked: list[tuple[int, Hardware | None]] = []

    def start(self, launch: Any) -> Hardware:
        super().start(launch)
        attempt = [number for number, _ in self.asked].count(launch.trial)
        self.asked.append((launch.trial, launch.comparable_to))
        return FAST if (launch.trial, attempt) in self.fast else SLOW


def dying(rate: float, *seconds: int) -> Any:
    """The worker of the trial with this rate dies after so many seconds of each attempt."""
    left = list(seconds)

    def curve(config: Any, seed: int) -> SimCurve:
        whole = race(config, seed)
        if config["rate"] != rate or not left:
            return whole
        return SimCurve(whole.points[: left.pop(0)], end="died")

    return curve


def test_a_trial_is_compared_on_the_hardware_of_its_checkpoint(fast_path: Path) -> None:
    """It was elsewhere since, but what it did there is lost."""
    policy = at.FailurePolicy(checkpoint_interval=5, max_retries=2)
    pool = Moving(dying(1.0, 8, 8), 1)
    pool.fast = frozenset({(0, 1)})
    done = simulate(racing([1.0], failure=policy), fast_path, 1, pool=pool)
    fingerprints = [e.hardware for e in journal.read(fast_path) if isinstance(e, Started)]
    assert fingerprints == [SLOW, replace(FAST, before=str(SLOW)), SLOW]
    assert pool.asked == [(0, None), (0, SLOW), (0, SLOW)]
    assert (done.trials[0].state, done.trials[0].hardware) == (State.REACHED, SLOW)


def test_a_fork_is_compared_on_the_hardware_of_its_checkpoint(fast_path: Path) -> None:
    """Its parent has moved since, and has saved nothing there."""

    def forks(trial: Trial, others: Any, target: Target) -> at.Fork | None:
        there = trial.number == 1 and trial.seconds == 8.0
        return at.Fork(0, {"rate": 3.0}) if there else None

    policy = at.FailurePolicy(checkpoint_interval=5, max_retries=2)
    pool = Moving(dying(1.0, 8), 2)
    pool.fast = frozenset({(0, 1)})
    made = racing([1.0, 0.5], failure=policy)
    done = simulate(made, fast_path, 3, pool=pool, controller=forks, pruner="none")
    parent, _, fork = done.trials
    assert fork.origin is not None
    assert (fork.origin.parent, fork.origin.checkpoint.step) == (0, 50)
    assert parent.hardware == replace(FAST, before=str(SLOW))
    assert (fork.state, fork.hardware) == (State.REACHED, SLOW)
    assert pool.asked[-1] == (2, SLOW)
    (origin,) = [
        e.origin for e in journal.read(fast_path) if getattr(e, "origin", None) is not None
    ]
    assert origin.checkpoint.hardware == SLOW, "it is in the journal"


# --- who decides ----------------------------------------------------------------------------------


class Two(SimPool):
    """Odd trials run on nodes that take a tenth of the time."""

    def start(self, launch: Any) -> Hardware:
        super().start(launch)
        return FAST if launch.trial % 2 else SLOW


def test_the_fast_nodes_cap_no_trial_of_the_slow_ones(fast_path: Path) -> None:
    rates = [1.0, 10.0, 2.0, 5.0]
    made = racing(rates)
    apart = simulate(made, fast_path / "apart", 4, pool=Two(race, 1), pruner="slower_than_best")
    assert [t.state for t in apart.trials] == [State.REACHED] * 3 + [State.CENSORED]
    mixed = simulate(
        made, fast_path / "mixed", 4, pool=Two(race, 1), pruner="slower_than_best",
        mix_hardware=True,
    )  # fmt: skip
    assert [t.reason for t in mixed.trials] == ["target", "target", "capped", "capped"]
    assert mixed.best is mixed.trials[1]
    assert apart.best is apart.trials[2], "of the hardware that most trials, or the first, ran on"
    entries = journal.read(fast_path / "mixed")
    fingerprints = [e.hardware for e in entries if isinstance(e, Started)]
    assert [s.device for s in fingerprints] == ["slow", "fast", "slow", "fast"]
    assert all(s.mixed for s in fingerprints)


def test_a_score_elsewhere_is_that_of_its_rank_among_comparable_trials() -> None:
    usual = [reached(n, 10.0 * (n + 1)) for n in range(5)]  # 10 to 50 s
    fast = [reached(n, seconds, FAST) for n, seconds in ((5, 2.0), (6, 1.0), (7, 3.0))]
    found = scores([*usual, *fast], TARGET)
    assert [found[t.number] for t in usual] == [10, 20, 30, 40, 50]
    assert found[5] == 30.0, "the only one of its kind by then is a middling one"
    assert found[6] == pytest.approx(17.5)  # the better of two: a quarter of the way
    assert found[7] == pytest.approx(46.667, abs=0.01)
    later = scores([*usual, *fast, reached(8, 5.0), reached(9, 0.1, FAST)], TARGET)
    assert {n: later[n] for n in found} == found, "what was given to a sampler stays as it was"
    mixed = [replace(t, hardware=replace(t.hardware, mixed=True)) for t in (*usual, *fast)]
    assert scores(mixed, TARGET) == {t.number: t.seconds for t in mixed}


def test_ranks_are_those_among_comparable_trials() -> None:
    slow = [reached(n, s) for n, s in ((0, 30.0), (1, 10.0), (2, 20.0))]
    fast = [reached(n, s, FAST) for n, s in ((3, 2.0), (4, 1.0))]
    failed = Trial(5, {}, state=State.FAILED, attempts=1, hardware=FAST)
    never = Trial(6, {}, state=State.INFEASIBLE)
    places = equal_time_ranks([*slow, *fast, failed, never], TARGET)
    assert places[1] < places[2] < places[0] < places[5] == places[6]
    assert (places[4], places[3]) == (0.0, 1.0)


def test_a_sampler_gets_ranks_and_not_times() -> None:
    space = at.SearchSpace({"x": at.Float(0, 100)})
    trials = [
        *(reached(n, 10.0 * (n + 1), params={"x": 10.0 * n}) for n in range(5)),
        reached(5, 1.0, FAST, params={"x": 77.0}),
    ]
    sampler = OptunaSampler("tpe", space, TARGET, 0)
    sampler.ask(6, trials)
    observed = {t.params["x"]: t.value for t in sampler._study.get_trials() if t.value is not None}
    assert observed[77.0] == 30.0
    assert observed[0.0] == 10.0


def test_a_race_slows_only_comparable_trials() -> None:
    raced = reached(0, 5.0)
    again = reached(1, 7.0, kind="race", repeats=0)
    lucky, other = reached(2, 1.0), reached(3, 1.0, FAST)
    fast, once_more = reached(4, 2.0, FAST), reached(5, 2.0, FAST, kind="race", repeats=4)
    trials = [raced, again, lucky, other, fast, once_more]
    shown = {t.number: t.seconds for t in for_pruning(trials, TARGET)}
    assert shown == {0: 6.0, 2: 6.0, 3: 2.0, 4: 2.0}


def test_a_race_on_other_hardware_does_not_count_as_a_repeat() -> None:
    """Races take the group that is idle: of a time on another node no mean is made."""
    lucky, elsewhere = reached(0, 5.0), reached(1, 1.0, FAST, kind="race", repeats=0)
    other, once_more = reached(2, 6.0), reached(3, 8.0, kind="race", repeats=2)
    trials = [lucky, elsewhere, other, once_more]
    assert {t.number: t.seconds for t in with_mean_times(trials, TARGET)} == {0: 5.0, 2: 7.0}
    shown = {t.number: t.seconds for t in for_pruning(trials, TARGET)}
    assert shown == {0: 7.0, 2: 7.0}, "it was run again elsewhere"


def test_figures_show_the_best_of_the_usual_hardware() -> None:
    seen: list[Any] = []
    meter = Meter("s", TARGET, 3, 0, seen.append, every=0.0)
    trials: dict[int, Trial] = {}
    for trial in (reached(0, 5.0), reached(1, 1.0, FAST), reached(2, 4.0)):
        trials[trial.number] = trial
        meter(Ended(trial.number, State.REACHED, "target", trial.seconds), trials)
    best = [f.value for f in seen[-1] if f.name == "autotune_best_seconds"]
    assert best == [4.0]


def test_what_fitted_into_memory_is_known_where_all_is_mixed() -> None:
    """How times are ranked, and where a trial was before, has no part in what fits."""
    trial = Trial(1, {"batch_size": 64})
    moved = replace(FAST, before=str(SLOW))
    for fingerprint in (FAST, replace(FAST, mixed=True), moved):
        known = Trial(0, {"batch_size": 64}, attempts=1, microbatch=16, hardware=fingerprint)
        assert fitting(trial, [known], ["model"], FAST) == 16
        assert fitting(trial, [known], ["model"], SLOW) is None


def test_ranks_are_those_of_the_search_also_if_all_was_confirmed_elsewhere(tmp_path: Path) -> None:
    trials = [reached(0, 5.0), reached(1, 4.0)]
    again = [reached(n, 1.0, FAST, kind="confirm", repeats=n % 2) for n in range(2, 8)]
    result = StudyResult(tmp_path, TARGET, (*trials, *again))
    rows = leaderboard(result)
    assert [(row["trial"], row["rank"]) for row in rows] == [(1, 1), (0, 2)]


def test_mlflow_has_the_fingerprint() -> None:
    trial = reached(0, 1.0, replace(FAST, label="lent", nodes=2, interconnect="network"))
    assert tags(trial, {})["autotune.hardware"] == "1 x fast (1 CPU, 2 nodes, network, lent)"


def test_older_journals_are_read(fast_path: Path) -> None:
    old = '{"event": "started", "trial": 0, "queue_seconds": 0.0, "hardware": {"device": "cpu", '
    old += '"num_workers": 2, "cpus_per_worker": 1.0, "shared": false}, "at": 0.5}'
    assert journal.from_line(old).hardware == Hardware("cpu", 2, 1.0)


def test_compare_takes_what_was_mixed_together(fast_path: Path) -> None:
    from autotune.evaluation.comparison.from_studies import candidates, read

    made = racing([1.0, 10.0, 2.0])
    simulate(made, fast_path / "s", 3, pool=Two(race, 1), pruner="none", mix_hardware=True)
    (one,) = candidates(read(fast_path / "s"))
    assert one.trial == 1
    assert (
        one.conditions.hardware == "fast (1 CPU a worker) or slow (1 CPU a worker), ranked together"
    )


def test_what_was_mixed_in_one_study_is_not_compared_with_another_mixture(
    fast_path: Path,
) -> None:
    """All of a study was taken as comparable, and the hardware of another study was not named."""
    from autotune.evaluation.comparison.conditions import differing
    from autotune.evaluation.comparison.from_studies import candidates, read

    class One(SimPool):
        def start(self, launch: Any) -> Hardware:
            super().start(launch)
            return SLOW

    made = racing([1.0, 10.0, 2.0])
    kinds = {"two": Two(race, 1), "again": Two(race, 1), "one": One(race, 1)}
    conditions = {}
    for name, pool in kinds.items():
        simulate(made, fast_path / name, 3, pool=pool, pruner="none", mix_hardware=True)
        (found,) = candidates(read(fast_path / name))
        conditions[name] = found.conditions
    assert differing(conditions["two"], conditions["again"]) == []
    assert differing(conditions["two"], conditions["one"]) == ["hardware"]
