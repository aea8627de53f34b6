"""The path that a controller took, as schedules: the same training without the controller.

A change at a milestone holds from that milestone's progress on. So the learning rate becomes its
schedule times a staircase of the factors, and a batch size or momentum that was set becomes its
schedule up to the first setting and a staircase from there on. Where a knob was turned after the
horizon, the horizon is made 2, 4, 8... times longer and every schedule as much shorter: powers of
two, so that no value changes in its last bit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from autotune.schedules import (
    Constant,
    Effective,
    Following,
    Piecewise,
    Schedule,
    Spliced,
    Until,
    as_schedule,
    compressed,
    substituted,
)
from autotune.trial import Change, Trial

_SET = {"batch_size": ("batch_size",), "momentum": ("momentum", "beta1")}
"""The knobs that a change sets, and the keys under which a configuration may have them."""
Steps = Sequence[tuple[float, float]]  # progresses, and the value that holds from each on


def open_loop(trial: Trial) -> dict[str, Any] | None:
    """The trial's configuration with what a controller did written into its schedules.

    None if it cannot be written so: the trainer does not report `progress`, a knob that was turned
    is not in the configuration, or the horizon is not and was outlived.
    """
    places = {r.step: r.metrics.get("progress", math.nan) for r in trial.reports}
    path = [(places.get(step, math.nan), change) for step, change in trial.changes]
    if not path or not all(math.isfinite(at) and at >= 0 for at, _ in path):
        return None
    last = path[-1][0]
    times = 2.0 ** math.frexp(last)[1] if last >= 1 else 1.0  # the least power of two above it
    try:
        return _turned(trial.config, path, times)
    except (KeyError, TypeError, ValueError):  # knobs of other names, or no valid schedules
        return None


def _turned(
    config: Mapping[str, Any], path: Sequence[tuple[float, Change]], times: float
) -> dict[str, Any]:
    """The configuration with the path in it, in a horizon so many times as long.

    Raises:
        KeyError: a knob that was turned is not in the configuration.
        TypeError, ValueError: it is no number or schedule, or would be none that is valid.
    """
    made: dict[str, Any] = _compressed(config, times)
    if times > 1:
        made["horizon"] = config["horizon"] * times
    lr = as_schedule(made["lr"])
    for knob, names in _SET.items():
        set_to = [(at / times, getattr(change, knob)) for at, change in path]
        steps = [(at, float(value)) for at, value in set_to if value is not None]
        if steps:
            name = next((name for name in names if name in made), knob)
            old = as_schedule(made[name])
            made[name] = _until(old, steps)
            if isinstance(lr, Spliced) and any(_follows_another(part, old) for part in lr.parts):
                raise ValueError("a part of a line of descent follows a knob of its own")
            lr = substituted(lr, old, made[name])
    factors, product = [], 1.0
    for at, change in path:
        product *= change.lr_factor
        factors.append((at / times, product))
    if any(factor != 1.0 for _, factor in factors):
        made["lr"] = Following(lr, _until(Constant(1.0), factors), power=1.0, reference=1.0)
    elif lr != as_schedule(made["lr"]):
        made["lr"] = lr
    return made


def _follows_another(schedule: Schedule, old: Schedule) -> bool:
    """Whether it follows, or makes up for, something else than `old`."""
    if isinstance(schedule, Following):
        return schedule.other != old or _follows_another(schedule.base, old)
    if isinstance(schedule, Effective):
        return schedule.momentum != old or _follows_another(schedule.base, old)
    return False


def _compressed(value: Any, times: float) -> Any:
    """A configuration, all its schedules made so many times as short."""
    if isinstance(value, Mapping):
        return {name: _compressed(item, times) for name, item in value.items()}
    return compressed(value, times) if isinstance(value, Schedule) else value


def _until(base: Schedule, steps: Steps) -> Schedule:
    """`base` up to the first step, and from each on its value; a staircase where base is one."""
    edges = tuple(at for at, _ in steps if at > 0)
    values = tuple(value for at, value in steps if at > 0)
    start = [value for at, value in steps if at <= 0]
    if start:
        base = Constant(start[-1])
    if not edges:
        return base
    if isinstance(base, Constant):
        return Piecewise(edges, (base.value, *values), kind="constant")
    return Until(base, edges, values)
