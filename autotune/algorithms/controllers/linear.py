"""Linear controllers: a regulator with fixed weights, and a policy that learns across trials.

At a milestone, a controller's action for a knob is a weighted sum of the features. An action of 0
changes nothing: actions are residuals on the recipe's schedule. Weights, noise and the times of
decisions are functions of the trials, so a resumed study makes the same decisions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, ClassVar

import numpy as np

from autotune.algorithms.controllers.features import (
    FEATURES,
    View,
    change_of,
    decisions,
    require_allowed,
)
from autotune.algorithms.controllers.learning import Array, Episode, awr
from autotune.algorithms.ranking.equal_time import equal_time_ranks
from autotune.errors import UserError, unknown
from autotune.space.encoding import rank_score
from autotune.trial import (
    DIVERGED,
    INTERRUPTED_REASONS,
    KNOBS,
    Change,
    Hardware,
    State,
    Target,
    Trial,
    incumbent,
    usual_hardware,
)

SETTINGS = ("specialist", "robust")
_SETPOINT = 0.04  # of the regulator: the relative size of updates
_GAIN = 1.5  # of the regulator: action per decade of error of the update size
_WARMUP = 0.05
_SOON = 0.01  # of the time, before the regulator's first decision: soon, as errors are costly
_WINDOW = 96  # trials that the policy is learned from, the last ones
_SHOWN = 32  # trials over which the influence of a feature is averaged
_NAMES = tuple(FEATURES)
Weights = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class Linear:
    """A controller whose actions are linear in the features; `regulator` and `policy` make it.

    Args:
        start: initial weights by knob and feature; missing ones are 0.
        learns: whether the weights change with each trial that ends.
        knobs: the knobs that it turns; None for all that the experiment allows.
        noise: standard deviation of the exploration noise in the actions of a trial.
        every: seconds between two decisions, as a share of the best time so far, or of the limit.
        warmup: seconds before the first decision, as such a share.
        about: its description in its file.
        trained: whether a new study gets the package's weights as its `start`.
    """

    start: Weights
    learns: bool = False
    knobs: tuple[str, ...] | None = None
    noise: float = 0.0
    every: float = 0.05
    warmup: float = _WARMUP
    about: Mapping[str, Any] = field(default_factory=dict)
    trained: bool = False
    _cache: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)
    checkpoint_interval: ClassVar[float] = math.inf  # it never forks

    def __call__(self, trial: Trial, others: Sequence[Trial], target: Target) -> Change | None:
        if not self._due(trial, others, target):
            return None
        knobs = self._knobs
        _check_reports(trial, self.start, knobs)  # also the baseline's, which may run for long
        if trial.kind == "baseline":
            return None
        before = next((i for i, r in enumerate(trial.reports) if r.step == _last_step(trial)), None)
        seen = np.array(View(trial, target).features(len(trial.reports) - 1, before))
        meant = self._weights(others, target, trial.hardware) @ seen
        noise = noises(trial, trial.reports[-1].step, knobs) if trial.kind == "trial" else {}
        actions = {
            knob: float(mean) + self.noise * noise.get(knob, 0.0)
            for knob, mean in zip(knobs, meant, strict=True)
        }
        return change_of(actions, trial)

    def within(self, allowed: Sequence[str]) -> Linear:
        """This controller for an experiment that allows these knobs.

        Raises:
            UserError: it turns another knob.
        """
        require_allowed(self.knobs or (), allowed)
        return replace(self, knobs=self.knobs or tuple(allowed), _cache={})

    def document(self, trials: Sequence[Trial], target: Target) -> dict[str, Any]:
        """The policy learned from the trials, as JSON types; see `weights_file`."""
        hardware = usual_hardware(trials) or Hardware()
        ended = _learned_from(trials, hardware)[-_SHOWN:] if self.learns else []
        seen = [row for made in self._episodes(ended, target) for row in made.features]
        sizes = np.abs(np.array(seen)).mean(axis=0) if seen else np.zeros(len(FEATURES))
        rows = dict(zip(self._knobs, self._weights(trials, target, hardware), strict=True))
        return {
            **self.about,
            "noise": self.noise,
            "trials": len(_learned_from(trials, hardware)),
            "features": dict(FEATURES),
            "weights": {knob: _named(row) for knob, row in rows.items()},
            "influence": {knob: _named(np.abs(row) * sizes) for knob, row in rows.items()},
        }

    # --- when, and with which weights ---------------------------------------------------------

    def _due(self, trial: Trial, others: Sequence[Trial], target: Target) -> bool:
        if not trial.reports or target.metric not in trial.reports[-1].metrics:
            return False
        best = incumbent(others, hardware=trial.hardware)
        whole = min(best.seconds, target.horizon) if best is not None else target.horizon
        step = _last_step(trial)
        last = next((r.seconds for r in trial.reports if r.step == step), None)
        wait = self.warmup if last is None else self.every
        return trial.seconds >= (last or 0.0) + wait * whole

    def _weights(self, trials: Sequence[Trial], target: Target, hardware: Hardware) -> Array:
        """The weights after all ended trials, one row for each knob."""
        rows = [[self.start.get(k, {}).get(name, 0.0) for name in _NAMES] for k in self._knobs]
        start = np.array(rows)
        if not self.learns:
            return start
        ended = _learned_from(trials, hardware)[-_WINDOW:]
        key = tuple((t.number, t.ended_at, t.seconds) for t in ended)
        if self._cache.get("fit", (None,))[0] != key:
            self._cache["fit"] = key, awr(start, self._episodes(ended, target))
        weights: Array = self._cache["fit"][1]
        return weights

    @property
    def _knobs(self) -> tuple[str, ...]:
        return self.knobs or KNOBS[:1]

    def _episodes(self, ended: Sequence[Trial], target: Target) -> list[Episode]:
        """The episodes of ended trials, each with its value among these."""
        values = values_of(ended, target)
        found = []
        for trial in ended:
            key = (trial.number, trial.ended_at)
            if key not in self._cache:
                self._cache[key] = episode(trial, self._knobs, target)
            found.append(replace(self._cache[key], value=values.get(trial.number, 0.0)))
        return found


def episode(trial: Trial, knobs: Sequence[str], target: Target) -> Episode:
    """The episode of an ended trial, without its value."""
    made = decisions(trial, knobs, target)
    return Episode(
        np.array([decision.features for decision in made]),
        np.array([[decision.actions[k] for k in knobs] for decision in made]),
    )


def noises(trial: Trial, step: int, knobs: Sequence[str]) -> dict[str, float]:
    """The noise of each knob at a step: standard normal, a function of the trial's seed."""
    return {knob: Random(f"{trial.seed}/{step}/{knob}").gauss(0.0, 1.0) for knob in knobs}


