"""Population-based training: the worst trials are replaced by perturbed copies of the best.

Jaderberg et al. 2017 (arXiv 1711.09846), on the target's clock. All decisions are functions of the
journal, the seed and the trial's number; the loop carries out a `Fork`.

Every `interval` seconds there is a *look*. The population at a look are the trials with a report at
that time of their own training that run or were exploited since. A trial among the worst `share` of
them ends (*exploit*), and its workers start from the last checkpoint of one of the best `share`,
with perturbed knobs (*explore*). A look counts once no running trial is about to reach it, so that
the first trial at it is compared with the last. The baseline takes no part.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from autotune.algorithms.ranking.equal_time import GapCurve
from autotune.algorithms.ranking.trial_index import RECENT_LIMIT, recent
from autotune.errors import UserError, unknown
from autotune.space.encoding import nearest_value
from autotune.space.parameters import Choice, Int, Parameter, drawn
from autotune.space.search_space import SearchSpace
from autotune.trial import EXPLOITED, Fork, Params, State, Target, Trial, measured

KNOBS = (
    *("lr", "momentum", "beta1", "beta2", "weight_decay", "trust_coefficient"),
    *("label_smoothing", "batch_size", "image_size", "sequence_length"),
)
"""The entries of a space that are explored by default: those that a trainer with schedules can
change when it starts from a checkpoint. Nothing that shapes the model or its optimizer.
"""
_LOOKS = 10  # in the target's limit
_NEAR = 2  # intervals after the look within which the copied checkpoint was saved
_RESAMPLED = 0.25  # the probability with which a knob is drawn again
_DOWN, _UP = 0.8, 1.2  # else a number searched by its logarithm is multiplied by one of these
_STEP = 0.1  # and another moves by this share of its range
_TRIES = 20  # draws until the constraints hold


@dataclass(frozen=True)
class Population:
    """The controller of population-based training.

    Args:
        space: the search space; its entries named in `knobs` are explored.
        interval: seconds between looks, on the target's clock; at least two milestones should lie
            in it. Checkpoints are saved as often.
        knobs: names of entries; all fields of a schedule are explored.
        share: the share of the population that is replaced, and that is copied; at least one trial.
        seed: of the random numbers, together with the trial's number and the look's.

    Raises:
        UserError: a knob that the space does not have, or that cannot change during training.
    """

    space: SearchSpace
    interval: float
    knobs: tuple[str, ...]
    share: float = 0.25
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.interval > 0 or not math.isfinite(self.interval):
            raise UserError(f"interval must be more than 0 seconds but got {self.interval!r}")
        if not 0 < self.share <= 0.5:
            raise UserError(f"share must be more than 0 and at most 0.5 but got {self.share!r}")
        for name in self.knobs:
            if name not in self.space.entries:
                raise UserError(unknown("knob", name, self.space.entries))
            if name == "horizon":
                raise UserError("horizon cannot be a knob: a training's progress is counted in it")
        if not self.parameters():
            raise UserError(
                "a population has nothing to explore: no parameter of the space is one of "
                f"{', '.join(self.knobs or KNOBS)}; name what a checkpoint leaves open with knobs="
            )

    @property
    def checkpoint_interval(self) -> float:
        """Seconds after which the loop saves a running trial, so that it can be forked."""
        return self.interval

    def parameters(self) -> dict[str, Parameter]:
        """The parameters that are explored, by flat name."""
        found = self.space.parameters()
        return {n: p for n, p in found.items() if n.partition(".")[0] in self.knobs}

    def __call__(self, trial: Trial, others: Sequence[Trial], target: Target) -> Fork | None:
        if trial.kind != "trial":
            return None
        trials = sorted((trial, *recent(others, RECENT_LIMIT)), key=lambda t: t.number)
        peers = [t for t in trials if t.kind == "trial" and t.hardware == trial.hardware]
        look = self._look(trial, peers)
        if look is None:
            return None
        best = self._better(trial, self._ranked(peers, target, look), target, look)
        random = Random(f"{self.seed}/{trial.number}/{look}")
        if not best:
            return None
        parent = random.choice(best)
        point = self._explored(parent.point or {}, random)
        return Fork(parent.number, point) if point is not None else None

    # --- exploit ------------------------------------------------------------------------------

    def _look(self, trial: Trial, peers: Sequence[Trial]) -> int | None:
        """The last look that counts for the trial, of its last two; None if none does.

        A look that a running trial is about to reach does not count yet.
        """
        last = int(trial.seconds // self.interval)
        for look in (last, last - 1):
            coming = any(
                t.state is State.RUNNING and look - 1 <= t.seconds / self.interval < look
                for t in peers
            )
            if look > born(trial, self.interval) and not coming:
                return look
        return None

    def _ranked(self, peers: Sequence[Trial], target: Target, look: int) -> list[Trial]:
        """The population at the look, sorted by the gap to the target."""
        there = [
            t
            for t in peers
            if (t.state is State.RUNNING or t.reason == EXPLOITED)
            and born(t, self.interval) < look <= t.seconds / self.interval
        ]
        at = look * self.interval
        return sorted(there, key=lambda t: (GapCurve(t, target).at(at), t.number))

    def _better(
        self, trial: Trial, ranked: Sequence[Trial], target: Target, look: int
    ) -> list[Trial]:
        """The trials that may replace the trial; none if it is not among the worst."""
        count = max(1, int(self.share * len(ranked)))
        if trial.number not in [t.number for t in ranked[count:][-count:]]:
            return []
        at = look * self.interval
        gap = GapCurve(trial, target).at(at)
        return [
            t
            for t in ranked[:count]
            if t.state is State.RUNNING
            and t.point is not None
            and 0 <= saved_at(t, target) - at < _NEAR * self.interval
            and GapCurve(t, target).at(at) < gap
        ]

    # --- explore ------------------------------------------------------------------------------

    def _explored(self, point: Params, random: Random) -> Params | None:
        """Another point near the parent's that keeps the constraints, or None."""
        known = {n: p for n, p in self.parameters().items() if n in point}
        for _ in range(_TRIES):
            new = perturbed(point, known, random)

            def draw(name: str, parameter: Parameter, new: Mapping[str, Any] = new) -> Any:
                kept = new.get(name, point.get(name))
                return drawn(parameter, random) if name not in point else kept

            found = self.space.suggest(draw)
            if found != point and self._allowed(found):
                return found
        return None

    def _allowed(self, point: Params) -> bool:
        try:
            return not self.space.broken(self.space.config(point))
        except ValueError:  # schedules that do not fit together there
            return False


