"""The sections of a comparison's report: times, speedups, why, and every run behind them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import cycle
from typing import Any

from autotune.evaluation.comparison.model import Comparison, Interval
from autotune.evaluation.comparison.model import Row as Compared
from autotune.trial import STEPS
from dashboards.figures import GREY, SERIES, Figure, Trace, escape, figure, number
from dashboards.page import Page, Section
from dashboards.tables import Row, thinned

_POINTS = 200
DRAWN = 12  # candidates: more cannot be told apart


def comparison_page(comparison: Comparison) -> Page:
    """All of a comparison's report."""
    rows = comparison.rows
    runs = sum(r.n for r in rows)
    line = f"{len(rows)} candidates, {runs} runs, against {comparison.baseline}."
    return Page("Times to the target", line, _cards(comparison), _sections(comparison), "")


def _sections(comparison: Comparison) -> list[Section]:
    rows = comparison.rows
    thin = f"The first {DRAWN} of {len(rows)} are drawn." if len(rows) > DRAWN else ""
    made = (_times, _speedups, _distribution, _why, _curves)
    notes = [{"note": note} for note in comparison.notes]
    remarks = Section("notes", "What to know", "Read these before you quote a figure.", None, notes,
                    {"note": "note"}, open=True)  # fmt: skip
    sections = [make(comparison, rows[:DRAWN], thin) for make in made]
    return [*sections, *([remarks] if notes else [])]


def _cards(comparison: Comparison) -> list[tuple[str, str, str]]:
    best = comparison.rows[0]
    cards = [("fastest", best.name, f"{best.reached} of {best.n} runs reached the target")]
    if best.median_seconds is not None:
        span = _span(best.median_interval, comparison.unit)
        time = f"{best.median_seconds:,.4g} {comparison.unit}"
        cards.append(("its median time", time, span))
    if best.speedup is not None:
        times = f"{best.speedup_bound}{best.speedup:.3g} times"
        span = _span(best.speedup_interval, "")
        cards.append(("faster than the baseline", times, span or "no interval: too few runs"))
    return cards


def _span(interval: Interval | None, unit: str) -> str:
    if interval is None:
        return ""
    low = f"{interval.low:.4g}" if interval.low is not None else "?"
    high = f"{interval.high:.4g}" if interval.high is not None else "?"
    return f"{interval.level:.0%} interval {low} to {high} {unit}".rstrip()


def _word(comparison: Comparison) -> str:
    """What times are counted in, in words."""
    return STEPS if comparison.unit == STEPS else "seconds"


def _table(rows: Sequence[Compared]) -> list[Row]:
    plain = ("n", "reached", "median_seconds", "mean_seconds", "geometric_seconds",
             "olympic_seconds", "speedup", "speedup_bound", "pairs", "probability_faster",
             "p_adjusted", "throughput_ratio", "efficiency_ratio", "samples_per_second", "samples",
             "unit", "worker_seconds", "gpu_seconds", "break_even_runs")  # fmt: skip
    return [
        {
            "candidate": r.name,
            "kind": r.candidate.kind,
            "source": r.candidate.source,
            "tuning_seconds": r.candidate.tuning_seconds,
            **{name: getattr(r, name) for name in plain},
            **_ends("median", r.median_interval),
            **_ends("speedup", r.speedup_interval),
        }
        for r in rows
    ]


def _ends(name: str, interval: Interval | None) -> Row:
    low, high = (interval.low, interval.high) if interval is not None else (None, None)
    return {f"{name}_low": low, f"{name}_high": high}


def _times(comparison: Comparison, drawn: Sequence[Compared], thin: str) -> Section:
    unit, seconds = comparison.unit, _word(comparison)
    labels = [escape(r.name) for r in reversed(drawn)]
    x, y, text, marks = [], [], [], []
    for row in drawn:
        for run in row.candidate.runs:
            x.append(number(run.seconds))
            y.append(escape(row.name))
            marks.append("circle-open" if run.reached else "triangle-right-open")
            text.append(
                escape(f"{run.name}: {'' if run.reached else '> '}{run.seconds:.4g} {unit}")
            )
    every = {"type": "scatter", "mode": "markers", "name": "a run (triangle: stopped there)",
             "x": x, "y": y, "text": text, "hovertemplate": "%{text}<extra></extra>",
             "marker": {"symbol": marks, "size": 9, "color": SERIES[2][0]}}  # fmt: skip
    with_median = [r for r in drawn if r.median_seconds is not None]
    middle = {"type": "scatter", "mode": "markers", "name": "median and its interval",
              "x": [number(r.median_seconds) for r in with_median],
              "y": [escape(r.name) for r in with_median],
              "marker": {"symbol": "diamond", "size": 12, "color": SERIES[1][0]},
              "error_x": _bars([(r.median_seconds, r.median_interval) for r in with_median]),
              "hovertemplate": f"%{{y}}: median %{{x:.4g}} {unit}<extra></extra>"}  # fmt: skip
    heads = {"candidate": "candidate", "kind": "kind", "n": "runs", "reached": "reached",
             "median_seconds": f"median ({unit})", "median_low": "95% from", "median_high": "to",
             "mean_seconds": f"mean ({unit})", "geometric_seconds": f"geometric ({unit})",
             "olympic_seconds": f"olympic ({unit})", "tuning_seconds": f"while tuning ({unit})",
             "worker_seconds": "worker-seconds", "gpu_seconds": "GPU-seconds",
             "source": "source"}  # fmt: skip
    tau = comparison.tau_seconds
    text_of = "Every run, and the median of each candidate with its interval."
    text_of += f" Means are restricted to {tau:.4g} {unit}." if tau is not None else ""
    plot = figure([every, middle], {"title": seconds, "rangemode": "tozero"}, names(labels),
                  height=height(len(drawn)))  # fmt: skip
    rows = _table(comparison.rows)
    return Section("times", "Times to target", text_of, plot, rows, heads, thin, open=True)


