"""How soon a search finds a fast configuration: samplers and pruners on recorded curves.

    python benchmarks/search.py --data FOLDER [--tasks 10] [--seeds 3] [--spend 6]

Tasks are the data sets of `FOLDER/lcbench_dev.npz` (learning curves with times of 1000
configurations each); the nearest recorded configuration stands for a proposed one. A task's target
is the accuracy that 5 % of the configurations reach, its limit the median time of a whole run.
Eight workers run at once on a virtual clock for `--spend` limits of tuning time.

Told for each method, over tasks and seeds: *regret*, the best configuration's time to target over
that of the best one recorded, when the spend is used up (geometric mean; the limit where none was
found); the tuning time until a configuration within 25 % and 10 % of the best was found, in limits
(geometric mean; the whole spend where it was not found, with the share that found it); trials; and
how many within 25 % of the best were stopped for another reason than their time (`lost`).
Peers maximise accuracy over epochs, as they are used: Optuna's samplers with its Hyperband and
median pruners, and Ray Tune's rule (ASHA; a stopped trial is told as complete). Their incumbent is
judged by its time to target all the same. Intervals are bootstraps over pairs of task and seed.
"""

from __future__ import annotations

import heapq
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from _common import Answer, Task, arguments, introduce, keep, serve

WORKERS = 8
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
METRIC = "val_accuracy"


@dataclass(frozen=True)
class Problem:
    """One data set: what 1000 configurations did, and what counts as there.

    Args:
        accuracy, seconds: (configurations, epochs).
        unit: (configurations, parameters), in the unit cube.
        times: seconds to the target of each configuration, infinite where it is not reached.
    """

    accuracy: np.ndarray
    seconds: np.ndarray
    unit: np.ndarray
    target: float
    limit: float
    times: np.ndarray = field(repr=False)

    @property
    def best(self) -> float:
        return float(self.times.min())

    def nearest(self, config: dict[str, Any]) -> int:
        point = np.array([to_unit(name, config[name]) for name in RANGES])
        return int(((self.unit - point) ** 2).sum(axis=1).argmin())


RANGES: dict[str, tuple[float, float, bool, bool]] = {  # low, high, log, whole
    "batch_size": (16, 512, True, True),
    "learning_rate": (1e-4, 1e-1, True, False),
    "momentum": (0.1, 0.99, False, False),
    "weight_decay": (1e-5, 1e-1, False, False),
    "num_layers": (1, 5, False, True),
    "max_units": (64, 1024, True, True),
    "max_dropout": (0.0, 1.0, False, False),
}


def to_unit(name: str, value: Any) -> Any:
    low, high, log, _ = RANGES[name]
    if log:
        return (np.log(value) - math.log(low)) / (math.log(high) - math.log(low))
    return (value - low) / (high - low)


@lru_cache(maxsize=1)
def problems(folder: str) -> list[Problem]:
    with np.load(Path(folder, "lcbench_dev.npz"), allow_pickle=False) as file:
        accuracy = file["val_accuracy"].astype(float)
        seconds = np.maximum.accumulate(file["time"].astype(float), axis=2)
        unit = np.stack([to_unit(name, file[f"cfg_{name}"]) for name in RANGES], axis=1)
    found = []
    for own, spent in zip(accuracy, seconds, strict=True):
        target = float(np.quantile(own.max(axis=1), 0.95))
        hit = own >= target
        first = hit.argmax(axis=1)
        times = np.where(hit.any(axis=1), spent[np.arange(len(spent)), first], np.inf)
        limit = float(np.median(spent[:, -1]))
        times[times >= limit] = np.inf
        found.append(Problem(own, spent, unit, target, limit, times))
    return found


Found = list[tuple[float, float]]  # tuning time, time to target of a configuration that reached


# --- autotune's own studies -----------------------------------------------------------------------


def our_study(problem: Problem, sampler: str, pruner: Any, seed: int, spend: float) -> Answer:
    import autotune as at
    from autotune.pools.sim import Curve, Point, SimPool
    from autotune.trackers import journal
    from autotune.trial import Ended, State

    def simulate(config: dict[str, Any], _: int) -> Curve:
        row = problem.nearest(config)
        pairs = zip(problem.seconds[row], problem.accuracy[row], strict=True)
        points = [Point(i + 1, float(t), {METRIC: float(a)}) for i, (t, a) in enumerate(pairs)]
        return Curve(points)

    space = at.SearchSpace(
        {
            name: at.Int(int(low), int(high), log=log) if whole else at.Float(low, high, log=log)
            for name, (low, high, log, whole) in RANGES.items()
        }
    )
    target = at.Target(METRIC, problem.target, limit=problem.limit)
    experiment = at.Experiment("lcbench", _nothing, space, target)
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        result = at.run(
            experiment,
            trials=100_000,
            time_limit=spend,
            sampler=sampler,
            pruner=pruner,
            pool=SimPool(simulate, WORKERS),
            out=Path(folder, "study"),
            seed=seed,
        )
        events = journal.read(Path(folder, "study"))
    reached = [e for e in events if isinstance(e, Ended) and e.state is State.REACHED]
    lost = [t for t in result.trials if t.state is State.CENSORED and t.reason not in _FAIR]
    winners = [t for t in lost if problem.times[problem.nearest(t.config)] <= 1.25 * problem.best]
    found = [(e.at, e.seconds) for e in reached]
    return {"found": found, "trials": len(result.trials), "winners_stopped": len(winners)}


