"""A distribution over the points of a search space, and its natural-gradient step to an elite.

A number is drawn as a normal score z ~ N(mean, spread); its value is at the position Phi(z) of the
unit interval, so that mean 0 and spread 1 are uniform. A choice is drawn by softmax probabilities
with a floor. Parameters that a point does not have are masked: neither drawn nor learned from.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from random import Random
from typing import Any

from autotune.space.encoding import real_at, score_of, unit_at, unit_of, value_at
from autotune.space.parameters import Choice, Float, Int, Parameter
from autotune.space.search_space import SearchSpace
from autotune.trial import Params

LEAST_SPREAD, MOST_SPREAD = 0.1, 1.0
FARTHEST = 2.6  # of a mean from 0
FLOOR = 0.1  # share of a choice's probability that is uniform over its options
STEP = 0.5  # of the natural gradient: the weight of the newest elite in the running average
_WIDENING = 2.0  # times the spread of a policy that is transferred to another space
_START_SPREAD, _START_PROBABILITY = 0.5, 0.6  # of a policy centred on a point

Draw = Mapping[str, float]
"""A sample: a number's normal score or a choice's index for each active parameter."""


@dataclass(frozen=True)
class Policy:
    """A distribution over the points of a space, with the parameters of that space.

    >>> policy = uniform({"x": Float(0, 1), "o": Choice(("a", "b"))})
    >>> policy.means["x"], policy.spreads["x"], policy.probabilities("o")
    (0.0, 1.0, (0.5, 0.5))
    """

    parameters: Mapping[str, Parameter]
    means: Mapping[str, float]
    spreads: Mapping[str, float]
    logits: Mapping[str, tuple[float, ...]]

    def probabilities(self, name: str) -> tuple[float, ...]:
        """The probabilities of a choice's options, none below `FLOOR` / their number."""
        shares = softmax(self.logits[name])
        return tuple((1.0 - FLOOR) * share + FLOOR / len(shares) for share in shares)

    def drawn(self, name: str, random: Random) -> float:
        """A normal score, or the index of an option."""
        if name in self.means:
            return random.gauss(self.means[name], self.spreads[name])
        odds = self.probabilities(name)
        return random.choices(range(len(odds)), odds)[0]


def softmax(logits: Sequence[float]) -> list[float]:
    """Shares that add up to 1, in the proportions of the logits' exponentials."""
    top = max(logits)
    powers = [math.exp(logit - top) for logit in logits]
    whole = math.fsum(powers)
    return [power / whole for power in powers]


def value_of(parameter: Parameter, drawn: float) -> Any:
    """The value of a draw."""
    if isinstance(parameter, Choice):
        return parameter.options[int(drawn)]
    return value_at(parameter, unit_at(drawn))


def draw_of(parameter: Parameter, value: Any) -> float:
    """A draw that gives the value: the middle one of a whole number's."""
    if isinstance(parameter, Choice):
        return parameter.options.index(value)
    return score_of(unit_of(parameter, value))


def draw_of_point(parameters: Mapping[str, Parameter], point: Params) -> dict[str, float]:
    """A draw that gives the point."""
    return {n: draw_of(parameters[n], value) for n, value in point.items() if n in parameters}


# --- initial policies -----------------------------------------------------------------------------


def uniform(parameters: Mapping[str, Parameter]) -> Policy:
    """The policy that draws uniformly over the space."""
    numbers = [n for n, p in parameters.items() if not isinstance(p, Choice)]
    choices = {n: (0.0,) * len(p.options) for n, p in parameters.items() if isinstance(p, Choice)}
    return Policy(parameters, dict.fromkeys(numbers, 0.0), dict.fromkeys(numbers, 1.0), choices)


def centred_on(parameters: Mapping[str, Parameter], point: Params) -> Policy:
    """A policy centred on a point, and uniform over parameters that the point does not have."""
    start, draw = uniform(parameters), draw_of_point(parameters, point)
    spreads = {n: _START_SPREAD if n in draw else 1.0 for n in start.means}
    logits = {
        n: _logits(_one_of(len(own), int(draw[n]))) if n in draw else own
        for n, own in start.logits.items()
    }
    return Policy(parameters, {n: draw.get(n, 0.0) for n in start.means}, spreads, logits)


def _one_of(count: int, index: int) -> list[float]:
    if count == 1:
        return [1.0]
    return [
        _START_PROBABILITY if i == index else (1 - _START_PROBABILITY) / (count - 1)
        for i in range(count)
    ]


def _logits(shares: Sequence[float]) -> tuple[float, ...]:
    return tuple(math.log(max(share, 1e-4)) for share in shares)


def transferred(source: Policy, space: SearchSpace) -> Policy:
    """A policy over `space`, transferred from that of an overlapping space.

    A parameter of the same name and kind keeps mean and spread, by its values: clipped to the new
    range, and twice as wide. A choice keeps half of the probability of the options that are still
    there; the rest is uniform. All other parameters start uniform.
    """
    parameters = space.parameters()
    policy = uniform(parameters)
    means, spreads, logits = dict(policy.means), dict(policy.spreads), dict(policy.logits)
    for name in shared_parameters(source, parameters):
        old, new = source.parameters[name], parameters[name]
        if isinstance(old, Choice) and isinstance(new, Choice):
            logits[name] = _logits(_transferred_shares(source.probabilities(name), old, new))
        elif not isinstance(old, Choice) and not isinstance(new, Choice):
            mean, spread = source.means[name], source.spreads[name]
            means[name] = _transferred_score(old, new, mean)
            low, high = (_transferred_score(old, new, mean + s * spread) for s in (-1, 1))
            spreads[name] = clipped(_WIDENING * (high - low) / 2, 2 * LEAST_SPREAD, MOST_SPREAD)
    return Policy(parameters, means, spreads, logits)


