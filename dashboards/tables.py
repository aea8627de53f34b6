"""The tables of a report: pure functions from a study's trials to rows.

A table is a list of rows, and a row is a dictionary from column to number or text; None is unknown.
Seconds are on the target's clock unless a column says otherwise.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from autotune.algorithms.ranking.confirmation import Confirmation, compared_runs
from autotune.algorithms.ranking.difference import difference
from autotune.algorithms.ranking.repeats import as_ranked
from autotune.algorithms.ranking.speedup import speedup
from autotune.evaluation.comparison.factors import Factors, of_row, of_trials
from autotune.evaluation.comparison.model import CONFIRMED, Comparison
from autotune.evaluation.comparison.model import Row as Compared
from autotune.evaluation.comparison.survival import kaplan_meier, sample
from autotune.evaluation.machine import samples_per_second
from autotune.study.result import StudyResult
from autotune.study.rows import plain, searched_keys
from autotune.trial import SHOWN_KNOBS, Report, State, Target, Trial, usual_hardware
from autotune.trial.wording import disturbed_note, plain_result, result_name, so_far, unit

Row = dict[str, Any]
_OWN_END = ("finished", "limit")  # the reasons of trials that nobody stopped
METRICS = (*SHOWN_KNOBS, "progress")
"""The metrics of a report that are shown, beside its clock and the target's metric."""
CONFIRM, BASELINE = "confirm", "baseline"


def searched(result: StudyResult) -> list[Trial]:
    """The trials that do not repeat others, the best first."""
    return result.ranked()


def by_metric(result: StudyResult) -> StudyResult:
    """The result by the best metric where no trial has reached the target's value, else as it is.

    Trials are then in the states that they have where a target has no value.
    """
    target = result.target
    if not target.timed or any(t.succeeded for t in result.trials):
        return result
    aim = replace(target, value=None, confirm=1)

    def seen(trial: Trial) -> Trial:
        own_end = trial.state is State.CENSORED and trial.reason in _OWN_END
        return replace(trial, state=aim.end_of(trial)) if own_end else trial

    return replace(result, target=aim, trials=tuple(map(seen, result.trials)))


def group(trial: Trial, best: Trial | None) -> str:
    """The trial's name in a legend."""
    if best is not None and trial.number == best.number:
        return "best"
    if trial.kind == BASELINE:
        return trial.kind
    if trial.repeats is not None:
        return "repeat"
    return {
        State.REACHED: "reached",
        State.COMPLETED: "completed",
        State.CENSORED: "stopped",
        State.RUNNING: "running",
    }.get(trial.state, "failed")


def leaderboard(result: StudyResult, comparison: Comparison | None = None) -> list[Row]:
    """One row per trial of the search, the best first, with its confirmations.

    Results are times to target or, where it has no value, metrics; `shown_result` is the result as
    text, or what is known of it. `confirmed_result` is the median of the repeats, and unknown where
    half of them or more missed the target; `confirmed_low` and `confirmed_high` are the least and
    the largest. Without a value it is their mean, and `gain` says how much better than the
    baseline's it is. `speedup` is the baseline's time over the trial's: `of` confirmed times where
    both have them, with the interval from `comparison`; else of those that rank
    them in the search, with `compared_runs` in words. `factors` says how much of it is by fewer
    samples, and how much by faster ones.
    """
    again, target = {c.number: c for c in result.confirmed}, result.target
    compared = {r.candidate.trial: r for r in comparison.rows} if comparison is not None else {}
    rows: list[Row] = []
    for entry in result.ranking:
        trial = entry.trial
        last = trial.reports[-1] if trial.reports else None
        row = compared.get(trial.number)
        against = {**_against(trial, result, again), **_compared(row)}
        rows.append(
            {
                "rank": entry.rank,
                "trial": trial.number,
                "kind": trial.kind,
                "state": str(trial.state),
                "reason": trial.reason,
                "disturbed": disturbed_note(trial),
                "tuning_result": plain_result(target, target.result(trial)),
                "shown_result": so_far(trial, target).removesuffix(" s"),
                **_confirmed(again.get(trial.number), target),
                **against,
                "factors": _factors(trial, result, row, against["speedup"]),
                "best_metric": target.best(trial),
                "samples_to_target": last.step if entry.rank and last and target.timed else None,
                "samples_per_second": samples_per_second(trial),
                "spent_seconds": trial.spent_seconds,
                "configuration": configuration(trial),
            }
        )
    return rows


