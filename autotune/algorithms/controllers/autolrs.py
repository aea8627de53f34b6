"""AutoLRS: the learning rate of each stage is searched by short trainings from one checkpoint.

Jin et al. 2021, arXiv 2105.10762. A stage begins at a checkpoint. Each of a few learning rates
trains on from it for a short time; an exponential model of each training's loss forecasts what it
would be at the end of the stage; then the learning rate with the least forecast trains the stage,
from the same checkpoint. The first is the one that the training has had; each further one minimizes
the lower confidence bound of a Gaussian process over the logarithm of learning rates.

Every short training is a fork, which replaces the one before: so a line of descent needs one worker
group, and several lines do not touch each other. All decisions are functions of the journal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from autotune.algorithms.ranking.trial_index import RECENT_LIMIT, recent
from autotune.algorithms.samplers.gaussian_process import Process, prior_medians
from autotune.errors import UserError
from autotune.space.parameters import Float
from autotune.space.search_space import SearchSpace
from autotune.trial import Fork, Report, Target, Trial, diverged

NAMES = ("lr", "lr.peak")
"""What is searched, as the space has it."""
_STAGES = 5  # in the target's limit
_EXPLORED = 8  # the time of a learning rate that is tried, as a part of the stage
_REACH = 10.0  # the most by which a stage's learning rate differs from that of the one before
_GRID = 41  # learning rates among which the next one is chosen
_APART = 0.1  # the least distance of two learning rates, as a share of the range's logarithm
_LOWER = math.log(4.0)  # by which it is lowered while all have diverged
_BELOW = 1.0  # standard deviations of the lower confidence bound
_RATES = np.array([0.25, 0.5, 1.0, 2.0, 4.0, 8.0])  # of the exponentials, over the stage
_LEAST = 3  # reports for an exponential
_JITTER = 0.001  # of the loss: the least error of a report


@dataclass(frozen=True)
class AutoLRS:
    """The controller; `autolrs` makes it.

    Args:
        space: whose learning rate is chosen.
        stage: seconds of a stage, on the target's clock.
        candidates: learning rates that are tried for a stage.
        explore: seconds for which each is tried; at least three milestones should lie in it.
    """

    space: SearchSpace
    stage: float
    candidates: int
    explore: float
    restarts: ClassVar[bool] = True  # it forks again from where a fork began

    @property
    def checkpoint_interval(self) -> float:
        """Seconds after which the loop saves a running trial, so that a stage may begin there."""
        return self.explore

    @property
    def name(self) -> str:
        """The learning rate's among the parameters of the space."""
        found = self.space.parameters()
        return next(name for name in NAMES if isinstance(found.get(name), Float))

    def __call__(self, trial: Trial, others: Sequence[Trial], target: Target) -> Fork | None:
        if trial.kind != "trial" or trial.point is None or not trial.reports:
            return None
        if trial.checkpoint is None or trial.origin is None:
            return self._begun(trial)
        saved = _seconds(trial, trial.checkpoint.step)
        if saved >= trial.inherited_seconds + self.stage:
            return self._begun(trial)
        tried = _tried(trial, self.explore)
        if not (diverged(trial.reports[-1].metrics) or _over(trial, tried, self.explore)):
            return None
        line = _line(trial, recent(others, RECENT_LIMIT))
        if len(line) > self.candidates:
            return None  # the stage is being trained
        if len(line) < self.candidates:
            return self._fork(trial, self._next(line, target))
        best = int(np.argmin(self._forecasts(line, target)))
        return None if line[best] is trial else self._fork(trial, self._rate(line[best]))

    def _begun(self, trial: Trial) -> Fork | None:
        """The first candidate of a stage that begins at the last checkpoint."""
        return Fork(trial.number, dict(trial.point or {})) if trial.checkpoint else None

    def _fork(self, trial: Trial, lr: float) -> Fork:
        return Fork(trial.number, {**(trial.point or {}), self.name: lr}, restart=True)

    def _rate(self, trial: Trial) -> float:
        return float((trial.point or {})[self.name])

    def _next(self, line: Sequence[Trial], target: Target) -> float:
        """The learning rate to try after these, the first of which is that of the stage before."""
        parameter = self.space.parameters()[self.name]
        assert isinstance(parameter, Float)
        rates = np.log([self._rate(trial) for trial in line])
        low = max(math.log(parameter.low), rates[0] - math.log(_REACH))
        high = min(math.log(parameter.high), rates[0] + math.log(_REACH))
        grid = np.linspace(low, high, _GRID)
        width = max(high - low, 1e-9)
        away = np.abs(grid[:, None] - rates).min(axis=1) > _APART * width
        losses = self._forecasts(line, target)
        known = losses[np.isfinite(losses)]
        if not len(known):
            tried = math.exp(max(low, rates.min() - _LOWER))
            return float(np.clip(tried, parameter.low, parameter.high))
        losses = np.where(np.isfinite(losses), losses, known.max() + max(np.ptp(known), 1e-9))
        values = (losses - losses.mean()) / max(float(losses.std()), 1e-9)
        x, z = (rates[:, None] - low) / width, (grid[:, None] - low) / width
        mean, deviation = Process(x, values, np.ones(len(x)), prior_medians(1)).at(z)
        bound = np.where(away, mean - _BELOW * deviation, np.inf)
        return float(np.clip(math.exp(grid[int(bound.argmin())]), parameter.low, parameter.high))

    def _forecasts(self, line: Sequence[Trial], target: Target) -> NDArray[np.float64]:
        """The loss of each learning rate at the end of the stage."""
        return np.array([self._forecast(trial, target) for trial in line[: self.candidates]])

    def _forecast(self, trial: Trial, target: Target) -> float:
        """Infinite for a trial that has diverged, or reported nothing."""
        tried, start = _tried(trial, self.explore), trial.inherited_seconds
        if any(diverged(report.metrics) for report in tried):
            return math.inf
        name, least = "train_loss", 0.0
        if any(name not in report.metrics for report in tried):
            name, least = target.metric, -math.inf
        known = [report for report in tried if name in report.metrics]
        if not known:
            return math.inf
        values = [report.metrics[name] for report in known]
        gaps = values if name != target.metric else [target.shortfall(v) for v in values]
        seconds = np.array([report.seconds - start for report in known])
        return forecast(seconds / self.stage, np.array(gaps, float), least)


