"""The weights of a trained sampler and pruner, with which a study begins and goes on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.algorithms import specs
from autotune.algorithms.names import TRAINED, weights_file
from autotune.algorithms.pruners.rules import PRUNERS

if TYPE_CHECKING:
    from autotune.study.experience.known import Known
    from autotune.study.options import StudyOptions


def with_weights(known: Known, options: StudyOptions) -> Known:
    """What is known, with the weights that sampler and pruner need and it does not have yet.

    Raises:
        UserError: a file of weights cannot be read, or is not of this version.
    """
    return replace(
        known,
        weights=known.weights or _of(weights_file(options.sampler)),
        pruner_weights=known.pruner_weights or _of(_file_of_pruner(options.pruner)),
    )


def _file_of_pruner(pruner: object) -> str | None:
    """As `weights_file`, of a pruner.

    >>> _file_of_pruner("policy(weights='mine.npz')"), _file_of_pruner("policy")
    ('mine.npz', '')
    >>> _file_of_pruner("asha") is None
    True
    """
    if not isinstance(pruner, str) or pruner == "auto" or specs.is_path(pruner):
        return None
    name, settings = specs.parse_spec("pruner", pruner, PRUNERS)
    return str(settings.get("weights") or "") if name == TRAINED else None


def _of(file: str | None) -> bytes:
    """The file of weights; empty for None."""
    if file is None:
        return b""
    from autotune.algorithms.samplers.trained_policy import network

    return network.file_bytes(Path(file).expanduser()) if file else network.shipped_bytes()
