"""Validation of the optimizers' settings; those of LARS and LAMB also at every step."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import Any


def _real(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def _one_of(*names: str) -> tuple[Callable[[Any], bool], str]:
    return (lambda value: value in names), " or ".join(map(repr, names))


_NOT_NEGATIVE = (lambda value: _real(value) and value >= 0), "a finite number >= 0"
_POSITIVE = (lambda value: _real(value) and value > 0), "a finite number > 0"
_NEGATIVE = (lambda value: _real(value) and value < 0), "a finite number < 0"
_FROM_ONE = (lambda value: _real(value) and value >= 1), "a finite number >= 1"
_BOUND = (lambda value: value is None or (_real(value) and value > 0)), "None or a number > 0"
_FRACTION = (lambda value: _real(value) and 0 <= value < 1), "a number in [0, 1)"
_FLAG = (lambda value: isinstance(value, bool)), "True or False"


def _is_betas(value: Any) -> bool:
    return isinstance(value, tuple | list) and len(value) == 2 and all(map(_FRACTION[0], value))


def _is_steps(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= 99


_RULES: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "lr": _NOT_NEGATIVE,
    "weight_decay": _NOT_NEGATIVE,
    "eps": _NOT_NEGATIVE,
    "momentum": _FRACTION,
    "betas": (_is_betas, "two numbers in [0, 1)"),
    "momentum_decay": _NOT_NEGATIVE,
    "beta2_decay": _NEGATIVE,
    "clip_threshold": _FROM_ONE,
    **dict.fromkeys(("r", "weight_lr_power"), _NOT_NEGATIVE),
    **dict.fromkeys(("trust_coefficient", "adamw_share"), _POSITIVE),
    "ns_steps": (_is_steps, "a whole number from 1 to 99"),
    "adjust_lr_fn": _one_of("match_rms_adamw", "original"),
    **dict.fromkeys(("trust_min", "trust_max", "max_grad_norm"), _BOUND),
    **dict.fromkeys(("weight_norm_min", "weight_norm_max"), _BOUND),
    **dict.fromkeys(("nesterov", "lr_in_momentum", "larc_clip"), _FLAG),
    **dict.fromkeys(("bias_correction", "grad_averaging", "decoupled"), _FLAG),
    "denominator": _one_of("sum_of_norms", "norm_of_sum"),
    "adapt": _one_of("always", "if_decayed", "never"),
}


def check_settings(settings: Mapping[str, Any]) -> None:
    for key, (holds, allowed) in _RULES.items():
        if key in settings and not holds(settings[key]):
            raise ValueError(f"{key} must be {allowed}, got {settings[key]!r}")
    for name in ("trust", "weight_norm"):
        low, high = settings.get(f"{name}_min"), settings.get(f"{name}_max")
        if low is not None and high is not None and low > high:
            raise ValueError(f"{name}_min must be at most {name}_max ({high}), got {low}")


def unknown(kind: str, value: object, allowed: Mapping[str, Any] | Sequence[str]) -> ValueError:
    nearest = difflib.get_close_matches(str(value).lower(), list(allowed), n=1, cutoff=0.0)
    return ValueError(
        f"unknown {kind} {value!r}; allowed: {', '.join(allowed)}; nearest: {nearest[0]!r}"
    )
