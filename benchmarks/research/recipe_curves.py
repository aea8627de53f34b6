"""Whole searches of a recipe by autotune and by Ray Tune's rules, replayed on its recorded curves.

    python benchmarks/research/recipe_curves.py record --curves FILE [--minutes 22]
        [--recipe search_spaces.digits:optimizers] [--seed 77]
    python benchmarks/research/recipe_curves.py again --curves FILE [--fastest 40] [--runs 4]
    python benchmarks/research/recipe_curves.py replay --curves FILE [--seeds 24] [--first-seed 0]
        [--seconds 100] [--rows "autotune;Ray Tune"] [--weights FILE]

`record` trains configurations that Optuna draws at random, and the baseline twice, one on each
core, until the target, 17 s, or 11 s if less than the `HOPELESS` accuracy was reached. `again` adds
runs of the fastest configurations with other seeds. `replay` runs searches on two virtual workers:
the nearest recorded curve with the same optimizer stands for a proposed configuration, one of its
runs if there are several, and else its times multiplied by a log-normal factor of each run (0.3, as
the repeated ones had). A curve that was not recorded to its end goes on as its last value, without
reaching the target. Preparation and evaluation take no time.
As in `ray_tune.py`, autotune knows the shipped experience without that of the recipe's data, and
Ray Tune's rules are Optuna's TPE with the baseline first, ASHA (reduction 4 from the first report
on), and an end at the target. The pruner `policy` has the weights of `--weights`, which should have
seen nothing of the recipe's data (`trained_policy.py train`).

Reported are the recorded seconds of the winner (a miss is the limit), and of the fastest that any
trial of the search had; geometric means over seeds, with the factor of a standard error.
"""

from __future__ import annotations

import argparse
import functools
import heapq
import itertools
import json
import math
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from _shared import Answer
from search import Asha

sys.path.append(str(Path(__file__).parents[1]))

from _end_to_end import Training, baseline_of, data_of, load, other_experience

import autotune as at
from autotune.algorithms.samplers.optuna_space import draw, to_optuna
from autotune.backends.simulator import SimCurve, SimPoint, SimPool
from autotune.space.encoding import unit_of
from autotune.space.parameters import Choice
from autotune.trial import Config

RECIPE = "search_spaces.digits:optimizers"
HOPELESS, EARLY, LONGEST = 0.97, 11.0, 17.0
SPREAD = 0.3
RUNGS, REDUCTION = (1, 4, 16, 64), 4.0
POLICY = "policy"
_FAMILY_APART, _MUCH, _LITTLE = 0.1, 2.0, 0.5  # weights of squared distances
_DECISIVE = ("peak", "horizon", "batch_size")


# --- recording ----------------------------------------------------------------------------------


def record(recipe: str, core: int, seconds: float, seed: int) -> list[Answer]:
    """Curves of the baseline and of random configurations, on one core."""
    import optuna
    import torch

    os.sched_setaffinity(0, {core})
    torch.set_num_threads(1)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    experiment, begin = load({"recipe": recipe}), time.monotonic()
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed + core))
    rows: list[Answer] = []
    while time.monotonic() - begin < seconds:
        point = baseline_of(experiment)
        if rows:
            trial = study.ask()
            point = dict(experiment.space.suggest(functools.partial(draw, trial)))
            study.tell(trial, 0.0)
        rows.append(trained(experiment, point, 10_000 * (seed + core) + len(rows)))
    return [row for row in rows if row["curve"]]


def record_again(recipe: str, core: int, points: Sequence[Answer], seeds: range) -> list[Answer]:
    """Curves of these configurations with each of the seeds, on one core."""
    import torch

    os.sched_setaffinity(0, {core})
    torch.set_num_threads(1)
    experiment = load({"recipe": recipe})
    trained(experiment, points[0], 0)  # the first run of a process takes longer
    return [trained(experiment, point, seed) for seed in seeds for point in points]


def trained(experiment: at.Experiment, point: Answer, seed: int) -> Answer:
    """The recorded curve of one run."""
    run = Training(experiment, point, seed)
    curve: list[tuple[float, float]] = []
    while not run.over and run.seconds <= LONGEST:
        run.advance()
        if len(run.values) > len(curve):
            curve.append((round(run.seconds, 4), run.values[-1]))
        if run.seconds > EARLY and run.best() < HOPELESS:
            break
    run.close()
    return {"point": point, "curve": curve, "reached": run.reached}