_FAIR = ("capped", "limit", "budget", "finished")


def _nothing(config: dict[str, Any]) -> Any:
    """Stands for a trainer where none is run."""


# --- peers ----------------------------------------------------------------------------------------


@dataclass
class Peer:
    """Optuna on the same virtual workers: accuracy over epochs, its own pruner or ASHA."""

    problem: Problem
    study: Any
    asha: Any = None

    def run(self, spend: float) -> Answer:
        agenda: list[tuple[float, int, Any, int, int]] = []
        found: Found = []
        count, now = 0, 0.0

        def start() -> None:
            nonlocal count
            trial = self.study.ask()
            row = self.problem.nearest(_suggested(trial))
            count += 1
            heapq.heappush(agenda, (now + self.problem.seconds[row, 0], count, trial, row, 0))

        for _ in range(WORKERS):
            start()
        while agenda:
            now, order, trial, row, epoch = heapq.heappop(agenda)
            if now > spend:
                break
            accuracy = self.problem.accuracy[row]
            spent = self.problem.seconds[row]
            if spent[epoch] == self.problem.times[row]:
                found.append((now, float(spent[epoch])))
            if self._ends(trial, epoch, float(accuracy[epoch])):
                start()
            else:
                after = now + spent[epoch + 1] - spent[epoch]
                heapq.heappush(agenda, (after, order, trial, row, epoch + 1))
        return {"found": found, "trials": count, "winners_stopped": 0}

    def _ends(self, trial: Any, epoch: int, accuracy: float) -> bool:
        import optuna

        last = epoch + 1 == self.problem.accuracy.shape[1]
        trial.report(accuracy, epoch + 1)
        if self.asha is not None:
            if last or self.asha.stops(trial.number, epoch + 1, accuracy):
                self.study.tell(trial, accuracy)
                return True
            return False
        if last:
            self.study.tell(trial, accuracy)
            return True
        if trial.should_prune():
            self.study.tell(trial, state=optuna.trial.TrialState.PRUNED)
            return True
        return False


class Asha:
    """Asynchronous successive halving as in Ray Tune: reduction 3 from one epoch on."""

    def __init__(self) -> None:
        self.rungs: dict[int, list[float]] = {epoch: [] for epoch in (1, 3, 9, 27)}

    def stops(self, number: int, epoch: int, accuracy: float) -> bool:
        if epoch not in self.rungs:
            return False
        seen = self.rungs[epoch]
        seen.append(accuracy)
        return accuracy < float(np.quantile(seen, 1 - 1 / 3))


def _suggested(trial: Any) -> dict[str, Any]:
    return {
        name: trial.suggest_int(name, int(low), int(high), log=log)
        if whole
        else trial.suggest_float(name, low, high, log=log)
        for name, (low, high, log, whole) in RANGES.items()
    }


def peer_study(problem: Problem, sampler: str, pruner: str, seed: int, spend: float) -> Answer:
    import warnings

    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore")
    samplers: dict[str, Callable[[], Any]] = {
        "tpe": lambda: optuna.samplers.TPESampler(seed=seed, multivariate=True, constant_liar=True),
        "random": lambda: optuna.samplers.RandomSampler(seed=seed),
    }
    epochs = problem.accuracy.shape[1]
    pruners: dict[str, Callable[[], Any]] = {
        "hyperband": lambda: optuna.pruners.HyperbandPruner(1, epochs, 3),
        "median": optuna.pruners.MedianPruner,
        "asha": optuna.pruners.NopPruner,
        "none": optuna.pruners.NopPruner,
    }
    study = optuna.create_study(
        direction="maximize", sampler=samplers[sampler](), pruner=pruners[pruner]()
    )
    return Peer(problem, study, Asha() if pruner == "asha" else None).run(spend)


# --- what is told ---------------------------------------------------------------------------------

