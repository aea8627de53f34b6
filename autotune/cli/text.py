"""Text for the terminal: a study's state, its best trial, and trials in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TextIO

from autotune.evaluation import experience
from autotune.evaluation.summary import confirmed_text, races_text
from autotune.study.experience import keeping
from autotune.study.rows import plain
from autotune.trial import Limit, Target
from autotune.trial.wording import (
    aim,
    quantity,
)


def ratio(found: Mapping[str, Any]) -> str:
    """A confirmed speedup in words.

    >>> ratio({"confirmed_speedup_vs_baseline": 1.5, "confirmed_speedup_bound": ">=",
    ...         "confirmed_speedup_interval": (0.9, 2.5)})
    '>=1.50x faster (confirmed; 95 % interval 0.90 to 2.50, so that it may be luck)'
    """
    times = f"{found['confirmed_speedup_bound']}{found['confirmed_speedup_vs_baseline']:.2f}x"
    interval = found["confirmed_speedup_interval"]
    if interval is None:
        return f"{times} faster (confirmed; too few runs for an interval)"
    luck = ", so that it may be luck" if interval[0] <= 1 <= interval[1] else ""
    return f"{times} faster (confirmed; 95 % interval {interval[0]:.2f} to {interval[1]:.2f}{luck})"


def gained(found: Mapping[str, Any]) -> str:
    """By how much the best metric is better than the baseline's, in words; empty if unknown.

    >>> gained({"gain_vs_baseline": 0.02, "confirmed_gain_vs_baseline": 0.01,
    ...          "confirmed_gain_interval": (-0.01, 0.03)})
    '; better by 0.01 (confirmed; 95 % interval -0.01 to 0.03, so that it may be luck)'
    """
    confirmed = found["confirmed_gain_vs_baseline"]
    if confirmed is None:
        one = found["gain_vs_baseline"]
        of = f"({found['compared_runs']}, not confirmed)"
        return f"; {better_by(one)} {of}" if one is not None else ""
    ends = found["confirmed_gain_interval"]
    if ends is None:
        return f"; {better_by(confirmed)} (confirmed; too few runs for an interval)"
    luck = ", so that it may be luck" if ends[0] <= 0 <= ends[1] else ""
    interval = f"95 % interval {ends[0]:.4g} to {ends[1]:.4g}{luck}"
    return f"; {better_by(confirmed)} (confirmed; {interval})"


def better_by(gain: float) -> str:
    """A gain over the baseline in words.

    >>> better_by(0.02), better_by(-0.02), better_by(0.0)
    ('better by 0.02', 'worse by 0.02', 'no better')
    """
    if gain == 0:
        return "no better"
    return f"{'better' if gain > 0 else 'worse'} by {abs(gain):.4g}"


def print_best(best: Mapping[str, Any], out: TextIO) -> None:
    """The best trial in a few lines."""
    forked = _from(best["parent"], best["parent_step"]) if best["parent"] is not None else ""
    tuned = " when it was tuned" if best["confirmed"] else ""
    found = quantity(best["result"], best["unit"])
    found = f"{found} to target" if best["unit"] else f"{best['ranked_by']} {found}"
    print(f"trial {best['trial']}{forked}: {found}{tuned}", file=out)
    _print_repeats(best, out)
    for limit in best["limits"]:
        print(f"  {limit['metric']}: {quantity(best[limit['metric']], '')}", file=out)
    from autotune.storage.codec import decode_config

    for name, value in decode_config(best["config"]).items():
        print(f"  {name}: {plain(value)}", file=out)


def _print_repeats(best: Mapping[str, Any], out: TextIO) -> None:
    """The mean times of the best trial's runs in the search and of its confirmations, if any."""
    if best["raced"]:
        print(f"  run again: {races_text(best['raced'])}", file=out)
    if best["confirmed"]:
        print(f"  confirmed: {confirmed_text(best['confirmed'])}", file=out)


