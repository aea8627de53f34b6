"""A policy as a file, `controller.json` in the study folder: written, shown, and read back."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autotune.algorithms.controllers.features import FEATURES
from autotune.errors import UserError, unknown
from autotune.storage import atomic
from autotune.trial import KNOBS

FILE = "controller.json"
FORMAT = 1


@dataclass(frozen=True)
class Saved:
    """A policy read back: its study, its weights by knob and feature, and where it was read."""

    study: str
    weights: Mapping[str, Mapping[str, float]]
    place: str = ""


def write(folder: Path, study: str, document: Mapping[str, Any]) -> None:
    """Write a controller's document into the study folder, whole or not at all."""
    content = {"autotune_controller": FORMAT, "study": study, **document}
    atomic.write(folder / FILE, json.dumps(content, indent=2, allow_nan=False) + "\n")


def is_in(place: Path) -> bool:
    """Whether a policy's file is in the folder, or the place is a file itself."""
    return place.is_file() or (place / FILE).is_file()


def read(place: Path) -> Saved:
    """The policy in a study folder, or in the file itself.

    Raises:
        UserError: there is none, or it is damaged, of a later version, or of other features.
    """
    file = place / FILE if place.is_dir() else place
    try:
        told = json.loads(file.read_bytes())
    except FileNotFoundError:
        raise UserError(f"{place} has no {FILE}: no study with a policy ran there") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{file} cannot be read: {error}") from None
    return replace(checked(told, file), place=str(place))


def document(held: Saved) -> dict[str, Any]:
    """What `checked` reads back."""
    told = {"autotune_controller": FORMAT, "study": held.study, "weights": held.weights}
    return {**told, "place": held.place}


def checked(told: Any, file: Path) -> Saved:
    """A policy from its document, which is from `file`.

    Raises:
        UserError: it is damaged, of a later version, or of other features.
    """
    if not isinstance(told, dict) or told.get("autotune_controller") != FORMAT:
        raise UserError(f"{file} is not a policy that this version reads ({FORMAT})")
    weights = told.get("weights")
    if not isinstance(weights, dict) or not all(isinstance(w, dict) for w in weights.values()):
        raise UserError(f"{file} is damaged: weights must be numbers by knob and feature")
    for knob, row in weights.items():
        if knob not in KNOBS:
            raise UserError(f"{file}: {unknown('knob', knob, KNOBS)}")
        for name, weight in row.items():
            if name not in FEATURES:
                raise UserError(f"{file}: {unknown('feature', name, FEATURES)}")
            if isinstance(weight, bool) or not isinstance(weight, int | float):
                raise UserError(f"{file}: the weight of {name} must be a number, got {weight!r}")
            if not math.isfinite(weight):
                raise UserError(f"{file}: the weight of {name} must be finite, got {weight!r}")
    return Saved(str(told.get("study", "")), weights, str(told.get("place", "")))


def table(document: Mapping[str, Any]) -> str:
    """The weights as text: a line a feature, the strongest first, and what it drives.

    >>> told = {"weights": {"lr": {"bias": 0.5, "update": -1.5}}, "influence": {"lr": {}}}
    >>> print(table(told))
    feature               lr: weight  influence
    update                    -1.500      0.000
    bias                       0.500      0.000
    """
    weights, influence = document["weights"], document.get("influence", {})
    drives = {k: influence.get(k, {}) for k in weights}
    names = {name for row in weights.values() for name in row}

    def strength(name: str) -> tuple[float, float, str]:
        most = max(drives[k].get(name, 0.0) for k in weights)
        return -most, -max(abs(row.get(name, 0.0)) for row in weights.values()), name

    head = "".join(f"{f'{knob}: weight':>20}  influence" for knob in weights)
    lines = [f"{'feature':<12}{head}"]
    for name in sorted(names, key=strength):
        cells = ((row.get(name, 0.0), drives[k].get(name, 0.0)) for k, row in weights.items())
        lines.append(f"{name:<12}" + "".join(f"{w:>20.3f}  {d:>9.3f}" for w, d in cells))
    return "\n".join(lines)
