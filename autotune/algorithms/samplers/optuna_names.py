"""Samplers by name or dotted path, and the Optuna samplers that they name.

Optuna itself is imported where a sampler is made.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from autotune.algorithms.names import (
    ELITE,
    EXPERIENCED,
    REMOVED_POLICIES,
    TRAINED,
    removed_policy,
    weights_file,
)
from autotune.algorithms.specs import build, canonical_spec, keyword_arguments, split_call
from autotune.errors import UserError, unknown

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler

WIDENING = "widening"
_TPE = "TPESampler", {"multivariate": True, "group": True, "constant_liar": True}
_SOBOL = {"scramble": True, "warn_asynchronous_seeding": False, "warn_independent_sampling": False}

SAMPLERS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "tpe": _TPE,
    WIDENING: _TPE,
    "random": ("RandomSampler", {}),
    "qmc": ("QMCSampler", _SOBOL),
    "gp": ("GPSampler", {"warn_independent_sampling": False}),
    "cmaes": ("CmaEsSampler", {"warn_independent_sampling": False}),
    "nsga2": ("NSGAIISampler", {}),
}
"""The classes of Optuna's by our names, and their settings."""
NAMES = ("auto", "convergence", EXPERIENCED, TRAINED, ELITE, *SAMPLERS)
"""The names of all samplers, of Optuna's and of others."""


def parse_sampler(text: str) -> tuple[str, dict[str, Any]]:
    """The name of a sampler, or the dotted path of one of Optuna's, and its keyword arguments.

    >>> parse_sampler("TPE"), parse_sampler("optuna.samplers.GPSampler(n_startup_trials=3)")
    (('tpe', {}), ('optuna.samplers.GPSampler', {'n_startup_trials': 3}))

    Raises:
        UserError: an unknown name, or arguments that a name does not take or that are no literals.
    """
    if weights_file(text):
        return text, {}
    text = canonical_spec(text, NAMES)
    if text in NAMES:
        return text, {}
    if text.lower() in REMOVED_POLICIES:
        raise UserError(removed_policy(text.lower()))
    if text.lower().startswith(f"{TRAINED}:") and "." in text:
        raise UserError(f"sampler must be {TRAINED}:FILE.npz, or {ELITE}, but got {text!r}")
    path, call = split_call("sampler", text, NAMES)
    if path in NAMES:
        own = ": policy:FILE.npz has weights of your own" if path == TRAINED else ""
        raise UserError(f"sampler {path!r} takes no arguments, but got {text!r}{own}")
    if "." not in path:
        raise UserError(unknown("sampler", path, NAMES))
    return path, keyword_arguments("sampler", call, text)


def make_optuna_sampler(text: str, seed: int) -> BaseSampler:
    """The Optuna sampler of a name, or of a dotted path with keyword arguments.

    >>> make_optuna_sampler("random", 1).__class__.__name__
    'RandomSampler'

    Raises:
        UserError: an unknown name, a path that leads to no sampler, or wrong arguments.
    """
    import optuna

    spec = parse_sampler(text)
    if spec[0] in SAMPLERS:
        kind, settings = SAMPLERS[spec[0]]
        made: BaseSampler = getattr(optuna.samplers, kind)(seed=seed, **settings)
        return made
    found = _sampler_class(spec[0])
    seeded = {"seed": seed} if "seed" in inspect.signature(found).parameters else {}
    return build("sampler", text, spec, found, **seeded)


def _sampler_class(path: str) -> type[BaseSampler]:
    from optuna.samplers import BaseSampler

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
