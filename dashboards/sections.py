"""The sections of a study's report: for each, its table, its plot, and how to read it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from autotune.study.result import StudyResult
from autotune.trial import SHOWN_KNOBS, STEPS, State, Target, Trial, wording
from dashboards import figures, leaderboard, plans, search_plots, tables, time_spent
from dashboards import importance as parameters
from dashboards.page import Section

_CURVES, _POINTS, _BARS, _LINES, _SPANS = 150, 150, 40, 300, 1500
_SCHEDULES = 5
_UNREACHED = "No trial has reached the target: this is by the best metric."


def sections(result: StudyResult, rows: Sequence[tables.Row]) -> list[Section]:
    """All sections, in the order of a reader's questions; `rows` are those of the leaderboard."""
    trials = tables.searched(result)
    first = leaderboard.section(result, rows)
    of_times = () if result.target.timed else (_distribution,)
    near = tables.by_metric(result)
    made = [first, *plans.sections(result)]
    for make in SECTIONS:
        if near is not result and make in _OF_RESULTS:
            own = make(near, tables.searched(near))
            made.append(replace(own, text=f"{_UNREACHED} {own.text}".strip()))
        elif make not in of_times:
            made.append(make(result, trials))
    return made


def _groups(result: StudyResult) -> dict[int, str]:
    best = result.best
    return {t.number: tables.group(t, best) for t in result.trials}