# --- the recorded curves as a task --------------------------------------------------------------


class Curves:
    """The nearest recorded run of a configuration.

    Args:
        recipe: whose curves they are.
        rows: what `record` returned.
        experience: a folder with what autotune knows.
        policy: the pruner of this name, with its weights.
    """

    def __init__(
        self, recipe: str, rows: Sequence[Answer], experience: Path, policy: str = POLICY
    ) -> None:
        self.experience, self.policy = experience, policy
        self.experiment = load({"recipe": recipe})
        self.parameters = self.experiment.space.parameters()
        self.target = self.experiment.target
        much = [name.rpartition(".")[2] in _DECISIVE for name in self.parameters]
        self.weights = np.where(much, _MUCH, _LITTLE)
        self.of: dict[str, list[Answer]] = {}
        for row in rows:
            self.of.setdefault(row["point"]["optimizer"], []).append(row)
        self.units = {
            name: np.array([self._unit(row["point"]) for row in own])
            for name, own in self.of.items()
        }

    def _unit(self, point: Mapping[str, Any]) -> list[float]:
        return [
            0.5 if isinstance(p, Choice) or name not in point else unit_of(p, point[name])
            for name, p in self.parameters.items()
        ]

    def nearest(self, point: Mapping[str, Any]) -> list[Answer]:
        """The recorded runs of the nearest configuration."""
        own = self.of[point["optimizer"]]
        apart = (self.units[point["optimizer"]] - np.array(self._unit(point))) ** 2
        away = apart @ self.weights
        for name in (n for n, p in self.parameters.items() if isinstance(p, Choice)):
            other = [row["point"].get(name) != point.get(name) for row in own]
            away = away + _FAMILY_APART * np.array(other)
        return [own[i] for i in np.flatnonzero(away <= away.min() + 1e-12)]

    def worth(self, point: Mapping[str, Any]) -> float:
        """Mean seconds of the runs; a miss is the limit."""
        limit = self.target.horizon
        rows = self.nearest(point)
        return statistics.fmean(r["curve"][-1][0] if r["reached"] else limit for r in rows)

    def run(self, point: Mapping[str, Any], seed: int) -> list[tuple[float, float]]:
        """Seconds and metric of a run at each milestone."""
        rows = self.nearest(point)
        row = rows[seed % len(rows)]
        spread = SPREAD if len(rows) == 1 else 0.0
        factor = math.exp(spread * np.random.default_rng((seed, 7)).standard_normal())
        curve = [(factor * seconds, value) for seconds, value in row["curve"]]
        step, last = curve[-1][0] / len(curve), curve[-1][1]
        while not row["reached"] and curve[-1][0] < self.target.horizon:
            curve.append((curve[-1][0] + step, min(last, HOPELESS)))
        return curve

    def point(self, config: Config) -> dict[str, Any]:
        """The point of a configuration: its rate's schedule is a value there."""
        optimizer, rate = config["optimizer"], config["lr"]
        rate = getattr(rate, "base", rate)
        warm = type(rate).__name__ == "Stages"
        part = rate.parts[-1] if warm else rate
        known = {"warmup": rate.edges[0] if warm else 0.0, "family": type(part).__name__.lower()}
        if known["family"] == "constant":
            known["peak"] = part.value
        else:
            known |= {"peak": part.start, "final": part.end / part.start}
        found: dict[str, Any] = {"optimizer": optimizer}
        for name in self.parameters:
            base, _, of = name.partition(":")
            if base == "lr" and of.partition(".")[0] == optimizer:
                value = known.get(name.rpartition(".")[2])
            else:
                value = config.get(base) if of in ("", optimizer) else None
            if value is not None and name != "optimizer":
                found[name] = value
        return found


# --- the searches ---------------------------------------------------------------------------------


