"""A study's result as JSON documents, for programs that read what the commands print."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from autotune.algorithms.ranking.finalists import progress
from autotune.algorithms.ranking.repeats import Confirmation, raced
from autotune.evaluation import machine
from autotune.storage.codec import encode
from autotune.study.options import StudyOptions
from autotune.study.result import StudyResult, row
from autotune.trial import State, Target, Trial


def document(result: StudyResult, name: str) -> dict[str, Any]:
    """The whole result as one JSON document."""
    trials = [
        {**_trial(t, result.target), "clock": encode(t.clock), "attempts": t.attempts}
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
        "counts": by_state,
        "best": best(result) if result.best is not None else None,
        "baseline": _trial(result.baseline, result.target) if result.baseline else None,
        "speedup_vs_baseline": result.speedup,
        "machine": machine.sentences(result),
        "confirmed": [confirmation(c) for c in result.confirmed],
        **speedup(result),
        "spent_seconds": result.spent_seconds,
        "repeats_spent_seconds": sum(
            t.spent_seconds for t in result.trials if t.repeats is not None
        ),
    }


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
        ValueError: no trial has reached the target.
    """
    if result.best is None:
        raise ValueError("no trial has reached the target")
    confirmed = result.confirmation(result.best)
    races = raced(result.best, result.trials, result.target)
    return {
        **_trial(result.best, result.target),
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


def _trial(trial: Trial, target: Target) -> dict[str, Any]:
    columns = {k: v for k, v in row(trial, target).items() if not k.startswith("config.")}
    config, params = encode(dict(trial.config)), encode(trial.params)
    return {**encode(columns), "config": config, "params": params, "seed": trial.seed}


def confirmation(one: Confirmation) -> dict[str, Any]:
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


def confirmed_text(one: Mapping[str, Any]) -> str:
    """A `confirmation` in words.

    >>> confirmed_text({"mean_seconds": 3.5, "runs": 5, "reached": 4})
    'more than 3.50 s on 5 fresh seeds (4 of 5 reached)'
    """
    runs, reached = one["runs"], one["reached"]
    seeds = f"{runs} fresh seed{'' if runs == 1 else 's'}"
    return f"{_mean(one)} on {seeds} ({reached} of {runs} reached)"


def races_text(one: Mapping[str, Any]) -> str:
    """The `confirmation` of a configuration's runs in the search, in words.

    >>> races_text({"mean_seconds": 3.5, "runs": 3, "reached": 3})
    '3.50 s as the mean of 3 runs in the search (3 of 3 reached)'
    """
    runs, reached = one["runs"], one["reached"]
    return f"{_mean(one)} as the mean of {runs} runs in the search ({reached} of {runs} reached)"


def _mean(one: Mapping[str, Any]) -> str:
    mark = lower_bound_mark(one["reached"], one["runs"], "more than ")
    return f"{mark}{one['mean_seconds']:.2f} s"


def lower_bound_mark(reached: int, runs: int, mark: str) -> str:
    """`mark` where runs missed the target: counted as the limit, they make the mean too small."""
    return "" if reached == runs else mark
