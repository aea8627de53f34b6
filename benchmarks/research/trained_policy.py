"""What the trained policy is worth on tasks that it was not trained on.

    python benchmarks/research/trained_policy.py train --data FOLDER --to WEIGHTS --fold F
        [--folds 5] [--studies 900] [--seed 0] [--shipped]
    python benchmarks/research/trained_policy.py simulate --data FOLDER --to WEIGHTS [--seeds 4]
        [--farm]
    python benchmarks/research/trained_policy.py drive --data FOLDER --to WEIGHTS [--seeds 2]
        [--pruners auto policy] [--trials 60] [--rows SAMPLER ...]

`train` leaves every `--folds`-th task of `FOLDER/lcbench_dev.npz` out, beginning with task F, and
trains on all others and on TaskSet's (`FOLDER/taskset`); it writes `WEIGHTS/ppo-SEED-F.npz`. With
`--shipped` it trains on the package's studies of the farm and of small recipes, too, without those
on the data that the fold leaves out (`DATA`).
`simulate` runs capped studies of each task that some weights have not seen, with these, in the
simulator of `autotune.evaluation.policy_training`: the candidates are the half of the
configurations that no model has seen, and the models know the other half of all other tasks. With
`--farm` the tasks are the package's studies of the farm, and known are the others on other data.
`drive` does the same with the study's own driver, pruners and the samplers themselves: a proposed
point is what the nearest configuration of that half is. The pruner `policy` has the weights of the
fold, too; each further pruner is compared with the first.
Regret: time of the best found over that of the best candidate, at 3, 5, 10 and 20 limits of spend,
geometric mean over tasks and seeds; intervals are bootstraps over tasks.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import _few_shipped
import numpy as np
from _driven import TRIALS, Driven, Timed
from _tables import by_task

from autotune.algorithms.experience.known_task import KnownTask
from autotune.algorithms.samplers.trained_policy import network
from autotune.evaluation.policy_training import learning, recorded, settings, stopping
from autotune.evaluation.policy_training.simulation import GRID, Decision, Study
from autotune.evaluation.policy_training.tables import Table, tables

SPENDS = (3, 5, 10, 20)
VIEWS = 3
DATA = ("digits", "signals", "fashion", "shakespeare")
"""What the fold of this number leaves out of the shipped studies; a further one leaves out none."""
Choose = Callable[[Decision, np.random.Generator], int]


def tasks(data: Path) -> tuple[list[KnownTask], list[KnownTask]]:
    """LCBench's tasks and TaskSet's."""
    others = sorted((data / "taskset").glob("*.json.gz"))
    return recorded.read(data / "lcbench_dev.npz"), [t for f in others for t in recorded.read(f)]


def shipped(left_out: str = "") -> list[KnownTask]:
    """The package's studies of the farm and of small recipes, without those on some data."""
    made_here = [t for t in _few_shipped.shipped() if t.name.startswith(("farm-", "small-"))]
    return [task for task in made_here if _few_shipped.data(task.name) != left_out]


def test_tables(given: argparse.Namespace, own: Sequence[KnownTask]) -> list[tuple[int, Table]]:
    """The tables of the tasks under test, each with the fold that leaves it out."""
    rng = np.random.default_rng(0)
    if not given.farm:
        return [(i % given.folds, table) for i, table in enumerate(tables(own, rng))]
    found = []
    for fold, data in enumerate(DATA[: given.folds]):
        farm = [t for t in shipped() if t.name.startswith("farm-")]
        under_test = [task for task in farm if _few_shipped.data(task.name) == data]
        if under_test:
            known = _few_shipped.on_other_data(under_test[0])
            found += [(fold, table) for table in tables(under_test, rng, known=known)]
    return found


def train(given: argparse.Namespace) -> None:
    """Train on all tasks but a fold's."""
    own, others = tasks(given.data)
    kept = [task for i, task in enumerate(own) if i % given.folds != given.fold]
    if given.shipped:
        kept += shipped(DATA[given.fold] if given.fold < len(DATA) else "")
    made = tables([*kept, *others], np.random.default_rng(given.seed), VIEWS)
    began = time.process_time()
    say = functools.partial(print, flush=True)
    pruned = math.ceil(given.studies / stopping.SHARE)
    weights = {
        **stopping.train(made, given.seed, lambda studies: studies / pruned, say),
        **learning.train(made, given.seed, lambda studies: studies / given.studies, say),
    }
    given.to.mkdir(parents=True, exist_ok=True)
    file = given.to / f"ppo-{given.seed}-{given.fold}.npz"
    network.write(file, weights)
    print(f"{file}: {given.studies} studies, {time.process_time() - began:.0f} s of CPU")


def posterior(decision: Decision, rng: np.random.Generator) -> int:
    """What `experienced` takes: the largest expected improvement, or any where none is likely."""
    if rng.random() < decision.expected.none:
        return int(rng.integers(len(decision.rows)))
    return int(decision.expected.gains.argmax())


def anything(decision: Decision, rng: np.random.Generator) -> int:
    """Random search."""
    return int(rng.integers(len(decision.rows)))


def policy(weights: network.Weights, power: float) -> Choose:
    """The network's policy, to a power; the likeliest for an infinite one."""

    def choose(decision: Decision, rng: np.random.Generator) -> int:
        scores = network.scores(weights, decision.inputs)
        if np.isinf(power):
            return int(scores.argmax())
        drawn = np.exp(power * (scores - scores.max()))
        return int(rng.choice(len(drawn), p=drawn / drawn.sum()))

    return choose


