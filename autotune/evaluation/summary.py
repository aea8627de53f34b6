"""A study's result as JSON documents, for programs that read what the commands print."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from autotune.algorithms import shared_work
from autotune.algorithms.plans import words
from autotune.algorithms.ranking.confirmation import Confirmation, raced
from autotune.algorithms.ranking.finalists import progress
from autotune.algorithms.ranking.repeats import probes
from autotune.evaluation import machine
from autotune.storage.codec import encode
from autotune.study.options import StudyOptions
from autotune.study.result import StudyResult
from autotune.study.rows import CONFIG, POINT, row
from autotune.trial import State, Trial, wording


def document(result: StudyResult, name: str) -> dict[str, Any]:
    """The whole result as one JSON document."""
    trials = [
        {**_trial(t, result), "clock": encode(t.clock), "attempts": t.attempts}
        for t in result.trials
    ]
    return {**summary(result, name), "trials": trials}


def summary(result: StudyResult, name: str) -> dict[str, Any]:
    """The state of a study, as JSON types."""
    by_state = {str(s): n for s, n in counts(result.searched).items()}
    return {
        "study": name,
        "folder": str(result.folder),
        "ended": result.ended,
        "target": encode(result.target),
        **({"limits": encode(result.limits)} if result.limits else {}),
        "counts": by_state,
        "best": best(result) if result.best is not None else None,
        "nearest": _nearest(result),
        "baseline": _trial(result.baseline, result) if result.baseline else None,
        "speedup_vs_baseline": result.speedup,
        "compared_runs": result.compared_runs,
        "machine": machine.sentences(result),
        "plans": plans(result),
        "shared_beginnings": shared_work.to_json(result.trials),
        "confirmed": [confirmation(c) for c in result.confirmed],
        **speedup(result),
        **gain(result),
        "spent_seconds": result.spent_seconds,
        "repeats_spent_seconds": sum(
            t.spent_seconds for t in result.trials if t.repeats is not None
        ),
    }


def plans(result: StudyResult) -> dict[str, Any] | None:
    """What probes have shown of plans, as JSON types; None without any."""
    if not probes(result.trials):
        return None
    rows = [
        {
            "plan": line.plan,
            "changes": dict(line.probed.changes),
            "times_as_fast": line.probed.ratio,
            "interval": encode(line.probed.interval),
            "shown": words.times(line.probed),
            "seconds_per_sample": line.probed.seconds,
            "peak_memory_bytes": line.probed.peak,
            "setup_seconds": line.probed.setup,
            "probes": line.probed.runs,
            "kept": line.kept,
            "leading": line.leading,
            "verdict": line.verdict,
        }
        for line in words.lines(result.trials)
    ]
    decided = any(t.ask is not None for t in result.searched)
    said = words.decision(result.trials) if decided else words.so_far(result.trials)
    pareto = words.pareto_text(result.trials)
    return {"decided": decided, "said": said, "pareto": pareto, "plans": rows}


def confirmations(result: StudyResult, options: StudyOptions) -> dict[str, Any] | None:
    """The progress of the requested confirmations, as JSON types; None if none were requested."""
    repeats, top = options.repeats, options.top
    if not repeats:
        return None
    found = progress(result.trials, result.target, repeats, top, options.trials)
    return {**asdict(found), "repeats": repeats, "top": top}


def best(result: StudyResult) -> dict[str, Any]:
    """The best trial with its configuration, as JSON types.

    Raises:
        ValueError: no trial has reached the target or, without a value, completed.
    """
    if result.best is None:
        raise ValueError(f"no trial has {wording.reached(result.target)}")
    confirmed = result.confirmation(result.best)
    races = raced(result.best, result.trials, result.target)
    return {
        **_trial(result.best, result),
        "ranked_by": wording.result_name(result.target),
        "result": wording.plain_result(result.target, result.target.result(result.best)),
        "unit": wording.unit(result.target),
        "limits": encode(result.limits),
        "raced": confirmation(races) if races is not None else None,
        "confirmed": confirmation(confirmed) if confirmed is not None else None,
    }


def counts(trials: Sequence[Trial]) -> dict[State, int]:
    """How many trials are in each state."""
    found = Counter(t.state for t in trials)
    return {state: found[state] for state in State}


def speedup(result: StudyResult) -> dict[str, Any]:
    """The confirmed speedup, with the sign of its bound and its interval."""
    found, best, ends = result.speedup_of_confirmed, result.best, None
    if found is not None and best is not None and best.kind != "baseline":
        from autotune.evaluation.comparison import ratios

        interval = ratios.interval(found)
        ends = (interval.low, interval.high) if interval is not None else None
    return {
        "confirmed_speedup_vs_baseline": found.ratio if found is not None else None,
        "confirmed_speedup_bound": found.bound if found is not None else "",
        "confirmed_speedup_interval": ends,
    }


def gain(result: StudyResult) -> dict[str, Any]:
    """By how much the metric is better than the baseline's; empty where the target has a value."""
    if result.target.timed:
        return {}
    found = result.gain_of_confirmed
    return {
        "gain_vs_baseline": result.gain,
        "compared_runs": result.compared_runs,
        "confirmed_gain_vs_baseline": found.gain if found is not None else None,
        "confirmed_gain_interval": found.interval if found is not None else None,
    }


