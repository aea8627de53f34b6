"""Confirmations on a virtual clock: who is run again, in which order, alone, and what it proves."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import populations
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from learning_rate_problem import problem, train_live
from noisy_race import MISSED, SAMPLER, noisy_curve, outcome_of, put, reached, study
from sims import METRIC, lines, memory, race, racing, simulate

import autotune as at
from autotune.algorithms.ranking.best import best as best_trial
from autotune.algorithms.ranking.best import by_expected_result, confirmed_speedup
from autotune.algorithms.ranking.confirmation import Confirmation, confirmations
from autotune.algorithms.ranking.finalists import finalists
from autotune.algorithms.ranking.lineage import as_one, descent
from autotune.algorithms.ranking.repeats import config_from_scratch, confirming, with_mean_times
from autotune.backends.simulator import SimCurve, SimPool
from autotune.cli import final, text
from autotune.evaluation import summary as documents
from autotune.evaluation.comparison.sources import gather
from autotune.storage import journal, manifest
from autotune.storage.journal import JOURNAL, Closed, Opened, from_line, to_line
from autotune.study import result
from autotune.study.driver.settings import fresh_seed, trial_seed
from autotune.study.manifest import Manifest
from autotune.study.options import StudyOptions
from autotune.trial import Change, Ended, Interrupted, Started, State, Stop, Suggested, Trial, fold

TARGET = at.Target(METRIC, 1.0, limit=30)


def confirmed(number: int, of: int, seconds: float, **more: Any) -> Trial:
    return reached(number, seconds, kind="confirm", repeats=of, **more)


def check_alone(folder: Path) -> None:
    """That no other trial ran from a confirmation's start to its end, as the journal has it."""
    running: set[int] = set()
    alone = {t.number for t in confirming(result.read(folder, TARGET).trials)}
    for event in journal.read(folder):
        if isinstance(event, Started):
            running.add(event.trial)
            assert len(running) == 1 or not running & alone
        if isinstance(event, Ended | Interrupted):
            running.discard(event.trial)


# --- the order of things --------------------------------------------------------------------------


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.integers(0, 99))
@settings(max_examples=12)
def test_every_finalist_runs_once_a_round_alone_on_a_fresh_seed(
    count: int, top: int, workers: int, seed: int
) -> None:
    with memory() as folder:
        found = study(folder, 8, workers=workers, repeats=count, top=top, seed=seed)
        again = confirming(found.trials)
        final = {t.number for t in finalists(found.trials, found.target, top)}
        assert len(found.searched) == 8
        assert 0 in final
        assert len(final) <= top + 1
        rounds = [again[i : i + len(final)] for i in range(0, len(again), len(final))]
        assert len(rounds) == count
        assert all({t.repeats for t in one} == final for one in rounds)
        firsts = [one[0].repeats for one in rounds]
        assert len(set(firsts)) == min(count, len(final)), "each round begins with another one"
        assert all(len({t.seed for t in one}) == 1 for one in rounds), "one seed a round"
        fresh = {one[0].seed for one in rounds}
        assert len(fresh) == count
        assert not fresh & {t.seed for t in found.searched}
        assert all(t.config == found.trials[t.repeats].config for t in again)
        assert all(t.params is None for t in again), "it is no new point"
        check_alone(folder)


def test_the_finalists_are_the_fastest_and_the_baseline_each_once(fast_path: Path) -> None:
    experiment = racing([1.0, 4.0, 2.0, 4.0, 3.0, 5.0], limit=30)
    found = simulate(experiment, fast_path, 6, pruner="none", repeats=1, top=3)
    assert [t.repeats for t in confirming(found.trials)] == [5, 1, 4, 0]
    assert [t.seconds for t in confirming(found.trials)] == [2.0, 3.0, 4.0, 10.0]


def test_a_fast_baseline_is_not_run_twice(fast_path: Path) -> None:
    found = simulate(racing([9.0, 1.0]), fast_path, 2, pruner="none", repeats=2, top=1)
    assert [t.repeats for t in confirming(found.trials)] == [0, 0]


