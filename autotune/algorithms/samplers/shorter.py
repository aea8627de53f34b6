"""The baseline with a shorter schedule, as the first proposals of a search for the time to target.

The length of the schedule decides most of the time that training takes to reach a target: a
learning rate that falls sooner reaches the same metric sooner, or no longer reaches it. A baseline
is usually longer than it needs to be, and a short search hardly ever draws a point that differs
from it in nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from autotune.algorithms.experience.canonical import CanonicalSpace
from autotune.algorithms.samplers import Sampler
from autotune.space.parameters import Float, Int
from autotune.trial import Params, Trial

SHARES = (0.7, 0.5)  # of the baseline's length
EPOCHS = "epochs"  # the canonical name of a schedule's length


@dataclass(frozen=True)
class ShorterFirst:
    """Proposes the baseline with other lengths of its schedule, then what another sampler proposes.

    Not where the baseline has missed the target: what is shorter would miss it, too.

    Args:
        space: the space in canonical names, among which is that of the schedule's length.
        then: the other sampler.
    """

    space: CanonicalSpace
    then: Sampler

    def ask(self, number: int, trials: Sequence[Trial]) -> Params | None:
        baseline = next((t for t in trials if t.kind == "baseline"), None)
        if baseline is not None and baseline.params and (not baseline.ended or baseline.succeeded):
            tried = [t.params for t in trials]
            for point in shorter(self.space, baseline.params):
                if point not in tried:
                    return point
        return self.then.ask(number, trials)


def shorter(space: CanonicalSpace, known: Params) -> list[dict[str, Any]]:
    """A point with 0.7 and 0.5 of the length of its schedule, as far as the space has such points.

    None where the space does not search a length (`Experiment(canonical=...)`, or a parameter that
    is called `epochs`, `num_epochs` and the like).
    """
    parameters = space.space.parameters()
    name = next((flat for flat, name in space.names.items() if name == EPOCHS), None)
    if name is None or name not in known or not isinstance(parameters[name], Float | Int):
        return []
    whole = isinstance(parameters[name], Int)
    lengths = [share * known[name] for share in SHARES]
    values = [round(length) if whole else length for length in lengths]
    allowed = [v for v in values if not parameters[name].check(v) and v != known[name]]
    return [{**known, name: value} for value in dict.fromkeys(allowed)]
