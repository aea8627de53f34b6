"""Schedules: frozen functions of progress.

Progress runs from 0 (the start of training) to 1 (its configured horizon). Past 1 the final value
holds, so that a trial can train beyond its horizon; below 0, or NaN, is a `ValueError`.
Arrays give arrays of the same shape. Values are any finite numbers in the unit of what is scheduled
(a learning rate, a momentum, a batch size) and always come back as floats. Where a schedule says
`start` and `end`, it returns exactly these at 0 and at 1.

At an edge the later part holds. A warm-up is a stage and not a kind of schedule, and any schedule
may be a stage:

>>> lr = Stages(edges=(0.1,), parts=(Linear(0.0, 0.4), Cosine(0.4, 0.0)))
>>> print(lr)
0-10%: linear 0 -> 0.4, 10-100%: cosine 0.4 -> 0
>>> lr(0.05), lr(0.1), lr(1.0), lr(7.0)
(0.2, 0.4, 0.0, 0.0)
>>> lr == warmed(Cosine(0.4, 0.0), 0.1) == from_json(lr.to_json())
True

Schedules can be made from others: one that follows the batch size (`Following`), that moves
opposite to another (`Mirrored`), that compensates a changing momentum (`Effective`), or that a
controller replaced during training (`Until`). Functions give the `extremes` and edges of any
schedule, and whether two are the same function:

>>> same_meaning(stages((1, Linear(0, 0.4)), (9, Linear(0.4, 0.4))), warmed(Constant(0.4), 0.1))
True

A new schedule is one class in `families.py`, its name in `Schedule`, here and in
`autotune/__init__.pyi`, and one row in the table of its tests (`tests/support/curves.py`). To be
searched it needs a line in `FAMILIES` of `making.py`; `CONTRIBUTING.md` has the rest.
"""

from __future__ import annotations

from autotune.schedules.analysis import edges_of, extremes, meaning, outside, same_meaning
from autotune.schedules.compose import (
    Effective,
    Following,
    Mirrored,
    Schedule,
    Spliced,
    Stages,
    Until,
)
from autotune.schedules.curve import VERSION, Kind
from autotune.schedules.document import from_json
from autotune.schedules.families import (
    WSD,
    Constant,
    Cosine,
    Exponential,
    InverseSqrt,
    Linear,
    LinearCosine,
    OneCycle,
    Piecewise,
    Polynomial,
    Step,
)
from autotune.schedules.formulas import Shape
from autotune.schedules.making import (
    FAMILIES,
    as_schedule,
    compressed,
    scaled,
    stages,
    substituted,
    warmed,
)

__all__ = [
    "Constant",
    "Cosine",
    "Effective",
    "Exponential",
    "FAMILIES",
    "Following",
    "InverseSqrt",
    "Kind",
    "Linear",
    "LinearCosine",
    "Mirrored",
    "OneCycle",
    "Piecewise",
    "Polynomial",
    "Schedule",
    "Shape",
    "Spliced",
    "Stages",
    "Step",
    "Until",
    "VERSION",
    "WSD",
    "as_schedule",
    "compressed",
    "edges_of",
    "extremes",
    "from_json",
    "meaning",
    "outside",
    "same_meaning",
    "scaled",
    "stages",
    "substituted",
    "warmed",
]
