"""Samplers by name or dotted path, and the Optuna samplers that they name."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping

import optuna
from optuna.samplers import BaseSampler

from autotune.algorithms.samplers import policy
from autotune.algorithms.specs import build, keyword_arguments, split_call
from autotune.errors import UserError, unknown


def _tpe(seed: int) -> BaseSampler:
    return optuna.samplers.TPESampler(seed=seed, multivariate=True, group=True, constant_liar=True)


WIDENING = "widening"

SAMPLERS: Mapping[str, Callable[[int], BaseSampler]] = {
    "tpe": _tpe,
    WIDENING: _tpe,
    "random": lambda seed: optuna.samplers.RandomSampler(seed=seed),
    "qmc": lambda seed: optuna.samplers.QMCSampler(
        seed=seed, scramble=True, warn_asynchronous_seeding=False, warn_independent_sampling=False
    ),
    "gp": lambda seed: optuna.samplers.GPSampler(seed=seed, warn_independent_sampling=False),
    "cmaes": lambda seed: optuna.samplers.CmaEsSampler(seed=seed, warn_independent_sampling=False),
    "nsga2": lambda seed: optuna.samplers.NSGAIISampler(seed=seed),
}
NAMES = ("auto", "convergence", *policy.NAMES, *SAMPLERS)
"""The names of all samplers, of Optuna's and of others."""


def make_sampler(text: str, seed: int) -> BaseSampler:
    """The Optuna sampler of a name, or of a dotted path with keyword arguments.

    >>> make_sampler("random", 1).__class__.__name__
    'RandomSampler'

    Raises:
        UserError: an unknown name, a path that leads to no sampler, or wrong arguments.
    """
    if text in SAMPLERS:
        return SAMPLERS[text](seed)
    path, call = split_call("sampler", text, NAMES)
    if path in NAMES:
        raise UserError(f"sampler {path!r} takes no arguments, but got {text!r}")
    kind = _sampler_class(path)
    spec = path, keyword_arguments("sampler", call, text)
    seeded = {"seed": seed} if "seed" in inspect.signature(kind).parameters else {}
    return build("sampler", text, spec, kind, **seeded)


def _sampler_class(path: str) -> type[BaseSampler]:
    module, _, name = path.rpartition(".")
    if not module:
        raise UserError(unknown("sampler", path, NAMES))
    try:
        kind = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise UserError(f"sampler {path!r}: {error}") from None
    if not (isinstance(kind, type) and issubclass(kind, BaseSampler)):
        raise UserError(f"sampler {path!r} is not an Optuna sampler")
    return kind
