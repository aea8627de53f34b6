"""What a driver has to do, and the seeds that follow from it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from autotune.algorithms.beginnings import SharedBeginnings
from autotune.algorithms.pruners.rules import Pruner
from autotune.backends.machine_load import MachineLoad
from autotune.study.experiment import Experiment
from autotune.study.options import Controller
from autotune.study.stages import Stages
from autotune.trial import Trial


@dataclass(frozen=True, kw_only=True)
class StudySettings:
    """What a driver has to do: the experiment, how much of it, and who decides.

    What has the name of an option of the study (`study.options`) has its value and meaning, with
    `racing` resolved; `stages` is what is probed first, None for a search in one stage, and
    `shared_beginnings` says how trials share their beginnings, None where they do not.
    `checkpoints` is the folder or URL of checkpoints, empty for the study folder. `look` says how
    busy the machine is on which all trials run; None where that is not known.
    """

    experiment: Experiment
    pruner: Pruner
    controller: Controller | None
    trials: int
    time_limit: float | None
    seed: int
    seeds: Sequence[int]
    repeats: int
    top: int
    search: bool
    racing: float
    mix_hardware: bool
    checkpoints: str
    wait_idle: float | None = None
    look: Callable[[], MachineLoad] | None = None
    stages: Stages | None = None
    shared_beginnings: SharedBeginnings | None = None


def trial_seed(seed: int, number: int | str) -> int:
    """The seed of a trial: a function of the study's seed and the trial's number, below 2**31."""
    digest = hashlib.sha256(f"{seed}/{number}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def fresh_seed(seed: int, number: int | str, trials: Iterable[Trial]) -> int:
    """The seed of a repeat: as `trial_seed`, but one that none of these trials has had."""
    used, made, more = {t.seed for t in trials}, trial_seed(seed, number), 0
    while made in used:
        more += 1
        made = trial_seed(seed, f"{number}/{more}")
    return made