def test_a_search_without_a_winner_confirms_nothing(fast_path: Path) -> None:
    found = simulate(racing([0.01, 0.02]), fast_path, 2, repeats=2)
    assert (len(found.trials), found.confirmed, found.best) == (2, (), None)


def test_a_seed_that_was_used_is_passed_over() -> None:
    own = trial_seed(3, 7)
    assert fresh_seed(3, 7, []) == own
    other = fresh_seed(3, 7, [replace(reached(0, 1.0), seed=own)])
    assert other != own
    assert other == fresh_seed(3, 7, [replace(reached(5, 1.0), seed=own)])


def test_no_pruner_stops_a_confirmation_but_limit_and_divergence_do(fast_path: Path) -> None:
    def soon(trial: Trial, others: Sequence[Trial], target: at.Target) -> Stop | None:
        assert trial.kind != "confirm"
        return Stop("soon") if trial.number and trial.seconds > 7 else None

    def curve(config: Any, seed: int) -> SimCurve:
        first = seed == trial_seed(0, "round 0")
        slow, lost = first and config["rate"] == 2.0, first and config["rate"] == 1.5
        whole = race({"rate": 0.1 if slow else config["rate"]}, seed)
        if lost:
            points = [replace(p, metrics={"train_loss": float("nan")}) for p in whole.points]
            return replace(whole, points=points)
        return whole

    found = simulate(racing([1.5, 2.0]), fast_path, 2, curve, pruner=soon, repeats=2)
    assert [t.state for t in found.searched] == [State.REACHED, State.REACHED]
    assert [t.reason for t in confirming(found.trials)] == [
        "limit",
        "diverged",
        "target",
        "target",
    ]
    by_number = {c.number: c for c in found.confirmed}
    assert by_number[1].times == (50.0, 5.0)
    assert by_number[0].times == (50.0, 10 / 1.5 // 1 + 1)


def test_confirmations_are_on_top_of_the_trials_and_a_study_goes_on_after_them(
    fast_path: Path,
) -> None:
    study(fast_path, 5, repeats=2)
    more = study(fast_path, 9, repeats=0)
    assert len(more.searched) == 9
    kinds = [t.kind for t in more.trials]
    assert kinds.count("confirm") == len(kinds) - 9
    assert kinds[-4:] == ["trial"] * 4
    given_twice = racing([1.0, 2.0, 3.0], limit=30)
    with memory() as folder:
        study(folder, 2, repeats=1, experiment=given_twice, top=1)
        third = study(folder, 3, experiment=given_twice).searched[-1]
        assert third.config == {"rate": 3.0}, "a repeat takes no given configuration's place"


def test_more_repeats_top_up(fast_path: Path) -> None:
    first = study(fast_path, 8, repeats=2)
    size = len(lines(fast_path))
    same = first.confirm(2)
    assert same.trials == first.trials
    assert [row["event"] for row in lines(fast_path)[size:]] == ["opened", "closed"]
    more = same.confirm(5)
    assert more.trials[: len(first.trials)] == first.trials
    assert {len(c.runs) for c in more.confirmed} == {5}
    assert {c.number for c in more.confirmed} == {c.number for c in first.confirmed}


# --- interruptions --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole() -> tuple[list[bytes], list[Any]]:
    with memory() as folder:
        found = study(folder, 6, workers=1, repeats=3, top=2, sampler=SAMPLER)
        rows = (folder / JOURNAL).read_bytes().splitlines(keepends=True)
        return rows, [outcome_of(t) for t in found.trials]


def test_a_driver_killed_after_any_line_confirms_the_same(
    whole: tuple[list[bytes], list[Any]],
) -> None:
    rows, known = whole
    first = next(i for i, row in enumerate(rows) if b'"kind":"confirm"' in row)
    quiet_rows = [i for i in range(first, len(rows)) if b'"reported"' not in rows[i]]
    cuts = [first // 2, *quiet_rows, *(i + 4 for i in quiet_rows[::3])]
    for cut in cuts:
        with memory() as folder:
            put(folder, b"".join(rows[:cut]))
            found = study(folder, 6, workers=1, repeats=3, top=2, sampler=SAMPLER)
            assert [outcome_of(t) for t in found.trials] == known, f"cut after line {cut}"
            check_alone(folder)


def test_a_confirmation_that_waits_does_not_run_beside_the_search(fast_path: Path) -> None:
    """Interrupted while it confirmed, and given more trials, the study searches first."""
    found = study(fast_path, 5, workers=3, repeats=1)
    rows = (fast_path / JOURNAL).read_bytes().splitlines(keepends=True)
    last = [i for i, row in enumerate(rows) if b'"started"' in row][-1]
    (fast_path / JOURNAL).write_bytes(b"".join(rows[: last + 3]))
    more = study(fast_path, 12, workers=3, repeats=1)
    assert len(more.searched) == 12
    assert more.trials[len(found.trials) - 1].state is State.REACHED
    check_alone(fast_path)


def test_what_the_time_limit_cut_off_is_made_up_for(fast_path: Path) -> None:
    found = study(fast_path, 4, workers=2, repeats=0)
    ended = max(e.at for e in journal.read(fast_path))
    spent = found.best.seconds if found.best else 0.0
    cut = study(fast_path, 4, workers=2, repeats=2, search=False, time_limit=2.5 * spent)
    assert cut.ended == "budget"
    assert [t.reason for t in confirming(cut.trials)].count("budget") == 1
    whole = cut.confirm(2)
    assert {len(c.runs) for c in whole.confirmed} == {2}
    assert all(t.waiting_since >= ended for t in confirming(whole.trials))


def test_a_limit_at_the_last_report_of_a_search_leaves_its_confirmations(fast_path: Path) -> None:
    """That trial ends for its own reason, so that no trial says that the study was cut off."""
    cut = simulate(racing([1.0]), fast_path, 1, repeats=2, time_limit=9.9)
    assert [t.state for t in cut.trials] == [State.REACHED]
    assert cut.ended == "budget"
    done = simulate(racing([1.0]), fast_path, 1, repeats=2)
    assert done.ended == "done"
    assert [len(c.runs) for c in done.confirmed] == [2]


def test_without_a_search_interrupted_trials_are_left_alone(fast_path: Path) -> None:
    study(fast_path, 6, workers=1, seed=3)
    rows = (fast_path / JOURNAL).read_bytes().splitlines(keepends=True)
    last = [i for i, row in enumerate(rows) if b'"started"' in row][-1]
    (fast_path / JOURNAL).write_bytes(b"".join(rows[: last + 2]))
    only = study(fast_path, 6, workers=1, seed=3, repeats=1, search=False)
    assert (only.trials[5].state, only.trials[5].reason) == (State.CENSORED, "interrupted")
    assert only.confirmed
    assert 5 not in {c.number for c in only.confirmed}
    done = study(fast_path, 6, workers=1, seed=3, repeats=1)
    assert done.trials[5].reason != "interrupted"


def test_without_a_search_an_interrupted_race_is_left_alone(fast_path: Path) -> None:
    """It was run all the same, before the confirmations, and had a part in who was chosen."""
    study(fast_path, 12, workers=1, seed=3, racing=0.4)
    rows = (fast_path / JOURNAL).read_bytes().splitlines(keepends=True)
    last = next(i for i, row in enumerate(rows) if b'"kind":"race"' in row)
    number = json.loads(rows[last])["trial"]
    (fast_path / JOURNAL).write_bytes(b"".join(rows[: last + 3]))
    only = study(fast_path, 12, workers=1, seed=3, racing=0.4, repeats=1, search=False)
    assert (only.trials[number].kind, only.trials[number].reason) == ("race", "interrupted")
    assert only.confirmed
    done = study(fast_path, 12, workers=1, seed=3, racing=0.4, repeats=1)
    assert done.trials[number].reason != "interrupted"


# --- controllers and forks ------------------------------------------------------------------------


def test_the_controller_runs_again_without_noise_and_not_on_the_baseline(fast_path: Path) -> None:
    asked: list[tuple[int, str]] = []

    def halving(trial: Trial, others: Sequence[Trial], target: at.Target) -> Change | None:
        asked.append((trial.number, trial.kind))
        return Change(0.9) if trial.kind != "baseline" and len(trial.reports) == 2 else None

    target = at.Target(METRIC, 0.5, limit=40)
    given = replace(problem(None), target=target, baseline={"lr": 0.05}, configs=({"lr": 0.1},))
    found = at.run(given, trials=2, out=fast_path, pool=SimPool(train_live, 1), sampler="random",
                   tracking_uri="off", pruner="none", controller=halving, repeats=1)  # fmt: skip
    assert {t.repeats: len(t.changes) for t in confirming(found.trials)} == {0: 0, 1: 1}
    own = {t.number: t.repeats for t in confirming(found.trials)}
    assert {kind for number, kind in asked if own.get(number) == 0} == {"baseline"}
    assert {kind for number, kind in asked if own.get(number) == 1} == {"confirm"}


def test_a_fork_is_confirmed_as_its_whole_line_and_never_forked(fast_path: Path) -> None:
    found = forked_study(fast_path, progress_known=True)
    again = confirming(found.trials)
    of_forks = [t for t in again if found.trials[t.repeats].origin is not None]
    assert of_forks
    for trial in again:
        assert trial.origin is None
        assert trial.reports[0].step == 0
    for trial in of_forks:
        assert trial.config == as_one(descent(found.trials[trial.repeats], found.trials))
    origins = [t.origin for t in found.trials if t.origin is not None]
    assert not {o.parent for o in origins} & {t.number for t in again}
    assert not {o.replaces for o in origins} & {t.number for t in again}


def test_a_fork_is_ranked_by_the_races_of_its_whole_line(fast_path: Path) -> None:
    found = forked_study(fast_path, progress_known=True)
    own = list(found.searched)
    met = sorted((t for t in own if t.state is State.REACHED), key=lambda t: t.seconds)
    fork = next(t for t in met if t.origin is not None)
    for slower in (1.5, 1.7):
        seconds, more = slower * fork.seconds, {"hardware": fork.hardware, "repeats": fork.number}
        own.append(reached(len(own), seconds, kind="race", **more))
    places = {t.number: t.seconds for t in by_expected_result(own, found.target)}
    assert places[fork.number] == pytest.approx(1.4 * fork.seconds), "the mean of its three runs"
    assert {n: s for n, s in places.items() if n != fork.number} == {
        t.number: t.seconds for t in met if t is not fork
    }
    final = finalists(own, found.target, 3)
    assert all(config_from_scratch(t, own) is not None for t in final)


def test_a_fork_that_is_no_one_configuration_is_passed_over(fast_path: Path) -> None:
    """Without its progress nobody knows where in its schedules it was forked."""
    found = forked_study(fast_path, progress_known=False)
    assert found.best is not None
    forks = {t.number for t in found.searched if t.origin is not None}
    final = {t.repeats for t in confirming(found.trials)}
    assert any(found.trials[n].state is State.REACHED for n in forks)
    assert final
    assert not final & forks


def forked_study(folder: Path, progress_known: bool) -> at.StudyResult:
    """Population-based training of a trainer that says how far its schedules are, or does not."""

    def telling(curve: SimCurve) -> SimCurve:
        points = [
            replace(
                p,
                metrics={**p.metrics, "progress": p.seconds / 100} if progress_known else p.metrics,
            )
            for p in curve.points
        ]
        return replace(curve, points=points)

    def whole(config: Any, seed: int) -> SimCurve:
        start = config["lr"] if isinstance(config["lr"], float) else config["lr"](0.0)
        return telling(populations.from_scratch({"lr": start}, seed))

    target = at.Target(METRIC, 0.45, limit=populations.LIMIT)
    pool = SimPool(whole, 6, go_on=lambda *at_point: telling(populations.trained(*at_point)))
    return at.run(
        populations.experiment(target=target), trials=24, out=folder, pool=pool, repeats=2, top=9,
        sampler="random", pruner="none", controller="pbt", tracking_uri="off",
    )  # fmt: skip


# --- what it proves -------------------------------------------------------------------------------


def test_the_best_is_the_one_with_the_least_confirmed_time() -> None:
    trials = [reached(0, 5.0), reached(1, 6.0), reached(2, 1.0)]
    assert best_trial(trials, TARGET) is trials[2]
    trials += [confirmed(3, 2, 9.0), confirmed(4, 0, 7.0)]
    assert best_trial(trials, TARGET) is trials[0]
    assert [c.number for c in confirmations(trials, TARGET)] == [0, 2]
    trials += [confirmed(5, 0, 8.0), confirmed(6, 2, 29.0, **MISSED)]
    assert best_trial(trials, TARGET) is trials[0]


def test_a_run_that_missed_is_worse_than_one_that_reached() -> None:
    """Diverged after a second it looks fast; it counts as the limit."""
    trials = [reached(0, 5.0), reached(1, 6.0)]
    trials += [confirmed(2, 0, 1.0, state=State.CENSORED, reason="diverged")]
    trials += [confirmed(3, 1, 20.0), confirmed(4, 0, 6.0), confirmed(5, 1, 12.0)]
    first, second = confirmations(trials, TARGET)
    assert (first.number, first.reached, first.mean_seconds) == (1, 2, 16.0)
    assert (second.number, second.reached, second.mean_seconds) == (0, 1, 18.0)
    assert second.median_seconds is None
    assert first.median_seconds == 16.0


def test_only_rounds_that_all_have_are_compared() -> None:
    trials = [reached(0, 5.0), reached(1, 6.0), confirmed(2, 0, 7.0), confirmed(3, 1, 8.0)]
    trials += [confirmed(4, 0, 29.0), confirmed(5, 0, 29.0)]
    assert [c.number for c in confirmations(trials, TARGET)] == [0, 1]


@given(st.lists(st.floats(0.1, 29.0), min_size=1, max_size=9), st.integers(0, 4))
def test_median_and_mean_are_those_of_the_times(seconds: list[float], missed: int) -> None:
    import statistics

    runs = [confirmed(i, 0, s) for i, s in enumerate(seconds)]
    runs += [confirmed(99, 0, 3.0, **MISSED)] * missed
    one = Confirmation(0, 1.0, tuple(runs), replace(TARGET, limit=30.0))
    times = sorted(seconds) + [30.0] * missed
    assert one.mean_seconds == pytest.approx(statistics.fmean(times))
    few = missed >= len(seconds)
    assert one.median_seconds == (None if few else pytest.approx(statistics.median(times)))


def test_repeats_are_part_of_what_they_repeat() -> None:
    trials = [reached(0, 5.0), reached(1, 6.0), reached(2, 1.0)]
    assert all(a is b for a, b in zip(with_mean_times(trials, TARGET), trials, strict=True))
    trials += [reached(3, 7.0, kind="race", repeats=2)]
    assert [t.seconds for t in with_mean_times(trials, TARGET)] == [5.0, 6.0, 4.0]
    trials += [reached(4, 10.0, kind="race", repeats=2)]
    assert [t.seconds for t in with_mean_times(trials, TARGET)] == [5.0, 6.0, 6.0]
    trials += [reached(5, 10.0, kind="race", repeats=1, **MISSED)]
    now = with_mean_times(trials, TARGET)[1]
    assert (now.state, now.reason, now.number) == (State.REACHED, "target", 1)
    assert now.seconds == (6.0 + TARGET.limit) / 2, "a miss counts as the limit, wherever it ended"
    cut = reached(6, 0.1, kind="race", repeats=0, state=State.CENSORED, reason="budget")
    assert with_mean_times([*trials, cut], TARGET)[0] is trials[0]


def test_what_never_reached_the_target_keeps_its_rank() -> None:
    baseline = reached(0, 12.0, kind="baseline", **MISSED)
    assert with_mean_times([baseline, confirmed(1, 0, 20.0, **MISSED)], TARGET) == (baseline,)
    lucky = with_mean_times([baseline, confirmed(1, 0, 20.0)], TARGET)[0]
    assert (lucky.state, lucky.seconds) == (State.REACHED, 25.0)


def test_speedup_is_confirmed_only_when_both_are() -> None:
    trials = [reached(0, 10.0, kind="baseline"), reached(1, 2.0), confirmed(2, 1, 4.0)]
    assert confirmed_speedup(trials, TARGET) is None
    trials += [confirmed(3, 0, 12.0)]
    assert confirmed_speedup(trials, TARGET).ratio == pytest.approx(3.0)


# --- journals, texts, mistakes --------------------------------------------------------------------


def test_repeats_are_written_down_and_old_lines_are_read() -> None:
    event = Suggested(5, {"rate": 1.0}, None, "confirm", 3, 0.5, repeats=2)
    assert from_line(to_line(event)) == event
    old = json.loads(to_line(replace(event, repeats=None)))
    del old["repeats"]
    assert from_line(json.dumps(old)) == replace(event, repeats=None)


def test_a_journal_from_before_is_resumed_and_confirmed(fast_path: Path) -> None:
    study(fast_path, 5)
    rows = [json.loads(row) for row in (fast_path / JOURNAL).read_text().splitlines()]
    for row in rows:
        row.pop("repeats", None)
    (fast_path / JOURNAL).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    data = manifest.read(fast_path)
    for key in ("repeats", "top"):
        data.pop(key)
    manifest.write(fast_path, data)
    found = study(fast_path, 5, repeats=1)
    assert found.confirmed
    assert len(found.searched) == 5


def test_what_is_printed_shows_both_times(fast_path: Path) -> None:
    found = study(fast_path, 8, repeats=3)
    best, confirmed_best = found.best, found.confirmation(found.best)
    assert best is not None
    assert confirmed_best is not None
    out = io.StringIO()
    final.print_result(found, Manifest.read(fast_path), out)
    said = f"Best: trial {best.number} in {best.seconds:.2f} s when it was tuned, "
    assert (
        f"{said}{confirmed_best.mean_seconds:.2f} s on 3 fresh seeds (3 of 3 reached)"
        in out.getvalue()
    )
    rows = at.compare(*gather([str(fast_path)])).rows
    (row,) = (r for r in rows if r.candidate.trial == best.number)
    assert row.speedup == pytest.approx(found.confirmed_speedup)
    assert not row.speedup_bound
    low, high = row.speedup_interval.low, row.speedup_interval.high
    sure = f"faster (confirmed; 95 % interval {low:.2f} to {high:.2f}"
    assert f"; {found.confirmed_speedup:.2f}x {sure}" in " ".join(out.getvalue().split())
    assert "not confirmed" not in out.getvalue()
    assert "run again on fresh seeds, each alone" in out.getvalue()
    assert "confirm of" not in out.getvalue(), "repeats are not ranked among the trials"
    document = documents.document(found, "racing")
    json.dumps(document, allow_nan=False)
    assert document["best"]["time_to_target_seconds"] == best.seconds
    assert document["best"]["confirmed"]["mean_seconds"] == confirmed_best.mean_seconds
    assert [c["trial"] for c in document["confirmed"]] == [c.number for c in found.confirmed]
    assert document["confirmed_speedup_vs_baseline"] == row.speedup
    assert document["confirmed_speedup_interval"] == (low, high)
    assert sum(document["counts"].values()) == 8
    assert [t["repeats"] for t in document["trials"][8:]] == [t.repeats for t in found.trials[8:]]
    assert 0 < document["repeats_spent_seconds"] < document["spent_seconds"]
    out = io.StringIO()
    text.print_best(document["best"], out)
    assert (
        out.getvalue()
        .splitlines()[1]
        .startswith(f"  confirmed: {confirmed_best.mean_seconds:.2f} s on 3")
    )


def test_status_says_how_many_confirmations_are_done(fast_path: Path) -> None:
    found = study(fast_path / "a", 6, repeats=3, top=2)
    lines_ = (fast_path / "a" / JOURNAL).read_text().splitlines()
    options = StudyOptions(repeats=3, top=2, trials=6)
    seen: list[dict[str, Any]] = []
    events = [e for line in lines_ if not isinstance(e := from_line(line), Opened | Closed)]
    for count in range(len(events) + 1):
        trials = tuple(fold(events[:count]).values())
        confirmations = documents.confirmations(replace(found, trials=trials), options)
        assert confirmations is not None
        seen.append(confirmations)
    planned = [confirmations["planned"] for confirmations in seen]
    begun = planned.index(9)
    assert planned == [None] * begun + [9] * (len(planned) - begun), "two finalists, the baseline"
    assert [confirmations["done"] for confirmations in seen[:begun]] == [0] * begun
    done = [confirmations["done"] for confirmations in seen[begun:]]
    assert done == sorted(done)
    assert (done[0], done[-1]) == (0, 9)
    assert {confirmations["running"] for confirmations in seen[begun:]} == {0, 1}
    out = io.StringIO()
    summary = {**documents.summary(found, "x"), "trials_planned": 6, "driver_alive": False}
    text.print_status({**summary, "confirmations": seen[-1]}, out)
    assert "  confirmations: 9 of 9 done\n" in out.getvalue()
    assert documents.confirmations(found, StudyOptions()) is None


def test_without_confirmations_nothing_is_printed_of_them(fast_path: Path) -> None:
    found = study(fast_path, 8)
    document = documents.document(found, "racing")
    assert (document["best"]["confirmed"], document["confirmed"]) == (None, [])
    assert document["confirmed_speedup_vs_baseline"] is None
    out = io.StringIO()
    final.print_result(found, Manifest.read(fast_path), out)
    assert "(one run each, not confirmed)" in out.getvalue()
    assert "fresh seeds" not in out.getvalue()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"repeats": -1}, "repeats must be a whole number >= 0 but got -1"),
        ({"repeats": 1.5}, "repeats must be a whole number >= 0 but got 1.5"),
        ({"top": 0}, "top must be a whole number >= 1 but got 0"),
        ({"repeats": 1, "seeds": range(10)}, "with seeds all trials are repeats already"),
    ],
)
def test_mistakes_get_one_clear_line(options: Any, says: str, fast_path: Path) -> None:
    with pytest.raises(at.UserError) as error:
        study(fast_path / "study", 4, **options)
    assert says in str(error.value)
    assert not (fast_path / "study").exists()


