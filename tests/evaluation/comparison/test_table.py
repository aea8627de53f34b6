"""The table: rows, the reasons for what cannot be said, and what may not be compared."""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from autotune.errors import UserError
from autotune.evaluation.comparison import (
    CONDITIONS,
    Candidate,
    ComparedTarget,
    Comparison,
    Conditions,
    Run,
    compare,
    output,
)

AIM = ComparedTarget("val_accuracy", 0.95)
ALIKE = Conditions("cpu (1 CPU a worker)", 2, False, "train", AIM)
TIMES = st.floats(0.5, 500)


def candidate(name: str, times, *, kind="confirmed", rate=100.0, limit=None, **more) -> Candidate:
    """Seeds 0, 1, 2, ...; times above `limit` are censored there."""
    end = math.inf if limit is None else limit
    runs = tuple(
        Run(
            f"{name}-{i}",
            min(t, end),
            t <= end,
            seed=i,
            samples=min(t, end) * rate,
            samples_per_second=rate,
            worker_seconds=2 * min(t, end),
        )
        for i, t in enumerate(times)
    )
    return Candidate(name, f"studies/{name}", kind, runs, more.pop("conditions", ALIKE), **more)


FAST, SLOW = candidate("fast", [4, 5, 6, 5, 5], rate=200), candidate("slow", [9, 10, 11, 10, 10])


def test_a_row_says_it_all() -> None:
    made = compare([FAST, SLOW], "slow")
    assert [r.name for r in made.rows] == ["fast", "slow"]
    assert (made.baseline, made.tau_seconds) == ("slow", None)
    fast, slow = made.rows
    assert (fast.n, fast.reached, fast.median_seconds) == (5, 5, 5)
    assert (fast.mean_seconds, fast.olympic_seconds) == (pytest.approx(5), pytest.approx(5))
    assert slow.is_baseline
    assert (slow.speedup, slow.p, slow.probability_faster) == (None, None, None)
    assert fast.speedup == pytest.approx((99000 / 3000) ** 0.2)
    assert (fast.pairs, fast.probability_faster, fast.undecided) == (5, 1, 0)
    assert (fast.p, fast.p_exact) == (pytest.approx(2 / 252), True)
    assert fast.throughput_ratio == pytest.approx(2)
    assert fast.efficiency_ratio == pytest.approx(fast.speedup / 2)
    assert fast.worker_seconds == pytest.approx(2 * fast.geometric_seconds)
    assert fast.samples == pytest.approx(200 * fast.geometric_seconds)
    assert fast.why_not == {}


@settings(max_examples=40, deadline=None)
@given(
    st.lists(TIMES, min_size=1, max_size=6),
    st.lists(TIMES, min_size=1, max_size=6),
    st.floats(0.1, 10),
)
def test_throughput_times_efficiency_is_the_speedup(a, b, rate: float) -> None:
    own, base = candidate("a", a, rate=rate), candidate("b", b)
    row = compare([own, base], "b").row("a")
    assert row.throughput_ratio * row.efficiency_ratio == pytest.approx(row.speedup)
    if not row.pairs:  # over pairs, only these count
        samples = compare([own, base], "b").row("b").samples / row.samples
        assert row.efficiency_ratio == pytest.approx(samples)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(TIMES, st.floats(1, 1e4)), min_size=1, max_size=6))
def test_what_was_spent_is_the_mean_of_what_the_runs_spent(drawn) -> None:
    runs = tuple(
        Run(f"r{i}", t, True, samples=t * r, samples_per_second=r, worker_seconds=4 * t)
        for i, (t, r) in enumerate(drawn)
    )
    row = compare([Candidate("a", "a", "confirmed", runs)]).rows[0]
    assert row.samples == pytest.approx(stats.gmean([r.samples for r in runs]))
    assert row.worker_seconds == pytest.approx(stats.gmean([r.worker_seconds for r in runs]))