def _nearest(result: StudyResult) -> dict[str, Any] | None:
    """The trial that came nearest to the target, where none has reached it."""
    trial, target = result.nearest, result.target
    if trial is None or result.best is not None:
        return None
    return {"trial": trial.number, f"best_{target.metric}": target.best(trial)}


def _trial(trial: Trial, result: StudyResult) -> dict[str, Any]:
    every = row(trial, result.target, result.limits).items()
    columns = {k: v for k, v in every if not k.startswith((POINT, CONFIG))}
    config, params = encode(dict(trial.config)), encode(trial.params)
    return {**encode(columns), "config": config, "params": params}


def confirmation(one: Confirmation) -> dict[str, Any]:
    """A confirmation as JSON types; `seconds` has None for a run that missed the target."""
    if not one.target.timed:
        return _confirmed_metric(one)
    return {
        "unit": wording.unit(one.target),
        "trial": one.number,
        "tuning_seconds": one.tuning_seconds,
        "mean_seconds": one.mean_seconds,
        "median_seconds": one.median_seconds,
        "runs": len(one.runs),
        "reached": one.reached,
        "seconds": [t.time_to_target for t in one.runs],
        "trials": [t.number for t in one.runs],
    }


def _confirmed_metric(one: Confirmation) -> dict[str, Any]:
    """A confirmation where the target has no value; `metrics` has None for a run without one."""
    target = one.target

    def known(result: float | None) -> float | None:
        finite = result is not None and math.isfinite(result)
        return wording.plain_result(target, result) if finite else None

    ends = sorted(wording.metric_of(target, end) for end in one.interval or ())
    return {
        "unit": "",
        "trial": one.number,
        "tuning_metric": known(one.tuned),
        "mean_metric": known(one.mean),
        "mean_interval": ends or None,
        "median_metric": known(one.median),
        "runs": len(one.runs),
        "reached": one.reached,
        "metrics": [known(result) for result in one.results],
        "trials": [t.number for t in one.runs],
    }


def confirmed_text(one: Mapping[str, Any]) -> str:
    """A `confirmation` in words.

    >>> confirmed_text({"mean_seconds": 3.5, "runs": 5, "reached": 4})
    'more than 3.50 s on 5 fresh seeds (4 of 5 reached)'
    >>> confirmed_text({"mean_metric": 0.9, "mean_interval": [0.88, 0.92], "runs": 3, "reached": 3})
    '0.9 on 3 fresh seeds (95 % interval 0.88 to 0.92)'
    """
    runs = one["runs"]
    seeds = f"{runs} fresh seed{'' if runs == 1 else 's'}"
    return f"{_mean(one)} on {seeds}{_remark(one)}"


def races_text(one: Mapping[str, Any]) -> str:
    """The `confirmation` of a configuration's runs in the search, in words.

    Of one that was run again, a single run counts where the others were disturbed.

    >>> races_text({"mean_seconds": 3.5, "runs": 3, "reached": 3})
    '3.50 s as the mean of 3 runs in the search (3 of 3 reached)'
    >>> races_text({"mean_seconds": 3.5, "runs": 1, "reached": 1})
    '3.50 s in its one undisturbed run'
    """
    if one["runs"] == 1:
        return f"{_mean(one)} in its one undisturbed run"
    return f"{_mean(one)} as the mean of {one['runs']} runs in the search{_remark(one)}"


def _remark(one: Mapping[str, Any]) -> str:
    """How many of the runs reached the target; without a value how sure their mean is."""
    runs, reached = one["runs"], one["reached"]
    if "mean_metric" not in one:
        return f" ({reached} of {runs} reached)"
    ends = one["mean_interval"]
    remarks = [f"95 % interval {ends[0]:.4g} to {ends[1]:.4g}"] if ends else []
    remarks += [f"{reached} of {runs} completed"] if reached < runs else []
    return f" ({'; '.join(remarks)})" if remarks else ""


def _mean(one: Mapping[str, Any]) -> str:
    if "mean_metric" in one:
        return wording.quantity(one["mean_metric"], "")
    mark = lower_bound_mark(one["reached"], one["runs"], "more than ")
    return f"{mark}{wording.quantity(one['mean_seconds'], one.get('unit', 's'))}"


def lower_bound_mark(reached: int, runs: int, mark: str) -> str:
    """`mark` where runs missed the target: counted as the limit, they make the mean too small."""
    return "" if reached == runs else mark