def values_of(trials: Sequence[Trial], target: Target) -> dict[int, float]:
    """Each trial's value by its number: the normal score of its equal-time rank.

    A trial that diverged has the last rank.
    """
    ranks = equal_time_ranks(trials, target)
    ranks |= {t.number: 1.0 for t in trials if t.reason == DIVERGED}
    return {number: -rank_score(rank, len(ranks)) for number, rank in ranks.items()}


def regulator(
    setpoint: float = _SETPOINT, *, knobs: Sequence[str] = ("lr",), every: float = 0.05
) -> Linear:
    """Regulate the relative size of the updates to a setpoint; without learning.

    It corrects a learning rate that is wrong by a factor of ten within some decisions. The shape of
    the recipe's schedule is kept: where that has decayed to a tenth, so has the setpoint.

    Args:
        setpoint: of lr |g| / ((1 - momentum) |w|) at the schedule's peak, between 0 and 1.
        knobs: only the learning rate.
        every: seconds between decisions, as a share of the best time so far, or of the limit.

    Raises:
        ValueError: an argument outside its range.
    """
    if not 0 < setpoint < 1:
        raise ValueError(f"regulator setpoint must lie between 0 and 1 but got {setpoint!r}")
    if tuple(knobs) != ("lr",):
        raise ValueError(f"regulator knobs must be ('lr',) but got {tuple(knobs)!r}")
    start = {"lr": _regulating(setpoint)}
    about = {"controller": "regulator"}
    return Linear(start, knobs=("lr",), every=_share(every), warmup=_SOON, about=about)