def autolrs(
    space: SearchSpace,
    target: Target,
    *,
    stage: float | None = None,
    candidates: int = 4,
    explore: float | None = None,
) -> AutoLRS:
    """AutoLRS: a search of the learning rate in each stage, by short trainings and forecasts.

    Args:
        stage: see `AutoLRS`; a fifth of the target's limit by default.
        candidates: see `AutoLRS`, at least 2. A stage takes so many trials and one more.
        explore: see `AutoLRS`; an eighth of the stage by default.

    Raises:
        UserError: an argument outside its range, or a space without a learning rate to search.
    """
    if stage is None and not math.isfinite(target.horizon):
        raise UserError("controller autolrs needs a stage, as in autolrs(stage=5), or a limit")
    stage = target.horizon / _STAGES if stage is None else stage
    if not 0 < stage < math.inf:
        raise UserError(f"autolrs stage must be more than 0 seconds but got {stage!r}")
    if isinstance(candidates, bool) or not isinstance(candidates, int) or candidates < 2:
        raise UserError(f"autolrs candidates must be a whole number from 2 but got {candidates!r}")
    explore = stage / _EXPLORED if explore is None else explore
    if not 0 < explore < stage:
        rule = f"more than 0 seconds and less than the stage, {stage:g}"
        raise UserError(f"autolrs explore must be {rule}, but got {explore!r}")
    if not any(isinstance(space.parameters().get(name), Float) for name in NAMES):
        raise UserError(
            "controller autolrs searches the learning rate, but the space has no Float named lr, "
            "and no schedule of that name with a peak"
        )
    return AutoLRS(space, float(stage), candidates, float(explore))


def forecast(times: NDArray[np.float64], losses: NDArray[np.float64], least: float = 0.0) -> float:
    """The value at time 1 of exponentials a e^(-b t) + c through a loss, c at least `least`.

    Each rate b of a grid has its least squares; the forecasts are weighted by their likelihoods. A
    loss with fewer than three values is forecast to stay.

    >>> t = np.array([0.1, 0.2, 0.3, 0.4])
    >>> round(forecast(t, 2 * np.exp(-2 * t) + 1), 1), round(float(2 * np.exp(-2) + 1), 1)
    (1.3, 1.3)
    """
    if len(losses) < _LEAST:
        return float(losses[-1])
    shapes = np.exp(-_RATES[:, None] * times)
    apart, off = shapes - shapes.mean(axis=1)[:, None], losses - losses.mean()
    scales = (apart @ off) / np.maximum((apart**2).sum(axis=1), 1e-18)
    floors = losses.mean() - scales * shapes.mean(axis=1)
    bounded = np.maximum(floors, least)
    through = (shapes @ losses - bounded * shapes.sum(axis=1)) / (shapes**2).sum(axis=1)
    scales = np.where(floors < least, through, scales)
    errors = ((scales[:, None] * shapes + bounded[:, None] - losses) ** 2).sum(axis=1)
    trust = -0.5 * len(losses) * np.log(errors + (_JITTER * np.abs(losses).mean()) ** 2 + 1e-300)
    weights = np.exp(trust - trust.max())
    found = scales * np.exp(-_RATES) + bounded
    return float(found @ weights / weights.sum())


def _seconds(trial: Trial, step: int) -> float:
    """What the target's clock showed at the last report up to a step; 0 before the first."""
    return next((r.seconds for r in reversed(trial.reports) if r.step <= step), 0.0)


def _tried(trial: Trial, explore: float) -> list[Report]:
    """A fork's own reports, up to the first one after so many seconds."""
    assert trial.origin is not None
    start, found = trial.inherited_seconds, []
    for report in trial.reports:
        if report.step > trial.origin.checkpoint.step:
            found.append(report)
            if report.seconds >= start + explore:
                break
    return found


def _over(trial: Trial, tried: Sequence[Report], explore: float) -> bool:
    return bool(tried) and tried[-1].seconds >= trial.inherited_seconds + explore


def _line(trial: Trial, others: Sequence[Trial]) -> list[Trial]:
    """The forks of one stage, in their order; the trial is the last."""
    by_number = {other.number: other for other in others}
    line = [trial]
    while True:
        first = line[0].origin
        assert first is not None
        assert first.replaces is not None, "a fork"
        before = by_number.get(first.replaces)
        came = before.origin if before is not None else None
        if before is None or came is None or came.checkpoint.step != first.checkpoint.step:
            return line
        line.insert(0, before)
