"""Do searches stop asking for what does not fit into memory, once they have seen some of it?

A study on a virtual clock. `--problem model`: a model's width, depth and image size decide whether
even one sample fits. Wider, deeper models and larger images learn more from a sample, so that the
fastest lie close to the boundary. `--problem square`: of two parameters between 0 and 1 nothing
fits whose sum is 1 or more, half of all there is; the fastest is at 0.45 and 0.4. Shown is the
share of infeasible suggestions over the course of the study for each sampler, as it is, and the
same sampler to which infeasible trials are shown as failed ones, which is what they were before
samplers knew of constraints.
"""

from __future__ import annotations

import math
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from _shared import arguments, introduce, keep, repeats_of

import autotune as at
from autotune.algorithms.samplers import Sampler
from autotune.backends.simulator import OUT_OF_MEMORY, SimCurve, SimPoint, SimPool
from autotune.trial import Params, State, Trial

METRIC = "val_accuracy"
SAMPLERS = ("tpe", "convergence", "policy:elite", "gp")
LIMIT_MIB = 128
SPACE = at.SearchSpace(
    {
        "lr": at.Float(1e-4, 1.0, log=True),
        "batch_size": at.Int(16, 512, power_of_two=True),
        "width": at.Int(32, 1024, log=True),
        "depth": at.Int(2, 32),
        "image_size": at.Int(32, 256, log=True),
        "optimizer": at.Choice(["sgd", "adamw"]),
    }
)
TARGET = at.Target(METRIC, 0.9, limit=600)


def needed_mib(config: Mapping[str, Any]) -> float:
    """Weights, gradients and the optimizer's state, and what one sample keeps for its gradient."""
    width, depth = config["width"], config["depth"]
    copies = 4 if config["optimizer"] == "adamw" else 3
    weights = copies * 4 * 9 * width**2 * depth
    sample = 4 * depth * width * (config["image_size"] / 4) ** 2
    return (weights + sample) / 2**20


def curve(config: Mapping[str, Any], seed: int) -> SimCurve:
    """Out of memory at once, or a course that reaches the target the sooner the larger it is."""
    if needed_mib(config) > LIMIT_MIB:
        return SimCurve((), OUT_OF_MEMORY, setup_seconds=1.0)
    size = math.log2(config["width"] * config["depth"] * config["image_size"] / 2**11)
    rate = math.exp(-((math.log10(config["lr"]) + 1.5) ** 2)) / (1 + config["batch_size"] / 256)
    speed = 0.01 * rate * 1.35**size * (1 + 0.05 * math.sin(seed))
    seconds = [0.0] + [1.03**i for i in range(217)]
    points = [SimPoint(i, s, {METRIC: 1 - math.exp(-speed * s)}) for i, s in enumerate(seconds)]
    return SimCurve(points, setup_seconds=1.0)


@dataclass(frozen=True)
class Problem:
    """What is searched, how a trial of it goes, and what of it fits."""

    space: at.SearchSpace
    target: at.Target
    curve: Callable[[Mapping[str, Any], int], SimCurve]
    fits: Callable[[Mapping[str, Any]], bool]


def in_square(config: Mapping[str, Any]) -> bool:
    return bool(config["x"] + config["y"] < 1)


def square_curve(config: Mapping[str, Any], _: int) -> SimCurve:
    """Out of memory at once, or at the target after the seconds that the point takes."""
    if not in_square(config):
        return SimCurve((), OUT_OF_MEMORY)
    seconds = 1 + 2 * math.dist((config["x"], config["y"]), (0.45, 0.4))
    return SimCurve([SimPoint(i, i * seconds / 10, {METRIC: 0.9 * i / 10}) for i in range(11)])


PROBLEMS = {
    "model": Problem(SPACE, TARGET, curve, lambda config: needed_mib(config) <= LIMIT_MIB),
    "square": Problem(
        at.SearchSpace({"x": at.Float(0, 1), "y": at.Float(0, 1)}),
        at.Target(METRIC, 0.9, limit=5),
        square_curve,
        in_square,
    ),
}