def test_what_was_spent_counts_runs_that_did_not_arrive() -> None:
    """One quick run among three that were given up does not make the candidate cheap."""
    row = compare([candidate("a", [4, 99, 99, 99], limit=64)]).rows[0]
    assert row.samples == pytest.approx(100 * (4 * 64**3) ** 0.25)
    assert row.worker_seconds == pytest.approx(2 * (4 * 64**3) ** 0.25)
    lost = compare([candidate("a", [99], limit=64)]).rows[0]
    assert (lost.samples, lost.worker_seconds) == (None, None)
    assert lost.why_not["samples"] == "no run reached the target"


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(TIMES, min_size=1, max_size=5), min_size=2, max_size=5), TIMES)
def test_whatever_is_compared_is_in_order_and_json(groups, limit: float) -> None:
    made = compare([candidate(f"c{i}", g, limit=limit) for i, g in enumerate(groups)])
    means = [r.mean_seconds if r.reached else None for r in made.rows]
    known = [m for m in means if m is not None]
    assert known == sorted(known)
    assert means[: len(known)] == known  # those without one are last
    assert {r.name for r in made.rows} == {f"c{i}" for i in range(len(groups))}
    json.dumps(output.document(made), allow_nan=False)
    for row in made.rows:
        if row.median_seconds is None:
            assert "runs reached the target" in row.why_not["median_seconds"]
        if row.p is not None:
            assert row.p <= row.p_adjusted <= 1


def test_means_are_taken_as_far_as_every_arriving_candidate_is_known() -> None:
    """One given up after 3 s without an arrival does not shorten the others' means."""
    made = compare(
        [candidate("a", [5, 30], limit=20), candidate("b", [8, 9]), candidate("c", [9], limit=3)]
    )
    assert made.tau_seconds == 20
    assert made.row("a").mean_seconds == 12.5
    assert made.row("c").mean_seconds is None
    assert "seen for 3 s only" in made.row("c").why_not["mean_seconds"]
    assert made.row("c").speedup is None
    assert compare([candidate("a", [5, 30])], tau_seconds=10.0).rows[0].mean_seconds == 7.5


def test_a_baseline_that_never_arrives_bounds_the_speedup() -> None:
    row = compare([FAST, candidate("lost", [99] * 5, limit=40)], "lost").row("fast")
    assert (row.speedup_bound, row.speedup_tau_seconds) == (">=", 40)
    assert row.speedup == pytest.approx(40 / row.geometric_seconds)
    assert row.probability_faster == 1
    assert row.efficiency_ratio == pytest.approx(row.speedup / 2)


def test_one_run_at_tuning_time_is_marked_as_flattering() -> None:
    tuned = candidate("tuned", [4], kind="tuning")
    made = compare([tuned, SLOW], "slow")
    row = made.row("tuned")
    assert row.p is None
    assert "chosen for its time" in row.why_not["p"]
    assert row.speedup_interval is None
    assert "tuned is one run, at tuning time" in made.notes[0]


def test_what_the_search_cost_against_what_it_saves() -> None:
    found = replace(FAST, search_seconds=100.0)
    assert compare([found, SLOW], "slow").row("fast").break_even_runs == pytest.approx(20)
    slower = replace(SLOW, search_seconds=100.0)
    assert compare([FAST, slower], "fast").row("slow").break_even_runs is None


def test_many_candidates_get_adjusted_p_values() -> None:
    others = [candidate(f"c{i}", [4.5, 5, 6, 5, 5.5]) for i in range(3)]
    row = compare([SLOW, *others], "slow").row("c0")
    assert row.p_adjusted == pytest.approx(3 * row.p)


# --- what may not be compared ---------------------------------------------------------------------

UNLIKE = {
    "hardware": (
        replace(ALIKE, hardware="H100"),
        "hardware is H100 for b and cpu (1 CPU a worker)",
    ),
    "workers": (replace(ALIKE, workers=4), "workers is 4 for b and 2 for a"),
    "sharing": (replace(ALIKE, sharing=True), "sharing is shared for b and not shared for a"),
    "clock": (replace(ALIKE, clock="wall"), "clock is wall for b and train for a"),
    "target": (
        replace(ALIKE, target=replace(AIM, value=0.9)),
        "target is val_accuracy >= 0.9 for b",
    ),
}


@pytest.mark.parametrize("condition", CONDITIONS)
def test_a_term_that_differs_is_refused_and_can_be_allowed(condition: str) -> None:
    conditions, message = UNLIKE[condition]
    pair = [candidate("a", [1]), candidate("b", [2], conditions=conditions)]
    with pytest.raises(UserError) as caught:
        compare(pair, "a")
    assert message in str(caught.value)
    assert str(caught.value).endswith(f"(compare all the same: --allow {condition})")
    assert "\n" not in str(caught.value)
    made = compare(pair, "a", allow=[condition])
    assert made.differing == (condition,)
    assert f"These times differ in {condition}" in made.notes[0]