METHODS: dict[str, tuple[str, str, str]] = {
    "random, none": ("ours", "random", "none"),
    "random, capped": ("ours", "random", "slower_than_best"),
    "tpe, capped": ("ours", "tpe", "slower_than_best"),
    "gp, capped": ("ours", "gp", "slower_than_best"),
    "tpe, bottom half": ("ours", "tpe", "bottom_at_same_time"),
    "tpe, asha": ("ours", "tpe", "asha"),
    "convergence, capped": ("ours", "convergence", "slower_than_best"),
    "convergence, bottom half": ("ours", "convergence", "bottom_at_same_time"),
    "convergence, asha": ("ours", "convergence", "asha"),
    "convergence, hyperband": ("ours", "convergence", "hyperband"),
    "Optuna random + Hyperband": ("peer", "random", "hyperband"),
    "Optuna TPE": ("peer", "tpe", "none"),
    "Optuna TPE + median": ("peer", "tpe", "median"),
    "Optuna TPE + Hyperband": ("peer", "tpe", "hyperband"),
    "Ray Tune's rule (ASHA, TPE)": ("peer", "tpe", "asha"),
}


def study_side(task: Task) -> Answer:
    """All methods on one task and seed."""
    problem = problems(task["data"])[task["task"]]
    spend = task["spend"] * problem.limit
    answers: Answer = {}
    for name in task["methods"]:
        kind, sampler, pruner = METHODS[name]
        begin = time.perf_counter()
        run = our_study if kind == "ours" else peer_study
        answer = run(problem, sampler, pruner, task["seed"], spend)
        answers[name] = {**measures(problem, answer, spend), "cpu": time.perf_counter() - begin}
    return answers


def measures(problem: Problem, answer: Answer, spend: float) -> Answer:
    best = min((seconds for _, seconds in answer["found"]), default=problem.limit)

    def until(factor: float) -> float | None:
        times = [at for at, seconds in answer["found"] if seconds <= factor * problem.best]
        return min(times) / problem.limit if times else None

    return {
        "regret": best / problem.best,
        "until_25": until(1.25),
        "until_10": until(1.10),
        "trials": answer["trials"],
        "winners_stopped": answer["winners_stopped"],
    }


def interval(values: Sequence[float]) -> str:
    """Geometric mean with a 95 % bootstrap interval."""
    logs = np.log(np.asarray(values))
    draws = np.random.default_rng(0).choice(logs, (4000, len(logs))).mean(axis=1)
    low, high = np.exp(np.quantile(draws, [0.025, 0.975]))
    return f"{math.exp(logs.mean()):5.2f} ({low:.2f}-{high:.2f})"


def row(name: str, runs: Sequence[Answer], spend: float) -> str:
    cells = [f"{name:>28}", f"{interval([r['regret'] for r in runs]):>18}"]
    for key in ("until_25", "until_10"):
        times = [r[key] if r[key] is not None else spend for r in runs]
        share = sum(r[key] is not None for r in runs) / len(runs)
        cells.append(f"{interval(times):>18} {share:4.0%}")
    cells.append(f"{statistics.fmean(r['trials'] for r in runs):7.0f}")
    cells.append(f"{statistics.fmean(r['winners_stopped'] for r in runs):6.2f}")
    cells.append(f"{statistics.fmean(r['cpu'] for r in runs):6.1f} s")
    return "  ".join(cells)


def main() -> None:
    parser = arguments(__doc__, repeats=1)
    parser.add_argument("--data", required=True, help="folder of lcbench_dev.npz")
    parser.add_argument("--tasks", type=int, help="how many data sets (10)")
    parser.add_argument("--seeds", type=int, help="studies of each (3)")
    parser.add_argument("--spend", type=float, default=6.0, help="tuning time, in limits (6)")
    parser.add_argument("--methods", help="some of the methods, separated by ';'")
    options = parser.parse_args()
    chosen = options.methods.split(";") if options.methods else list(METHODS)
    about = introduce()
    tasks = options.tasks or (1 if options.quick else 10)
    task: Task = {"data": options.data, "spend": options.spend, "methods": chosen}
    runs: dict[str, list[Answer]] = {name: [] for name in chosen}
    for seed in range(options.seeds or (1 if options.quick else 3)):
        for number in range(tasks):
            answers = study_side({**task, "task": number, "seed": seed})
            for name, answer in answers.items():
                runs[name].append({**answer, "task": number, "seed": seed})
    heads = ("regret", "until 25 % (found)", "until 10 % (found)", "trials", "lost", "took")
    print("  ".join(("method".rjust(28), *heads)))
    for name in chosen:
        print(row(name, runs[name], options.spend))
    keep(options.json, about, task=task, runs=runs)


if __name__ == "__main__" and not serve({"study": study_side}, sys.argv[1:]):
    main()
