"""The results of one earlier study, on scales that do not depend on its units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

MARKS: Array = np.geomspace(1 / 32, 1.0, 12)
"""Shares of the limit at which curves are kept."""
_WHOLE = 0.999  # share of the limit from which on a trial counts as seen to its end
_MISSED = 0.1, 1.5  # log times of trials that never reach: from this, and over this range
_LEVELS = 0.8, 0.5  # shares of the trials that do not reach the further levels of a task
_LEAST_REACHED = 3  # trials that reach a level, for it to be modelled


@dataclass(frozen=True, eq=False)
class KnownTask:
    """The trials of a study that has ended.

    Args:
        name: of the study.
        points: the canonical points of its trials.
        times: the time to the target of each, as a share of the limit; inf where not reached; (n,).
        ended: when each was seen last, as a share of the limit; (n,).
        curves: the best metric until each of `MARKS`, signed so that higher is better; nan where
            the trial was not seen; (n, 12).
        same: whether it ran the same trainer over the same space.
        problem: the name of what was trained, whatever the optimizer, where other studies trained
            it, too; else empty.
    """

    name: str
    points: Sequence[Mapping[str, Any]]
    times: Array
    ended: Array
    curves: Array
    same: bool = False
    problem: str = ""

    def subset(self, rows: Sequence[int]) -> KnownTask:
        """The task with some of its trials."""
        index = list(rows)
        return replace(
            self,
            points=[self.points[i] for i in index],
            times=self.times[index],
            ended=self.ended[index],
            curves=self.curves[index],
        )


def best_first(task: KnownTask, row: int) -> tuple[float, float]:
    """A key of a trial: its time to the target, and of those without one the best metric."""
    seen = task.curves[row][np.isfinite(task.curves[row])]
    return float(task.times[row]), -float(seen.max(initial=-np.inf))


def log_times(task: KnownTask) -> Array:
    """Logarithms of the times to several levels of the metric, (n, levels).

    The first level is the task's own target, where trials reached it; the others are levels that a
    share of the trials reach, as a new study may have an easier target. Trials that missed a level
    are ordered behind it by their curves, and a trial that was stopped early has the time of those
    that were as good at its last second.
    """
    columns = []
    if np.isfinite(task.times).sum() >= _LEAST_REACHED:
        columns.append(_completed(task, task.times))
    best = final_metrics(task.curves)
    known = best[np.isfinite(best)]
    for share in _LEVELS if len(known) else ():
        times = times_to(task, float(np.quantile(known, share)))
        if np.isfinite(times).sum() >= _LEAST_REACHED:
            columns.append(_completed(task, times))
    return np.stack(columns, axis=1) if columns else np.empty((len(task.points), 0))


def curve_scores(task: KnownTask) -> Array:
    """The normal scores of the trials' ranks at each of `MARKS`, low for the best; (n, 12).

    A trial that is not seen any more keeps its last score; where no trial was seen it is 0.
    """
    scores = np.zeros_like(task.curves)
    for mark in range(len(MARKS)):
        seen = np.isfinite(task.curves[:, mark])
        if mark:
            scores[:, mark] = scores[:, mark - 1]
        if seen.sum() > 1:
            scores[seen, mark] = _normal_scores(-task.curves[seen, mark])
    return scores


def final_metrics(curves: Array) -> Array:
    """The last metric that was seen of each trial; nan where none was."""
    filled = np.where(np.isfinite(curves), curves, -np.inf).max(axis=1)
    return np.where(np.isfinite(filled), filled, np.nan)


def times_to(task: KnownTask, level: float) -> Array:
    """When each trial's curve reached the level, between two marks on a logarithmic scale."""
    met = task.curves >= level  # nan is not
    first = met.argmax(axis=1)
    rows = np.arange(len(first))
    before = np.maximum(first - 1, 0)
    low, high = task.curves[rows, before], task.curves[rows, first]
    part = np.where(first > 0, (level - low) / np.maximum(high - low, 1e-12), 1.0)
    part = np.where(np.isfinite(part), np.clip(part, 0.0, 1.0), 1.0)
    logs = np.log(MARKS)[before] + part * (np.log(MARKS)[first] - np.log(MARKS)[before])
    return np.where(met.any(axis=1), np.exp(logs), np.inf)


def _completed(task: KnownTask, times: Array) -> Array:
    """Log times, with values for trials that missed the level or were stopped before it."""
    reached = np.isfinite(times)
    logs = np.where(reached, np.log(np.where(reached, np.maximum(times, 1e-6), 1.0)), np.nan)
    lost = _shares_lost(task)
    whole = ~reached & (task.ended >= _WHOLE)
    start, span = _MISSED
    logs[whole] = start + span * _places(lost[whole])
    known = reached | whole
    order = np.argsort(lost[known], kind="stable")
    shares, values = lost[known][order], np.maximum.accumulate(np.sort(logs[known]))
    for i in np.flatnonzero(~known):
        behind = np.interp(lost[i], shares, values) if len(shares) else start
        logs[i] = max(float(behind), float(np.log(max(task.ended[i], 1e-6))))
    return logs


def best_so_far(curves: Array) -> Array:
    """The best of each curve until each mark; -inf before it was seen."""
    seen = np.where(np.isfinite(curves), curves, -np.inf)
    return np.asarray(np.maximum.accumulate(seen, axis=1))


def last_marks(curves: Array) -> Array:
    """The index of the last mark at which each curve was seen, -1 where it never was."""
    return np.asarray(np.where(np.isfinite(curves), np.arange(len(MARKS)), -1).max(axis=1))


def at_common_marks(curves: Array, last: Array) -> Array:
    """The best of each curve until the last mark that it has in common with each other one, (n, n).

    Args:
        curves: the metric at each of `MARKS`, higher is better, nan if not seen; (n, 12).
        last: the index of each curve's last mark, (n,); the first counts for -1.
    """
    common = np.maximum(np.minimum.outer(last, last), 0)
    return np.asarray(np.take_along_axis(best_so_far(curves), common, axis=1))


def _shares_lost(task: KnownTask) -> Array:
    """The share of the others to which each loses: by time, or where both were last seen."""
    last = np.where(np.isfinite(task.times), len(MARKS) - 1, last_marks(task.curves))
    own = at_common_marks(task.curves, last)
    loses = (own < own.T) + 0.5 * (own == own.T)
    times = np.minimum(task.times, 1e9)  # so that differences are finite
    both = np.isfinite(task.times)[:, None] & np.isfinite(task.times)[None]
    by_time = (times[:, None] > times) + 0.5 * (times[:, None] == times)
    loses = np.where(both, by_time, loses)
    np.fill_diagonal(loses, 0.0)
    return np.asarray(loses.sum(axis=1) / max(len(loses) - 1, 1))


def _places(values: Array) -> Array:
    """Places from 0 (the lowest value) to 1, in the middle of each one's cell."""
    places = np.empty(len(values))
    places[np.argsort(values, kind="stable")] = (np.arange(len(values)) + 0.5) / max(len(values), 1)
    return places


def _normal_scores(values: Array) -> Array:
    """The normal scores of the ranks of values; equal values have the mean of their ranks."""
    from scipy.stats import norm, rankdata

    return np.asarray(norm.ppf((rankdata(values) - 0.4) / (len(values) + 0.2)))
