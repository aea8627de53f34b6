"""A study's result as JSON documents, for programs that read what the commands print."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from autotune.algorithms.ranking.finalists import progress
from autotune.algorithms.ranking.repeats import Confirmation, raced
from autotune.storage.codec import encode
from autotune.study.options import StudyOptions
from autotune.study.result import StudyResult, row
from autotune.trial import State, Target, Trial


def document(result: StudyResult, name: str) -> dict[str, Any]:
    """The whole result as one JSON document."""
    trials = [
        {**_facts(t, result.target), "clock": encode(t.clock), "attempts": t.attempts}
        for t in result.trials
    ]
    return {**summary(result, name), "trials": trials}


def summary(result: StudyResult, name: str) -> dict[str, Any]:
    """How a study stands, as JSON types."""
    by_state = {str(s): n for s, n in counts(result.searched).items()}
    return {
        "study": name,
        "folder": str(result.folder),
        "ended": result.ended,
        "target": encode(result.target),
        "counts": by_state,
        "best": best(result) if result.best is not None else None,
        "baseline": _facts(result.baseline, result.target) if result.baseline else None,
        "speedup_vs_baseline": result.speedup,
        "confirmed": [facts(c) for c in result.confirmed],
        **speedup(result),
        "spent_seconds": result.spent_seconds,
        "repeats_spent_seconds": sum(
            t.spent_seconds for t in result.trials if t.repeats is not None
        ),
    }


def confirmations(result: StudyResult, options: StudyOptions) -> dict[str, Any] | None:
    """How far the confirmations are that were asked for, as JSON types; None if none were."""
    repeats, top = options.repeats, options.top
    if not repeats:
        return None
    found = progress(result.trials, result.target, repeats, top, options.trials)
    return {**asdict(found), "repeats": repeats, "top": top}


def best(result: StudyResult) -> dict[str, Any]:
    """The best trial with its configuration, as JSON types.

    Raises:
        ValueError: no trial has reached the target.
    """
    if result.best is None:
        raise ValueError("no trial has reached the target")
    held = result.confirmation(result.best)
    told = facts(held) if held is not None else None
    runs = raced(result.best, result.trials, result.target)
    return {
        **_facts(result.best, result.target),
        "raced": facts(runs) if runs is not None else None,
        "confirmed": told,
    }


def counts(trials: Sequence[Trial]) -> dict[State, int]:
    """How many trials are in each state."""
    found = Counter(t.state for t in trials)
    return {state: found[state] for state in State}


def speedup(result: StudyResult) -> dict[str, Any]:
    """The confirmed speedup as `autotune.compare` has it: with its bound's sign and interval."""
    from autotune.evaluation.comparison.sources import confirmed

    best, speedup, bound, interval = result.best, result.confirmed_speedup, "", None
    found = confirmed(result.folder) if speedup is not None else None
    rows = found.rows if found is not None and best is not None else ()
    row = next((r for r in rows if best is not None and r.candidate.trial == best.number), None)
    if row is not None and row.speedup is not None and not row.is_baseline:
        speedup, bound, ends = row.speedup, row.speedup_bound, row.speedup_interval
        if ends is not None and ends.low is not None and ends.high is not None:
            interval = ends.low, ends.high
    return {
        "confirmed_speedup_vs_baseline": speedup,
        "confirmed_speedup_bound": bound,
        "confirmed_speedup_interval": interval,
    }


def _facts(trial: Trial, target: Target) -> dict[str, Any]:
    known = {k: v for k, v in row(trial, target).items() if not k.startswith("config.")}
    config, params = encode(dict(trial.config)), encode(trial.params)
    return {**encode(known), "config": config, "params": params, "seed": trial.seed}


def facts(one: Confirmation) -> dict[str, Any]:
    """A confirmation as JSON types; `seconds` has None for a run that missed the target."""
    return {
        "trial": one.number,
        "tuning_seconds": one.tuning_seconds,
        "mean_seconds": one.mean_seconds,
        "median_seconds": one.median_seconds,
        "runs": len(one.runs),
        "reached": one.reached,
        "seconds": [t.time_to_target for t in one.runs],
        "trials": [t.number for t in one.runs],
    }


def line(told: Mapping[str, Any]) -> str:
    """The `facts` of a confirmation in words.

    >>> line({"mean_seconds": 3.5, "runs": 5, "reached": 4})
    'more than 3.50 s on 5 fresh seeds (4 of 5 reached)'
    """
    runs, reached = told["runs"], told["reached"]
    seeds = f"{runs} fresh seed{'' if runs == 1 else 's'}"
    return f"{_mean(told)} on {seeds} ({reached} of {runs} reached)"


def line_of_races(told: Mapping[str, Any]) -> str:
    """The `facts` of a configuration's runs in the search in words.

    >>> line_of_races({"mean_seconds": 3.5, "runs": 3, "reached": 3})
    '3.50 s as the mean of 3 runs in the search (3 of 3 reached)'
    """
    runs, reached = told["runs"], told["reached"]
    return f"{_mean(told)} as the mean of {runs} runs in the search ({reached} of {runs} reached)"


def _mean(told: Mapping[str, Any]) -> str:
    mark = lower_bound_mark(told["reached"], told["runs"], "more than ")
    return f"{mark}{told['mean_seconds']:.2f} s"


def lower_bound_mark(reached: int, runs: int, said: str) -> str:
    """A mean that counts a run that missed the target as the limit is too small."""
    return "" if reached == runs else said