def _few(trials: Sequence[Trial], first: int, most: int) -> list[Trial]:
    """The first few, an even choice of the others, and always the named ones; in order."""
    named = [t for t in trials if t.kind != "trial"][: most // 2]
    plain = [t for t in trials if t.kind == "trial"]
    rest = plain[first:]
    room = max(most - len(named) - first, 0)
    even = [rest[i] for i in tables.thinned(len(rest), room)] if room > 1 else []
    return [*plain[:first], *named, *even]


def _left_out(drawn: int, of: int, what: str) -> str:
    if drawn >= of:
        return ""
    return f"{drawn:,} of {of:,} {what} are drawn; the study's journal has them all."


def _accuracy(result: StudyResult, trials: Sequence[Trial]) -> Section:
    repeated = [t for t in result.trials if t.repeats is not None]
    everyone = [t for t in [*trials, *repeated] if t.reports]
    chosen = _few(everyone, _CURVES // 2, _CURVES)
    rows = tables.curves(chosen, result.target, _POINTS)
    if not rows:
        return Section("accuracy", "Accuracy over seconds", "", missing="Nothing is reported yet.")
    over = "steps" if result.target.clock == STEPS else "seconds"
    notes = {t.number: _note(t, result.target) for t in chosen}
    seen = f"seen until ({'steps' if result.target.clock == STEPS else 's'})"
    ends = [{"trial": t.number, "state": str(t.state), "reason": t.reason, "seconds": t.seconds,
             "best": result.target.best(t)} for t in everyone]  # fmt: skip
    heads = {"trial": "trial", "state": "state", "reason": "reason", "seconds": seen,
             "best": wording.metric_name(result.target)}  # fmt: skip
    text = (
        "One line a trial, with a mark where it ended: a filled mark reached the target, an open "
        "one was stopped before it or at the limit, so that its time is known only to be longer. "
        "The axis shows where trials differ; double-click the plot for all of it."
    )
    if not result.target.timed:
        text = (
            "One line a trial, with a mark where it ended; it is open where it was stopped. The "
            "axis shows where trials differ; double-click the plot for all of it."
        )
    plot = figures.accuracy(rows, _groups(result), notes, result.target)
    thin = _left_out(len(chosen), len(everyone), "trials")
    return Section("accuracy", f"{result.target.metric} over {over}", text, plot, ends, heads, thin)


def _note(trial: Trial, target: Target) -> str:
    at = wording.amount(target, trial.seconds)
    how = {State.REACHED: f"reached in {at}", State.COMPLETED: wording.outcome(trial, target)}
    end = how.get(trial.state, f"{trial.reason or 'running'} at {at}")
    lines = [f"trial {trial.number}: {end}", *tables.configuration(trial).split("  ")[:12]]
    return "<br>".join(figures.escape(line[:90]) for line in lines)


def _distribution(result: StudyResult, trials: Sequence[Trial]) -> Section:
    search = [t for t in trials if t.kind == "trial"]
    own = [t for t in trials if t.kind == tables.CONFIRM]  # of a replay
    named = {"search": tables.survival(search), "repeats": tables.survival(own)}
    numbers = {t.number: t for t in trials}
    for one in result.confirmed[:5]:
        kind = "baseline" if numbers[one.number].kind == tables.BASELINE else f"trial {one.number}"
        named[f"repeats of {kind}"] = tables.survival(one.runs)
    named = {k: v for k, v in named.items() if v}
    if not named:
        return Section("distribution", "Time to target: distribution", "",
                       missing="No trial has ended yet.")  # fmt: skip
    rows = [{"of": name, **row} for name, own in named.items() for row in own]
    heads = {"of": "trials", "seconds": "seconds", "reached": "share reached",
             "at_risk": "at risk", "reached_now": "reached", "stopped_now": "stopped"}  # fmt: skip
    text = (
        "The share of trials that have reached the target by each second (Kaplan and Meier); a "
        "tick is a trial that was stopped there. The search stops trials because they are slow, so "
        "its line looks better than it is; those of repeats are fair."
    )
    return Section("distribution", "Time to target: distribution", text, figures.survival(named),
                   rows, heads)  # fmt: skip


def _progress(result: StudyResult, trials: Sequence[Trial]) -> Section:
    rows = tables.progress(result)
    target = result.target
    what = "fastest" if target.timed else "best"
    title = f"{what.capitalize()} run over spend"
    if all(row["best_result"] is None for row in rows):
        missing = "No trial has come to its end yet." if rows else "No trial has ended yet."
        return Section("progress", title, "", missing=missing)
    own = next((t for t in trials if t.kind == tables.BASELINE), None)
    baseline = wording.plain_result(target, target.result(own)) if own is not None else None
    end = f" ({wording.unit(target)})" if target.timed else ""
    chosen = [rows[i] for i in tables.thinned(len(rows), 2000)]
    heads = {"spent_seconds": "spent (s)", "best_result": f"{what} so far{end}",
             "trial": "trial", "kind": "kind", "cost_seconds": "its cost (s)"}  # fmt: skip
    text = f"How soon the search found its {what} run, and what repeats cost on top of it."
    plot = figures.progress(chosen, baseline, target)
    return Section("progress", title, text, plot, rows, heads)


def _schedules(result: StudyResult, trials: Sequence[Trial]) -> Section:
    title = "Schedules of the best trials"
    best = [t for t in trials if t.succeeded and t.kind == "trial"][:_SCHEDULES]
    chosen = [*best, *(t for t in trials if t.kind == tables.BASELINE)] or list(trials[:1])
    rows = tables.schedules(chosen, 200)
    known = [k for k in SHOWN_KNOBS if any(k in r for r in rows)]
    constant = {k: min(r[k] for r in rows if k in r) for k in known if _is_constant(rows, k)}
    knobs = [k for k in known if k not in constant]
    same = ", ".join(f"{k} {tables.brief(v)}" for k, v in constant.items())
    if not knobs:
        missing = f"No knob changed: {same}." if same else "No knob was reported."
        return Section("schedules", title, "", missing=missing)
    names = {t.number: _named(t, result.target) for t in chosen}
    heads = {"trial": "trial", "seconds": "seconds", "samples": "samples", **{k: k for k in knobs}}
    text = "What the best trials did over the run: first over seconds, then over samples."
    thin = f"The same in all of them, from start to end: {same}." if same else ""
    return Section("schedules", title, text, figures.schedules(rows, names, knobs), rows, heads,
                   thin)  # fmt: skip


def _is_constant(rows: Sequence[tables.Row], knob: str) -> bool:
    return all(knob in r for r in rows) and len({r[knob] for r in rows}) == 1


def _named(trial: Trial, target: Target) -> str:
    kind = "baseline " if trial.kind == tables.BASELINE else ""
    return f"{kind}trial {trial.number} ({wording.so_far(trial, target)})"


def _importance(result: StudyResult, trials: Sequence[Trial]) -> Section:
    rows = parameters.importance(trials, result.target)
    title = "What decides about the time"
    if not result.target.timed:
        title = f"What decides about the {result.target.metric}"
    if not rows:
        least = parameters.LEAST_TRIALS
        return Section("importance", title, "", missing=f"This needs at least {least} sampled "
                       "trials that ended, and a parameter that varies.")  # fmt: skip
    heads = {"parameter": "parameter", "importance": "importance", "chance": "by chance",
             "best": "best", "trials": "of trials"}  # fmt: skip
    ahead = "reached the target" if result.target.timed else "came to their end"
    text = (
        "How far a parameter's values among the best trials differ from those among all "
        "(PED-ANOVA, Watanabe and others 2023), by ranks; stopped trials rank behind those that "
        f"{ahead}. A bar shorter than its mark may be chance."
    )
    if all(row["importance"] <= row["chance"] for row in rows):
        text = f"No parameter stands out: no bar is longer than its mark. {text}"
    return Section("importance", title, text, search_plots.importance(rows[:20]), rows, heads)


def _chosen(result: StudyResult, trials: Sequence[Trial], most: int) -> tuple[Any, list[str], str]:
    ranked = parameters.scored(trials, result.target)
    chosen = _few(ranked, _LINES // 2, _LINES)
    rows = parameters.points(chosen, result.target)
    names = parameters.varied(rows, parameters.importance(trials, result.target), most)
    return rows, names, _left_out(len(chosen), len(ranked), "trials")


def _point_heads(names: Sequence[str], target: Target) -> dict[str, str]:
    result = "seconds" if wording.unit(target) == "s" else wording.result_name(target)
    return {"trial": "trial", "state": "state", "result": result, **{n: n for n in names}}


def _slices(result: StudyResult, trials: Sequence[Trial]) -> Section:
    rows, names, thin = _chosen(result, trials, 6)
    title = "Slices"
    if not names:
        return Section("slices", title, "", missing="No searched parameter varies yet.")
    text = (
        "Time to target against each of the most important parameters. An open triangle is a trial "
        "that was stopped: its time is longer than where it stands."
    )
    if not result.target.timed:
        text = "The metric against each of the most important parameters; a triangle was stopped."
    plot = search_plots.slices(rows, names, result.target)
    heads = _point_heads(names, result.target)
    return Section("slices", title, text, plot, rows, heads, thin)


def _parallel(result: StudyResult, trials: Sequence[Trial]) -> Section:
    rows, names, thin = _chosen(result, trials, 9)
    title = "Parallel coordinates"
    if not names:
        return Section("parallel", title, "", missing="No searched parameter varies yet.")
    text = (
        "One line a trial through its parameters (most important first) to its result. Choose a "
        "class in the legend to hide or, by double-clicking, to see it alone."
    )
    plot, heads = (
        search_plots.parallel(rows, names, result.target),
        _point_heads(names, result.target),
    )
    return Section("parallel", title, text, plot, rows, heads, thin)


def _counted(target: Target) -> str:
    parts = {"train": "data and train", "wall": "data, train and eval"}
    found = parts.get(str(target.clock))
    return f"The target's clock counts {found}." if found else ""


def _clock(result: StudyResult, trials: Sequence[Trial]) -> Section:
    ran = [t for t in trials if t.attempts]
    title = "Where the seconds went"
    if not ran:
        return Section("clock", title, "", missing="No trial has been started yet.")
    rows = time_spent.clock_parts(ran)
    heads = {"trial": "trial", "kind": "kind", **{p: f"{p} (s)" for p in time_spent.PARTS}}
    text = f"Each trial's wall time by what it was spent on, best first. {_counted(result.target)}"
    thin = _left_out(min(len(rows), _BARS), len(rows), "trials")
    plot = time_spent.parts_figure(rows[:_BARS])
    return Section("clock", title, text, plot, rows, heads, thin)


def _timeline(result: StudyResult, trials: Sequence[Trial]) -> Section:
    rows = time_spent.timeline(result.trials)
    title = "Timeline of the workers"
    if not rows:
        return Section("timeline", title, "", missing="No trial has been started yet.")
    heads = {"trial": "trial", "kind": "kind", "state": "state", "lane": "worker group",
             "start": "from (s)", "end": "to (s)"}  # fmt: skip
    text = "Which trials ran side by side and when; gaps are time in which a group had nothing."
    drawn = rows[-_SPANS:]
    thin = f"The last {_SPANS:,} of {len(rows):,} trials are drawn." if drawn != rows else ""
    return Section("timeline", title, text, time_spent.timeline_figure(drawn), rows, heads, thin)


def _throughput(result: StudyResult, trials: Sequence[Trial]) -> Section:
    everyone = [*trials, *(t for t in result.trials if t.repeats is not None)]
    chosen = _few(everyone, _LINES, 2 * _LINES)
    rows = time_spent.throughput(chosen)
    title = "Throughput against batch size"
    if not rows:
        return Section("throughput", title, "", missing="No trial reports a batch size.")
    heads = {"trial": "trial", "batch_size": "batch size", "samples_per_second": "samples/s"}
    text = "Samples a second of training at each batch size."
    if result.target.timed:
        text += (
            " A fast trial is fast by quicker steps (high here) or by needing fewer samples (see "
            "the leaderboard's samples to target)."
        )
    thin = _left_out(len(chosen), len(everyone), "trials")
    plot = time_spent.throughput_figure(rows, _groups(result))
    return Section("throughput", title, text, plot, rows, heads, thin)


SECTIONS: Sequence[Callable[[StudyResult, Sequence[Trial]], Section]] = (
    _accuracy,
    _distribution,
    _progress,
    _schedules,
    _importance,
    _slices,
    _parallel,
    _clock,
    _timeline,
    _throughput,
)
_OF_RESULTS = (_progress, _importance, _slices, _parallel)
