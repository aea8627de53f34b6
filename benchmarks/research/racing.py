"""What racing is worth: searches of equal spend, with and without repeats of their leader.

    python benchmarks/research/racing.py [--repeats 20] [--shares 0 0.1 0.2] [--spread 0.3]
    python benchmarks/research/racing.py --misses [--repeats 20] [--shares 0 0.3] [--trials 40]

On a virtual clock workers search for `--spend` limits of tuning time or, with `--trials`, until so
many trials have ended. A configuration's expected time to target is known exactly; a run that
misses the target counts as the limit.

Without `--misses` eight workers search over two parameters, with `--baseline poor` from one that is
3.9 times as slow as the best. Each run takes its configuration's
expected time times a random factor: log-normal with mean 1 and a standard deviation of the
logarithm of `--spread`. No run misses the target.

With `--misses` two workers search over a learning rate, a momentum, a weight decay and a horizon,
the length of the schedule, from a baseline. As in real training, a short schedule is fast where it
reaches the target, and often misses it (`benchmarks/results/2026-11-24-racing.md`): a horizon of 8
in four of five runs, the baseline's 60 in one of 500. `--baseline good` begins with one that is
nearly as fast as the best. `--limit` moves the limit, which is what a miss counts as. `--epochs`
says that the horizon is the length of the schedule, so that a search begins with shorter ones.

Reported over all studies: the expected seconds of the configuration that the study calls best
(geometric mean); *regret*, these over the least possible ones; the same over that of the first
share, seed by seed, with a 95 % bootstrap interval; how often it is better, equal and worse; the
mean share of its runs that miss; the luck (winner's curse), its tuning time over its expected one;
trials, races, and the seconds of all trials. With `--confirm N` the three best configurations and
the baseline are run N times after the search, and the best by these runs is taken.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from _shared import arguments, bootstrap, introduce, keep, repeats_of

import autotune as at
from autotune.backends.simulator import SimCurve, SimPoint, SimPool, Simulate
from autotune.trial import Config, Params, Trial

MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
METRIC = "val_accuracy"
Answer = dict[str, Any]


@dataclass(frozen=True)
class Problem:
    """What is searched.

    Args:
        simulate: made from a study's seed; stands for training.
        expected: seconds of one more run of a configuration, on average over all seeds.
        missing: the share of its runs that miss the target.
        least: the expected seconds of the best configuration.
        spend: limits of tuning time, where no other number is given.
    """

    space: at.SearchSpace
    target: at.Target
    simulate: Callable[[int], Simulate]
    expected: Callable[[Config], float]
    missing: Callable[[Config], float]
    least: float
    workers: int
    spend: float
    sampler: str
    pruner: str
    baseline: Config | None = None
    canonical: Mapping[str, str] = field(default_factory=dict)


# --- times that vary ------------------------------------------------------------------------------

_LIMIT, _EVERY, _LEAST = 60.0, 3.0, 10.0


def noise(spread: float, limit: float, baseline: Config | None = None) -> Problem:
    """Two parameters, and no run misses the target."""
    space = at.SearchSpace({"lr": at.Float(1e-3, 10, log=True), "momentum": at.Float(0.0, 1.0)})
    target = at.Target(METRIC, 0.9, limit=limit)

    def expected(config: Config) -> float:
        off = math.log10(config["lr"]) ** 2 + 4 * (config["momentum"] - 0.6) ** 2
        return _LEAST * math.exp(off)

    def simulate(study: int, config: Config, run: int) -> SimCurve:
        luck = math.exp(spread * Random(f"{study}/{run}").gauss(0, 1) - spread**2 / 2)
        took = expected(config) * luck
        times = {*(_EVERY * i for i in range(1 + round(limit / _EVERY))), min(took, limit)}
        return curve({seconds: 0.9 * min(seconds / took, 1.0) for seconds in sorted(times)})

    return Problem(
        space, target, lambda seed: partial(simulate, seed), expected, lambda _: 0.0, _LEAST,
        workers=8, spend=4.0, sampler="random", pruner="slower_than_best", baseline=baseline,
    )  # fmt: skip


def curve(values: dict[float, float]) -> SimCurve:
    """A curve of the metric over seconds."""
    pairs = enumerate(values.items())
    return SimCurve([SimPoint(i, seconds, {METRIC: value}) for i, (seconds, value) in pairs])


# --- runs that miss the target --------------------------------------------------------------------

_SHORT, _LONG = 8.0, 80.0  # horizons
_VALUE, _BELOW = 0.985, 0.982  # the target's, and to where a run comes that misses it
_REPORT, _MOST = 0.17, 30.0
BASELINES: dict[str, Config] = {  # 8.9 and 5.5 expected seconds
    "usual": {"lr": 0.3, "momentum": 0.5, "horizon": 60.0, "weight_decay": 5e-4},
    "good": {"lr": 0.8, "momentum": 0.55, "horizon": 34.0, "weight_decay": 4e-4},
}
POOR = "poor"  # without misses


def misses(spread: float, limit: float, baseline: Config) -> Problem:
    """Four parameters, among them a horizon: short ones are fast and often miss the target."""
    space = at.SearchSpace(
        {
            "lr": at.Float(1e-3, 10, log=True),
            "momentum": at.Float(0.0, 1.0),
            "horizon": at.Float(_SHORT, _LONG, log=True),
            "weight_decay": at.Float(1e-5, 1e-2, log=True),
        }
    )
    best = {"lr": 1.0, "momentum": 0.6, "weight_decay": 10**-3.5}
    expected = partial(_expected, spread, limit)
    horizons = (_SHORT * (_LONG / _SHORT) ** (i / 1000) for i in range(1001))
    return Problem(
        space, at.Target(METRIC, _VALUE, limit=limit),
        lambda seed: partial(_missing_run, spread, limit, seed), expected, _missing,
        min(expected({**best, "horizon": h}) for h in horizons),
        workers=2, spend=200 / limit, sampler="auto", pruner="auto",
        baseline=baseline,
    )  # fmt: skip


def _off(config: Config) -> float:
    """How far a configuration is from the best one, apart from its horizon."""
    decay = math.log10(config["weight_decay"]) + 3.5
    rate = math.log10(config["lr"])
    return 0.5 * rate**2 + 2 * (config["momentum"] - 0.6) ** 2 + 0.1 * decay**2


def _missing(config: Config) -> float:
    return 1 / (1 + (config["horizon"] * math.exp(-_off(config)) / 11) ** 4)


def _seconds(config: Config) -> float:
    """The median of the runs that reach the target."""
    return 0.2835 * config["horizon"] ** 0.82 * math.exp(_off(config) / 2)


def _expected(spread: float, limit: float, config: Config) -> float:
    hit = min(_seconds(config) * math.exp(spread**2 / 2), limit)
    return (1 - _missing(config)) * hit + _missing(config) * limit


def _missing_run(spread: float, limit: float, study: int, config: Config, run: int) -> SimCurve:
    """A curve that rises towards the target, comes to it in time or stays below."""
    random = Random(f"{study}/{run}/{config['lr']}")
    took = _seconds(config) * math.exp(random.gauss(0, spread))
    most = _BELOW if random.random() < _missing(config) else _VALUE
    values = {}
    for i in range(1 + math.ceil(limit / _REPORT)):
        at_second = min(i * _REPORT, limit)
        risen = math.expm1(-4 * min(at_second / took, 1.0)) / math.expm1(-4)
        arrived = at_second >= took and most == _VALUE
        lost = 0.0 if arrived else 1e-4 + 5e-4 * random.random()
        values[at_second] = min(_VALUE * risen, most) - lost
    return curve(values)


# --- studies --------------------------------------------------------------------------------------


class Evenly:
    """Random search, from the study's seed and the trial's number."""

    def __init__(self, space: at.SearchSpace, seed: int) -> None:
        self._space, self._seed = space, seed

    def ask(self, number: int, trials: Sequence[Trial]) -> Params:
        return self._space.sample(1, self._seed * 1_000_003 + number)[0]


def study(
    problem: Problem,
    seed: int,
    share: float,
    sampler: str,
    spend: float,
    trials: int | None,
    confirm: int = 0,
) -> Answer:
    about = _nothing, problem.space, problem.target
    known = {"baseline": problem.baseline, "canonical": problem.canonical}
    experiment = at.Experiment("racing", *about, **known)
    assert problem.target.limit is not None
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        result = at.run(
            experiment,
            trials=trials or 100_000,
            time_limit=spend * problem.target.limit if trials is None else None,
            sampler=Evenly(problem.space, seed) if sampler == "random" else sampler,
            pruner=problem.pruner,
            pool=SimPool(problem.simulate(seed), problem.workers),
            out=folder,
            seed=seed,
            racing=share,
            experience="off",
        )
        if confirm:  # beyond the time limit, which is that of the search
            result = result.confirm(repeats=confirm)
    best = result.best
    found = problem.expected(best.config) if best is not None else problem.target.limit
    return {
        "seed": seed,
        "share": share,
        "expected": found,
        "regret": found / problem.least,
        "missing": problem.missing(best.config) if best is not None else 1.0,
        "luck": best.seconds / found if best is not None else 1.0,
        "trials": len(result.searched),
        "races": sum(t.kind == "race" for t in result.trials),
        "confirmed": {c.number: len(c.times) for c in result.confirmed},
        "spent": sum(t.seconds for t in result.trials),
    }


def _nothing(config: Config) -> Any:
    """Stands for a trainer where none is run."""


def mean(values: Sequence[float]) -> float:
    return math.exp(statistics.fmean(math.log(v) for v in values))


def interval(values: Sequence[float]) -> str:
    """Geometric mean with a 95 % bootstrap interval."""
    low, high = bootstrap(values, mean, 2000)
    return f"{mean(values):.3f} ({low:.3f}-{high:.3f})"


HEADS = "share  expected s  regret  over that of the first  better/=/worse  missing  luck  trials  "
HEADS += "races  spent s"


def row(share: float, runs: Sequence[Answer], first: Sequence[Answer]) -> str:
    pairs = [a["regret"] / b["regret"] for a, b in zip(runs, first, strict=True)]
    signs = [sum(p < 1 for p in pairs), sum(p == 1 for p in pairs), sum(p > 1 for p in pairs)]
    keys = ("missing", "trials", "races", "spent")
    missing, trials, races, spent = (statistics.fmean(r[key] for r in runs) for key in keys)
    expected, regret, luck = (mean([r[k] for r in runs]) for k in ("expected", "regret", "luck"))
    cells = f"{share:5.2f} {expected:11.2f} {regret:7.3f} {interval(pairs):>23}"
    cells += f" {'/'.join(map(str, signs)):>15} {missing:8.3f} {luck:5.2f}"
    return f"{cells} {trials:7.1f} {races:6.1f} {spent:8.0f}"


def main() -> None:
    parser = arguments(__doc__ or "", 20)
    parser.add_argument("--misses", action="store_true", help="runs that miss the target")
    parser.add_argument("--shares", type=float, nargs="+", default=[0.0, 0.1, 0.2])
    parser.add_argument("--spread", type=float, help="of a run's time (0.3; 0.12 with --misses)")
    baselines = (*BASELINES, POOR)
    parser.add_argument("--baseline", choices=baselines, help="(none; usual with --misses)")
    parser.add_argument("--epochs", action="store_true", help="shorter horizons first")
    parser.add_argument("--limit", type=float, help="of a run, in seconds (60; 30 with --misses)")
    parser.add_argument("--spend", type=float, help="tuning time, in limits (4; 6.7 with --misses)")
    parser.add_argument("--trials", type=int, help="of each study, in place of --spend")
    parser.add_argument("--workers", type=int, help="at once (8; 2 with --misses)")
    parser.add_argument("--sampler", help="(random; auto with --misses)")
    parser.add_argument("--confirm", type=int, default=0, help="runs of each finalist (0)")
    parser.add_argument("--first-seed", type=int, default=0, help="number of the first study (0)")
    options = parser.parse_args()
    if options.baseline and (options.baseline == POOR) == options.misses:
        parser.error(f"--baseline {options.baseline}: {POOR} is the one without --misses")
    if options.misses:
        limit = options.limit or _MOST
        problem = misses(options.spread or 0.12, limit, BASELINES[options.baseline or "usual"])
        if options.epochs:
            problem = replace(problem, canonical={"horizon": "epochs"})
    else:
        poor = {"lr": 0.1, "momentum": 0.3} if options.baseline else None
        problem = noise(options.spread or 0.3, options.limit or _LIMIT, poor)
    problem = replace(problem, workers=options.workers or problem.workers)
    spend = 0.5 if options.quick else options.spend or problem.spend
    sampler = options.sampler or problem.sampler
    about, runs = introduce(), list[Answer]()
    for seed in range(options.first_seed, options.first_seed + repeats_of(options)):
        for share in options.shares:
            asked = problem, seed, share, sampler, spend, options.trials, options.confirm
            runs.append(study(*asked))
            print(json.dumps(runs[-1]), file=sys.stderr, flush=True)
    print(HEADS)
    by_share = {s: [r for r in runs if r["share"] == s] for s in options.shares}
    for share, found in by_share.items():
        print(row(share, found, by_share[options.shares[0]]))
    keep(options.json, about, runs=runs)


if __name__ == "__main__":
    main()