def autotune_search(
    curves: Curves, seed: int, seconds: float, based: bool = True, **settings: Any
) -> Answer:
    """A search by autotune with its defaults, or other settings."""
    baseline = curves.experiment.baseline if based else None
    target = curves.target
    if settings.get("pruner") == POLICY:
        settings["pruner"] = curves.policy

    def simulate(config: Config, own: int) -> SimCurve:
        run = curves.run(curves.point(config), own)
        points = [SimPoint(i + 1, s, {target.metric: v}) for i, (s, v) in enumerate(run)]
        return SimCurve(points)

    with tempfile.TemporaryDirectory() as folder:
        known = Path(folder, "experience")
        shutil.copytree(curves.experience, known)  # a study adds its own summary
        result = at.run(
            replace(curves.experiment, baseline=baseline),
            trials=1000,
            time_limit=seconds,
            seed=seed,
            out=Path(folder, "study"),
            pool=SimPool(simulate, 2),
            progress=False,
            experience=str(known),
            **settings,
        )
    reached = [t.params or {} for t in result.searched if t.time_to_target is not None]
    repeats = len(result.trials) - len(result.searched)
    best = result.best.params if result.best is not None else None
    return answer(curves, best, reached, len(result.searched), repeats)


def ray_tune_search(curves: Curves, seed: int, seconds: float, rungs: Sequence[int]) -> Answer:
    """A search by Ray Tune's rules; without rungs nothing is stopped before its target or limit."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    target, space = curves.target, curves.experiment.space
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed))
    first = baseline_of(curves.experiment).items()
    study.enqueue_trial({name: to_optuna(curves.parameters[name], v) for name, v in first})
    asha = Asha(rungs, REDUCTION)
    agenda: list[tuple[float, int, Any, dict[str, Any], list[tuple[float, float]], int]] = []
    reached: list[tuple[float, dict[str, Any]]] = []
    numbers = itertools.count()

    def start(now: float) -> None:
        trial = study.ask()
        point = dict(space.suggest(functools.partial(draw, trial)))
        number = next(numbers)
        run = curves.run(point, 1000 * seed + number)
        heapq.heappush(agenda, (now + run[0][0], number, trial, point, run, 0))

    start(0.0)
    start(0.0)
    while agenda[0][0] <= seconds:
        now, number, trial, point, run, place = heapq.heappop(agenda)
        spent, value = run[place]
        met = value >= float(target.value or 0.0) and spent < target.horizon
        if met:
            reached.append((spent, point))
        over = met or place + 1 == len(run) or spent >= target.horizon
        if over or asha.stops(place + 1, value):
            study.tell(trial, value)
            start(now)
        else:
            later = now + run[place + 1][0] - spent
            heapq.heappush(agenda, (later, number, trial, point, run, place + 1))
    winner = min(reached, key=lambda one: one[0])[1] if reached else None
    return answer(curves, winner, [point for _, point in reached], next(numbers), 0)


def answer(
    curves: Curves,
    winner: Mapping[str, Any] | None,
    reached: Sequence[Mapping[str, Any]],
    trials: int,
    repeats: int,
) -> Answer:
    """What a search is worth: of its winner, and of the fastest of all that reached the target."""
    limit = curves.target.horizon
    return {
        "worth": curves.worth(winner) if winner is not None else limit,
        "found": min(map(curves.worth, reached), default=limit),
        "trials": trials,
        "repeats": repeats,
    }


Search = Callable[[Curves, int, float], Answer]
ROWS: Mapping[str, Search] = {
    "autotune": autotune_search,
    "autotune, no races": functools.partial(autotune_search, racing=0.0),
    "autotune, races 0.15": functools.partial(autotune_search, racing=0.15),
    "autotune, no baseline": functools.partial(autotune_search, based=False),
    "autotune, policy": functools.partial(autotune_search, pruner=POLICY),
    "autotune, policy, no races": functools.partial(autotune_search, pruner=POLICY, racing=0.0),
    "autotune, asha": functools.partial(autotune_search, pruner="asha(reduction=4,first=0.0367)"),
    "autotune, asha, no races": functools.partial(
        autotune_search, pruner="asha(reduction=4,first=0.0367)", racing=0.0
    ),
    "convergence, no races": functools.partial(autotune_search, sampler="convergence", racing=0.0),
    "widening, no races": functools.partial(autotune_search, sampler="widening", racing=0.0),
    "random, no races": functools.partial(autotune_search, sampler="random", racing=0.0),
    "random, asha, no races": functools.partial(
        autotune_search, sampler="random", racing=0.0, pruner="asha(reduction=4,first=0.0367)"
    ),
    "Ray Tune": functools.partial(ray_tune_search, rungs=RUNGS),
    "Ray Tune, no ASHA": functools.partial(ray_tune_search, rungs=()),
}


# --- the whole ------------------------------------------------------------------------------------

_of_process: list[Curves] = []


def begin(file: Path, known: Path, weights: Path | None) -> None:
    """Load the curves; what autotune ships is known from a folder alone."""
    from autotune.study.experience import store

    store.shipped = lambda warn: []
    read = json.loads(file.read_text())
    policy = POLICY if weights is None else f"policy(weights={str(weights.absolute())!r})"
    _of_process[:] = [Curves(read["recipe"], read["rows"], known, policy)]


def search(row: str, seed: int, seconds: float) -> Answer:
    """A search of a row with a seed, on the curves of this process."""
    return ROWS[row](_of_process[0], seed, seconds)


def replay(given: argparse.Namespace) -> None:
    """The table of the rows."""
    recipe = json.loads(given.curves.read_text())["recipe"]
    seeds = range(given.first_seed, given.first_seed + given.seeds)
    with tempfile.TemporaryDirectory() as folder:
        known = Path(folder, "experience")
        other_experience(data_of(recipe), known)
        about = given.curves, known, given.weights
        with get_context("spawn").Pool(os.cpu_count(), begin, about) as pool:
            for row in given.rows.split(";"):
                jobs = [(row, seed, given.seconds) for seed in seeds]
                print(described(row, pool.starmap(search, jobs, chunksize=1)), flush=True)


def described(row: str, found: Sequence[Answer]) -> str:
    """A row of the table.

    >>> described("a", [{"worth": 4.0, "found": 1.0, "trials": 3, "repeats": 1}] * 2)
    'a: winner 4.00 s (standard error 1.00 times), fastest found 1.00 s, 3 trials, 1.0 repeats'
    """
    logs = [math.log(one["worth"]) for one in found]
    error = math.exp(statistics.stdev(logs) / math.sqrt(len(logs))) if len(logs) > 1 else math.inf
    trials, repeats = (statistics.fmean(one[key] for one in found) for key in ("trials", "repeats"))
    worth, fastest = (
        statistics.geometric_mean(one[key] for one in found) for key in ("worth", "found")
    )
    return (
        f"{row}: winner {worth:.2f} s (standard error {error:.2f} times)"
        f", fastest found {fastest:.2f} s, {trials:.0f} trials, {repeats:.1f} repeats"
    )


def recorded(given: argparse.Namespace) -> None:
    """Record on the first two cores at once."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    jobs = [(given.recipe, core, 60 * given.minutes, given.seed) for core in cores]
    with get_context("spawn").Pool(len(cores)) as pool:
        rows = [row for each in pool.starmap(record, jobs) for row in each]
    given.curves.write_text(json.dumps({"recipe": given.recipe, "rows": rows}) + "\n")
    print(f"{given.curves}: {len(rows)} curves, {sum(r['reached'] for r in rows)} reached")


