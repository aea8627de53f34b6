"""The tables of `search.py` and `scorings.py`: means, intervals, ratios paired by task and seed."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from _shared import Answer

Runs = dict[str, list[Answer]]
"""Of each method its studies: measures, with `task` and `seed`."""
AGAINST = ("tpe, capped", "tpe, capped, with a baseline")
AGAINST += ("Optuna TPE + Hyperband", "Ray Tune's rule (ASHA, TPE)")
DRAWS = 4000
WIDTH = 42  # of the methods' names
_HEADS = ("regret @1/4", "regret", "until 25 % (found)", "until 10 % (found)", "trials")
_HEADS += ("saved", "lost of winners", "took")


def interval(values: Sequence[float]) -> str:
    """Geometric mean with a 95 % bootstrap interval.

    >>> interval([2.0, 2.0])
    ' 2.00 (2.00-2.00)'
    """
    logs = np.log(np.asarray(values))
    draws = np.random.default_rng(0).choice(logs, (DRAWS, len(logs))).mean(axis=1)
    return _as_text(logs.mean(), draws)


def by_task(values: Sequence[float], tasks: Sequence[str]) -> str:
    """As `interval`, but tasks are drawn, and then the seeds of each drawn task.

    What it says holds for further tasks, not only for further seeds of these.
    """
    rng, logs = np.random.default_rng(0), np.log(np.asarray(values))
    names = np.asarray(tasks)
    groups = [logs[names == name] for name in dict.fromkeys(tasks)]
    means = [rng.choice(own, (DRAWS, len(own))).mean(axis=1) for own in groups]
    rows = rng.integers(len(groups), size=(DRAWS, len(groups)))
    draws = np.stack(means, axis=1)[np.arange(DRAWS)[:, None], rows].mean(axis=1)
    return _as_text(logs.mean(), draws)


def _as_text(mean: float, draws: np.ndarray) -> str:
    low, high = np.exp(np.quantile(draws, [0.025, 0.975]))
    return f"{math.exp(mean):5.2f} ({low:.2f}-{high:.2f})"


def row(name: str, runs: Sequence[Answer], spend: float) -> str:
    """A method's line of the table."""
    cells = [f"{name:>{WIDTH}}"]
    cells += [f"{interval([r[key] for r in runs]):>18}" for key in ("regret_quarter", "regret")]
    for key in ("until_25", "until_10"):
        times = [spend if r[key] is None else r[key] for r in runs]
        share = sum(r[key] is not None for r in runs) / len(runs)
        cells.append(f"{interval(times):>18} {share:4.0%}")
    counts = [r["trials"] for r in runs if r["trials"] is not None]
    cells.append(f"{statistics.fmean(counts):7.0f}" if counts else "      -")
    cells += _stopping(runs)
    cells.append(f"{statistics.fmean(r['cpu'] for r in runs):6.1f} s")
    return "  ".join(cells)


def _stopping(runs: Sequence[Answer]) -> list[str]:
    """Compute saved, and would-be winners stopped of those begun, over all studies."""
    known = [r for r in runs if r.get("saved") is not None]
    if not known:
        return ["    -", "        -"]
    saved = statistics.fmean(r["saved"] for r in known)
    lost, winners = (sum(r[key] for r in known) for key in ("lost", "winners"))
    return [f"{saved:5.0%}", f"{lost:4d} of {winners:5d}"]


def ratios(runs: Runs, against: str, worth: Callable[[Answer], float]) -> list[str]:
    """`against`'s worth over each method's, paired by task and seed, with both intervals."""
    found = []
    theirs = {(r["task"], r["seed"]): worth(r) for r in runs[against]}
    for name, own in runs.items():
        both = [r for r in own if (r["task"], r["seed"]) in theirs]
        if name != against and both:
            each = [theirs[r["task"], r["seed"]] / worth(r) for r in both]
            wider = by_task(each, [r["task"] for r in both])
            found.append(
                f"{name:>{WIDTH}}  {interval(each)}  tasks drawn too {wider}  n={len(both)}"
            )
    return found


def table(runs: Runs, spend: float) -> str:
    """The table of all methods, and the ratios to the peers that are in it."""
    lines = ["  ".join(("method".rjust(WIDTH), *_HEADS))]
    lines += [row(name, own, spend) for name, own in runs.items() if own]
    for against in AGAINST:
        if runs.get(against):
            lines.append(f"tuning time until within 25 % of the best, of {against} over that of")
            lines += ratios(runs, against, lambda r: r["until_25"] or spend)
            lines.append(f"regret after the whole spend, of {against} over that of")
            lines += ratios(runs, against, lambda r: r["regret"])
    return "\n".join(lines)


def merged(files: Sequence[Path]) -> Runs:
    """The studies of several `--json` files of one problem and the same spends.

    Raises:
        ValueError: the files differ in problem or spends, or a study is in two of them.
    """
    read = [json.loads(file.read_text()) for file in files]
    kinds = {(one["problem"], tuple(one["spend"])) for one in read}
    if len(kinds) > 1:
        raise ValueError(f"files of different problems or spends: {sorted(kinds)}")
    runs: Runs = {}
    for file, one in zip(files, read, strict=True):
        for name, own in one["runs"].items():
            known = {(r["task"], r["seed"], r["spend"]) for r in runs.setdefault(name, [])}
            twice = [r for r in own if (r["task"], r["seed"], r["spend"]) in known]
            if twice:
                raise ValueError(f"{file}: {name}, {twice[0]['task']} is there twice")
            runs[name] += own
    return runs