def shared_parameters(source: Policy, parameters: Mapping[str, Parameter]) -> list[str]:
    """The names of the parameters that have the same kind in both."""
    return [n for n, p in parameters.items() if type(source.parameters.get(n)) is type(p)]


def _transferred_score(old: Float | Int, new: Float | Int, score: float) -> float:
    return score_of(unit_of(new, real_at(old, unit_at(score))))


def _transferred_shares(odds: Sequence[float], old: Choice, new: Choice) -> list[float]:
    uniform_share = 1.0 / len(new.options)
    known = {repr(option): p for option, p in zip(old.options, odds, strict=True)}
    shares = [known.get(repr(option), uniform_share) for option in new.options]
    whole = math.fsum(shares)
    return [0.5 * share / whole + 0.5 * uniform_share for share in shares]


def clipped(value: float, low: float, high: float) -> float:
    """`value`, or the nearest end of the range."""
    return min(max(value, low), high)


# --- the natural-gradient step --------------------------------------------------------------------


def natural_gradient_step(policy: Policy, elite: Sequence[Draw], step: float = STEP) -> Policy:
    """The policy after one natural-gradient step to the elite, which is sorted best first.

    With weights w that fall with the logarithm of the rank: mean += step * sum w (z - mean), and
    variance += step * (sum w (z - mean)^2 - variance), which is the natural gradient of the
    expected weight (Wierstra et al. 2014) and a running average over elites (Rubinstein's
    cross-entropy method). A parameter that some of the elite lack moves by the weight of
    those that have it.
    """
    raw = [math.log(len(elite) + 0.5) - math.log(rank) for rank in range(1, len(elite) + 1)]
    weights = [weight / math.fsum(raw) for weight in raw]
    means, spreads, logits = dict(policy.means), dict(policy.spreads), dict(policy.logits)
    for name in policy.parameters:
        having = [(w, d[name]) for w, d in zip(weights, elite, strict=True) if name in d]
        weight = math.fsum(w for w, _ in having)
        if weight == 0.0:
            continue
        own, having = step * weight, [(w / weight, drawn) for w, drawn in having]
        if name in means:
            mean = means[name]
            means[name] += own * math.fsum(w * (z - mean) for w, z in having)
            means[name] = clipped(means[name], -FARTHEST, FARTHEST)
            square = math.fsum(w * (z - mean) ** 2 for w, z in having)
            variance = (1 - own) * spreads[name] ** 2 + own * square
            spreads[name] = clipped(math.sqrt(variance), LEAST_SPREAD, MOST_SPREAD)
        else:
            shares = [(1 - own) * share for share in softmax(logits[name])]
            for w, index in having:
                shares[int(index)] += own * w
            logits[name] = _logits(shares)
    return Policy(policy.parameters, means, spreads, logits)


# --- JSON -----------------------------------------------------------------------------------------

_VERSION = 1
_NUMBERS: Mapping[str, type[Float] | type[Int]] = {"Float": Float, "Int": Int}


def document(policy: Policy) -> dict[str, Any]:
    """A policy as JSON types: each parameter with its range and its distribution."""
    return {"version": _VERSION, "parameters": {n: _entry(policy, n) for n in policy.parameters}}


def _entry(policy: Policy, name: str) -> dict[str, Any]:
    parameter = policy.parameters[name]
    if isinstance(parameter, Choice):
        choice = {"kind": "Choice", "options": list(parameter.options)}
        return {**choice, "probabilities": list(softmax(policy.logits[name]))}
    settings = {f.name: getattr(parameter, f.name) for f in fields(parameter) if f.name != "when"}
    number = {"kind": type(parameter).__name__, **settings}
    return {**number, "mean": policy.means[name], "spread": policy.spreads[name]}


def from_document(payload: Any) -> Policy:
    """The policy of a JSON document; it does not have the conditions of its parameters.

    >>> policy = uniform({"x": Float(0, 1), "o": Choice(("a", "b"))})
    >>> from_document(document(policy)).spreads
    {'x': 1.0}

    Raises:
        ValueError: it is no policy, or one of another version, or one of its values is impossible.
    """
    if not isinstance(payload, dict) or not isinstance(payload.get("parameters"), dict):
        raise ValueError("it is no policy")
    if payload.get("version") != _VERSION:
        raise ValueError(f"a policy of version {payload.get('version')!r}, but {_VERSION} is known")
    parameters: dict[str, Parameter] = {}
    means, spreads, logits = {}, {}, {}
    for name, own in payload["parameters"].items():
        try:
            if own["kind"] == "Choice":
                parameters[name] = Choice(own["options"])
                logits[name] = _logits(_shares(own["probabilities"], len(own["options"])))
                continue
            kind = _NUMBERS[own["kind"]]
            known = {f.name for f in fields(kind)} & own.keys()
            parameters[name] = kind(**{key: own[key] for key in known})
            means[name] = _within(own["mean"], -FARTHEST, FARTHEST)
            spreads[name] = _within(own["spread"], LEAST_SPREAD, MOST_SPREAD)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"its parameter {name!r} cannot be read: {error}") from None
    return Policy(parameters, means, spreads, logits)


def _within(value: Any, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise ValueError(f"{value!r} is no number from {low:g} to {high:g}")
    return float(value)


def _shares(values: Any, count: int) -> list[float]:
    shares = [_within(value, 0.0, 1.0) for value in values]
    if len(shares) != count or not 0.99 < math.fsum(shares) < 1.01:
        raise ValueError(f"probabilities must be {count} numbers that add up to 1")
    return shares