def studies(
    made: Sequence[tuple[int, Table]],
    choose: Callable[[int], Choose],
    seeds: int,
    known: str,
    workers: int,
) -> list[list[float]]:
    """Regrets at `SPENDS` of each task and seed."""
    found = []
    places = [list(GRID).index(spend) for spend in SPENDS]
    for i, (fold, table) in enumerate(made):
        for seed in range(seeds):
            rng = np.random.default_rng((i, seed))
            setting = settings.plain(table)
            if known == "nothing":
                setting = settings.without_tasks(setting)
            if known == "unrelated":
                setting = settings.unrelated(setting, rng)
            setting = settings.replace(setting, workers=workers, tells_left=False)
            study = Study(setting, rng, candidates=256)
            take = choose(fold)
            while not study.over:
                decision = study.decision()
                study.run(int(decision.rows[take(decision, rng)]))
            found.append(np.exp(study.log_regrets()[places]).tolist())
    return found


def simulate(given: argparse.Namespace) -> None:
    """The table of rows, each knowing the other tasks, unrelated ones, or nothing."""
    own, _ = tasks(given.data)
    files = [given.to / f"ppo-{given.seed}-{f}.npz" for f in range(given.folds)]
    folds = {f: network.read(file) for f, file in enumerate(files) if file.exists()}
    made = [(fold, table) for fold, table in test_tables(given, own) if fold in folds]
    rows: dict[str, Callable[[int], Choose]] = {"random": lambda _: anything}
    rows["posterior"] = lambda _: posterior
    for power in given.powers:
        name = "policy, the likeliest" if np.isinf(power) else f"policy ^{power:g}"
        rows[name] = lambda fold, power=power: policy(folds[fold], power)
    answers = {}
    for known in given.known:
        for name, choose in rows.items():
            if name == "random" and known != given.known[0]:
                continue
            began = time.process_time()
            found = studies(made, choose, given.seeds, known, given.workers)
            names = [t.task.name for _, t in made for _ in range(given.seeds)]
            cells = [by_task([row[i] for row in found], names) for i in range(len(SPENDS))]
            took = time.process_time() - began
            print(f"{known:>10} {name:>22} ", *cells, f"{took:.0f} s", sep="  ", flush=True)
            answers[f"{known}: {name}"] = found
    if given.json:
        given.json.write_text(json.dumps(answers) + "\n")


def drive(given: argparse.Namespace) -> None:
    """The table of samplers in the study's own driver."""
    own, _ = tasks(given.data)
    driven = Driven(given.data, own)
    files = [given.to / f"ppo-{given.seed}-{f}.npz" for f in range(given.folds)]
    folds = {f: network.read(file) for f, file in enumerate(files) if file.exists()}
    rows: dict[str, Callable[[int, int], Any]] = {
        "random": lambda task, seed: "random",
        "tpe": lambda task, seed: "tpe",
        "convergence": lambda task, seed: "convergence",
        "the posterior": lambda task, seed: driven.experienced(task, seed, 40),
        "experienced": driven.experienced,
        "policy": lambda task, seed: driven.policy(folds[task % given.folds], task, seed),
    }
    answers: dict[str, list[list[float]]] = {}
    for pruner, name in itertools.product(given.pruners, given.rows or rows):
        make = rows[name]
        found, names, spent, asks = [], [], 0.0, 0
        for task in [i for i in range(len(own)) if i % given.folds in folds]:
            for seed in range(given.seeds):
                made = make(task, 100 * seed + task)
                timed = made if isinstance(made, str) else Timed(made)
                about = task, timed, seed, given.workers, SPENDS
                rule = pruner
                if pruner == "policy":
                    rule = f"policy(weights={str(files[task % given.folds])!r})"
                found.append(driven.regrets(*about, rule, given.trials))
                names.append(own[task].name)
                if isinstance(timed, Timed):
                    spent, asks = spent + timed.seconds, asks + timed.asks
        cells = [by_task([row[i] for row in found], names) for i in range(len(SPENDS))]
        cost = f"{1000 * spent / asks:.0f} ms" if asks else "-"
        print(f"{pruner:>12} {name:>16} ", *cells, cost, sep="  ", flush=True)
        answers[f"{pruner}: {name}"] = found
        first = answers[f"{given.pruners[0]}: {name}"]
        if found is not first:
            over = [
                [a / b for a, b in zip(*pair, strict=True)]
                for pair in zip(found, first, strict=True)
            ]
            cells = [by_task([row[i] for row in over], names) for i in range(len(SPENDS))]
            print(f"{'':>12} over {given.pruners[0]:>11} ", *cells, sep="  ", flush=True)
    if given.json:
        given.json.write_text(json.dumps(answers) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=["train", "simulate", "drive"])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--fold", type=int, default=0)
    parser.add_argument("--studies", type=int, default=1500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--pruners", nargs="+", default=["auto"])
    parser.add_argument("--trials", type=int, default=TRIALS)
    parser.add_argument("--rows", nargs="+")
    parser.add_argument("--powers", type=float, nargs="*", default=[1.0, 2.0, np.inf])
    parser.add_argument(
        "--known", nargs="*", default=["others"], choices=["others", "unrelated", "nothing"]
    )
    parser.add_argument("--shipped", action="store_true")
    parser.add_argument("--farm", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    {"train": train, "simulate": simulate, "drive": drive}[given.what](given)


if __name__ == "__main__":
    main()