def _bars(known: Sequence[tuple[float | None, Interval | None]]) -> Figure:
    """Error bars from values and intervals; an unbounded end has none."""

    def reach(value: float | None, end: float | None) -> float:
        return 0.0 if end is None or value is None else abs(end - value)

    return {
        "type": "data", "symmetric": False, "thickness": 3, "width": 6,
        "array": [number(reach(v, i.high if i else None)) for v, i in known],
        "arrayminus": [number(reach(v, i.low if i else None)) for v, i in known],
    }  # fmt: skip


def names(labels: Sequence[str]) -> dict[str, Any]:
    return {"title": "", "type": "category", "categoryorder": "array", "categoryarray": labels}


def height(count: int) -> int:
    return max(240, 130 + 40 * count)


def _speedups(comparison: Comparison, drawn: Sequence[Compared], thin: str) -> Section:
    title = f"Speedup against {comparison.baseline}"
    known = [r for r in drawn if r.speedup is not None]
    if not known:
        return Section("speedup", title, "", missing="There is nothing to compare with.")
    dots = {"type": "scatter", "mode": "markers", "name": "speedup and its interval",
            "x": [number(r.speedup) for r in known], "y": [escape(r.name) for r in known],
            "marker": {"symbol": "diamond", "size": 12, "color": SERIES[0][0]},
            "error_x": _bars([(r.speedup, r.speedup_interval) for r in known]),
            "hovertemplate": "%{y}: %{x:.3g} times<extra></extra>"}  # fmt: skip
    even = {"type": "line", "x0": 1, "x1": 1, "yref": "paper", "y0": 0, "y1": 1,
            "line": {"dash": "dash", "color": GREY}}  # fmt: skip
    labels = [escape(r.name) for r in reversed(known)]
    heads = {"candidate": "candidate", "speedup_bound": "", "speedup": "times faster",
             "speedup_low": "95% from", "speedup_high": "to", "pairs": "pairs",
             "probability_faster": "P(faster)", "p_adjusted": "p (log-rank, Holm)",
             "break_even_runs": "runs to pay the search"}  # fmt: skip
    text = (
        "The baseline's geometric mean of time over the candidate's, with its bootstrap interval; "
        "right of the dashed line is faster. P(faster) is the chance that one run arrives first."
    )
    plot = figure([dots], {"title": "times faster"}, names(labels), height=height(len(known)),
                  shapes=[even])  # fmt: skip
    rows = [r for r in _table(comparison.rows) if r["speedup"] is not None]
    return Section("speedup", title, text, plot, rows, heads, thin)


def _distribution(comparison: Comparison, drawn: Sequence[Compared], thin: str) -> Section:
    traces: list[Trace] = []
    rows: list[Row] = []
    unit, seconds = comparison.unit, _word(comparison)
    for row, (colour, dash) in zip(drawn, cycle(SERIES), strict=False):
        curve = row.survival
        arrived = [number(1.0 - share) for share in curve.share]
        line = {"color": colour, "dash": dash, "width": 2.5, "shape": "hv"}
        traces.append({"type": "scatter", "mode": "lines", "name": escape(row.name), "line": line,
                       "x": [number(s) for s in curve.seconds], "y": arrived})  # fmt: skip
        if curve.censored:
            last = [max(s for s in curve.seconds if s <= at) for at in curve.censored]
            ends = [arrived[curve.seconds.index(s)] for s in last]
            traces.append({"type": "scatter", "mode": "markers", "showlegend": False,
                           "x": [number(s) for s in curve.censored], "y": ends,
                           "marker": {"symbol": "line-ns-open", "size": 11, "color": colour,
                                      "line": {"width": 2}},
                           "hovertemplate": f"stopped at %{{x:.4g}} {unit}<extra></extra>",
                           })  # fmt: skip
        columns = zip(curve.seconds, curve.share, curve.low, curve.high, curve.at_risk, strict=True)
        rows += [
            {"candidate": row.name, "seconds": s, "reached": 1.0 - alive, "at_risk": risk,
             "low": None if high is None else 1.0 - high,
             "high": None if low is None else 1.0 - low}
            for s, alive, low, high, risk in columns
        ]  # fmt: skip
    heads = {"candidate": "candidate", "seconds": seconds, "reached": "share reached",
             "low": "95% from", "high": "to", "at_risk": "at risk"}  # fmt: skip
    share = {"title": "share that has reached it", "range": [-0.03, 1.05], "tickformat": ".0%"}
    plot = figure(traces, {"title": seconds, "rangemode": "tozero"}, share)
    text = f"The share of runs that have reached the target over {seconds} (Kaplan and Meier)."
    return Section("distribution", "Distribution", text, plot, rows, heads, thin)