def policy(
    setting: str = "specialist",
    *,
    knobs: Sequence[str] | None = None,
    noise: float = 0.3,
    setpoint: float | None = None,
    every: float = 0.05,
) -> Linear:
    """A policy that learns across trials how to turn the knobs; see docs/cards/controllers.md.

    Args:
        setting: `specialist` starts at the recipe's schedule, `robust` from weights that were
            trained on other tasks, if it begins a study, or as the `regulator`.
        knobs: some of `lr`, `batch_size`, `momentum`; None for all that the experiment allows.
        noise: of the actions while learning, >= 0; 1 is a learning rate times or over 2.
        setpoint: for `robust`: to start as the regulator with it.
        every: seconds between decisions, as a share of the best time so far, or of the limit.

    Raises:
        ValueError: an argument outside its range.
    """
    if setting not in SETTINGS:
        raise ValueError(unknown("policy setting", setting, SETTINGS))
    for knob in knobs or ():
        if knob not in KNOBS:
            raise ValueError(unknown("knob", knob, KNOBS))
    if not noise > 0:
        raise ValueError(f"policy noise must be more than 0 but got {noise!r}")
    robust = setting == "robust"
    start = {"lr": _regulating(_SETPOINT if setpoint is None else setpoint)} if robust else {}
    turned = tuple(knobs) if knobs is not None else None
    about = {"controller": "policy", "setting": setting}
    warmup, trained = _SOON if robust else _WARMUP, robust and setpoint is None
    return Linear(start, True, turned, noise, _share(every), warmup, about, trained)


def _regulating(setpoint: float) -> dict[str, float]:
    """The weights of the regulator: 1.5 (log10 setpoint - log10 update size)."""
    return {"bias": _GAIN * (float(np.log10(setpoint)) + 2), "update": -_GAIN}


def _share(every: float) -> float:
    if not 0 < every < 1:
        raise ValueError(f"every must lie between 0 and 1 but got {every!r}")
    return every


def _learned_from(trials: Sequence[Trial], hardware: Hardware) -> list[Trial]:
    """The trials that the policy learns from, in the order in which they ended."""
    ended = [
        t
        for t in trials
        if t.ended
        and t.kind == "trial"
        and t.hardware == hardware
        and t.state in (State.REACHED, State.CENSORED)
        and t.reason not in INTERRUPTED_REASONS
        and len(t.changes) > 1
    ]
    return sorted(ended, key=lambda t: (t.ended_at or 0.0, t.number))


def _last_step(trial: Trial) -> int | None:
    return trial.changes[-1][0] if trial.changes else None


def _check_reports(trial: Trial, start: Weights, knobs: Sequence[str]) -> None:
    """Raise UserError if the regulator lacks the update size, without which it would not stop."""
    needs = any(start.get(knob, {}).get("update") for knob in knobs)
    if needs and not any("update_ratio" in r.metrics for r in trial.reports):
        found = sorted({name for r in trial.reports for name in r.metrics})
        raise UserError(
            "the regulator needs the metric 'update_ratio', |change of the weights| / |weights| of "
            f"a step, which the trainer does not report (it reports: {', '.join(found)})"
        )


def _named(row: Any) -> dict[str, float]:
    return {name: round(float(x), 6) for name, x in zip(_NAMES, row, strict=True)}
