"""Conversion of a search space to Optuna: parameters to distributions, points to trials."""

from __future__ import annotations

import math
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.trial import FrozenTrial, TrialState, create_trial

from autotune.space.parameters import Choice, Float, Int, Parameter
from autotune.space.search_space import SearchSpace
from autotune.trial import Params, Trial


def distribution(parameter: Parameter) -> BaseDistribution:
    match parameter:
        case Float(low, high):
            return FloatDistribution(low, high, log=parameter.log)
        case Int(low, high) if parameter.power_of_two:
            return IntDistribution(low.bit_length() - 1, high.bit_length() - 1)
        case Int(low, high):
            top = high - (high - low) % parameter.step
            return IntDistribution(low, top, log=parameter.log, step=parameter.step)
        case Choice(options):
            return CategoricalDistribution(options)


def draw(live: optuna.Trial, name: str, parameter: Parameter) -> Any:
    match distribution(parameter):
        case FloatDistribution(low=low, high=high, log=log):
            return live.suggest_float(name, low, high, log=log)
        case IntDistribution(low=low, high=high, log=log, step=step):
            value = live.suggest_int(name, low, high, log=log, step=step)
            is_power = isinstance(parameter, Int) and parameter.power_of_two
            return 2**value if is_power else value
        case CategoricalDistribution(choices=choices):
            return live.suggest_categorical(name, choices)


def to_optuna(parameter: Parameter, value: Any) -> Any:
    """`value` in the units of Optuna's distribution for `parameter`."""
    if isinstance(parameter, Int) and parameter.power_of_two:
        return int(math.log2(value))
    return float(value) if isinstance(parameter, Float) else value


def frozen_trial(
    trial: Trial, params: Params, space: SearchSpace, state: TrialState
) -> FrozenTrial:
    parameters = space.parameters()
    return create_trial(
        state=state,
        params={name: to_optuna(parameters[name], value) for name, value in params.items()},
        distributions={name: distribution(parameters[name]) for name in params},
        user_attrs={"autotune.trial": trial.number},
    )
