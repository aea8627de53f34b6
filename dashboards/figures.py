"""One function a plot: from a report's tables to a plotly figure, as the JSON that plotly.js draws.

Figures are plain dictionaries, so that making them costs no import; a test holds them to plotly's
schema. Colours are those of Okabe and Ito (2008); what a colour says, a dash, a symbol or a pattern
says too. The page exchanges colours for a dark background.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from autotune.trial import STEPS, Target
from autotune.trial.wording import unit
from dashboards.tables import Row, axis_name, brief

Figure = dict[str, Any]
Trace = dict[str, Any]
BLUE, ORANGE, GREEN, RED = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PINK, SKY, GREY, FAINT = "#CC79A7", "#56B4E9", "#6B7280", "#A3A9B3"
LOOKS: Mapping[str, tuple[str, str, str, float]] = {  # colour, dash, symbol, line's width
    "stopped": (FAINT, "dot", "triangle-right-open", 1.0),
    "failed": (FAINT, "dashdot", "x", 1.0),
    "running": (SKY, "dash", "circle-open", 1.5),
    "reached": (BLUE, "solid", "circle", 1.2),
    "completed": (BLUE, "solid", "circle", 1.2),
    "repeat": (PINK, "solid", "square", 1.5),
    "baseline": (RED, "dash", "diamond", 3.0),
    "best": (GREEN, "solid", "star", 3.5),
}
SERIES = ((GREEN, "solid"), (RED, "dash"), (BLUE, "dot"), (ORANGE, "dashdot"), (PINK, "longdash"),
           (SKY, "longdashdot"))  # fmt: skip


def figure(
    traces: Sequence[Trace], x: Mapping[str, Any], y: Mapping[str, Any], **more: Any
) -> Figure:
    """A figure with one pair of axes."""
    layout = {"xaxis": _axis(**x), "yaxis": _axis(**y), **frame(), **more}
    return {"data": list(traces), "layout": layout}


def frame(height: int = 420) -> Figure:
    """What all layouts share."""
    clear = "rgba(0,0,0,0)"
    return {
        "height": height,
        "margin": {"l": 58, "r": 16, "t": 16, "b": 48},
        "paper_bgcolor": clear,
        "plot_bgcolor": clear,
        "font": {"size": 13},
        "hovermode": "closest",
        "legend": {
            "orientation": "h",
            "y": 1.02,
            "yanchor": "bottom",
            "x": 0,
            "traceorder": "normal",
        },
    }


def _axis(title: str, **more: Any) -> Figure:
    return {"title": {"text": escape(title), "standoff": 8}, "automargin": True,
            "exponentformat": "SI", **more}  # fmt: skip


def escape(text: object) -> str:
    """Text as plotly shows it: it reads a little HTML in labels."""
    return html.escape(str(text))


def accuracy(
    rows: Sequence[Row], groups: Mapping[int, str], notes: Mapping[int, str], target: Target
) -> Figure:
    """The metric over seconds, one line a trial, and the target.

    `groups` gives each trial's place in the legend, `notes` the text on hover.
    """
    traces: list[Trace] = []
    for name, (colour, dash, symbol, width) in LOOKS.items():
        own = [r for r in rows if groups.get(r["trial"]) == name]
        if not own:
            continue
        line = {"color": colour, "dash": dash, "width": width}
        lines = _broken(own, ("seconds", "value"))
        ends = [r for r in own if r["last"]]
        text = [notes.get(r["trial"], "") for r in ends]
        common = {"type": "scatter", "name": name, "legendgroup": name}
        seconds, values = lines
        traces.append({**common, "mode": "lines", "x": seconds, "y": values, "line": line,
                       "hoverinfo": "skip"})  # fmt: skip
        marks = [symbol if r["reached"] or "open" in symbol else f"{symbol}-open" for r in ends]
        marker = {"symbol": marks, "color": colour, "size": 9}
        traces.append({**common, "mode": "markers", "x": column(ends, "seconds"),
                       "y": column(ends, "value"), "text": text, "marker": marker,
                       "hovertemplate": "%{text}<extra></extra>", "showlegend": False})  # fmt: skip
    if target.timed:
        traces.append(_target_line(rows, target))
    within = _interesting(rows, target)
    axis = {"title": target.metric, **({"range": within} if within else {})}
    clock = "steps" if target.clock == STEPS else f"seconds ({target.clock} clock)"
    seconds_axis = {"title": clock, "rangemode": "tozero"}
    return figure(traces, seconds_axis, axis)


def _target_line(rows: Sequence[Row], target: Target) -> Trace:
    last = max((r["seconds"] for r in rows), default=1.0)
    text = [f"target {brief(target.value)}", ""]
    return {
        "type": "scatter", "mode": "lines+text", "x": [0, last], "y": [target.value] * 2,
        "name": "target", "text": text, "textposition": "top right", "hoverinfo": "skip",
        "line": {"color": GREY, "dash": "longdash", "width": 1.5},
    }  # fmt: skip


def _interesting(rows: Sequence[Row], target: Target) -> list[float] | None:
    """The part of the axis where trials differ: double-clicking the plot shows all of it."""
    finite = [r for r in rows if math.isfinite(r["value"])]
    best: dict[int, float] = {}
    for row in finite:
        before = best.get(row["trial"], row["value"])
        best[row["trial"]] = (max if target.mode == "max" else min)(before, row["value"])
    if not best:
        return None
    aims = [target.value] if target.value is not None else []
    ends = [*best.values(), *aims]
    ahead, behind = max(ends), min(ends)
    ranked = sorted(best.values(), reverse=target.mode == "max")
    worst = ranked[int(0.75 * (len(ranked) - 1))]
    first = (min if target.mode == "max" else max)([worst, *aims])
    if target.mode == "max":
        low, high = max(behind, first - 2 * (ahead - first)), ahead
    else:
        low, high = behind, min(ahead, first + 2 * (first - behind))
    pad = 0.06 * (high - low) or 0.05 * (abs(high) or 1.0)
    return [low - pad, high + pad]


def _broken(rows: Sequence[Row], names: Sequence[str]) -> list[list[Any]]:
    """Columns with a gap between trials: one trace draws them all."""
    columns: list[list[Any]] = [[] for _ in names]
    for before, row in pairwise([None, *rows]):
        assert row is not None
        cut = before is not None and before["trial"] != row["trial"]
        for column, name in zip(columns, names, strict=True):
            column.extend([None, number(row[name])] if cut else [number(row[name])])
    return columns


def number(value: Any) -> Any:
    """A number as JSON takes it, six digits of it."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value


