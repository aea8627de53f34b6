"""Small studies of the project's own trainers over the spaces of its recipes, for experience.

A trial trains in this process on one thread, and its clock counts processor seconds of training, so
that other programs on the machine change little. Models are smaller than the recipes', so that as
many epochs fit into the limit.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from _recorded import Curves, Study, with_effective

from autotune.algorithms.experience.canonical import CanonicalSpace
from autotune.space.parameters import Float
from autotune.study import recipes
from autotune.study.experiment import Experiment
from autotune.trial import Params

BATCH = 4  # trials of a study, before the next study has its turn
_GRID = tuple(i / 1000 for i in range(1001))


@dataclass(frozen=True)
class Small:
    """How a problem is made small.

    Args:
        limit: of a trial, processor seconds of training.
        settings: what replaces the recipe's.
        horizons: factor of the searched horizons.
    """

    limit: float
    settings: Mapping[str, Any] = field(default_factory=dict)
    horizons: float = 1.0


PROBLEMS: Mapping[str, Small] = {
    "digits": Small(2.0, {"width": 8, "milestone": 1280}),
    "fashion_mnist": Small(2.5, {"width": 32, "milestone": 12_500}),
    "shakespeare": Small(
        3.0,
        {"layers": 1, "width": 32, "heads": 2, "val_size": 8192, "milestone": 32_768},
        horizons=0.25,
    ),
}


@dataclass(frozen=True)
class RecipeStudy:
    """A recipe, made small.

    Args:
        problem: its key in `PROBLEMS`.
    """

    recipe: str
    problem: str
    experiment: Experiment
    small: Small

    @property
    def study(self) -> Study:
        """What is equal for all of its trials."""
        target, train = self.experiment.target, self.experiment.train
        return Study(
            f"small-{self.experiment.name}",
            f"{train.__module__}.{train.__qualname__}",
            target.metric,
            str(target.mode),
            self.small.limit,
            share=0.1,
            hardware=f"1 core, {platform.machine()}, processor seconds",
            problem=f"small-{self.problem}",
        )

    def extend(self, curves: Curves, count: int, seed: int) -> None:
        """Train up to `count` further points, those that the seed has next."""
        first, space = len(curves.points), self.experiment.space
        for number, params in enumerate(space.sample(first + count, seed=seed)[first:], first):
            begin = time.process_time()
            config = {**space.config(params), **self.small.settings, "seed": seed + number}
            seconds, values = self._readings(config)
            curves.add(self.point(params), seconds, values)
            curves.cpu += time.process_time() - begin

    def point(self, params: Params) -> dict[str, Any]:
        """The canonical point: what is searched, and the learning rate that was trained with.

        A searched peak may be that at another batch size: it is left out.
        """
        canonical = CanonicalSpace(self.experiment.space, self.experiment.canonical)
        known = canonical.point(params)
        point = {k: v for k, v in known.items() if k in {*canonical.searched, "optimizer"}}
        del point[canonical.names["lr.peak"]]
        rate = self.experiment.space.config(params)["lr"]
        point["lr"] = max(float(rate(place)) for place in _GRID)
        return with_effective(point) if "momentum" in point else point

    def _readings(self, config: dict[str, Any]) -> tuple[list[float], list[float]]:
        """Times and metrics until the limit; of a diverged trial until then."""
        spent, seconds, values = 0.0, [], []
        trainer = self.experiment.train(config)
        begin = time.process_time()
        for milestone in trainer:
            if milestone.step:
                spent += time.process_time() - begin
                seconds.append(spent)
                values.append(milestone.evaluate()[self.experiment.target.metric])
                if spent >= self.small.limit or values[-1] != values[-1]:
                    break
            begin = time.process_time()
        trainer.close()
        return seconds, values


def studies(folder: Path, optimizers: Sequence[str]) -> Iterator[RecipeStudy]:
    """The recipes of some optimizers whose data is there, in turns over the problems."""
    torch.set_num_threads(1)
    os.environ["AUTOTUNE_DATA"] = str(folder.resolve())
    for optimizer in optimizers:
        for problem, small in PROBLEMS.items():
            name = f"search_spaces.{problem}:{optimizer}"
            experiment = _loaded(problem, optimizer)
            if experiment is not None:
                yield RecipeStudy(name, problem, _shortened(experiment, small), small)


def _loaded(problem: str, optimizer: str) -> Experiment | None:
    """The recipe; None where there is none, or its data is missing."""
    module = __import__(f"search_spaces.{problem}", fromlist=[problem])
    if not hasattr(module, optimizer):
        return None
    try:
        return recipes.load(f"search_spaces.{problem}:{optimizer}")
    except Exception as error:  # one line that says what is missing
        print(f"{problem}:{optimizer} left out: {error}", flush=True)
        return None


def _shortened(experiment: Experiment, small: Small) -> Experiment:
    """The experiment with the horizons that fit into the limit."""
    entries = dict(experiment.space.entries)
    horizon = entries["horizon"]
    assert isinstance(horizon, Float)
    factor = small.horizons
    entries["horizon"] = Float(horizon.low * factor, horizon.high * factor, log=True)
    return replace(experiment, space=replace(experiment.space, entries=entries), baseline=None)
