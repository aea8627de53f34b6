"""Whether the trials of a study share their beginnings."""

from __future__ import annotations

from autotune.algorithms.beginnings import SharedBeginnings, shared_beginnings
from autotune.algorithms.names import NO_CONTROLLER
from autotune.study.driver.settings import trial_seed
from autotune.study.experiment import Experiment
from autotune.study.manifest import Manifest
from autotune.study.option import OFF
from autotune.study.options import StudyOptions


def resolve_beginnings(
    experiment: Experiment, options: StudyOptions, existing: Manifest | None
) -> tuple[str, str | None]:
    """`auto` where the study shares beginnings, else `off`; and in one line why.

    A study that goes on stays as it began; of a space in which it does not pay nothing is said.

    Args:
        existing: the manifest of the study in the folder, if it has any result.
    """
    if existing is not None:
        return existing.options.shared_beginnings, None
    how = made_beginnings(experiment, options)
    if how is None:
        return OFF, None
    return "auto", (
        f"auto: trials begin alike, some up to {how.places[-1]:.0%} of the horizon, and so begin "
        "from each other's checkpoints, all with one training seed"
    )


def made_beginnings(experiment: Experiment, options: StudyOptions) -> SharedBeginnings | None:
    """How a study with these options shares beginnings; None where it does not.

    Trials of a controller have knobs that it turns, and repeats have seeds of their own.
    """
    apart = options.seeds or not options.search or options.controller not in NO_CONTROLLER
    if options.shared_beginnings == OFF or apart:
        return None
    return shared_beginnings(experiment.space, trial_seed(options.seed, "shared beginnings"))