def train(config: dict[str, Any]) -> Any:
    """Stands for a trainer, of which only the curve is wanted."""


class Blind:
    """A sampler to which infeasible trials are failed ones."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler

    def ask(self, number: int, trials: Sequence[Trial]) -> Params | None:
        shown = [
            replace(t, state=State.FAILED) if t.state is State.INFEASIBLE else t for t in trials
        ]
        return self._sampler.ask(number, shown)


def study(
    problem: Problem, name: str, seed: int, trials: int, blind: bool, folder: Path
) -> dict[str, Any]:
    """Which of a study's suggestions were infeasible, and the best time that it found."""
    policy = at.FailurePolicy(max_consecutive_failed_trials=trials)
    made = at.Experiment("infeasible", train, problem.space, problem.target, failure=policy)
    sampler: Any = Blind(_sampler(problem, name, seed)) if blind else name
    pool = SimPool(problem.curve, workers=4)
    options = {"sampler": sampler, "seed": seed, "pool": pool, "pruner": "slower_than_best"}
    result = at.run(made, trials=trials, out=folder, tracking_uri="off", **options)
    infeasible = [t.state is State.INFEASIBLE for t in result.trials]
    best = result.best.seconds if result.best else math.inf
    return {"sampler": name, "blind": blind, "seed": seed, "infeasible": infeasible, "best": best}


def _sampler(problem: Problem, name: str, seed: int) -> Sampler:
    from autotune.algorithms.samplers.convergence import ConvergenceSampler
    from autotune.algorithms.samplers.elite_policy import PolicySampler
    from autotune.algorithms.samplers.optuna import OptunaSampler

    if name == "convergence":
        return ConvergenceSampler(problem.space, problem.target, seed)
    if name == "policy:elite":
        return PolicySampler(problem.space, problem.target, seed)
    return OptunaSampler(name, problem.space, problem.target, seed)


def rates(runs: Sequence[Mapping[str, Any]], parts: int = 4) -> list[float]:
    """The share of infeasible suggestions in each part of the studies, over all of them."""
    shares = []
    for part in range(parts):
        found: list[bool] = []
        for run in runs:
            flags = run["infeasible"]
            found += flags[part * len(flags) // parts : (part + 1) * len(flags) // parts]
        shares.append(statistics.fmean(found))
    return shares


def main() -> int:
    parser = arguments(__doc__ or "", 10)
    parser.add_argument("--trials", type=int, default=100, help="of each study (default 100)")
    parser.add_argument("--samplers", nargs="+", default=list(SAMPLERS), choices=SAMPLERS)
    parser.add_argument("--problem", choices=PROBLEMS, default="model")
    options = parser.parse_args()
    problem = PROBLEMS[options.problem]
    about, trials = introduce(), 16 if options.quick else options.trials
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(repeats_of(options)):
            for name in options.samplers:
                for blind in (False, True):
                    place = Path(folder, f"{name}-{seed}-{blind}")
                    runs.append(study(problem, name, seed, trials, blind, place))
    even = statistics.fmean(
        not problem.fits(problem.space.config(point)) for point in problem.space.sample(2000)
    )
    print(f"of even draws {even:.0%} are infeasible; studies of {trials} trials, 4 at a time")
    print("| sampler | constraints | 1st quarter | 2nd | 3rd | 4th | best s (median) |")
    print("|---|---|---|---|---|---|---|")
    for name in options.samplers:
        for blind in (True, False):
            own = [r for r in runs if r["sampler"] == name and r["blind"] is blind]
            shares = " | ".join(f"{share:.0%}" for share in rates(own))
            best = statistics.median(r["best"] for r in own)
            print(f"| {name} | {'not observed' if blind else 'learned'} | {shares} | {best:.1f} |")
    keep(options.json, about, even=even, runs=runs)
    return 0


if __name__ == "__main__":
    sys.exit(main())