def recorded_again(given: argparse.Namespace) -> None:
    """Add runs of the fastest configurations, on the first two cores at once."""
    read = json.loads(given.curves.read_text())
    reached = sorted((r for r in read["rows"] if r["reached"]), key=lambda r: r["curve"][-1][0])
    points = [row["point"] for row in reached]
    points = [p for i, p in enumerate(points) if p not in points[:i]][: given.fastest]
    cores, seeds = sorted(os.sched_getaffinity(0))[:2], range(1, given.runs + 1)
    parts = [(core, points[i :: len(cores)]) for i, core in enumerate(cores)]
    jobs = [(read["recipe"], core, part, seeds) for core, part in parts if part]
    with get_context("spawn").Pool(len(cores)) as pool:
        rows = [row for each in pool.starmap(record_again, jobs) for row in each if row["curve"]]
    given.curves.write_text(json.dumps({**read, "rows": read["rows"] + rows}) + "\n")
    print(f"{given.curves}: {len(rows)} more curves, {sum(r['reached'] for r in rows)} reached")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=["record", "again", "replay"])
    parser.add_argument("--curves", type=Path, required=True)
    parser.add_argument("--recipe", default=RECIPE)
    parser.add_argument("--minutes", type=float, default=22.0)
    parser.add_argument("--seed", type=int, default=77)
    parser.add_argument("--fastest", type=int, default=40)
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=24)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=100.0)
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--rows", default=";".join(ROWS))
    given = parser.parse_args()
    {"record": recorded, "again": recorded_again, "replay": replay}[given.what](given)


if __name__ == "__main__":
    main()
