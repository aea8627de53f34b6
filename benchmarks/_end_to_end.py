"""The searches that `ray_tune.py` compares, and the confirmation of their winners."""

from __future__ import annotations

import functools
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _common import ROOT, Answer, Task, in_turns, start_ray
from trial_cost import wait_for_mirror

if TYPE_CHECKING:
    from autotune import Experiment, SearchSpace

BASELINE = "baseline"
AT_ONCE = 2
OTHERS = "others"
"""The shipped experience without that of the recipe's data set."""


# --- one training, driven by hand ---------------------------------------------------------------


def load(task: Task) -> Experiment:
    """The recipe's experiment on one rank with one core, two trials at a time.

    Raises:
        UserError: there is no such recipe, or it is not one that can be compared.
    """
    from autotune.errors import UserError
    from autotune.study import recipes

    experiment = recipes.load(task["recipe"])
    target, scaling = experiment.target, experiment.scaling
    if not target.timed or target.clock != "train" or not baseline_of(experiment):
        needed = "a target with a value on the train clock, and a baseline in its space"
        raise UserError(f"recipe {task['recipe']!r} must have {needed}")
    one = replace(scaling, num_workers=1, cpus_per_worker=1, max_concurrent_trials=AT_ONCE)
    return replace(experiment, scaling=one)


class Training:
    """One run of the experiment's trainer in this process.

    Attributes:
        seconds, setup, evaluation: seconds of these; those of training are without the others.
        values: the target's metric at each milestone.
        reached: whether the target was met before its limit.
        over: whether it is: reached, out of time, or come to its own end.
    """

    def __init__(self, experiment: Experiment, point: Mapping[str, Any], seed: int) -> None:
        from autotune.backends.worker.isolation import seed_all

        seed_all(seed)
        self.target = experiment.target
        self.seconds = self.setup = self.evaluation = 0.0
        self.values: list[float] = []
        self.reached = self.over = False
        config = {**experiment.space.config(dict(point)), "seed": seed}
        self._steps = experiment.train(config)

    def advance(self) -> None:
        """Train to the next milestone and evaluate there."""
        milestone, took = self._next()
        if milestone is not None and milestone.step == 0:
            self.setup += took
            milestone, took = self._next()
        if milestone is None:
            self.over = True
            return
        self.seconds += took - milestone.eval_seconds
        begin = time.perf_counter()
        self.values.append(float(milestone.evaluate()[self.target.metric]))
        self.evaluation += time.perf_counter() - begin + milestone.eval_seconds
        late = self.seconds >= self.target.horizon
        last = self.values[-self.target.confirm :]
        met = len(last) == self.target.confirm and all(map(self.meets, last))
        self.reached, self.over = met and not late, met or late

    def meets(self, value: float) -> bool:
        aim = float(self.target.value or 0.0)
        return value >= aim if self.target.mode == "max" else value <= aim

    def best(self) -> float:
        """The best value so far: the worst there is, if there is none."""
        choose = max if self.target.mode == "max" else min
        return choose(self.values, default=-math.inf if choose is max else math.inf)

    def close(self) -> None:
        self._steps.close()

    def _next(self) -> tuple[Any, float]:
        begin = time.perf_counter()
        milestone = next(self._steps, None)
        return milestone, time.perf_counter() - begin


# --- autotune -----------------------------------------------------------------------------------


def data_of(recipe: str) -> str:
    """The data set of a recipe: the module that it is in."""
    return recipe.split(":")[0].rpartition(".")[2]


def other_experience(data: str, folder: Path) -> list[str]:
    """Make a store of what is shipped without one data set's studies, the only one known from now.

    Returns:
        The names of those left out.
    """
    from autotune.study.experience import store

    left_out = []
    folder.mkdir(parents=True)
    for study in store.shipped(print):
        if data in study.name.replace("-", "_"):
            left_out.append(study.name)
        else:
            store.write(folder, study)
    store.shipped = lambda warn: []
    return left_out


def autotune_side(task: Task) -> Answer:
    import autotune

    experiment = load(task)
    experience, left_out = task["experience"], []
    if experience == OTHERS:
        experience = str(Path(task["folder"], "experience"))
        left_out = other_experience(data_of(task["recipe"]), Path(experience))
    begin = time.monotonic()
    result = autotune.run(
        experiment,
        trials=task["trials"],
        time_limit=task["seconds"],
        seed=task["seed"],
        out=Path(task["folder"], "study"),
        progress=False,
        experience=experience,
        pruner=task["pruner"],
    )
    wall = time.monotonic() - begin
    wait_for_mirror()  # or it would take time from the next search
    winner, clocks = result.best or result.nearest, [t.clock for t in result.trials]
    return {
        "point": dict(winner.params) if winner is not None and winner.params else None,
        "tuned_seconds": result.best.seconds if result.best is not None else None,
        "trials": len(result.searched),
        "repeats": len(result.trials) - len(result.searched),
        "reached": sum(t.time_to_target is not None for t in result.searched),
        "left_out": left_out,
        "wall_seconds": wall,
        "training_seconds": sum(c.train + c.data for c in clocks),
        "evaluation_seconds": sum(c.eval for c in clocks),
        "setup_seconds": sum(c.setup for c in clocks),
        "decision_seconds": sum(c.decide for c in clocks),
        "spent_seconds": result.spent_seconds,
        "ends": [(t.reason, t.seconds) for t in result.trials],
    }


# --- Ray Tune -----------------------------------------------------------------------------------