def print_status(summary: Mapping[str, Any], out: TextIO) -> None:
    """The state of a study, in a few lines."""
    best, target = summary["best"], Target(**summary["target"])
    alive = "a driver is running" if summary["driver_alive"] else f"ended: {summary['ended']}"
    states = ", ".join(f"{n} {s.lower()}" for s, n in summary["counts"].items() if n) or "none yet"
    print(f"{summary['study']} ({alive})", file=out)
    print(f"  target: {aim(target)}", file=out)
    for limit in summary.get("limits", ()):
        print(f"  limit: {Limit(**limit)}", file=out)
    print(f"  trials: {states} of {summary['trials_planned']}", file=out)
    for sentence in summary.get("machine", ()):
        print(f"  machine: {sentence}", file=out)
    if summary.get("sampler_chosen_because"):
        print(f"  sampler: {summary['sampler']}, as {summary['sampler_chosen_because']}", file=out)
    _print_plans(summary.get("plans"), out)
    if summary.get("shared_beginnings"):
        print(f"  shared beginnings: {summary['shared_beginnings']['said']}", file=out)
    elif summary.get("no_shared_beginnings"):
        print(f"  shared beginnings: {summary['no_shared_beginnings']}", file=out)
    if summary.get("experience") and (like := experience.sentence(summary["experience"])):
        print(f"  experience: {like}", file=out)
    if summary.get("experience_summary"):
        print(f"  {keeping.written(summary['experience_summary'])}", file=out)
    if summary.get("confirmations"):
        print(f"  confirmations: {_confirming(summary['confirmations'])}", file=out)
    if best:
        forked = _from(best["parent"], best["parent_step"]) if best["parent"] is not None else ""
        found = quantity(best["result"], best["unit"])
        print(f"  best: trial {best['trial']}{forked}, {found}", file=out)
        _print_repeats(best, out)
    elif near := summary["nearest"]:
        came = quantity(near[f"best_{target.metric}"], "")
        print(f"  best: none yet; nearest: trial {near['trial']} came to {came}", file=out)
    if best and summary["baseline"] and best["trial"] == summary["baseline"]["trial"]:
        print("  against the baseline: it is the baseline", file=out)
    elif summary["confirmed_speedup_vs_baseline"]:
        print(f"  against the baseline: {ratio(summary)}", file=out)
    elif summary["speedup_vs_baseline"]:
        times = f"{summary['speedup_vs_baseline']:.2f}x faster"
        of = f"{summary['compared_runs']}, not confirmed"
        print(f"  against the baseline: {times} ({of})", file=out)
    elif not target.timed and (better := gained(summary)):
        print(f"  against the baseline: {better.removeprefix('; ')}", file=out)
    again = summary["repeats_spent_seconds"]
    more = f", {again:.0f} s of it on repeats" if again else ""
    print(f"  spent: {summary['spent_seconds']:.0f} s{more}", file=out)


def _print_plans(found: Mapping[str, Any] | None, out: TextIO) -> None:
    """Which plan the search has, and one line for each that was probed."""
    if found is None:
        return
    print(f"  plan: {found['said']}", file=out)
    for row in found["plans"]:
        print(f"    {row['plan']}: {row['shown']}, {row['verdict']}", file=out)
    if found["plans"] and found["pareto"]:
        print(f"    {found['pareto']}", file=out)


def _confirming(found: Mapping[str, Any]) -> str:
    """The progress of confirmations in words.

    >>> _confirming({"done": 4, "running": 1, "planned": 12, "repeats": 3, "top": 3})
    '4 of 12 done, 1 running'
    """
    if found["planned"] is None:
        seeds = f"{found['repeats']} fresh seed{'' if found['repeats'] == 1 else 's'}"
        return f"the best {found['top']} and the baseline, {seeds} each, after the search"
    running = f", {found['running']} running" if found["running"] else ""
    return f"{found['done']} of {found['planned']} done{running}"


def _from(parent: int, step: int) -> str:
    return f" from trial {parent} at step {step}"
