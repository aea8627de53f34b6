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
        weights=known.weights or file_bytes(weights_file(options.sampler)),
        pruner_weights=known.pruner_weights or file_bytes(file_of_pruner(options.pruner)),
    )


def file_of_pruner(pruner: object) -> str | None:
    """The file that a trained pruner's name gives: as `weights_file` of a sampler.

    >>> file_of_pruner("policy(weights='mine.npz')"), file_of_pruner("policy")
    ('mine.npz', '')
    >>> file_of_pruner("asha") is None
    True
    """
    if not isinstance(pruner, str) or pruner == "auto" or specs.is_path(pruner):
        return None
    name, settings = specs.parse_spec("pruner", pruner, PRUNERS)
    return str(settings.get("weights") or "") if name == TRAINED else None


def file_bytes(file: str | None) -> bytes:
    """The file of weights, "" being the package's; empty for None.

    Raises:
        UserError: as `with_weights`.
    """
    if file is None:
        return b""
    from autotune.algorithms.samplers.trained_policy import network

    return network.file_bytes(Path(file).expanduser()) if file else network.shipped_bytes()
