"""`best_model.pt`: the model of a study's best trial as one file, for trainers that make one.

Such a trainer says what the file holds: `train.saved(config, states)` returns tensors, numbers,
text, lists and dicts (or None for no file), made of the checkpoint of every rank. So
`torch.load(weights_only=True)` reads it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from autotune.errors import UserError, raised_by
from autotune.evaluation import register
from autotune.evaluation.register import BEST_MODEL
from autotune.study.experiment import Experiment
from autotune.study.result import StudyResult
from autotune.trial.trainer import said


def write(experiment: Experiment, result: StudyResult) -> Path | None:
    """Write the file into the study folder, whole or not at all; None where there is none to write.

    Raises:
        UserError: the best trial's checkpoint was not kept, or the file cannot be made; one line.
    """
    make = said(experiment.train, "saved")
    if make is None or result.best is None:
        return None
    import torch

    trial, path = result.best, result.folder / BEST_MODEL
    states = register.states(result.folder, trial)
    try:
        made: dict[str, Any] | None = make({**trial.config, "seed": trial.seed}, states)
    except Exception as error:
        raise UserError(raised_by("trainer's `saved`", error)) from error
    if made is None:
        return None
    about = {"study": experiment.name, "trial": trial.number, "seed": trial.seed}
    part = path.with_name(f"{BEST_MODEL}.part")
    try:
        with part.open("wb") as file:  # not by its name, which torch would repeat in every record
            torch.save({**made, "trained_by": about}, file)
        os.replace(part, path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from None
    return path
