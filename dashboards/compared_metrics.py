"""The report of a comparison of metrics: studies whose target has no value, side by side."""

from __future__ import annotations

from autotune.evaluation.comparison.metrics import MetricComparison, MetricRow
from autotune.evaluation.comparison.model import CONFIRMED
from autotune.trial.wording import aim, metric_name
from dashboards.compared import DRAWN, height, names
from dashboards.figures import GREY, SERIES, Trace, escape, figure, number
from dashboards.page import Page, Section
from dashboards.tables import Row

_TUNING = "Metrics of tuning are of runs that were chosen for them: confirm them."


def metrics_page(comparison: MetricComparison) -> Page:
    """All of the comparison's report."""
    rows, name = comparison.rows, metric_name(comparison.target)
    title = aim(comparison.target)
    runs = sum(row.n for row in rows)
    line = f"{len(rows)} candidates, {runs} runs, against {comparison.baseline}."
    line += f" {_TUNING}" if any(row.kind != CONFIRMED for row in rows) else ""
    best = rows[0]
    cards = [
        ("best", best.name, f"runs: {best.n}, {best.kind}"),
        (f"its mean {name}", *_mean(best)),
    ]
    if best.gain is not None:
        span = _span(best.gain_interval)
        cards.append(("better than the baseline", f"by {best.gain:.3g}", span))
    return Page(f"{title[0].upper()}{title[1:]}", line, cards, [_means(comparison)], "")


def _mean(row: MetricRow) -> tuple[str, str]:
    return f"{row.mean:.4g}", _span(row.interval)


def _span(ends: tuple[float, float] | None) -> str:
    if ends is None:
        return "no interval: too few runs"
    return f"95% interval {ends[0]:.4g} to {ends[1]:.4g}"


def _means(comparison: MetricComparison) -> Section:
    """The mean metric of each candidate with its interval, the best on top."""
    drawn, name = comparison.rows[:DRAWN], metric_name(comparison.target)
    dots: Trace = {
        "type": "scatter", "mode": "markers", "showlegend": False,
        "x": [number(row.mean) for row in drawn],
        "y": [escape(row.name) for row in drawn],
        "marker": {"color": [SERIES[0][0] if row.kind == CONFIRMED else GREY for row in drawn],
                   "symbol": "diamond", "size": 12},
        "error_x": {
            "type": "data", "symmetric": False, "thickness": 3, "width": 6, "color": GREY,
            "array": [number(row.interval[1] - row.mean if row.interval else 0) for row in drawn],
            "arrayminus": [number(row.mean - row.interval[0] if row.interval else 0)
                           for row in drawn],
        },
        "hovertemplate": "%{y}: %{x:.4g}<extra></extra>",
    }  # fmt: skip
    heads = {"candidate": "candidate", "kind": "kind", "n": "runs", "mean": name,
             "low": "95% from", "high": "to", "gain": "better by", "gain_low": "95% from",
             "gain_high": "to", "search_seconds": "search (s)"}  # fmt: skip
    text = "The mean metric of each candidate's runs, with its interval; grey: not confirmed."
    labels = [escape(row.name) for row in reversed(drawn)]
    plot = figure([dots], {"title": name}, names(labels), height=height(len(drawn)))
    count = len(comparison.rows)
    thin = f"The first {DRAWN} of {count} are drawn." if count > DRAWN else ""
    rows = [_row(row) for row in comparison.rows]
    return Section("means", "Mean metrics", text, plot, rows, heads, thin, open=True)


def _row(row: MetricRow) -> Row:
    low, high = row.interval or (None, None)
    gain_low, gain_high = row.gain_interval or (None, None)
    return {
        "candidate": row.name, "kind": row.kind, "n": row.n, "mean": row.mean,
        "low": low, "high": high, "gain": row.gain, "gain_low": gain_low, "gain_high": gain_high,
        "search_seconds": row.search_seconds,
    }  # fmt: skip
