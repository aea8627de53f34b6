"""The baseline with a shorter schedule, as the first proposals of a search for the time to target.

The length of the schedule decides most of the time that training takes to reach a target: a
learning rate that falls sooner reaches the same metric sooner, or no longer reaches it. A baseline
is usually longer than it needs to be, and a short search hardly ever draws a point that differs
from it in nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from autotune.algorithms.experience.canonical import CanonicalSpace
from autotune.algorithms.samplers import Sampler
from autotune.space.encoding import nearest_value
from autotune.space.parameters import Choice, Int, Parameter, is_real
from autotune.space.search_space import SearchSpace
from autotune.trial import Params, Trial

SHARES = (0.7, 0.5)  # of the baseline's length
EPOCHS = "epochs"  # the canonical name of a schedule's length


@dataclass(frozen=True)
class ShorterFirst:
    """Proposes the baseline with other lengths of its schedule, then what another sampler proposes.

    Not once the baseline, or the longer of them, has missed the target: what is shorter would miss
    it, too.

    Args:
        space: the space in canonical names, among which is that of the schedule's length.
        then: the other sampler.
    """

    space: CanonicalSpace
    then: Sampler

    def ask(self, number: int, trials: Sequence[Trial]) -> Params | None:
        baseline = next((t for t in trials if t.kind == "baseline"), None)
        if baseline is not None and baseline.params and not _missed(baseline):
            for point in shorter(self.space, baseline.params):
                own = [t for t in trials if t.params == point]
                if not own:
                    return point
                if any(map(_missed, own)):
                    break
        return self.then.ask(number, trials)


def shorter(space: CanonicalSpace, known: Params) -> list[dict[str, Any]]:
    """A point with 0.7 and 0.5 of the length of its schedule, as far as the space has such points.

    Whole numbers and choices have the nearest value that is allowed. None where the space does not
    search a length (`Experiment(canonical=...)`, or a parameter that is called `epochs`,
    `num_epochs` and the like).
    """
    names = (flat for flat, name in space.names.items() if name == EPOCHS and flat in known)
    name = next(names, None)
    if name is None or not is_real(known[name]):
        return []
    parameter = space.space.parameters()[name]
    lengths = (_nearest(parameter, share * known[name]) for share in SHARES)
    points = [{**known, name: v} for v in dict.fromkeys(lengths) if 0 < v < known[name]]
    return [point for point in points if _allowed(space.space, point)]


def _missed(trial: Trial) -> bool:
    return trial.ended and not trial.succeeded


def _nearest(parameter: Parameter, length: float) -> float:
    """The value of a whole number or choice that is nearest, of two the larger one."""
    if isinstance(parameter, Int):
        return nearest_value(parameter, length)
    if isinstance(parameter, Choice):
        numbers = [value for value in parameter.options if is_real(value)]
        return min(numbers, key=lambda value: (abs(value - length), -value), default=math.nan)
    return length


def _allowed(space: SearchSpace, point: Params) -> bool:
    """Whether the space has the point: conditions and constraints may depend on the length."""
    try:
        return not space.broken(space.config(space.check(point)))
    except ValueError:
        return False
