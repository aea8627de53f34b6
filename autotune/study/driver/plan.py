"""What a driver has to do, and the seeds that follow from it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from autotune.algorithms.pruners.rules import Pruner
from autotune.study.experiment import Experiment
from autotune.trial import Change, Event, Fork, Target, Trial

Controller = Callable[[Trial, Sequence[Trial], Target], Change | Fork | None]
Watch = Callable[[Event, Mapping[int, Trial]], None]


@dataclass(frozen=True)
class Plan:
    """What a driver has to do: the experiment, how much of it, and who decides.

    `seeds`, if given, are those of its trials, one for each, and make them confirmations. When
    the `trials` of the search are done, the `top` best configurations and the baseline are run
    `repeats` times again. Without `search` that is all there is to do. `racing` is the share of
    the search that goes into races. `checkpoints` is the folder or URL of checkpoints, if they are
    not in the study folder. With `mix_hardware` times on unequal hardware are ranked together.
    """

    experiment: Experiment
    trials: int
    time_limit: float | None
    seed: int
    pruner: Pruner
    controller: Controller | None
    seeds: Sequence[int] = ()
    repeats: int = 0
    top: int = 3
    search: bool = True
    racing: float = 0.0
    checkpoints: str = ""
    mix_hardware: bool = False


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
