"""The weights of a trained sampler and pruner, with which a study begins and goes on."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from autotune.algorithms import specs
from autotune.algorithms.names import TRAINED, weights_file
from autotune.errors import UserError

if TYPE_CHECKING:
    from autotune.study.experience.known import Known
    from autotune.study.options import StudyOptions


def with_weights(known: Known, options: StudyOptions, before: StudyOptions | None = None) -> Known:
    """What is known, with the weights that sampler and pruner need.

    Args:
        known: what is known without them, or with those of `before`.
        options: the study's.
        before: those with which it ran before: what they name is not read again.

    Raises:
        UserError: a file of weights cannot be read, or is not of this version.
    """
    weights, pruner_weights = known.weights, known.pruner_weights
    sampler, pruner = weights_file(options.sampler), file_of_pruner(options.pruner)
    if before is None or not weights or sampler != weights_file(before.sampler):
        weights = file_bytes(sampler) or weights
    if before is None or not pruner_weights or pruner != file_of_pruner(before.pruner):
        pruner_weights = file_bytes(pruner) or pruner_weights
    return replace(known, weights=weights, pruner_weights=pruner_weights)


def file_of_pruner(pruner: object) -> str | None:
    """The file that a trained pruner's name gives: as `weights_file` of a sampler.

    >>> file_of_pruner("policy(weights='mine.npz')"), file_of_pruner("policy")
    ('mine.npz', '')
    >>> file_of_pruner("asha") is None
    True

    Raises:
        UserError: the name is the sampler's.
    """
    if file := weights_file(pruner):
        raise UserError(f"pruner must be policy(weights={file!r}) but got {pruner!r}")
    if not isinstance(pruner, str) or pruner.partition("(")[0].strip() != TRAINED:
        return None
    _, settings = specs.parse_spec("pruner", pruner, [TRAINED])
    weights = settings.get("weights")
    return weights if isinstance(weights, str) else ""


def file_bytes(file: str | None) -> bytes:
    """The file of weights, "" being the package's; empty for None.

    Raises:
        UserError: as `with_weights`.
    """
    if file is None:
        return b""
    from autotune.algorithms.samplers.trained_policy import network

    return network.file_bytes(file)
