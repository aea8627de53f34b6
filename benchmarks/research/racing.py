"""What racing is worth: searches of equal spend, with and without repeats of their leader.

    python benchmarks/research/racing.py [--repeats 20] [--shares 0 0.1 0.2]
        [--spread 0.3] [--spend 4]

On a virtual clock eight workers search for `--spend` limits of tuning time. A configuration has a
true mean time to target, known exactly, and each run takes that times a random factor: log-normal
with mean 1 and a standard deviation of the logarithm of `--spread`. Reported over all studies:
*regret*, the true mean time of the configuration that the study calls best over the least possible
one (geometric mean); the same over that without racing, seed by seed, with a 95 % bootstrap
interval; how often it is better, equal and worse; the luck (winner's curse), its tuning time over
its true mean; and trials and races.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from _shared import arguments, introduce, keep, repeats_of

import autotune as at
from autotune.backends.simulator import SimCurve, SimPoint, SimPool
from autotune.trial import Config, Params, Trial

WORKERS, LIMIT, EVERY, LEAST = 8, 60.0, 3.0, 10.0
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
SPACE = at.SearchSpace({"lr": at.Float(1e-3, 10, log=True), "momentum": at.Float(0.0, 1.0)})
TARGET = at.Target("val_accuracy", 0.9, limit=LIMIT)
Answer = dict[str, Any]


def true_mean(config: Config) -> float:
    """Seconds to the target, on average over all seeds."""
    off = math.log10(config["lr"]) ** 2 + 4 * (config["momentum"] - 0.6) ** 2
    return LEAST * math.exp(off)


class Evenly:
    """Random search, from the study's seed and the trial's number."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def ask(self, number: int, trials: Sequence[Trial]) -> Params:
        return SPACE.sample(1, self._seed * 1_000_003 + number)[0]


def study(seed: int, share: float, spread: float, spend: float, sampler: str) -> Answer:
    def simulate(config: Config, run: int) -> SimCurve:
        luck = math.exp(spread * Random(f"{seed}/{run}").gauss(0, 1) - spread**2 / 2)
        took = true_mean(config) * luck
        times = sorted({*(EVERY * i for i in range(1 + round(LIMIT / EVERY))), min(took, LIMIT)})
        values = (TARGET.value * min(seconds / took, 1.0) for seconds in times)
        pairs = enumerate(zip(times, values, strict=True))
        return SimCurve(
            [SimPoint(i, seconds, {TARGET.metric: value}) for i, (seconds, value) in pairs]
        )

    experiment = at.Experiment("racing", _nothing, SPACE, TARGET)
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        result = at.run(
            experiment,
            trials=100_000,
            time_limit=spend * LIMIT,
            sampler=Evenly(seed) if sampler == "random" else sampler,
            pruner="slower_than_best",
            pool=SimPool(simulate, WORKERS),
            out=folder,
            seed=seed,
            racing=share,
        )
    best = result.best
    found = true_mean(best.config) if best is not None else LIMIT
    return {
        "seed": seed,
        "share": share,
        "regret": found / LEAST,
        "luck": best.seconds / found if best is not None else 1.0,
        "trials": len(result.searched),
        "races": len(result.trials) - len(result.searched),
    }


def _nothing(config: Config) -> Any:
    """Stands for a trainer where none is run."""


def mean(values: Sequence[float]) -> float:
    return math.exp(statistics.fmean(math.log(v) for v in values))


def interval(values: Sequence[float]) -> str:
    """Geometric mean with a 95 % bootstrap interval."""
    random = Random(0)
    draws = sorted(mean(random.choices(values, k=len(values))) for _ in range(2000))
    return f"{mean(values):.3f} ({draws[50]:.3f}-{draws[-51]:.3f})"


def row(share: float, runs: Sequence[Answer], without: Sequence[Answer]) -> str:
    pairs = [a["regret"] / b["regret"] for a, b in zip(runs, without, strict=True)]
    signs = [sum(p < 1 for p in pairs), sum(p == 1 for p in pairs), sum(p > 1 for p in pairs)]
    trials, races = (statistics.fmean(r[key] for r in runs) for key in ("trials", "races"))
    regret, luck = (mean([r[key] for r in runs]) for key in ("regret", "luck"))
    cells = f"{share:5.2f} {regret:7.3f} {interval(pairs):>22} {'/'.join(map(str, signs)):>14}"
    return f"{cells} {luck:5.2f} {trials:7.1f} {races:6.1f}"


def main() -> None:
    parser = arguments(__doc__ or "", 20)
    parser.add_argument("--shares", type=float, nargs="+", default=[0.0, 0.1, 0.2])
    parser.add_argument("--spread", type=float, default=0.3)
    parser.add_argument("--spend", type=float, default=4.0)
    parser.add_argument("--sampler", default="random")
    options = parser.parse_args()
    about, runs = introduce(), list[Answer]()
    spend = 0.5 if options.quick else options.spend
    for seed in range(repeats_of(options)):
        for share in options.shares:
            runs.append(study(seed, share, options.spread, spend, options.sampler))
            print(json.dumps(runs[-1]), file=sys.stderr, flush=True)
    print("share  regret  over that without it better/=/worse  luck  trials  races")
    by_share = {s: [r for r in runs if r["share"] == s] for s in options.shares}
    for share, found in by_share.items():
        print(row(share, found, by_share[options.shares[0]]))
    keep(options.json, about, runs=runs)


if __name__ == "__main__":
    main()
