"""Which searched parameters decide about the time to target: PED-ANOVA, with what chance gives.

Watanabe, Bansal and Hutter, "PED-ANOVA: Efficiently Quantifying Hyperparameter Importance in
Arbitrary Subspaces", IJCAI 2023 (arXiv:2304.10255): a parameter matters as much as the distribution
of its values among the best trials differs, by Pearson's divergence, from that among all trials.

Optuna's `PedAnovaImportanceEvaluator` (5.0) is not used here, for two reasons. `chance` needs 400
evaluations with other best trials: for 300 trials with four parameters these took the evaluator
2.6 s of processor time, and the code below 0.04 s. And it smooths choices per level and not per
trial: where all of 100 best trials have one of two values, it counts only 3/4 of them there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.algorithms.ranking.hardware import scores
from autotune.trial import Target, Trial

Array = NDArray[np.float64]
Row = dict[str, Any]
LEAST_TRIALS = 8
_GRID = (np.arange(64) + 0.5) / 64
_DRAWS = 400
_BEST = 0.1


def scored(trials: Sequence[Trial], target: Target) -> list[Trial]:
    """The sampled trials that have a place, best first: those that reached the target by time.

    Then those that were stopped, in the order of `ranking.hardware.scores`: the time at which a
    trial was stopped is never taken for its time to target.
    """
    values = scores(trials, target)
    placed = [(s, t.number, t) for t in trials if t.point and (s := values[t.number]) is not None]
    return [trial for _, _, trial in sorted(placed, key=lambda p: p[:2])]


def importance(trials: Sequence[Trial], target: Target, seed: int = 0) -> list[Row]:
    """Each parameter's share of the importance, largest first; no rows for too few trials.

    `chance` is the share at which a parameter that does not matter would stand in one case out of
    twenty (as many trials as the best, drawn at random); a parameter below it is not known to
    matter. `best` of `trials` trials that have the parameter are compared with all of them.
    """
    ranked = scored(trials, target)
    if len(ranked) < LEAST_TRIALS:
        return []
    rng = np.random.default_rng(seed)
    rows: list[Row] = []
    for name in dict.fromkeys(n for t in ranked for n in t.point or ()):
        values = [t.point[name] for t in ranked if t.point and name in t.point]
        if len(values) >= LEAST_TRIALS and len({repr(v) for v in values}) > 1:
            rows.append({"parameter": name, **_divergences(values, rng)})
    total = math.fsum(row["importance"] for row in rows) or 1.0
    for row in rows:
        row["importance"], row["chance"] = row["importance"] / total, row["chance"] / total
    return sorted(rows, key=lambda row: (-row["importance"], row["parameter"]))


def _divergences(values: Sequence[Any], rng: np.random.Generator) -> Row:
    count = len(values)
    best = max(math.ceil(_BEST * count), min(5, count // 3))
    smoothed = _smoothed(values, best)
    real = _pearson(smoothed, np.arange(count)[None, :] < best)[0]
    drawn = rng.random((_DRAWS, count)).argsort(axis=1).argsort(axis=1) < best
    chance = float(np.quantile(_pearson(smoothed, drawn), 0.95))
    return {"importance": float(real), "chance": chance, "best": best, "trials": count}


def _smoothed(values: Sequence[Any], best: int) -> Array:
    """For each value a distribution over places: around its rank, or over the categories.

    Ranks, so that neither a logarithmic scale nor an outlier matters.
    """
    if any(isinstance(v, str | bool) or not isinstance(v, int | float) for v in values):
        names = [repr(v) for v in values]
        levels = sorted(set(names))
        hits = np.array([[name == level for level in levels] for name in names], dtype=float)
        return np.asarray(hits + 0.5 / best, dtype=float) / (1.0 + 0.5 * len(levels) / best)
    numbers = np.asarray(values, dtype=float)
    below = (numbers[None, :] < numbers[:, None]).sum(axis=1)
    ties = (numbers[None, :] == numbers[:, None]).sum(axis=1)
    ranks = (below + 0.5 * ties) / len(numbers)
    width = max(1.06 * 0.29 * best**-0.2, 1.0 / 64)  # Scott's rule for uniform places
    images = (ranks, -ranks, 2.0 - ranks)  # what leaves the interval is reflected into it
    kernel = sum(np.exp(-0.5 * ((_GRID - r[:, None]) / width) ** 2) for r in images)
    return np.asarray(kernel / kernel.sum(axis=1, keepdims=True), dtype=float)


def _pearson(smoothed: Array, chosen: NDArray[np.bool_]) -> Array:
    """Pearson's divergence of each choice of trials (a row of `chosen`) from all trials."""
    everywhere = smoothed.mean(axis=0)
    top = chosen @ smoothed / chosen.sum(axis=1, keepdims=True)
    return np.asarray(((top - everywhere) ** 2 / everywhere).sum(axis=1), dtype=float)


def points(trials: Sequence[Trial], target: Target) -> list[Row]:
    """The searched parameters of each sampled trial, with its result so far and state."""
    results = [t.seconds if target.timed else target.best(t) for t in trials]
    return [
        {"trial": t.number, "state": str(t.state), "result": result, **(t.point or {})}
        for t, result in zip(trials, results, strict=True)
        if t.point and result is not None
    ]


def varied(rows: Sequence[Row], ranked: Sequence[Row], most: int) -> list[str]:
    """The parameters with more than one value: the most important first, at most `most`."""
    known = [row["parameter"] for row in ranked]
    own = ("trial", "state", "result")
    others = dict.fromkeys(k for row in rows for k in row if k not in own)
    names = [*known, *(n for n in others if n not in known)]
    return [n for n in names if len({repr(r[n]) for r in rows if n in r}) > 1][:most]