@pytest.mark.parametrize("part", [{"metric": "loss"}, {"mode": "min"}, {"confirm": 2}])
def test_every_part_of_the_target_counts(part: dict[str, object]) -> None:
    conditions = replace(ALIKE, target=replace(AIM, **part))
    with pytest.raises(UserError, match="--allow target"):
        compare([candidate("a", [1]), candidate("b", [2], conditions=conditions)])


def test_all_that_differs_is_listed_at_once() -> None:
    conditions = Conditions(None, None, None, "wall", AIM)
    pair = [candidate("a", [1]), candidate("b", [2], conditions=conditions)]
    with pytest.raises(UserError, match=r"hardware is not known for b .*; clock is wall") as caught:
        compare(pair)
    assert str(caught.value).endswith("--allow hardware --allow clock)")
    with pytest.raises(UserError, match="cannot be compared: clock"):
        compare(pair, allow=["hardware"])


@pytest.mark.parametrize(
    ("candidates", "options", "message"),
    [
        ([], {}, "nothing to compare"),
        ([FAST, FAST], {}, "two candidates are called 'fast'"),
        ([FAST, replace(SLOW, runs=())], {}, "slow has no run that counts"),
        ([FAST, SLOW], {"baseline": "slo"}, "unknown baseline 'slo'; did you mean 'slow'"),
        ([FAST, SLOW], {"allow": ["hardwear"]}, "did you mean 'hardware'"),
        ([FAST, SLOW], {"tau_seconds": 0.0}, "tau_seconds must be more than 0 seconds"),
    ],
)
def test_mistakes(candidates, options, message: str) -> None:
    with pytest.raises(UserError, match=message):
        compare(candidates, **options)


def test_a_row_by_name() -> None:
    made = compare([FAST, SLOW], "slow")
    assert made.baseline_row.name == "slow"
    with pytest.raises(UserError, match="did you mean 'fast'"):
        made.row("fats")


# --- shown ----------------------------------------------------------------------------------------


def shown(made: Comparison) -> str:
    out = io.StringIO()
    output.print_table(made, out)
    return out.getvalue()


def test_the_table_fits_into_a_hundred_columns() -> None:
    long = candidate("studies/a-name-that-goes-on-and-on-and-on-for-ever#12", [3.123456, 5, 7.5])
    long = replace(long, tuning_seconds=2.5, search_seconds=123456.7, left_out=("trial 9 FAILED",))
    lost = candidate("studies/another-name-that-goes-on-and-on#3", [99, 30, 40], limit=20)
    text = shown(compare([long, lost, replace(SLOW, kind="published")], "slow"))
    assert max(len(line) for line in text.splitlines()) <= 100
    for words in ("3/3", "0/3", "baseline", "* slow", "took 2.5 s in the search", "trial 9"):
        assert words in text
    assert text.index("#12") < text.index("* slow") < text.index("#3")


def test_the_table_of_a_clear_case() -> None:
    text = shown(compare([FAST, SLOW], "slow"))
    assert text.splitlines()[0] == (
        "Seconds to val_accuracy >= 0.95, train clock; 2 x cpu (1 CPU a worker)"
    )
    row = next(line for line in text.splitlines() if line.startswith("  fast"))
    assert row.split()[1:5] == ["confirmed", "5/5", "5", "2.01x"]
    assert row.split()[-5:] == ["1.00", ".008", "2.00", "x", "1.01"]


def test_csv_has_a_line_a_candidate(tmp_path) -> None:
    import csv

    file = tmp_path / "table.csv"
    output.write_csv(compare([FAST, SLOW], "slow"), file)
    with file.open(newline="") as opened:
        rows = list(csv.DictReader(opened))
    assert [r["name"] for r in rows] == ["fast", "slow"]
    assert (
        float(rows[0]["speedup_low"]) < float(rows[0]["speedup"]) < float(rows[0]["speedup_high"])
    )
    assert rows[1]["speedup"] == ""
    with pytest.raises(UserError, match="cannot write"):
        output.write_csv(compare([FAST]), tmp_path / "none" / "table.csv")