def _confirmed(again: Confirmation | None, target: Target) -> Row:
    runs = again.runs if again is not None else ()
    middle = None
    if again is not None:
        middle = again.median if target.timed else again.mean
    results = [plain_result(target, target.result(t)) for t in runs]
    reached = [result for result in results if result is not None]
    rates = [rate for t in runs if (rate := samples_per_second(t)) is not None]
    return {
        "confirmed_result": plain_result(target, middle),
        "confirmed_low": min(reached, default=None),
        "confirmed_high": max(reached) if reached and len(reached) == len(runs) else None,
        "repeats": len(runs),
        "repeats_per_second": median(rates) if rates else None,
        "runs": [
            (t.seconds if result is None and target.timed else result, result is not None)
            for t, result in zip(runs, results, strict=True)
        ],
    }


def _against(trial: Trial, study: StudyResult, again: Mapping[int, Confirmation]) -> Row:
    """How many times faster than the baseline the trial is, or by how much its metric is better."""
    row: Row = {"speedup": None, "gain": None, "of": None, "compared_runs": ""}
    baseline, target = study.baseline, study.target
    if baseline is None:
        return row
    if trial.number in again and baseline.number in again:
        runs = again[trial.number].timed_runs, again[baseline.number].timed_runs
        faster = speedup(*runs) if target.timed else None
        better = None if target.timed else difference(*runs)
        found = {"speedup": faster and faster.ratio, "gain": better and better.gain}
        return {**row, **found, "of": "confirmed" if faster or better else None}
    row["compared_runs"] = compared_runs(trial, baseline, study.trials, target)
    compared = [as_ranked(t, study.trials, target) for t in (trial, baseline)]
    own, other = (target.result(run) for run in compared)
    if trial.hardware != baseline.hardware or own is None or other is None:
        return row
    if not target.timed:
        return {**row, "gain": other - own, "of": "tuning"}
    return {**row, "speedup": other / own, "of": "tuning"} if own and other else row


def _compared(row: Compared | None) -> Row:
    """The comparison of the trial's confirmed times with the baseline's."""
    if row is None or row.candidate.kind != CONFIRMED or row.speedup is None:
        return {"bound": "", "speedup_low": None, "speedup_high": None, "probability_faster": None}
    interval = row.speedup_interval
    return {
        "speedup": row.speedup,
        "bound": row.speedup_bound,
        "of": "confirmed",
        "speedup_low": interval.low if interval else None,
        "speedup_high": interval.high if interval else None,
        "probability_faster": row.probability_faster,
    }


def _factors(
    trial: Trial, study: StudyResult, row: Compared | None, speedup: float | None
) -> Factors | None:
    """Those of the speedup that is shown; None where they are not known of the same runs."""
    if row is not None and row.candidate.kind == CONFIRMED and row.speedup is not None:
        found = of_row(row)
    else:
        baseline = study.baseline
        found = None if baseline is None else of_trials(trial, baseline, study.target)
    if found is None or speedup is None:
        return None
    return found if math.isclose(found.fewer * found.faster, speedup, rel_tol=0.01) else None


def configuration(trial: Trial) -> str:
    """The searched part of the trial's configuration on one line; all of it if it was given."""
    point = trial.point
    names = trial.config if point is None else searched_keys(point)
    chosen = {k: v for k, v in trial.config.items() if k in names}
    return "  ".join(f"{k}={brief(plain(v))}" for k, v in chosen.items())


