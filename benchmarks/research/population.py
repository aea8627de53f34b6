"""What populations are worth on digits at equal spend: real training, a virtual clock of epochs.

    python benchmarks/research/population.py [--spend 4] [--repeats 5] [--fresh 16]
        [--methods NAMES]

Every study has eight workers for `--spend` times the target's limit of twelve epochs, and searches
the learning rate: a schedule of it, or (`constants`) a number, of which a population makes a
schedule all the same. Trials are capped at the fastest one's time. What leads in the end is trained
on fresh seeds: of a population that is the whole line of descent as one configuration, without a
controller and without a fork (`docs/cards/populations.md`). It reports epochs to the target, the
limit for a run that missed it.
"""

from __future__ import annotations

import copy
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from _shared import Answer, arguments, introduce, keep, repeats_of, summary
from controllers import EPOCH, SCHEDULE, SETTING, TARGET

import autotune as at
from autotune.algorithms.ranking.finalists import finalists
from autotune.algorithms.ranking.lineage import descent
from autotune.algorithms.ranking.repeats import config_from_scratch
from autotune.backends.simulator import SimCurve, SimPoint, SimPool
from trainers.image import train

WORKERS = 8
MILESTONES = 60  # more than fit into the limit
RATE = at.Float(0.005, 0.5, log=True)
METHODS: dict[str, tuple[Any, str, str | None]] = {
    "constants, random": (RATE, "random", None),
    "constants, random, pbt": (RATE, "random", "pbt"),
    "random": (SCHEDULE, "random", None),
    "random, pbt": (SCHEDULE, "random", "pbt"),
    "convergence": (SCHEDULE, "convergence", None),
    "convergence, pbt": (SCHEDULE, "convergence", "pbt"),
}


class Milestones(Sequence[SimPoint]):
    """The points of a run that is trained when they are asked for."""

    def __init__(self, config: at.trial.Config, seed: int, states: list[Any]) -> None:
        self._running = train({**config, "seed": seed})
        self._states = states
        self._points: list[SimPoint] = []
        next(self._running)

    def __len__(self) -> int:
        return MILESTONES

    def __getitem__(self, i: Any) -> Any:
        if i >= MILESTONES:
            raise IndexError(i)
        while len(self._points) <= i:
            milestone = next(self._running)
            assert milestone.state is not None
            self._states.append(copy.deepcopy(milestone.state()))
            metrics = {**milestone.evaluate(), "kept": len(self._states) - 1}
            self._points.append(SimPoint(milestone.step, milestone.step / EPOCH, metrics))
        return self._points[i]


def study(method: str, seed: int, spend: float) -> at.StudyResult:
    """A study of the method until its workers have had `spend` limits."""
    lr, sampler, controller = METHODS[method]
    states: list[Any] = []

    def from_scratch(config: at.trial.Config, seed: int) -> SimCurve:
        return SimCurve(Milestones(config, seed, states))

    def go_on(config: at.trial.Config, seed: int, point: SimPoint) -> SimCurve:
        state = copy.deepcopy(states[int(point.metrics["kept"])])
        return SimCurve(Milestones({**config, "state": state}, seed, states))

    space = at.SearchSpace({**{k: at.Fixed(v) for k, v in SETTING.items()}, "lr": lr})
    with tempfile.TemporaryDirectory() as folder:
        return at.run(
            at.Experiment("digits", train, space, TARGET),
            trials=100_000,
            time_limit=spend * TARGET.limit,
            sampler=sampler,
            pruner="slower_than_best",
            controller=controller,
            racing=0,  # whose leaders' forks would be trained in one go
            seed=seed,
            out=Path(folder, "study"),
            pool=SimPool(from_scratch, WORKERS, go_on=go_on),
            tracking_uri="off",
        )


def epochs(config: at.trial.Config, seed: int) -> float:
    """Epochs to the target with a seed, at most the limit."""
    for point in Milestones(config, seed, []):
        if point.seconds >= TARGET.limit or point.metrics[TARGET.metric] >= TARGET.value:
            return min(point.seconds, TARGET.limit)
    return TARGET.limit


def measured(method: str, seed: int, spend: float, fresh: int) -> Answer:
    begin = time.process_time()
    result = study(method, seed, spend)
    trials = result.trials
    best = next(iter(finalists(trials, TARGET, 1)), None)
    config = config_from_scratch(best, trials) if best is not None else None
    judged = [epochs(config, 10**6 + i) if config else TARGET.limit for i in range(fresh)]
    return {
        "method": method,
        "seed": seed,
        "found": best.seconds if best is not None else None,
        "epochs": statistics.fmean(judged),
        "reached": sum(each < TARGET.limit for each in judged) / fresh,
        "trials": len(trials),
        "forks": sum(t.origin is not None for t in trials),
        "winner_forks": len(descent(best, trials)) - 1 if best is not None else 0,
        "cpu": time.process_time() - begin,
    }


def main() -> None:
    parser = arguments(__doc__, repeats=5)
    parser.add_argument("--spend", type=float, default=4.0, help="in limits")
    parser.add_argument("--fresh", type=int, default=16, help="fresh seeds for each figure")
    parser.add_argument("--methods", help="some of the methods, separated by semicolons")
    options = parser.parse_args()
    methods = options.methods.split(";") if options.methods else list(METHODS)
    if options.quick:
        options.spend, options.fresh, methods = 0.5, 1, ["constants, random, pbt"]
    torch.set_num_threads(1)
    about, runs = introduce(), []
    for method in methods:
        rows = [
            measured(method, seed, options.spend, options.fresh)
            for seed in range(repeats_of(options))
        ]
        runs += rows
        means = {k: statistics.fmean(r[k] for r in rows) for k in ("reached", "trials", "forks")}
        found = [row["found"] or TARGET.limit for row in rows]
        print(
            f"{method:<26} {summary([r['epochs'] for r in rows], ' epochs')}; in the search "
            f"{summary(found)}; fresh seeds that reached the target {means['reached']:.0%}; "
            f"{means['trials']:.0f} trials, {means['forks']:.0f} forks",
            flush=True,
        )
    keep(options.json, about, runs=runs)


if __name__ == "__main__":
    main()