def _why(comparison: Comparison, drawn: Sequence[Compared], thin: str) -> Section:
    title = "Faster steps, or fewer samples"
    known = [r for r in drawn if r.throughput_ratio and r.efficiency_ratio]
    if not known:
        why = "Samples to the target are not known of the baseline and of another candidate."
        return Section("why", title, "", missing=why)
    traces: list[Trace] = [
        {"type": "scatter", "mode": "markers+text", "name": escape(r.name), "showlegend": False,
         "x": [number(r.throughput_ratio)], "y": [number(r.efficiency_ratio)],
         "text": [escape(r.name)], "textposition": "top center",
         "marker": {"size": 13, "color": colour, "symbol": "diamond"},
         "hovertemplate": "%{text}: %{x:.3g} x %{y:.3g}<extra></extra>"}
        for r, (colour, _) in zip(known, cycle(SERIES), strict=False)
    ]  # fmt: skip
    sizes = [abs(math.log10(v)) for r in known for v in
             (r.throughput_ratio, r.efficiency_ratio) if v]  # fmt: skip
    reach = 1.3 * max([0.2, *sizes])
    even = {"type": "scatter", "mode": "lines", "name": "as fast as the baseline",
            "x": [number(10**-reach), number(10**reach)],
            "y": [number(10**reach), number(10**-reach)], "hoverinfo": "skip",
            "line": {"dash": "dash", "color": GREY}}  # fmt: skip
    ends = {"type": "log", "range": [number(-reach), number(reach)]}
    plot = figure([*traces, even], {"title": "samples a second, times the baseline's", **ends},
                  {"title": "fewer samples, times", **ends})  # fmt: skip
    heads = {"candidate": "candidate", "speedup": "times faster",
             "throughput_ratio": "by faster steps", "efficiency_ratio": "by fewer samples",
             "samples_per_second": "samples/s", "samples": "samples to target",
             "unit": "unit"}  # fmt: skip
    text = (
        "A speedup is throughput times statistical efficiency: to the right are faster steps, up "
        "are fewer samples to the target. Above the dashed line is faster than the baseline."
    )
    rows = _table(comparison.rows)
    return Section("why", title, text, plot, rows, heads, thin)


def _curves(comparison: Comparison, drawn: Sequence[Compared], thin: str) -> Section:
    traces: list[Trace] = []
    rows: list[Row] = []
    unit, seconds = comparison.unit, _word(comparison)
    for row, (colour, dash) in zip(drawn, cycle(SERIES), strict=False):
        for place, run in enumerate(r for r in row.candidate.runs if r.curve):
            points = [run.curve[i] for i in thinned(len(run.curve), _POINTS)]
            traces.append({
                "type": "scatter", "mode": "lines", "name": escape(row.name),
                "legendgroup": row.name, "showlegend": place == 0,
                "x": [number(p[1]) for p in points], "y": [number(p[2]) for p in points],
                "line": {"color": colour, "dash": dash, "width": 1.5},
                "text": [escape(run.name)] * len(points),
                "hovertemplate": f"%{{text}}: %{{y:.4g}} at %{{x:.4g}} {unit}<extra></extra>",
            })  # fmt: skip
        rows += [
            {"candidate": row.name, "run": r.name, "seed": r.seed, "seconds": r.seconds,
             "reached": "yes" if r.reached else r.reason or "no", "samples": r.samples}
            for r in row.candidate.runs
        ]  # fmt: skip
    heads = {"candidate": "candidate", "run": "run", "seed": "seed", "seconds": seconds,
             "reached": "reached", "samples": "samples"}  # fmt: skip
    aim = comparison.baseline_row.candidate.conditions.target
    title = f"{aim.metric if aim else 'The metric'} over {seconds}"
    if not traces:
        return Section("curves", title, "No run has a learning curve.", None, rows, heads)
    plot = figure(traces, {"title": seconds, "rangemode": "tozero"},
                  {"title": aim.metric if aim else "metric"})  # fmt: skip
    text = "Every run's learning curve" + (f"; the target is {aim}." if aim else ".")
    return Section("curves", title, text, plot, rows, heads, thin)
