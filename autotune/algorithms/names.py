"""Names of what decides whose modules are slow to import: to check and complete them without that.

Those of Optuna's samplers are in `samplers.optuna_names`, those of pruners in `pruners.rules`.
"""

from __future__ import annotations

ELITE = "policy:elite"
"""The sampler that learns a policy from the trials of its study."""
TRAINED = "policy"
"""The sampler whose policy was trained before: also `policy:FILE.npz`, with weights of one's own.

Older studies mean `policy:elite` by this name.
"""
REMOVED_POLICIES = ("policy:reinforce", "policy:ppo", "policy:actor")
"""Samplers of older versions, which their studies still name."""
EXPERIENCED = "experienced"
"""The sampler that begins with what other studies have shown."""
CONTROLLERS = ("policy", "regulator", "noise_scale")
"""The controllers of knobs."""
LIMITED = ("policy", "regulator")
"""Those of them that see time as a share of the target's limit."""
NO_CONTROLLER = (None, "none")
"""What a study without a controller has in its place."""
FORKING = ("pbt", "autolrs")
"""The controllers that fork; `autotune.run` builds them for its experiment."""


def removed_policy(name: str) -> str:
    """What is said where a sampler of `REMOVED_POLICIES` is asked for."""
    also = "a study that had it goes on with --sampler policy:elite (sampler='policy:elite')"
    return f"sampler {name!r} was removed, as it was no better than 'convergence': {also}"


def weights_file(sampler: object) -> str | None:
    """The file that a trained sampler's name gives; "" for the package's own weights.

    None for all other samplers.

    >>> weights_file("policy:mine.npz"), weights_file("policy"), weights_file("tpe")
    ('mine.npz', '', None)
    """
    if not isinstance(sampler, str):
        return None
    name, _, file = sampler.partition(":")
    if name.lower() != TRAINED or (file and not file.endswith(".npz")):
        return None
    return file
