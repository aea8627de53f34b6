"""The weights of a trained policy, with which a study begins and goes on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from autotune.algorithms.names import weights_file

if TYPE_CHECKING:
    from autotune.study.options import StudyOptions


def of(options: StudyOptions) -> bytes:
    """The file of weights that the sampler's name means; empty for other samplers.

    Raises:
        UserError: its file cannot be read, or is not of this version.
    """
    file = weights_file(options.sampler)
    if file is None:
        return b""
    from autotune.algorithms.samplers.trained_policy import network

    return network.file_bytes(Path(file)) if file else network.shipped_bytes()
