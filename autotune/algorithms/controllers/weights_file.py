"""The file of a learned policy, `controller.json` in the study folder: write, read, show."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from autotune.algorithms.controllers.features import FEATURES
from autotune.errors import UserError, unknown
from autotune.storage import atomic
from autotune.trial import KNOBS

FILE = "controller.json"
FORMAT = 1


@dataclass(frozen=True)
class SavedPolicy:
    """A policy from a file: its study, its weights by knob and feature, and its path."""

    study: str
    weights: Mapping[str, Mapping[str, float]]
    place: str = ""


def write(folder: Path, study: str, document: Mapping[str, Any]) -> None:
    """Write a controller's document into the study folder atomically."""
    content = {"autotune_controller": FORMAT, "study": study, **document}
    atomic.write(folder / FILE, json.dumps(content, indent=2, allow_nan=False) + "\n")


def is_in(place: Path) -> bool:
    """Whether `place` is a file, or a folder with a policy's file."""
    return place.is_file() or (place / FILE).is_file()


def read(place: Path) -> SavedPolicy:
    """Read the policy of a study folder, or of a policy's file.

    Raises:
        UserError: there is none, or it is damaged, of a later version, or of other features.
    """
    file = place / FILE if place.is_dir() else place
    try:
        payload = json.loads(file.read_bytes())
    except FileNotFoundError:
        raise UserError(f"{place} has no {FILE}: no study with a policy ran there") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{file} cannot be read: {error}") from None
    return replace(checked(payload, file), place=str(place))


def shipped() -> SavedPolicy:
    """The package's policy for `policy(setting="robust")`, trained on other tasks."""
    file = files("autotune") / "data" / FILE
    place = f"the package's {FILE}"
    return replace(checked(json.loads(file.read_bytes()), Path(place)), place=place)


def document(policy: SavedPolicy) -> dict[str, Any]:
    """A policy as JSON types; `checked` reads it."""
    payload = {"autotune_controller": FORMAT, "study": policy.study, "weights": policy.weights}
    return {**payload, "place": policy.place}


def checked(payload: Any, file: Path) -> SavedPolicy:
    """The policy of a JSON document that was read from `file`.

    Raises:
        UserError: it is damaged, of a later version, or of other features.
    """
    if not isinstance(payload, dict) or payload.get("autotune_controller") != FORMAT:
        raise UserError(f"{file} is not a policy that this version reads ({FORMAT})")
    weights = payload.get("weights")
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
    return SavedPolicy(str(payload.get("study", "")), weights, str(payload.get("place", "")))


def table(document: Mapping[str, Any]) -> str:
    """The weights as a text table: a line for each feature, the strongest first.

    >>> print(table({"weights": {"lr": {"bias": 0.5, "update": -1.5}}, "influence": {"lr": {}}}))
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
