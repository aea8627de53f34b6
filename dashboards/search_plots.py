"""Plots of what was searched: parallel coordinates, importance, and slices."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from autotune.trial import Target
from autotune.trial.wording import unit
from dashboards.figures import (
    BLUE,
    FAINT,
    GREEN,
    GREY,
    ORANGE,
    RED,
    Figure,
    Trace,
    escape,
    figure,
    frame,
    number,
)
from dashboards.tables import Row, axis_name, brief

_CLASSES = ((ORANGE, "dash", 1.2), (BLUE, "dot", 1.5), (GREEN, "solid", 2.5))  # dash, width
_DONE = ("REACHED", "COMPLETED")


class Scale:
    """Where a parameter's values stand between 0 and 1: by logarithm where they span decades."""

    def __init__(self, values: Sequence[Any]) -> None:
        numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
        self.categories = sorted({str(v) for v in values}) if len(numbers) < len(values) else []
        low, high = (min(numbers), max(numbers)) if numbers else (0.0, 1.0)
        self.log = not self.categories and low > 0 and high / low > 30
        self._low, self._high = (math.log10(low), math.log10(high)) if self.log else (low, high)
        self.ends = (brief(low), brief(high))

    def __call__(self, value: Any) -> float:
        if self.categories:
            return self.categories.index(str(value)) / max(len(self.categories) - 1, 1)
        at = math.log10(value) if self.log else float(value)
        return (at - self._low) / (self._high - self._low) if self._high > self._low else 0.5

    def axis(self) -> Figure:
        """A plot's axis for these values, with a little room at both ends."""
        if self.categories:
            return {"type": "category"}
        room = 0.08 * (self._high - self._low) or 0.5
        ends = {"range": [number(self._low - room), number(self._high + room)]}
        if not self.log:
            return {"type": "linear", "nticks": 6, **ends}
        first, last = math.floor(self._low), math.ceil(self._high)
        steps = (1, 3) if last - first <= 3 else (1,)
        marks = [number(step * 10.0**e) for e in range(first, last + 1) for step in steps]
        return {"type": "log", "tickvals": marks, "ticktext": [f"{m:g}" for m in marks], **ends}


def classes(rows: Sequence[Row], target: Target) -> dict[str, list[Row]]:
    """The trials that were stopped, and the others in thirds by their result, the worst first."""
    higher = not target.timed and target.mode == "max"
    done = [r for r in rows if r["state"] in _DONE]
    done.sort(key=lambda r: r["result"], reverse=higher)
    third = math.ceil(len(done) / 3)
    parts = [done[2 * third :], done[third : 2 * third], done[:third]]
    stopped = [r for r in rows if r["state"] == "CENSORED"]
    worst, best = ("slowest", "fastest") if target.timed else ("worst", "best")
    names = (f"{worst} third", "middle third", f"{best} third")
    first = "stopped before the target" if target.timed else "stopped"
    return {first: stopped, **dict(zip(names, parts, strict=True))}


def parallel(rows: Sequence[Row], names: Sequence[str], target: Target) -> Figure:
    """One line a trial through its parameters to its result, coloured and dashed by that."""
    last = axis_name(target)
    done = [r["result"] for r in rows if r["state"] in _DONE]
    scales = {n: Scale([r[n] for r in rows if n in r]) for n in names}
    scales[last] = Scale(done or [0.0])
    traces: list[Trace] = []
    looks = ((FAINT, "dot", 0.8), *_CLASSES)
    for (label, own), (colour, dash, width) in zip(
        classes(rows, target).items(), looks, strict=True
    ):
        x: list[Any] = []
        y: list[Any] = []
        text: list[str] = []
        for row in own:
            values = {n: row[n] for n in names if n in row}
            if row["state"] in _DONE:
                values[last] = row["result"]
            for place, (name, scale) in enumerate(scales.items()):
                x.append(place)
                y.append(number(scale(values[name])) if name in values else None)
                value = brief(values.get(name))
                text.append(escape(f"trial {row['trial']}: {name} = {value}"))
            x, y, text = [*x, None], [*y, None], [*text, ""]
        line = {"color": colour, "dash": dash, "width": width}
        if own:
            traces.append({"type": "scatter", "mode": "lines+markers", "name": label, "x": x,
                           "y": y, "line": line, "marker": {"size": 4, "color": colour},
                           "text": text, "hovertemplate": "%{text}<extra></extra>"})  # fmt: skip
    ticks = {"tickvals": list(range(len(scales))), "ticktext": [_wrapped(n) for n in scales]}
    across = {"title": "", "zeroline": False, "range": [-0.35, len(scales) - 0.65], **ticks}
    up = {"title": "", "showticklabels": False, "range": [-0.1, 1.1], "zeroline": False,
          "showgrid": False}  # fmt: skip
    made = figure(traces, across, up, height=460)
    made["layout"]["annotations"] = _ends(scales)
    return made


