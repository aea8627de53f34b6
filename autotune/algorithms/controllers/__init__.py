"""Controllers: functions of (trial, others, target) that turn knobs of running trials or fork them.

A controller is a function of frozen trials, called at each milestone of a running trial. The
journal has its decision before the ranks act on it: as a change of the trial, or as the origin of
a new trial.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.algorithms import specs
from autotune.algorithms.controllers.linear import Linear, policy, regulator
from autotune.algorithms.controllers.noise_scale import BatchRamp, noise_scale
from autotune.algorithms.controllers.weights_file import SavedPolicy, read
from autotune.algorithms.names import FORKING
from autotune.errors import UserError
from autotune.trial import Change, Fork, Target, Trial

__all__ = [
    "CONTROLLERS",
    "FORKING",
    "Controller",
    "parse_controller",
    "can_warm_start",
    "build_controller",
    "check_controller",
    "forking",
    "make_controller",
    "noise_scale",
    "policy",
    "regulator",
    "takes_shipped",
]

Controller = Callable[[Trial, Sequence[Trial], Target], Change | Fork | None]
CONTROLLERS: dict[str, Callable[..., Controller]] = {
    "policy": policy,
    "regulator": regulator,
    "noise_scale": noise_scale,
}
"""The controllers of knobs by name; each takes its settings by keyword."""
_ALLOWED = (*CONTROLLERS, *FORKING, "none", "module:function")
_LEARNER = "awr"  # of `policy`, the only one
_REMOVED = {"pb2": "it was no faster than pbt. A new study can use pbt"}
"""Controllers of earlier versions, by name: why each was removed, and what to use now."""


def make_controller(
    controller: str | Controller,
    allowed: Sequence[str],
    start_from: str | Path | SavedPolicy | None = None,
) -> Controller:
    """Build a controller from its spec for an experiment, or adapt a given controller.

    Args:
        controller: the spec of a controller of knobs, as in
            `policy(setting="robust", noise=0.2)`, or a controller.
        allowed: the knobs that the experiment allows to be turned.
        start_from: a study folder or its `controller.json`, whose policy is the initial one; or
            that policy.

    Raises:
        UserError: an unknown name or argument, one that is out of range, a knob that is not
            allowed, or a folder without a policy.
    """
    built = _named(controller) if isinstance(controller, str) else controller
    if isinstance(built, BatchRamp):
        return built.within(allowed)
    if not isinstance(built, Linear):
        return built
    built = built.within(allowed)
    if start_from is not None and can_warm_start(built):
        saved = start_from if isinstance(start_from, SavedPolicy) else read(Path(start_from))
        about = {**built.about, "from": saved.place, "from_study": saved.study}
        built = replace(built, start=saved.weights, about=about, _cache={})
    return built


def can_warm_start(controller: Controller | None) -> bool:
    """Whether a controller can start from the policy of an earlier study.

    >>> can_warm_start(policy()), can_warm_start(regulator())
    (True, False)
    """
    return isinstance(controller, Linear) and controller.learns


def takes_shipped(controller: Controller | None) -> bool:
    """Whether a controller starts from the package's weights where a study begins.

    >>> takes_shipped(policy("robust")), takes_shipped(policy("robust", setpoint=0.04))
    (True, False)
    """
    return isinstance(controller, Linear) and controller.trained


def parse_controller(text: str) -> tuple[str, dict[str, Any]]:
    """Parse the spec of a controller; see `specs.parse_spec`.

    >>> parse_controller("pbt(interval=2.5)"), parse_controller("policy")
    (('pbt', {'interval': 2.5}), ('policy', {}))

    Raises:
        UserError: neither a known name nor a call of one with literal values, or the controller
            or an argument was removed.
    """
    if (name := text.partition("(")[0].strip()) in _REMOVED:
        raise UserError(
            f"controller {name!r} was removed: {_REMOVED[name]}; a study that used {name} "
            "can be read, but not continued"
        )
    name, arguments = specs.parse_spec("controller", text, _ALLOWED)
    if name == "policy" and arguments.get("learner") == _LEARNER:  # in specs of before
        del arguments["learner"]
    elif name == "policy" and "learner" in arguments:
        raise UserError(
            f"controller {text!r}: the argument learner was removed, as advantage-weighted "
            "regression was no worse than ppo: policy does it without"
        )
    return name, arguments


def check_controller(text: str) -> None:
    """Check the spec of a controller as far as that needs no experiment.

    Raises:
        UserError: an unknown name or argument, or one that is out of range.
    """
    name, arguments = parse_controller(text)
    if name not in FORKING:
        _named(text)
        return
    specs.check_arguments("controller", text, (name, arguments), forking(name), 2)  # space, target


def forking(name: str) -> Callable[..., Controller]:
    """What makes the controller of `FORKING` of this name for a space and a target."""
    if name == "pbt":
        from autotune.algorithms.controllers.pbt import pbt

        return pbt
    from autotune.algorithms.controllers.autolrs import autolrs

    return autolrs


def build_controller(
    text: str, make: Callable[..., Controller], *given: Any, **known: Any
) -> Controller:
    """Call `make` with the keyword arguments of the spec `text`; see `specs.build`.

    Raises:
        UserError: `make` does not take an argument, or it is out of range.
    """
    return specs.build("controller", text, parse_controller(text), make, *given, **known)


def _named(text: str) -> Controller:
    name, _ = parse_controller(text)
    if name in FORKING:
        raise UserError(f"controller {name!r} is made from an experiment, by autotune.run")
    return build_controller(text, CONTROLLERS[name])