def brief(value: Any) -> str:
    """A value as short text: four digits, a dash for what is unknown."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    if isinstance(value, bool | str):
        return str(value)
    if isinstance(value, int | float):
        whole = float(value).is_integer() or abs(value) >= 1000
        return f"{value:,.0f}" if whole and abs(value) < 1e7 else f"{value:.4g}"
    return str(value)


def axis_name(target: Target) -> str:
    """The title of an axis of results."""
    return "seconds to target" if unit(target) == "s" else result_name(target)


def train_seconds(report: Report) -> float:
    return report.clock.seconds("train") if report.clock.total else report.seconds


def thinned(count: int, most: int) -> list[int]:
    """At most `most` of `count` places, evenly spaced, the first and the last among them.

    >>> thinned(3, 5), thinned(10, 4)
    ([0, 1, 2], [0, 3, 6, 9])
    """
    if count <= most:
        return list(range(count))
    return [round(i * (count - 1) / (most - 1)) for i in range(most)]


def curves(trials: Sequence[Trial], target: Target, points: int) -> list[Row]:
    """The metric over seconds and samples: one row a report, at most `points` a trial."""
    rows: list[Row] = []
    for trial in trials:
        reports = [r for r in trial.reports if target.metric in r.metrics]
        for place in thinned(len(reports), points):
            report = reports[place]
            rows.append(
                {
                    "trial": trial.number,
                    "seconds": report.seconds,
                    "samples": report.step,
                    "value": report.metrics[target.metric],
                    "last": place == len(reports) - 1,
                    "reached": trial.succeeded,
                }
            )
    return rows


def survival(trials: Sequence[Trial]) -> list[Row]:
    """The product-limit estimate of the time to target, one row a time at which a trial ended.

    Trials stopped at `c` count as at risk up to and at `c` (Kaplan and Meier 1958). `reached` is
    the share of trials that have reached the target by `seconds`.
    """
    ended = [t for t in trials if t.state in (State.REACHED, State.CENSORED)]
    reached = Counter(t.seconds for t in ended if t.state is State.REACHED)
    stopped = Counter(t.seconds for t in ended if t.state is State.CENSORED)
    curve = kaplan_meier(
        sample([t.seconds for t in ended], [t.state is State.REACHED for t in ended])
    )
    risk, rows = len(ended), []
    for seconds, left in list(zip(curve.seconds, curve.share, strict=True))[1:]:  # [0] is at 0 s
        events, gone = reached[seconds], stopped[seconds]
        now = {"at_risk": risk, "reached_now": events, "stopped_now": gone}
        rows.append({"seconds": seconds, "reached": 1.0 - left, **now})
        risk -= events + gone
    return rows


def progress(result: StudyResult) -> list[Row]:
    """The best run so far over the cost of all trials, in the order in which they ended.

    That is one run of the search on the usual hardware, and need not be the best trial's.

    `spent_seconds` counts worker-group seconds of wall time, repeats included.
    """
    usual, target = usual_hardware(result.searched), result.target
    ended = sorted((t for t in result.trials if t.ended), key=lambda t: (t.ended_at or 0, t.number))
    spent, leading, rows = 0.0, None, list[Row]()
    for trial in ended:
        spent += trial.spent_seconds
        counts = trial.repeats is None and trial.succeeded and trial.hardware == usual
        if counts and (leading is None or target.order(trial) < target.order(leading)):
            leading = trial
        best = target.result(leading) if leading is not None else None
        rows.append(
            {
                "trial": trial.number,
                "kind": trial.kind,
                "repeats": trial.repeats,
                "spent_seconds": spent,
                "cost_seconds": trial.spent_seconds,
                "best_result": plain_result(target, best),
            }
        )
    return rows


def schedules(trials: Sequence[Trial], points: int) -> list[Row]:
    """The knobs of trials over seconds and samples, as reported, or as configured where not."""
    rows: list[Row] = []
    for trial in trials:
        for place in thinned(len(trial.reports), points):
            report = trial.reports[place]
            values = {k: v for k in SHOWN_KNOBS if (v := knob_at(trial, report, k)) is not None}
            at = {"trial": trial.number, "seconds": report.seconds, "samples": report.step}
            rows.append({**at, **values})
    return rows


def knob_at(trial: Trial, report: Report, name: str) -> float | None:
    """A knob's value at a report; one that is a schedule needs the progress that is reported."""
    if name in report.metrics:
        return float(report.metrics[name])
    value, at = trial.config.get(name), report.metrics.get("progress")
    if callable(value) and at is not None:
        return float(value(min(max(at, 0.0), 1.0)))
    return float(value) if isinstance(value, int | float) else None
