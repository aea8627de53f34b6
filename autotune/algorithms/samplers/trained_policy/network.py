"""The networks that score candidates and running trials, in numpy, and the file of their weights.

Rows of pairs and of parameters go through one small network each and are pooled by a mean and, for
pairs, by attention (Zaheer et al. 2017, arXiv 1703.06114; Vaswani et al. 2017, arXiv 1706.03762).
`evaluation.policy_training` has the same network in torch; a test compares the two.
"""

from __future__ import annotations

import io
import math
import zipfile
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from autotune.algorithms.experience.known_task import Array
from autotune.algorithms.samplers.trained_policy.inputs import (
    PAIR,
    PARAMETER,
    POINT,
    STATE,
    Inputs,
)
from autotune.errors import UserError, shown
from autotune.storage import atomic

VERSION = 1
_PAIRS, _PARAMETERS, _HIDDEN = 12, 8, 32
STOP, _STOP_HIDDEN = 13, 24
"""How many numbers the pruner `policy` sees of a running trial, and its hidden units."""
SHAPES: Mapping[str, tuple[int, ...]] = {
    "pair_1": (PAIR + 1, _PAIRS),
    "pair_2": (_PAIRS + 1, _PAIRS),
    "attention": (_PAIRS + 1, 1),
    "parameter_1": (PARAMETER + 1, _PARAMETERS),
    "parameter_2": (_PARAMETERS + 1, _PARAMETERS),
    "joint_1": (POINT + STATE + 2 * _PAIRS + 2 * _PARAMETERS + 1, _HIDDEN),
    "joint_2": (_HIDDEN + 1, _HIDDEN),
    "score": (_HIDDEN + 1, 1),
    "gain": (1, 1),
}
"""The weights: of each layer one row for each input, and the last one of its bias.

`gain` is what a candidate's expected improvement counts for in its score, beside the layers.
"""
STOP_SHAPES: Mapping[str, tuple[int, ...]] = {
    "stop_1": (STOP + 1, _STOP_HIDDEN),
    "stop_2": (_STOP_HIDDEN + 1, _STOP_HIDDEN),
    "stop_3": (_STOP_HIDDEN + 1, 1),
}
"""The weights of the network of the pruner `policy`; files of before 2026-11-28 lack them."""
_VERSION_KEY = "version"
_LARGEST_BYTES = 1_000_000
Weights = Mapping[str, Array]


def scores(weights: Weights, inputs: Inputs) -> Array:
    """The score of each candidate, (candidates,); the policy is their softmax."""
    count = len(inputs.points)
    pairs = _layer(weights["pair_2"], _layer(weights["pair_1"], inputs.pairs))
    mean, attended = np.zeros((count, _PAIRS)), np.zeros((count, _PAIRS))
    if pairs.shape[1]:
        heat = _linear(weights["attention"], pairs)
        heat = np.exp(heat - heat.max(axis=1, keepdims=True))
        mean = pairs.mean(axis=1)
        attended = (pairs * heat).sum(axis=1) / heat.sum(axis=1)
    own = _layer(weights["parameter_2"], _layer(weights["parameter_1"], inputs.parameters))
    average, most = np.zeros((count, _PARAMETERS)), np.zeros((count, _PARAMETERS))
    if own.shape[1]:
        average, most = own.mean(axis=1), own.max(axis=1)
    state = np.broadcast_to(inputs.state, (count, STATE))
    joint = np.concatenate([inputs.points, state, mean, attended, average, most], axis=1)
    hidden = _layer(weights["joint_2"], _layer(weights["joint_1"], joint))
    found = _linear(weights["score"], hidden)[:, 0]
    return np.asarray(found + weights["gain"][0, 0] * inputs.points[:, 0])


def chance(weights: Weights, inputs: Array) -> float:
    """The probability that a running trial is faster than the fastest so far.

    Args:
        inputs: what is seen of it, (STOP,); see `pruners.policy.inputs`.
    """
    hidden = _layer(weights["stop_2"], _layer(weights["stop_1"], inputs))
    return 1.0 / (1.0 + math.exp(-max(float(_linear(weights["stop_3"], hidden)[0]), -500.0)))


def _linear(weights: Array, rows: Array) -> Array:
    return np.asarray(rows @ weights[:-1] + weights[-1])


def _layer(weights: Array, rows: Array) -> Array:
    return np.maximum(_linear(weights, rows), 0.0)


# --- the file -------------------------------------------------------------------------------------


def write(file: Path, weights: Weights) -> None:
    """Write weights as an npz file, at once or not at all.

    Raises:
        UserError: the file cannot be written.
    """
    arrays: dict[str, Any] = {n: np.asarray(weights[n], dtype=np.float32) for n in _shapes(weights)}
    arrays[_VERSION_KEY] = np.array(VERSION)
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    try:
        atomic.write(file, buffer.getvalue())
    except OSError as error:
        raise UserError(f"cannot write {file}: {error.strerror}") from None


def read(file: Path) -> Weights:
    """The weights in a file.

    Raises:
        UserError: it is missing, damaged, of another version, or has other weights.
    """
    return parsed(file_bytes(str(file)), str(file))


def file_bytes(file: str) -> bytes:
    """The bytes of a file of weights, which are found to be some; "" is the package's.

    Raises:
        UserError: as `read`.
    """
    if not file:
        return shipped_bytes()
    try:
        data = Path(file).expanduser().read_bytes()
    except OSError as error:
        raise UserError(f"policy weights {file}: {error.strerror}") from None
    except (RuntimeError, ValueError) as error:  # no such user; a character that no path has
        raise UserError(f"policy weights {shown(file)}: {error}") from None
    parsed(data, file)
    return data


@cache
def shipped() -> Weights:
    """The weights that are in the package."""
    return parsed(shipped_bytes(), "the package's policy.npz")


def shipped_bytes() -> bytes:
    """The package's file of weights."""
    return (files("autotune") / "data" / "policy.npz").read_bytes()


def parsed(data: bytes, where: str) -> Weights:
    """The weights in the bytes of a file; `where` names it.

    Raises:
        UserError: they are damaged, of another version, or other weights.
    """
    if len(data) > _LARGEST_BYTES:
        raise UserError(f"policy weights {where}: {len(data)} bytes are more than a policy has")
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as loaded:
            arrays = {name: loaded[name] for name in loaded.files}
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile):
        raise UserError(f"policy weights {where}: damaged, or no npz file") from None
    version = arrays.pop(_VERSION_KEY, None)
    if version is None or version.shape != () or version != VERSION:
        raise UserError(
            f"policy weights {where}: version {version}, but this autotune reads version "
            f"{VERSION}; make new ones with autotune train-policy"
        )
    shapes = _shapes(arrays)
    for name, shape in shapes.items():
        found = arrays.get(name)
        if found is None or found.shape != shape or not _finite(found):
            raise UserError(f"policy weights {where}: {name} is not {shape} finite numbers")
    return {name: arrays[name].astype(float) for name in shapes}


def _shapes(weights: Weights) -> Mapping[str, tuple[int, ...]]:
    """The weights that there must be: the pruner's are all there, or none of them."""
    return {**SHAPES, **STOP_SHAPES} if STOP_SHAPES.keys() & weights.keys() else SHAPES


def _finite(array: Array) -> bool:
    return array.dtype.kind == "f" and bool(np.isfinite(array).all())
