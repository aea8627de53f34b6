"""Optimizers: torch's, ours, and those of the library `schedulefree`; one constructor for all."""

from trainers.optimizers.groups import parameter_groups
from trainers.optimizers.layerwise_optimizers import LAMB, LARS
from trainers.optimizers.make import (
    NAMES,
    VARIANTS,
    adafactor,
    make_optimizer,
    nadamw,
    require_optimizer,
    variant_settings,
)
from trainers.optimizers.muon import Muon

__all__ = [
    "LAMB",
    "LARS",
    "NAMES",
    "VARIANTS",
    "Muon",
    "adafactor",
    "make_optimizer",
    "nadamw",
    "parameter_groups",
    "require_optimizer",
    "variant_settings",
]
