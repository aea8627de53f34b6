"""What is searched of each optimizer, shared by the recipes of images and of texts.

The searched peak of a learning rate is that at the baseline's batch size: at another batch the rate
is scaled by the ratio of the two, with SGD and LARS (Goyal et al. 2017, arXiv 1706.02677), or by
its square root, with the adaptive ones (Malladi et al. 2022, arXiv 2205.10287).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from autotune.space.coupling import SpaceEntry
from autotune.space.search_space import Choice, Fixed, Float, ScheduleSpace

_LINEAR, _ROOT = "linear", "sqrt"
BETAS: Mapping[str, SpaceEntry] = {"beta1": Float(0.8, 0.98), "beta2": Float(0.9, 0.999)}


@dataclass(frozen=True)
class Searched:
    """What is searched of an optimizer beside batch size, horizon and weight decay.

    Args:
        lr: the peak learning rates at the reference batch size.
        rule: how the rate follows the batch size.
        entries: the optimizer's own ones.
        scheduled: whether the rate falls; that of schedule-free optimizers stays after a warm-up.
    """

    lr: tuple[float, float]
    rule: str
    entries: Mapping[str, SpaceEntry]
    scheduled: bool = True


IMAGES: Mapping[str, Searched] = {
    "sgd": Searched((0.01, 1.0), _LINEAR, {"nesterov": Fixed(True), "momentum": Float(0.7, 0.98)}),
    "lars": Searched(
        (1.0, 100.0),
        _LINEAR,
        {
            "momentum": Float(0.7, 0.98),
            "trust_coefficient": Float(2e-4, 5e-3, log=True),
            "nesterov": Choice((False, True)),
        },
    ),
    "lamb": Searched(
        (0.001, 0.2),
        _ROOT,
        {
            "beta1": Float(0.7, 0.98),
            "beta2": Float(0.9, 0.9999),
            "trust_max": Choice((None, 10.0, 1.0)),
        },
    ),
    "adamw": Searched((3e-4, 0.03), _ROOT, BETAS),
    "nadamw": Searched((3e-4, 0.03), _ROOT, BETAS),
    "muon": Searched(
        (3e-4, 0.03),
        _ROOT,
        {"momentum": Float(0.8, 0.98), "adamw_share": Float(0.1, 3.0, log=True)},
    ),
    "schedulefree_adamw": Searched((3e-4, 0.03), _ROOT, BETAS, scheduled=False),
    "schedulefree_sgd": Searched(
        (0.1, 10.0), _LINEAR, {"momentum": Float(0.8, 0.98)}, scheduled=False
    ),
}


TEXTS: Mapping[str, Searched] = {
    **{name: IMAGES[name] for name in ("adamw", "nadamw", "muon", "schedulefree_adamw")},
    "adafactor": Searched((3e-3, 0.3), _ROOT, {"beta2_decay": Float(-1.0, -0.5)}),
    "lamb": Searched((1e-3, 0.2), _ROOT, {**BETAS, "trust_max": Choice((None, 10.0, 1.0))}),
}


def rate(searched: Searched, batch_size: int, **shape: Any) -> ScheduleSpace:
    """The space of its learning rate.

    Args:
        batch_size: at which the searched peak holds.
        shape: the families that are searched, and their fields, where the rate falls.
    """
    own = shape if searched.scheduled else {"family": "constant", "warmup": shape["warmup"]}
    return ScheduleSpace(
        Float(*searched.lr, log=True),
        **own,
        follows="batch_size",
        rule=searched.rule,
        reference=batch_size,
    )


def by_optimizer(
    space: Mapping[str, Searched],
    batch_size: int,
    decays: Mapping[str, Float],
    **shape: Any,
) -> dict[str, SpaceEntry]:
    """The optimizer as a choice, with the entries of each under its condition.

    Args:
        batch_size: at which the searched peaks of the learning rates hold.
        decays: the weight decays to search, of each optimizer.
        shape: as for `rate`.
    """
    entries: dict[str, SpaceEntry] = {"optimizer": Choice(tuple(decays))}
    for name in decays:
        own = {
            **space[name].entries,
            "lr": rate(space[name], batch_size, **shape),
            "weight_decay": decays[name],
        }
        for key, entry in own.items():
            entries[f"{key}:{name}"] = replace(entry, when={"optimizer": name})
    return entries


def point_of(
    optimizer: str, baseline: Mapping[str, Any], entries: Mapping[str, SpaceEntry]
) -> dict[str, Any]:
    """The baseline of one optimizer as a point of a space that searches the optimizer."""
    point: dict[str, Any] = {"optimizer": optimizer}
    for name, value in baseline.items():
        key, dot, rest = name.partition(".")
        own = f"{key}:{optimizer}"
        point[f"{own}{dot}{rest}" if own in entries else name] = value
    return point