def test_a_result_that_was_read_says_how_to_confirm_it(fast_path: Path) -> None:
    found = study(fast_path, 3)
    read = at.load_study(str(fast_path))
    assert (read.trials, read.target, read.ended) == (found.trials, found.target, "done")
    with pytest.raises(at.UserError, match="autotune confirm"):
        read.confirm()


def test_a_journal_folds_to_what_the_driver_had(fast_path: Path) -> None:
    found = study(fast_path, 6, repeats=2)
    entries = [e for e in journal.read(fast_path) if not isinstance(e, Opened | Closed)]
    assert tuple(fold(entries).values()) == found.trials
    assert noisy_curve({"rate": 1.0}, found.trials[-1].seed).points[10].seconds > 0


# --- runs that failed -----------------------------------------------------------------------------


def test_a_confirmation_that_failed_says_nothing_of_the_time() -> None:
    trials = [reached(0, 10.0, kind="baseline"), reached(1, 2.0)]
    trials += [confirmed(2, 1, 4.0), confirmed(3, 0, 12.0), confirmed(4, 1, 4.0)]
    died = replace(confirmed(5, 0, 0.5), state=State.FAILED, reason="worker died")
    assert confirmed_speedup([*trials, died], TARGET).ratio == pytest.approx(3.0)
    assert len(confirmations([*trials, died], TARGET)[-1].runs) == 1