def pbt(
    space: SearchSpace,
    target: Target,
    *,
    interval: float | None = None,
    knobs: Sequence[str] | None = None,
    share: float = 0.25,
    seed: int = 0,
) -> Population:
    """Population-based training: knobs are multiplied by 0.8 or 1.2, or drawn again.

    Args:
        interval: see `Population`; a tenth of the target's limit by default.
        knobs: see `Population`; by default those of `KNOBS` that the space has.

    Raises:
        UserError: see `Population`.
    """
    named = tuple(knobs) if knobs is not None else known_knobs(space)
    if interval is None and not math.isfinite(target.horizon):
        raise UserError(
            "controller pbt needs an interval, as in pbt(interval=5), or a Target limit"
        )
    every = target.horizon / _LOOKS if interval is None else interval
    return Population(space, every, named, share, seed)


def known_knobs(space: SearchSpace) -> tuple[str, ...]:
    """The entries of the space that are explored by default."""
    return tuple(name for name in KNOBS if name in space.entries)


def saved_at(trial: Trial, target: Target) -> float:
    """What the target's clock showed at the trial's checkpoint; 0 without one."""
    step = trial.checkpoint.step if trial.checkpoint is not None else 0
    return measured(str(target.clock), step, trial.saved_clock)


def born(trial: Trial, interval: float) -> int:
    """The last look before a trial's own training: 0 for one that is no fork."""
    return int(trial.inherited_seconds // interval)


def perturbed(point: Params, parameters: Mapping[str, Parameter], random: Random) -> dict[str, Any]:
    """Perturbed knobs: each is drawn again with probability 0.25; else a number moves one step."""
    return {
        name: drawn(parameter, random)
        if random.random() < _RESAMPLED
        else moved(parameter, point[name], random)
        for name, parameter in parameters.items()
    }


def moved(parameter: Parameter, value: Any, random: Random) -> Any:
    """A number a step up or down, inside its range; a choice as it is.

    A step is a factor of 0.8 or 1.2 where the logarithm is searched, one power where powers of two
    are, else a tenth of the range; of whole numbers at least one.

    >>> moved(Float(0.01, 1, log=True), 0.1, Random(0)), moved(Float(0, 1), 0.95, Random(0))
    (0.12, 1.0)
    """
    if isinstance(parameter, Choice):
        return value
    up = random.random() > 0.5
    if isinstance(parameter, Int) and parameter.power_of_two:
        goal: float = value * 2 if up else value / 2
    elif parameter.log:
        goal = value * (_UP if up else _DOWN)
    else:
        step = _STEP * (parameter.high - parameter.low)
        goal = value + (step if up else -step)
    if isinstance(parameter, Int) and abs(goal - value) < parameter.step:
        goal = value + (parameter.step if up else -parameter.step)
    return nearest_value(parameter, max(goal, parameter.low))
