"""Is the time to target better predicted as a product, samples to the target x known seconds?

    python benchmarks/research/product_surrogate.py [--repeats 4]

Trials of the farm with measured steps (`_farm_plans.py`) near good configurations, each with one
seed. A model of the logarithm is fitted to a few that reached the target, and orders the others:

    seconds   a model of the seconds themselves, as samplers have it
    product   a model of the samples; the seconds of a sample are taken as known without error

with all plans the same (a search in its second stage, where only the batch size changes the seconds
of a sample), and with plans drawn (a search in one stage). Printed is Spearman's rank correlation
with the true seconds, and how much slower the best five by the model are than the best five. The
product is given more here than any study knows: if it orders no better, nothing is gained by it.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Sequence
from typing import Any

import _farm_plans
import farm
import numpy as np
from _farm_plans import BASELINE, TASKS, Problem
from _shared import arguments, bootstrap, introduce, keep
from plan_speeds import DEFAULT, VALUES
from threadpoolctl import threadpool_limits

KNOWN = (10, 20)  # trials to which a model is fitted
TRIALS = 160
_BEST = 5


def trials(problem: Problem, count: int, plans: bool) -> list[dict[str, Any]]:
    """Trials near the best known point and the baseline: points, samples, seconds of a sample."""
    rng, made = np.random.default_rng(5), []
    starts = [problem.task.best_point(), dict(BASELINE)]
    for number in range(count):
        point = farm.near(problem.task, starts[number % 2], rng)
        plan = {n: v[rng.integers(len(v))] for n, v in VALUES.items()} if plans else dict(DEFAULT)
        plan["precision"] = "bf16" if plan["precision"] == "fp16" else plan["precision"]
        config = problem.config({**point, **plan})
        samples = problem._samples(config, 100 + number)
        if math.isfinite(samples):
            each = problem._step(plan, config["batch_size"]) / config["batch_size"]
            made.append({"point": {**point, **plan}, "samples": samples, "each": each})
            starts.append(point) if samples * each < 8 else None
    return made


def table(problem: Problem, made: Sequence[dict[str, Any]]) -> np.ndarray:
    """The points as numbers: logarithms as such, choices one by one, what does not exist as 0."""
    columns = []
    for name, parameter in problem.space().parameters().items():
        own = [trial["point"].get(name) for trial in made]
        if hasattr(parameter, "options"):
            columns += [[float(v == option) for v in own] for option in parameter.options]
        else:
            logs = parameter.log
            columns.append([0.0 if v is None else math.log(v) if logs else float(v) for v in own])
    found = np.array(columns).T
    return (found - found.mean(0)) / np.maximum(found.std(0), 1e-9)


def predicted(known: np.ndarray, values: np.ndarray, others: np.ndarray, kind: str) -> np.ndarray:
    """The model's values of the others."""
    from sklearn.ensemble import RandomForestRegressor
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    if kind == "forest":
        model = RandomForestRegressor(100, min_samples_leaf=2, random_state=0)
    else:
        kernel = ConstantKernel(1.0) * RBF(3.0) + WhiteKernel(0.1)
        model = GaussianProcessRegressor(kernel, normalize_y=True)
    found: np.ndarray = model.fit(known, values).predict(others)
    return found


def compared(problem: Problem, made: list[dict[str, Any]], repeats: int) -> list[dict[str, Any]]:
    """Of each model, with so many known trials: how well it orders the others."""
    from scipy.stats import spearmanr

    points = table(problem, made)
    each = np.log([t["each"] for t in made])
    samples = np.log([t["samples"] for t in made])
    rows = []
    for count in (c for c in KNOWN if c <= len(made) // 2):
        for repeat in range(repeats):
            order = np.random.default_rng([count, repeat]).permutation(len(made))
            known, others = order[:count], order[count:]
            true = (samples + each)[others]
            ideal = np.sort(true)[:_BEST].mean()
            for kind in ("forest", "gaussian"):
                given = points[known], points[others], kind
                direct = predicted(given[0], (samples + each)[known], *given[1:])
                product = predicted(given[0], samples[known], *given[1:]) + each[others]
                for name, guess in (("seconds", direct), ("product", product)):
                    slower = math.exp(true[np.argsort(guess)[:_BEST]].mean() - ideal)
                    rank = float(spearmanr(guess, true).statistic) if guess.std() > 1e-9 else 0.0
                    rows.append({"model": kind, "of": name, "known": count, "repeat": repeat,
                                 "rank": rank, "slower": slower})  # fmt: skip
    return rows


def show(rows: Sequence[dict[str, Any]]) -> None:
    for plans in (False, True):
        for kind in ("forest", "gaussian"):
            for count in KNOWN:
                own = [
                    r for r in rows if (r["plans"], r["model"], r["known"]) == (plans, kind, count)
                ]
                if not own:
                    continue
                of = {n: [r for r in own if r["of"] == n] for n in ("seconds", "product")}
                cells = [
                    f"{n} {statistics.fmean(r['rank'] for r in of[n]):.3f} "
                    f"({statistics.fmean(r['slower'] for r in of[n]):.2f} times)"
                    for n in of
                ]
                pairs = zip(of["product"], of["seconds"], strict=True)
                gains = [a["rank"] - b["rank"] for a, b in pairs]
                low, high = bootstrap(gains, statistics.fmean, 2000)
                print(
                    f"  {'plans drawn' if plans else 'one plan':11} {kind:8} {count:2} known: "
                    f"{', '.join(cells)}; product less seconds {statistics.fmean(gains):+.3f} "
                    f"(95 % {low:+.3f} to {high:+.3f})"
                )


def main() -> int:
    global KNOWN
    parser = arguments(__doc__, repeats=4)
    options = parser.parse_args()
    repeats = options.repeats or (1 if options.quick else options.full_repeats)
    if options.quick:
        KNOWN = (4,)
    about, rows = introduce(), []
    with np.errstate(all="ignore"), threadpool_limits(1):
        for number in range(1 if options.quick else len(TASKS)):
            problem = _farm_plans.problem(number)
            for plans in (False, True):
                made = trials(problem, 30 if options.quick else TRIALS, plans)
                print(f"{problem.task.name}: {len(made)} trials reached the target", flush=True)
                found = compared(problem, made, repeats)
                rows += [{"task": problem.task.name, "plans": plans, **row} for row in found]
    show(rows)
    keep(options.json, about, runs=rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