def tune_side(task: Task) -> Answer:
    from ray import tune
    from ray.tune.schedulers import ASHAScheduler
    from ray.tune.search.optuna import OptunaSearch

    _start_ray()
    experiment = load(task)
    metric, mode = experiment.target.metric, str(experiment.target.mode)
    begin = time.monotonic()
    tuner = tune.Tuner(
        tune.with_resources(_trainable(task), {"cpu": 1}),
        tune_config=tune.TuneConfig(
            search_alg=OptunaSearch(
                functools.partial(_drawn, experiment.space, task["seed"]),
                metric=metric,
                mode=mode,
                points_to_evaluate=[_baseline_for_optuna(experiment)],
                seed=task["seed"],
            ),
            scheduler=ASHAScheduler(metric=metric, mode=mode),
            num_samples=-1,
            time_budget_s=task["seconds"],
            max_concurrent_trials=AT_ONCE,
            reuse_actors=True,
        ),
        run_config=tune.RunConfig(
            storage_path=task["folder"],
            name="search",
            verbose=0,
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
        ),
    )
    found = [one for one in tuner.fit() if (one.metrics or {}).get("training") is not None]
    return {**_chosen(found, mode), "wall_seconds": time.monotonic() - begin}


def _start_ray() -> None:
    """Start Ray; its processes import what this one does."""
    before = os.environ.get("PYTHONPATH")
    paths = [str(ROOT), str(ROOT / "benchmarks"), *([before] if before else [])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    start_ray(AT_ONCE)


def _drawn(space: SearchSpace, seed: int, trial: Any) -> dict[str, Any]:
    """A point of the space, drawn by Optuna, and a seed of the trial's own."""
    from autotune.algorithms.samplers.optuna_space import draw

    point = space.suggest(lambda name, parameter: draw(trial, name, parameter))
    return {"point": dict(point), "seed": 1000 * seed + trial.number}


def _baseline_for_optuna(experiment: Experiment) -> dict[str, Any]:
    from autotune.algorithms.samplers.optuna_space import to_optuna

    parameters = experiment.space.parameters()
    return {name: to_optuna(parameters[name], v) for name, v in baseline_of(experiment).items()}


def _trainable(task: Task) -> Any:
    from ray import tune

    class Trial(tune.Trainable):  # type: ignore[misc]
        training: Training | None = None

        def setup(self, config: dict[str, Any]) -> None:
            import torch

            torch.set_num_threads(1)
            self.experiment = load(task)
            self.reset_config(config)

        def reset_config(self, new_config: dict[str, Any]) -> bool:
            self.cleanup()
            self.training = Training(self.experiment, new_config["point"], new_config["seed"])
            return True

        def step(self) -> dict[str, Any]:
            run = self.training
            assert run is not None, "set up"
            run.advance()
            return {
                run.target.metric: run.values[-1] if run.values else run.best(),
                "best": run.best(),
                "training": run.seconds,
                "preparation": run.setup,
                "evaluation": run.evaluation,
                "reached": run.reached,
                "done": run.over,
            }

        def cleanup(self) -> None:
            if self.training is not None:
                self.training.close()

    return Trial


def _chosen(found: Sequence[Any], mode: str) -> Answer:
    """What Ray Tune's user takes of its results, and where their seconds went."""
    rows = [(one.metrics, one.config) for one in found]
    winner = fastest([m for m, _ in rows], mode)
    reached = [m for m, _ in rows if m["reached"]]
    return {
        "point": rows[winner][1]["point"] if winner is not None else None,
        "tuned_seconds": min((m["training"] for m in reached), default=None),
        "trials": len(rows),
        "repeats": 0,
        "reached": len(reached),
        "training_seconds": sum(m["training"] for m, _ in rows),
        "evaluation_seconds": sum(m["evaluation"] for m, _ in rows),
        "setup_seconds": sum(m["preparation"] for m, _ in rows),
        "ends": [("target" if m["reached"] else "stopped", m["training"]) for m, _ in rows],
    }


def fastest(rows: Sequence[Mapping[str, Any]], mode: str) -> int | None:
    """The index of the fastest row that reached the target, else of the one that came nearest."""
    reached = [i for i, row in enumerate(rows) if row["reached"]]
    if reached:
        return min(reached, key=lambda i: float(rows[i]["training"]))
    sign = -1.0 if mode == "max" else 1.0
    return min(range(len(rows)), key=lambda i: sign * float(rows[i]["best"]), default=None)


# --- confirmation -------------------------------------------------------------------------------


def confirm_side(task: Task) -> Answer:
    """Each configuration on the same fresh seeds, in turns, in one process on one core."""
    import torch

    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    experiment = load(task)
    points = {**task["points"], BASELINE: baseline_of(experiment)}
    warm = Training(experiment, points[BASELINE], seed=0)
    warm.advance()
    warm.close()
    runs: dict[str, list[Answer]] = {name: [] for name in points}
    for repeat, name in in_turns(list(points), task["confirm"]):
        training = Training(experiment, points[name], fresh_seed(task["seed"], repeat))
        while not training.over:
            training.advance()
        training.close()
        runs[name].append({"seconds": training.seconds, "reached": training.reached})
    return {"limit": experiment.target.horizon, "runs": runs}


def fresh_seed(pair: int, repeat: int) -> int:
    """A seed that no search has used: the same for all configurations of a pair."""
    return 1_000_000_000 + 1000 * pair + repeat


def baseline_of(experiment: Experiment) -> dict[str, Any]:
    """The baseline as a point of the space; empty if there is none."""
    _, point = experiment.space.complete(experiment.baseline or {})
    return dict(point or {})