@pytest.mark.parametrize("state", [State.FAILED, State.INFEASIBLE])
def test_a_race_that_failed_does_not_change_the_rank_of_its_trial(state: State) -> None:
    trials = [reached(0, 5.0), reached(1, 2.0)]
    race = reached(2, 0.5, kind="race", repeats=1, state=state, reason="worker died")
    assert with_mean_times([*trials, race], TARGET) == tuple(trials)


def test_a_trial_that_was_cut_off_stays_so_whatever_its_repeats_say() -> None:
    cut = reached(0, 1.0, kind="baseline", state=State.CENSORED, reason="interrupted")
    again = [reached(1, 3.0, kind="race", repeats=0), reached(2, 4.0, kind="race", repeats=0)]
    assert with_mean_times([cut, *again], TARGET) == (cut,)


def test_a_speedup_is_of_runs_with_equal_seeds_and_its_bound_is_shown(fast_path: Path) -> None:
    study(fast_path, 8, repeats=2)
    path = fast_path / JOURNAL
    found = result.read(fast_path, Manifest.read(fast_path).target)
    last = confirming(found.trials)[-1]
    kept = [row for row in path.read_text().splitlines() if f'"trial":{last.number},' not in row]
    path.write_text("".join(f"{row}\n" for row in kept))
    cut = result.read(fast_path, Manifest.read(fast_path).target)
    rows = at.compare(*gather([str(fast_path)])).rows
    row = next(r for r in rows if cut.best and r.candidate.trial == cut.best.number)
    assert row.speedup == pytest.approx(cut.confirmed_speedup)
    out = io.StringIO()
    final.print_result(cut, Manifest.read(fast_path), out)
    assert "Not all confirmations have been run; go on with: autotune.run(" in out.getvalue()


