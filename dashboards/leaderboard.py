"""The leaderboard: the figures of each trial, in as few columns as fit a page."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.algorithms import shared_work
from autotune.evaluation import machine
from autotune.study.result import StudyResult
from autotune.trial.wording import goal, metric_name, unit
from dashboards import figures
from dashboards.page import Section
from dashboards.tables import Row, brief

_MOST = 20  # in the plot
_OF_REPEATS = ("confirmed", "probability_faster")
_EMPTY = ("rank", "ratio", "samples_to_target")  # left out where they have nothing to say
_OF_TIMES = ("probability_faster", "best_metric", "samples_to_target")


def section(result: StudyResult, rows: Sequence[Row]) -> Section:
    """The first section of a report, from the rows of `tables.leaderboard`."""
    if not rows:
        return Section("leaderboard", "Leaderboard", "", missing="No trial has been made yet.")
    confirmed = any(r["repeats"] for r in rows)
    target = result.target
    end = f" ({unit(target)})" if target.timed else ""
    ratio = "baseline / trial" if target.timed else "better than baseline"
    columns = {"rank": "rank", "trial": "trial", "tuned": f"tuning{end}",
               "confirmed": f"confirmed{end}, range", "ratio": ratio,
               "probability_faster": "P(faster)", "reason": "ended by",
               "best_metric": metric_name(target), "samples_to_target": "samples",
               "rate": "samples/s", "spent_seconds": "spent (s)",
               "configuration": "configuration"}  # fmt: skip
    cells = [{**row, **_cells(row)} for row in rows]
    empty = {k for k in _EMPTY if all(c[k] in ("-", None) for c in cells)}
    left_out = {*empty, *(() if confirmed else _OF_REPEATS), *(() if target.timed else _OF_TIMES)}
    columns = {k: h for k, h in columns.items() if k not in left_out}
    drawn = [r for r in rows if r["rank"] or r["repeats"]][:_MOST]
    text = (
        "Time to target while tuning (one run, chosen for being fast, so it looks better than it "
        "is) beside the times of repeats on fresh seeds, which are the ones to quote: their "
        "median, the fastest and the slowest, and how many reached the target."
        if confirmed
        else "Time to target of single runs. The fastest of many looks better than it is: confirm "
        "it on fresh seeds before you quote it."
    )
    if not target.timed:
        text = (
            f"The {goal(target)} of single runs. The best of many looks better than it is: quote "
            "the mean of repeats on fresh seeds."
        )
    elif not any(r["rank"] for r in rows):
        text = (
            "No trial has reached the target: those that came nearest are first. A time behind > "
            "is when a trial ended, and is no result."
        )
    plot = figures.leaderboard(drawn, target) if drawn else None
    notes = [*machine.sentences(result)]
    if saved := shared_work.sentence(result.trials):
        notes.append(f"Shared beginnings: {saved}.")
    said = " ".join(notes)
    return Section("leaderboard", "Leaderboard", text, plot, cells, columns, said, open=True)


def _cells(row: Row) -> Row:
    """The cells that combine several values of the row."""
    ended = row["reason"] or row["state"].lower()
    return {
        "trial": row["trial"] if row["kind"] == "trial" else f"{row['trial']} {row['kind']}",
        "tuned": row["shown_result"],
        "confirmed": _confirmed(row),
        "ratio": _ratio(row),
        "reason": ", ".join(filter(None, (ended, row["disturbed"]))),
        "rate": _rate(row),
    }


def _confirmed(row: Row) -> str:
    """The median of the repeats, their range, and how many reached the target."""
    if not row["repeats"]:
        return "-"
    reached = sum(done for _, done in row["runs"])
    low, high = row["confirmed_low"], row["confirmed_high"]
    spread = f"{brief(low)} to {brief(high)}; " if high is not None else ""
    middle = row["confirmed_result"]
    return f"{brief(middle)} ({spread}{reached} of {row['repeats']})"


def _ratio(row: Row) -> str:
    """The speedup with its interval, or with a remark if it is not of confirmed times."""
    if row["gain"] is not None:
        of = "" if row["of"] == "confirmed" else f" ({row['compared_runs']})"
        return f"{row['gain']:.3g}{of}"
    if not row["speedup"]:
        return "-"
    ratio = f"{row['bound']}{row['speedup']:.3g}"
    low, high = row["speedup_low"], row["speedup_high"]
    if low is not None:
        return f"{ratio} ({low:.3g} {f'to {high:.3g}' if high is not None else 'up'})"
    return ratio if row["of"] == "confirmed" else f"{ratio} ({row['compared_runs']})"


def _rate(row: Row) -> str:
    own, again = row["samples_per_second"], row["repeats_per_second"]
    return f"{brief(own)}; repeats {brief(again)}" if again is not None else brief(own)
