"""What turns knobs of running trials, or forks them: (trial, others, target) to Change or Fork.

A controller is a function of frozen trials, called at each milestone of a running trial. What it
decides, if anything, is written down before the ranks act on it: as the trial's changes, or as a
new trial's origin.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.algorithms import specs
from autotune.algorithms.controllers.policy import Linear, policy, regulator
from autotune.algorithms.controllers.weights_file import Saved, read
from autotune.errors import UserError
from autotune.trial import Change, Fork, Target, Trial

__all__ = [
    "CONTROLLERS",
    "POPULATIONS",
    "Controller",
    "parse_controller",
    "can_warm_start",
    "build_controller",
    "make_controller",
    "policy",
    "regulator",
]

Controller = Callable[[Trial, Sequence[Trial], Target], Change | Fork | None]
CONTROLLERS: dict[str, Callable[..., Controller]] = {"policy": policy, "regulator": regulator}
"""Every controller of knobs by name; each takes its settings by keyword."""
POPULATIONS = ("pbt",)
"""Controllers that fork, by name: they are made from an experiment, by `autotune.run`."""
_ALLOWED = (*CONTROLLERS, *POPULATIONS, "none", "module:function")
_REMOVED = {"pb2": "it was no faster than pbt. A new study can use pbt"}
"""Controllers of earlier versions, by name: why each was removed, and what to use now."""


def make_controller(
    controller: str | Controller,
    allowed: Sequence[str],
    start_from: str | Path | Saved | None = None,
) -> Controller:
    """A controller by name, or one that is given, for an experiment.

    Args:
        controller: `regulator`, `policy`, either with keyword arguments, as in
            `policy(setting="robust", learner="ppo")`, or a controller.
        allowed: the knobs that the experiment allows to be turned.
        start_from: a study folder, or its `controller.json`, whose policy this one goes on from;
            or that policy.

    Raises:
        UserError: an unknown name or argument, one that is out of range, a knob that is not
            allowed, or a folder without a policy.
    """
    found = _named(controller) if isinstance(controller, str) else controller
    if not isinstance(found, Linear):
        return found
    found = found.within(allowed)
    if start_from is not None and can_warm_start(found):
        held = start_from if isinstance(start_from, Saved) else read(Path(start_from))
        told = {**found.told, "from": held.place, "from_study": held.study}
        found = replace(found, start=held.weights, told=told, _memo={})
    return found


def can_warm_start(controller: Controller | None) -> bool:
    """Whether a controller can go on from what another has learned.

    >>> can_warm_start(policy()), can_warm_start(regulator())
    (True, False)
    """
    return isinstance(controller, Linear) and controller.learner is not None


def parse_controller(text: str) -> tuple[str, dict[str, Any]]:
    """A name with keyword arguments, taken apart.

    >>> parse_controller("pbt(interval=2.5)"), parse_controller("policy")
    (('pbt', {'interval': 2.5}), ('policy', {}))

    Raises:
        UserError: neither a name nor a call of one with plain values, or the controller was
            removed.
    """
    if (name := text.partition("(")[0].strip()) in _REMOVED:
        raise UserError(
            f"controller {name!r} was removed: {_REMOVED[name]}; a study that used {name} "
            "can be read, but not continued"
        )
    return specs.parse_spec("controller", text, _ALLOWED)


def build_controller(
    text: str, make: Callable[..., Controller], *given: Any, **known: Any
) -> Controller:
    """The controller that `make` gives for the keyword arguments in `text`.

    Args:
        given, known: what else `make` takes; keyword arguments in the text go before `known`.

    Raises:
        UserError: an argument that it does not take, or that is out of range.
    """
    return specs.build("controller", text, parse_controller(text), make, *given, **known)


def _named(text: str) -> Controller:
    name, _ = parse_controller(text)
    if name in POPULATIONS:
        raise UserError(f"controller {name!r} is made from an experiment, by autotune.run")
    return build_controller(text, CONTROLLERS[name])
