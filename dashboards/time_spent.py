"""How the time of the workers was spent: the parts of each clock, the timeline, the throughput."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import pairwise
from statistics import median

from autotune.evaluation.machine import train_seconds
from autotune.trial import Clock, Trial
from dashboards.figures import (
    BLUE,
    FAINT,
    GREEN,
    GREY,
    LOOKS,
    ORANGE,
    PINK,
    RED,
    SKY,
    Figure,
    Trace,
    column,
    figure,
    label,
    number,
)
from dashboards.tables import Row, knob_at

PARTS = tuple(f.name for f in fields(Clock))
_PART_LOOKS = ((FAINT, ""), (PINK, "x"), (ORANGE, "/"), (BLUE, ""), (GREEN, "\\"), (SKY, "."),
               (GREY, "+"), (RED, "|"))  # fmt: skip


def clock_parts(trials: Sequence[Trial]) -> list[Row]:
    """Each trial's seconds by the parts of its clock."""
    return [
        {"trial": t.number, "kind": t.kind, **{p: getattr(t.clock, p) for p in PARTS}}
        for t in trials
        if t.attempts
    ]


def timeline(trials: Sequence[Trial]) -> list[Row]:
    """Which worker lane had which trial when, in seconds since the study began.

    A trial is drawn in the first free lane, as the journal does not name the worker group. A trial
    that was interrupted and restarted is drawn as one bar up to its end.
    """
    spans = []
    for trial in trials:
        if trial.attempts and trial.spent_seconds > 0:
            end = trial.ended_at if trial.ended_at is not None else trial.placed_since
            spans.append((end - trial.spent_seconds, end, trial))
    free: list[float] = []
    rows: list[Row] = []
    for start, end, trial in sorted(spans, key=lambda span: (span[0], span[2].number)):
        lane = next((i for i, until in enumerate(free) if until <= start + 1e-6), len(free))
        free[lane : lane + 1] = [end]
        at = {"start": start, "end": end, "lane": lane + 1, "repeats": trial.repeats}
        rows.append({"trial": trial.number, "kind": trial.kind, "state": str(trial.state), **at})
    return rows


def throughput(trials: Sequence[Trial]) -> list[Row]:
    """Samples a second at each batch size that a trial trained with (the median over reports)."""
    rows: list[Row] = []
    for trial in trials:
        found: dict[float, list[float]] = {}
        for size, rate in _rates(trial):
            found.setdefault(size, []).append(rate)
        for size, rates in sorted(found.items()):
            rate = median(rates)
            rows.append({"trial": trial.number, "batch_size": size, "samples_per_second": rate})
    return rows


def _rates(trial: Trial) -> Iterator[tuple[float, float]]:
    for before, report in pairwise(trial.reports):
        seconds = train_seconds(report) - train_seconds(before)
        size = knob_at(trial, report, "batch_size")
        if seconds > 0 and size:
            yield size, (report.step - before.step) / seconds


# --- plots --------------------------------------------------------------------------------------


def parts_figure(rows: Sequence[Row]) -> Figure:
    """A bar a trial, of the parts of its clock."""
    drawn = list(reversed(rows))
    labels = [label(r) for r in drawn]
    traces = [
        {
            "type": "bar", "orientation": "h", "name": part, "y": labels, "x": column(drawn, part),
            "marker": {"color": colour, "pattern": {"shape": pattern, "size": 6, "solidity": 0.25}},
            "hovertemplate": f"%{{y}}: %{{x:.4g}} s {part}<extra></extra>",
        }
        for part, (colour, pattern) in zip(PARTS, _PART_LOOKS, strict=True)
    ]  # fmt: skip
    kinds = {"title": "", "type": "category", "categoryorder": "array", "categoryarray": labels}
    height = max(260, 130 + 24 * len(drawn))
    return figure(traces, {"title": "seconds"}, kinds, barmode="stack", height=height)


def timeline_figure(rows: Sequence[Row]) -> Figure:
    """Bars of wall time, one lane a worker group."""
    traces: list[Trace] = []
    patterns = {"REACHED": "", "COMPLETED": "", "CENSORED": "/", "FAILED": "x", "INFEASIBLE": "x",
                "RUNNING": "."}  # fmt: skip
    colours = {"REACHED": GREEN, "COMPLETED": GREEN, "CENSORED": FAINT, "FAILED": RED,
               "INFEASIBLE": RED}  # fmt: skip
    parts: dict[str, Callable[[Row], bool]] = {
        state: lambda r, s=state: r["state"] == s and r["repeats"] is None  # type: ignore[misc]
        for state in patterns
    }
    parts["repeats"] = lambda r: r["repeats"] is not None
    for name, chosen in parts.items():
        own = [r for r in rows if chosen(r)]
        if own:
            pattern = {"shape": patterns.get(name, "+"), "size": 6, "solidity": 0.25}
            marker = {"color": colours.get(name, PINK if name == "repeats" else SKY),
                      "pattern": pattern, "line": {"width": 1, "color": GREY}}  # fmt: skip
            spans = [number(r["end"] - r["start"]) for r in own]
            traces.append({
                "type": "bar", "orientation": "h", "name": name.lower(), "marker": marker,
                "base": column(own, "start"), "x": spans, "y": column(own, "lane"),
                "text": [str(r["trial"]) for r in own], "textposition": "inside",
                "insidetextanchor": "middle",
                "hovertemplate": "trial %{text}: %{x:.4g} s from %{base:.4g} s<extra></extra>",
            })  # fmt: skip
    lanes = max((r["lane"] for r in rows), default=1)
    axis = {"title": "worker group", "dtick": max(1, lanes // 8), "autorange": "reversed"}
    wall = {"title": "wall seconds since the study began"}
    return figure(traces, wall, axis, barmode="overlay", height=min(700, 180 + 44 * lanes))


def throughput_figure(rows: Sequence[Row], groups: Mapping[int, str]) -> Figure:
    """Samples a second against batch size, a mark a trial and size."""
    traces: list[Trace] = []
    for name, (colour, _, symbol, _) in LOOKS.items():
        own = [r for r in rows if groups.get(r["trial"]) == name]
        if own:
            traces.append({
                "type": "scatter", "mode": "markers", "name": name,
                "x": column(own, "batch_size"), "y": column(own, "samples_per_second"),
                "marker": {"color": colour, "symbol": symbol, "size": 10},
                "text": [f"trial {r['trial']}" for r in own],
                "hovertemplate": "%{text}: %{y:.4g} samples/s at %{x}<extra></extra>",
            })  # fmt: skip
    sizes = sorted({r["batch_size"] for r in rows})
    ticks = {"tickvals": sizes} if len(sizes) <= 10 else {}
    axis = {"title": "batch size", "type": "log", **ticks}
    return figure(traces, axis, {"title": "samples a second", "rangemode": "tozero"})