def _wrapped(name: str) -> str:
    return escape(name).replace(".", ".<br>").replace(" to ", "<br>to ")


def _ends(scales: Mapping[str, Scale]) -> list[Figure]:
    """What the lowest and the highest place on each axis stand for; for categories, each."""
    notes: list[Figure] = []
    for place, scale in enumerate(scales.values()):
        last = max(len(scale.categories) - 1, 1)
        marks = [(i / last, c) for i, c in enumerate(scale.categories)]
        for at, mark in marks or [(0.0, scale.ends[0]), (1.0, scale.ends[1])]:
            shift = {"yshift": -10 if at == 0 else 10 if at == 1 else 0}
            notes.append({"x": place, "y": at, "text": escape(mark[:18]), "showarrow": False,
                          "font": {"size": 11}, **shift})  # fmt: skip
    return notes


def importance(rows: Sequence[Row]) -> Figure:
    """Bars of importance, with the mark below which it may be chance."""
    drawn = list(reversed(rows))
    names = [escape(r["parameter"]) for r in drawn]
    bars = {
        "type": "bar", "orientation": "h", "name": "importance", "y": names,
        "x": [number(r["importance"]) for r in drawn], "marker": {"color": BLUE},
        "hovertemplate": "%{y}: %{x:.1%}<extra></extra>",
    }  # fmt: skip
    marker = {"symbol": "line-ns-open", "color": RED, "size": 18, "line": {"width": 3}}
    chance = {
        "type": "scatter", "mode": "markers", "name": "chance reaches this, 1 in 20", "y": names,
        "x": [number(r["chance"]) for r in drawn], "marker": marker,
        "hovertemplate": "%{y}: chance reaches %{x:.1%}<extra></extra>",
    }  # fmt: skip
    share = {"title": "share of the importance", "tickformat": ".0%", "rangemode": "tozero"}
    height = max(220, 120 + 30 * len(drawn))
    return figure([bars, chance], share, {"title": "", "type": "category"}, height=height)


def slices(rows: Sequence[Row], names: Sequence[str], target: Target) -> Figure:
    """The result against each parameter; stopped trials point to where theirs may be."""
    timed = target.timed
    later = "triangle-up-open" if timed or target.mode == "max" else "triangle-down-open"
    columns = min(3, len(names))
    lines = math.ceil(len(names) / columns)
    layout = {**frame(80 + 240 * lines)}
    layout["grid"] = {"rows": lines, "columns": columns, "pattern": "independent",
                      "xgap": 0.12, "ygap": 0.3}  # fmt: skip
    done = "REACHED" if timed else "COMPLETED"
    looks = {done: (BLUE, "circle", done.lower()), "CENSORED": (GREY, later,
             "stopped: slower than this" if timed else "stopped")}  # fmt: skip
    highest = max((r["result"] for r in rows if r["state"] in looks), default=1.0)
    end = f" {unit(target)}".rstrip()
    traces: list[Trace] = []
    for place, name in enumerate(names):
        axis = str(place + 1) if place else ""
        for state, (colour, symbol, label) in looks.items():
            own = [r for r in rows if r["state"] == state and name in r]
            values = [r[name] if isinstance(r[name], int | float) else escape(r[name]) for r in own]
            traces.append({
                "type": "scatter", "mode": "markers", "name": label, "legendgroup": state,
                "showlegend": place == 0, "xaxis": f"x{axis}", "yaxis": f"y{axis}",
                "x": [number(v) for v in values], "y": [number(r["result"]) for r in own],
                "marker": {"color": colour, "symbol": symbol, "size": 8, "opacity": 0.8},
                "text": [f"trial {r['trial']}" for r in own],
                "hovertemplate": f"%{{text}}: %{{y:.4g}}{end} at %{{x}}<extra></extra>",
            })  # fmt: skip
        title = {"text": escape(name), "standoff": 4}
        scale = Scale([r[name] for r in rows if name in r])
        layout[f"xaxis{axis}"] = {"title": title, **scale.axis()}
        what = "seconds" if end == " s" else axis_name(target)
        up = {"range": [0, 1.06 * number(highest)]} if timed else {}
        layout[f"yaxis{axis}"] = {"title": {"text": what if place % columns == 0 else ""}, **up}
    return {"data": traces, "layout": layout}