def column(rows: Iterable[Row], name: str) -> list[Any]:
    return [number(r.get(name)) for r in rows]


def leaderboard(rows: Sequence[Row], target: Target) -> Figure:
    """The result of each trial while tuning beside its confirmed one and its repeats."""
    end = f" {unit(target)}".rstrip()
    middle = "median" if target.timed else "mean"
    drawn = list(reversed(rows))
    labels = [label(r) for r in drawn]
    text = [escape(r["configuration"][:160]) for r in drawn]
    tuned = {
        "type": "scatter", "mode": "markers", "name": "while tuning (one run)", "y": labels,
        "x": column(drawn, "tuning_result"), "text": text,
        "marker": {"symbol": "circle-open", "color": BLUE, "size": 11, "line": {"width": 2}},
        "hovertemplate": f"%{{y}}: %{{x:.4g}}{end}<br>%{{text}}<extra></extra>",
    }  # fmt: skip
    traces = [tuned]
    runs = [(label(r), t, done) for r in drawn for t, done in r["runs"]]
    if runs:
        symbols = ["square" if done else "triangle-right-open" for _, _, done in runs]
        traces.append({
            "type": "scatter", "mode": "markers", "name": "a repeat (triangle: stopped there)",
            "x": [number(t) for _, t, _ in runs], "y": [name for name, _, _ in runs],
            "marker": {"symbol": symbols, "color": PINK, "size": 8},
            "hovertemplate": f"%{{y}}: %{{x:.4g}}{end}<extra></extra>",
        })  # fmt: skip
    again = [r for r in drawn if r["confirmed_result"] is not None]
    if again:
        traces.append({
            "type": "scatter", "mode": "markers", "name": f"{middle} of repeats",
            "x": column(again, "confirmed_result"), "y": [label(r) for r in again],
            "marker": {"symbol": "diamond", "color": RED, "size": 12},
            "text": [f"{r['repeats']} repeats" for r in again],
            "hovertemplate": f"%{{y}}: {middle} %{{x:.4g}}{end} of %{{text}}<extra></extra>",
        })  # fmt: skip
    height = max(240, 110 + 26 * len(drawn))
    seconds = {"title": axis_name(target), **_from_zero(target)}
    kinds = {"title": "", "type": "category", "categoryorder": "array", "categoryarray": labels}
    return figure(traces, seconds, kinds, height=height)


def _from_zero(target: Target) -> Figure:
    """Times are drawn from 0 on; metrics where they differ."""
    return {"rangemode": "tozero"} if target.timed else {}


def label(row: Row) -> str:
    named = "" if row["kind"] == "trial" else f" {row['kind']}"
    return f"trial {row['trial']}{named}"