def test_a_baseline_that_no_trial_beats_is_reported_as_such(fast_path: Path) -> None:
    """It was printed as 1.00 times faster than itself."""
    found = study(fast_path, 1)
    assert found.best == found.baseline
    out = io.StringIO()
    final.print_result(found, Manifest.read(fast_path), out)
    printed = " ".join(out.getvalue().split())
    assert "s; it is the baseline. " in printed
    assert "faster" not in printed + found._repr_html_()
    status = io.StringIO()
    summary = {**documents.summary(found, "x"), "trials_planned": 1, "driver_alive": False}
    text.print_status(summary, status)
    assert "  against the baseline: it is the baseline\n" in status.getvalue()
    assert "1.00" not in status.getvalue()


def test_a_baseline_that_nothing_beats_is_reported_as_such(fast_path: Path) -> None:
    found = study(fast_path, 8, repeats=3)
    baseline = found.baseline
    assert baseline is not None
    swapped = []
    for trial in found.trials:
        if trial.repeats is not None:
            seconds = 1.0 if trial.repeats == baseline.number else 40.0
            trial = replace(trial, state=State.REACHED, reason="target", seconds=seconds)
        swapped.append(trial)
    printed = replace(found, trials=tuple(swapped))
    assert printed.best == baseline
    out = io.StringIO()
    final.print_result(printed, Manifest.read(fast_path), out)
    assert "it is the baseline, which nothing beat when confirmed" in " ".join(
        out.getvalue().split()
    )
