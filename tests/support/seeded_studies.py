"""Studies on a virtual clock, and a digest of what each wrote down: to be run in two processes.

    python seeded_studies.py SEED

Whatever a process brings along that is not the study's seed (the order of sets, global random
states, the hour) must not show in what is written down.
"""

from __future__ import annotations

import functools
import hashlib
import json
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import populations
from learning_rate_problem import problem, train_live
from sims import MEMORY, learning, lines, simulate, wide

from autotune.algorithms.controllers import CONTROLLERS, FORKING
from autotune.algorithms.controllers.linear import SETTINGS
from autotune.algorithms.pruners.rules import PRUNERS
from autotune.algorithms.samplers.critic import Critic
from autotune.algorithms.samplers.gaussian_process import Process
from autotune.algorithms.samplers.optuna_names import NAMES

Study = Callable[[Path, int], Any]
TRIALS = 18
MANY = 46  # of samplers whose models begin once 16 trials have ended
FEW = 13  # of one whose model begins at 10, and takes a second for each point
_COUNTS = {"convergence": MANY, "policy:elite": MANY, "gp": FEW}
_WRITTEN = ("controller.json", "policy.json", "schedules.json")


def _searched(sampler: str, pruner: str, trials: int | None = None, **options: Any) -> Study:
    count = trials or _COUNTS.get(sampler, TRIALS)

    def study(folder: Path, seed: int) -> Any:
        asked = {"sampler": sampler, "pruner": pruner, "seed": seed, "workers": 4} | options
        return simulate(wide(), folder, count, learning, **asked)

    return study


def _steered(controller: str) -> Study:
    def study(folder: Path, seed: int) -> Any:
        asked = {"controller": controller, "seed": seed, "workers": 4}
        return simulate(
            problem(None, knobs=("lr", "batch_size")), folder, TRIALS, train_live, **asked
        )

    return study


def _population(controller: str, sampler: str) -> Study:
    def study(folder: Path, seed: int) -> Any:
        asked = {"controller": controller, "sampler": sampler, "seed": seed}
        return populations.study(folder, TRIALS, **asked)

    return study


def _warm(folder: Path, seed: int) -> Any:
    """A policy that goes on from another study's."""
    _searched("policy:elite", "none", TRIALS)(folder / "first", 0)
    return _searched("policy:elite", "asha", start_from=folder / "first")(folder, seed)


def _experienced(folder: Path, seed: int) -> Any:
    """A search that knows another study."""
    _searched("random", "none", TRIALS, experience=folder / "store")(folder / "first", 0)
    asked = {"experience": folder / "store", "workers": 2}
    return _searched("experienced", "asha", MANY - 20, **asked)(folder, seed)


def studies() -> dict[str, Study]:
    """Every sampler with every pruner in turns, every pruner, every controller, and warm starts."""
    made: dict[str, Study] = {}
    pruners = list(PRUNERS)
    for number, sampler in enumerate(NAMES):
        pruner = pruners[number % len(pruners)]
        made[f"{sampler}, {pruner}"] = _searched(sampler, pruner)
    for pruner in pruners:
        made[f"random, {pruner}"] = _searched("random", pruner)
    made["convergence, convergence, racing"] = _searched("convergence", "convergence", racing=0.2)
    made["policy from another"] = _warm
    made["experienced from another"] = _experienced
    settings = [f"policy(setting={s!r})" for s in SETTINGS]
    named = [name for name in CONTROLLERS if name != "policy"]
    for controller in [*settings, *named]:
        made[controller] = _steered(controller)
    for controller in FORKING:
        for sampler in ("qmc", "convergence"):
            made[f"{controller} from {sampler}"] = _population(controller, sampler)
    return made


def digest(study: Study, seed: int) -> str:
    """Of all that the study wrote down, but for the hour."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as place:
        folder = Path(place, "study")
        study(folder, seed)
        output = [lines(folder)]
        output += [json.loads((folder / n).read_text()) for n in _WRITTEN if (folder / n).is_file()]
    text = json.dumps(output).replace(place, "")
    return hashlib.sha256(text.encode()).hexdigest()


@contextmanager
def consulted() -> Iterator[list[str]]:
    """Notes each question to the Gaussian process or the critic."""
    asked: list[str] = []

    def noting(what: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def noted(*given: Any) -> Any:
            asked.append(what)
            return method(*given)

        return noted

    at, choice = Process.at, Critic.choose
    Process.at, Critic.choose = noting("process", at), noting("critic", choice)  # type: ignore[method-assign]
    try:
        yield asked
    finally:
        Process.at, Critic.choose = at, choice  # type: ignore[method-assign]


def disturb() -> None:
    """Draw from every global random state; the interpreter's own order of sets is disturbed too."""
    import numpy as np
    import torch

    _ = random.random(), np.random.random(), torch.rand(1)


def main(seed: int) -> None:
    found = {}
    for name, study in studies().items():
        disturb()
        with consulted() as asked:
            found[name] = digest(study, seed), len(asked)
    print(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]))