def survival(named: Mapping[str, Sequence[Row]]) -> Figure:
    """The share of trials that have reached the target by each second; ticks are stopped trials."""
    traces: list[Trace] = []
    for (name, rows), (colour, dash) in zip(named.items(), _looks(), strict=False):
        line = {"color": colour, "dash": dash, "width": 2.5, "shape": "hv"}
        steps = {"x": [0.0, *column(rows, "seconds")], "y": [0.0, *column(rows, "reached")]}
        label = {"name": escape(name), "legendgroup": name}
        traces.append({"type": "scatter", "mode": "lines", "line": line, **steps, **label})
        cut = [r for r in rows if r["stopped_now"]]
        marker = {"symbol": "line-ns-open", "color": colour, "size": 11, "line": {"width": 2}}
        if cut:
            traces.append({
                "type": "scatter", "mode": "markers", "marker": marker, **label,
                "x": column(cut, "seconds"), "y": column(cut, "reached"), "showlegend": False,
                "text": [f"{r['stopped_now']} stopped, {r['at_risk']} at risk" for r in cut],
                "hovertemplate": "%{x:.4g} s: %{text}<extra></extra>",
            })  # fmt: skip
    seconds = {"title": "seconds", "rangemode": "tozero"}
    share = {"title": "share that has reached it", "range": [-0.03, 1.05], "tickformat": ".0%"}
    return figure(traces, seconds, share)


def _looks() -> Iterable[tuple[str, str]]:
    while True:
        yield from SERIES


def progress(rows: Sequence[Row], baseline: float | None, target: Target) -> Figure:
    """The best result so far over spend; what repeats cost is drawn thick."""
    end = f" {unit(target)}".rstrip()
    line = {"color": BLUE, "width": 2.5, "shape": "hv"}
    text = [f"trial {r['trial']}" for r in rows]
    traces: list[Trace] = [{
        "type": "scatter", "mode": "lines+markers", "name": "best so far", "line": line,
        "marker": {"size": 5}, "text": text, "connectgaps": True,
        "x": column(rows, "spent_seconds"), "y": column(rows, "best_result"),
        "hovertemplate": "%{text} ended after %{x:.4g} s spent; best "
        f"%{{y:.4g}}{end}<extra></extra>",
    }]  # fmt: skip
    again = [r for r in rows if r["repeats"] is not None and r["best_result"] is not None]
    x: list[Any] = []
    for row in again:
        x += [
            number(row["spent_seconds"] - row["cost_seconds"]),
            number(row["spent_seconds"]),
            None,
        ]
    if again:
        y = [v for r in again for v in (*[number(r["best_result"])] * 2, None)]
        line = {"color": PINK, "width": 9}
        traces.append({"type": "scatter", "mode": "lines", "name": "spent on repeats",
                       "x": x, "y": y, "line": line, "hoverinfo": "skip"})  # fmt: skip
    if baseline is not None and rows:
        line = {"color": RED, "dash": "dash", "width": 2}
        ends = {"x": [0, number(rows[-1]["spent_seconds"])], "y": [number(baseline)] * 2}
        traces.append({"type": "scatter", "mode": "lines", "name": "baseline", "line": line,
                       **ends, "hoverinfo": "skip"})  # fmt: skip
    spent = {"title": "worker-group seconds spent", "rangemode": "tozero"}
    title = f"best {axis_name(target)}" if target.timed else axis_name(target)
    return figure(traces, spent, {"title": title, **_from_zero(target)})


def schedules(rows: Sequence[Row], names: Mapping[int, str], knobs: Sequence[str]) -> Figure:
    """Each knob of a few trials, over seconds (left) and over samples (right)."""
    traces: list[Trace] = []
    layout = {**frame(max(300, 70 + 190 * len(knobs)))}
    layout["grid"] = {"rows": len(knobs), "columns": 2, "pattern": "independent",
                      "xgap": 0.14, "ygap": 0.2}  # fmt: skip
    by_trial: dict[int, list[Row]] = {n: [] for n in names}
    for row in rows:
        by_trial[row["trial"]].append(row)
    for place in range(2 * len(knobs)):
        knob, over = knobs[place // 2], ("seconds", "samples")[place % 2]
        axis = str(place + 1) if place else ""
        for (trial, own), (colour, dash) in zip(by_trial.items(), _looks(), strict=False):
            shape = "linear" if knob in ("lr", "momentum") else "hv"
            traces.append({
                "type": "scatter", "mode": "lines", "name": escape(names[trial]),
                "legendgroup": str(trial), "showlegend": place == 0,
                "x": column(own, over), "y": column(own, knob), "connectgaps": True,
                "xaxis": f"x{axis}", "yaxis": f"y{axis}",
                "line": {"color": colour, "dash": dash, "width": 2, "shape": shape},
            })  # fmt: skip
        last = place // 2 == len(knobs) - 1
        layout[f"xaxis{axis}"] = _axis(over if last else "")
        layout[f"yaxis{axis}"] = _axis(knob if place % 2 == 0 else "")
    return {"data": traces, "layout": layout}
