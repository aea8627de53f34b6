"""A study of thirty trials on each backend, and with Optuna alone: wall and CPU seconds.

    python benchmarks/backends.py [--trials 30] [--repeats 5] [--json FILE]

    here      in the script's own process (`backend="local", max_concurrent_trials=1`)
    local     in child processes, as many as there are cores
    ray       in workers of a Ray that the study starts and ends
    optuna    `study.optimize` in memory: one after another, no journal, no process but the script's

A trial reports one number and does nothing else (`no-op`), or fits scikit-learn's logistic
regression to its digits (`sklearn`). One parameter is searched, by TPE on all sides, without
tracking. The seconds are those of a script from its first import to its last line; CPU seconds are
those of all its processes.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from _common import (
    Answer,
    Task,
    arguments,
    in_turns,
    introduce,
    keep,
    measure,
    ratios,
    repeats_of,
    serve,
    summary,
)

SIDES = ("here", "local", "ray", "optuna")
WORK = ("no-op", "sklearn")
PLACES: dict[str, dict[str, Any]] = {
    "here": {"backend": "local", "max_concurrent_trials": 1},
    "local": {"backend": "local"},
    "ray": {"backend": "ray"},
}
METRIC = "score"


def score(work: str, x: float) -> float:
    """What a trial does: x is between 0 and 1."""
    if work == "no-op":
        return x
    from sklearn.datasets import load_digits
    from sklearn.linear_model import LogisticRegression

    images, labels = load_digits(return_X_y=True)
    model = LogisticRegression(C=10 ** (4 * x - 3), max_iter=50)
    model.fit(images[:1200] / 16, labels[:1200])
    return float(model.score(images[1200:] / 16, labels[1200:]))


def autotune_side(side: str, task: Task) -> Answer:
    begin = time.monotonic()
    import autotune

    work = task["work"]

    def train(config: dict[str, Any]) -> Iterator[autotune.Milestone]:
        found = score(work, config["x"])
        yield autotune.Milestone(1, lambda: {METRIC: found})

    target = autotune.Target(METRIC, 2.0, limit=3600.0)
    space = autotune.SearchSpace({"x": autotune.Float(0, 1)})
    result = autotune.run(
        autotune.Experiment("backends", train, space, target),
        trials=task["trials"],
        sampler="tpe",
        pruner="none",
        tracking_uri="off",
        out=Path(task["folder"], "study"),
        seed=task["seed"],
        **PLACES[side],
    )
    reported = [t for t in result.trials if t.reports]
    if len(reported) != task["trials"]:
        raise RuntimeError(f"{len(reported)} trials have reported: {result.trials[-1]}")
    return _answer(begin)


def optuna_side(task: Task) -> Answer:
    begin = time.monotonic()
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize")
    study.optimize(
        lambda trial: score(task["work"], trial.suggest_float("x", 0, 1)), n_trials=task["trials"]
    )
    return _answer(begin)


def _answer(begin: float) -> Answer:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu = sum(usage.ru_utime + usage.ru_stime for usage in used)
    return {"seconds": time.monotonic() - begin, "own_cpu_seconds": cpu}


def show(work: str, runs: dict[str, list[Answer]]) -> None:
    print(f"\n{work}: median (range)")
    cpu = {side: [a["all_cpu_seconds"] for a in answers] for side, answers in runs.items()}
    for side, answers in runs.items():
        wall = summary([a["seconds"] for a in answers], " s")
        print(f"  {side:8} {wall:34} CPU {summary(cpu[side], ' s')}")
    for side in (s for s in runs if s != "optuna"):
        print(f"  CPU of {side} / optuna: {summary(ratios(cpu[side], cpu['optuna']))}")


def main() -> None:
    parser = arguments(__doc__, repeats=5)
    parser.add_argument("--trials", type=int, help="of each side (30)")
    parser.add_argument("--sides", nargs="+", choices=SIDES, help="only these, and optuna")
    options = parser.parse_args()
    trials = options.trials or (3 if options.quick else 30)
    sides = [*dict.fromkeys([*(options.sides or SIDES), "optuna"])]
    about = introduce()
    raw = []
    for work in WORK:
        runs: dict[str, list[Answer]] = {side: [] for side in sides}
        for repeat, side in in_turns(sides, repeats_of(options)):
            task = {"trials": trials, "seed": repeat, "work": work}
            answer = measure(__file__, side, task)
            # The meter misses what a process does in its last quarter of a second; what a process
            # has waited for is in its own figure, and Ray's processes are not.
            answer["all_cpu_seconds"] = max(answer["cpu_seconds"], answer["own_cpu_seconds"])
            runs[side].append(answer)
            raw.append({"side": side, "work": work, "repeat": repeat, **answer})
        show(work, runs)
    keep(options.json, about, trials=trials, runs=raw)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # as a trial of one core has
    made = {side: partial(autotune_side, side) for side in PLACES}
    if not serve({**made, "optuna": optuna_side}, sys.argv[1:]):
        main()
