"""What shared beginnings save: WSD studies with and without them.

    python benchmarks/shared_beginnings.py [--problem simulated] [--repeats 10] [--trials 64]
        [--workers 1 2 8] [--rows "random, none"] [--json FILE]

    shared    trials that begin alike begin from each other's checkpoints, all with one seed
    one seed  each trains from its first step, all with that seed: what sharing alone changes
    off       each trains from its first step with its own seed: `--shared-beginnings off`

All trials have a warm-up and one stable phase, and differ in the last twentieth to half of the
training (`Float(0.05, 0.5, log=True)`, with a final rate), and in one of three momenta or speeds.

    simulated  a made-up training on a virtual clock; the rate drives what is learned and a noise
    digits     real trainings of a perceptron; 1000 samples count as a virtual second, so that the
               machine's load changes no figure
    real       the recipe `digits:warmup_stable_decay` on this machine, `shared` and `off` only

Reported for each sampler and pruner: worker-seconds over those of `off`, and of `one seed`; the
same of the study's duration; in how many studies the winner is that of `one seed`; and the mean
time of the winner on fresh seeds over that of the winner of `off`.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from _common import Answer, arguments, introduce, keep, ratios, repeats_of, summary
from _intervals import interval

import autotune as at
from autotune.algorithms.shared_work import sentence, shared
from autotune.backends.simulator import SimCurve, SimPoint, SimPool
from autotune.storage.codec import encode
from autotune.study.driver.settings import trial_seed
from autotune.trial import Config

SIDES = ("shared", "one seed", "off")
ROWS: Mapping[str, tuple[str, str]] = {
    "random, none": ("random", "none"),
    "random, convergence": ("random", "convergence"),
    "auto, auto": ("auto", "auto"),
}
METRIC, MILESTONES = "val_accuracy", 50
Curve = Callable[[Config, int], SimCurve]
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None


def wsd(**peak: Any) -> at.ScheduleSpace:
    decay, final = at.Float(0.05, 0.5, log=True), at.Float(0.001, 0.2, log=True)
    return at.ScheduleSpace(family="wsd", warmup=0.05, decay=decay, final=final, **peak)


# --- problems -------------------------------------------------------------------------------------


def simulated() -> at.Experiment:
    space: dict[str, Any] = {
        "lr": wsd(peak=1.0),
        "speed": at.Choice((0.9, 1.0, 1.1)),
        "horizon": at.Fixed(float(MILESTONES)),
    }
    target = at.Target(METRIC, 0.8, limit=MILESTONES + 1.0)
    return at.Experiment("simulated", _nothing, at.SearchSpace(space), target)


def _nothing(config: dict[str, Any]) -> Any:
    """Stands for a trainer where none is run."""
    yield from ()


def made_up(config: Config, seed: int) -> SimCurve:
    """Noise that only a low rate takes away hides what has been learned."""
    random, learned, noise = Random(seed), 0.0, 0.5
    points = [SimPoint(0, 0.0, {})]
    for i in range(1, MILESTONES + 1):
        rate = config["lr"]((i - 1) / MILESTONES)
        learned += 0.05 * config["speed"] * rate * math.exp(0.2 * random.gauss(0, 1))
        noise += 0.5 * (0.4 * rate - noise)
        accuracy = (1.0 - math.exp(-learned)) * (1.0 - noise) + 0.003 * random.gauss(0, 1)
        points.append(SimPoint(i, float(i), {METRIC: accuracy, "progress": i / MILESTONES}))
    return SimCurve(points)


def digits() -> at.Experiment:
    from trainers.image import train

    fixed = {
        "data": "digits",
        "model": "mlp",
        "width": 64,
        "optimizer": "sgd",
        "batch_size": 32,
        "horizon": 8.0,
        "milestone": 320,
    }
    space: dict[str, Any] = {
        **{key: at.Fixed(value) for key, value in fixed.items()},
        "momentum": at.Choice((0.8, 0.9, 0.95)),
        "lr": wsd(peak=0.05),
    }
    target = at.Target(METRIC, 0.977, limit=30.0)
    return at.Experiment("digits", train, at.SearchSpace(space), target)


@cache
def _trained(text: str, seed: int) -> tuple[SimPoint, ...]:
    """A real training up to its horizon; each 1000 samples count as a second."""
    import torch

    from autotune.storage.codec import decode_entries
    from trainers.image import train

    torch.set_num_threads(1)
    points = []
    training = train({**decode_entries(json.loads(text)), "seed": seed})
    for milestone in training:
        metrics: Any = milestone.evaluate()
        known = {name: metrics[name] for name in (METRIC, "progress")}
        points.append(SimPoint(milestone.step, milestone.step / 1000, known))
        if metrics["progress"] >= 1.0:
            training.close()
            break
    return tuple(points)


def trained(config: Config, seed: int) -> SimCurve:
    return SimCurve(_trained(json.dumps(encode(config)), seed))


PROBLEMS: Mapping[str, tuple[Callable[[], at.Experiment], Curve, int]] = {
    "simulated": (simulated, made_up, 100),
    "digits": (digits, trained, 5),
}
"""The experiment, what stands for its training, and on how many fresh seeds winners are run."""


# --- studies --------------------------------------------------------------------------------------


def study(problem: str, side: str, row: str, workers: int, seed: int, trials: int) -> Answer:
    """One study on a virtual clock."""
    make, curve, fresh = PROBLEMS[problem]
    experiment, (sampler, pruner) = make(), ROWS[row]
    common = trial_seed(seed, "shared beginnings")
    once = (lambda config, _: curve(config, common)) if side == "one seed" else curve
    pool = SimPool(once, workers)
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        result = at.run(
            experiment,
            trials=trials,
            seed=seed,
            sampler=sampler,
            pruner=pruner,
            racing=0,
            pool=pool,
            out=Path(folder, "study"),
            tracking_uri="off",
            progress=False,
            shared_beginnings="auto" if side == "shared" else "off",
        )
    best = result.best
    return {
        "problem": problem,
        "side": side,
        "row": row,
        "workers": workers,
        "seed": seed,
        "spent_seconds": result.spent_seconds,
        "duration": pool.now(),
        "shared": len(shared(result.trials)),
        "reached": sum(t.succeeded for t in result.trials),
        "winner": encode(best.params) if best is not None else None,
        "tuned_seconds": best.seconds if best is not None else None,
        "fresh_seconds": _fresh(best.config, curve, experiment.target, fresh) if best else None,
    }


def _fresh(config: Config, curve: Curve, target: at.Target, runs: int) -> float:
    """The mean time to the target on seeds that no study has; the limit where it is missed."""
    assert target.value is not None
    assert target.limit is not None
    times = []
    for run in range(runs):
        points = curve(config, 2**31 + run).points
        met = (p.seconds for p in points if p.metrics.get(METRIC, 0.0) >= target.value)
        times.append(min(next(met, target.limit), target.limit))
    return statistics.fmean(times)


def report(answers: Sequence[Answer], row: str, workers: int) -> None:
    """What the studies of one sampler and pruner, on so many workers, show."""
    of = {
        side: [a for a in answers if (a["side"], a["row"], a["workers"]) == (side, row, workers)]
        for side in SIDES
    }
    own = of["shared"]
    print(f"\n{row}, workers {workers}: {summary([a['shared'] for a in own])} trials shared")
    for other in SIDES[1:]:
        for what in ("spent_seconds", "duration"):
            pairs = [[a[what] for a in side] for side in (own, of[other])]
            print(f"  {what} over '{other}': {summary(ratios(*pairs))}")
    same = sum(a["winner"] == b["winner"] for a, b in zip(own, of["one seed"], strict=True))
    print(f"  the winner of 'one seed' in {same} of {len(own)} studies")
    fresh = [
        (a["fresh_seconds"], b["fresh_seconds"])
        for a, b in zip(own, of["off"], strict=True)
        if a["fresh_seconds"] and b["fresh_seconds"]
    ]
    if fresh:
        logs = [math.log(a / b) for a, b in fresh]
        low, high = (math.exp(x) for x in interval(logs, statistics.fmean))
        print(
            f"  winner on fresh seeds over that of 'off': {math.exp(statistics.fmean(logs)):.3f} "
            f"(95 % {low:.3f} to {high:.3f}, n={len(fresh)})"
        )


# --- this machine ---------------------------------------------------------------------------------


def real(side: str, seed: int, trials: int) -> Answer:
    """A study of the recipe on this machine, one trial at a time, each on one rank."""
    from search_spaces import digits as recipes

    made = recipes.warmup_stable_decay()
    made = replace(made, scaling=at.Scaling(max_concurrent_trials=1))
    with tempfile.TemporaryDirectory() as folder:
        result = at.run(
            made,
            trials=trials,
            seed=seed,
            sampler="random",
            racing=0,
            backend="local",
            out=Path(folder, "study"),
            tracking_uri="off",
            shared_beginnings="auto" if side == "shared" else "off",
        )
    print(f"{side}, seed {seed}: {result.spent_seconds:.0f} s; {sentence(result.trials)}")
    return {
        "problem": "real",
        "side": side,
        "seed": seed,
        "spent_seconds": result.spent_seconds,
        "trials": [{"seconds": t.seconds, "state": str(t.state)} for t in result.trials],
    }


def main() -> int:
    parser = arguments(__doc__ or "", repeats=10)
    parser.add_argument("--problem", choices=(*PROBLEMS, "real"), default="simulated")
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 8])
    parser.add_argument("--rows", nargs="+", choices=tuple(ROWS), default=list(ROWS))
    options = parser.parse_args()
    about, repeats = introduce(), repeats_of(options)
    trials = 8 if options.quick else options.trials
    workers = options.workers[:1] if options.quick else options.workers
    answers: list[Answer] = []
    if options.problem == "real":
        for seed in range(repeats):
            answers += [real(side, seed, trials) for side in ("off", "shared")]
        spent = [[a["spent_seconds"] for a in answers if a["side"] == s] for s in ("shared", "off")]
        print(f"worker-seconds over those of 'off': {summary(ratios(*spent))}")
    else:
        for row in options.rows:
            for count in workers:
                for seed in range(repeats):
                    about_one = (row, count, seed, trials)
                    answers += [study(options.problem, side, *about_one) for side in SIDES]
                report(answers, row, count)
                sys.stdout.flush()
    keep(options.json, about, runs=answers)
    return 0


if __name__ == "__main__":
    sys.exit(main())
