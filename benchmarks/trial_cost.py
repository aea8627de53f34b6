"""What a trial costs beyond its training: autotune against Ray Tune.

    python benchmarks/trial_cost.py [--trials 100] [--concurrency 2 1] [--repeats 3] [--json FILE]

A trial is one rank that reports ten times and does nothing else, so all that is measured is cost.
Each side runs as many trials at once as Ray has CPUs, draws three parameters at random, and writes
configuration and metrics to MLflow on SQLite (but `*-bare`). Ray is started in the same way.

    autotune              a study as `autotune.run` runs it
    autotune-bare         the same without MLflow
    tune-reuse            Ray Tune with reuse_actors=True, a class with reset_config
    tune-reuse-bare       the same without MLflow and without Tune's CSV, JSON and TensorBoard files
    tune-defaults         Ray Tune with its defaults, a function: a process for each trial
    tune-defaults-torch   the same with a trainer that imports torch, as any torch trainer does

`per trial` is the wall time between the end of the `warm`-th trial and the end of the last, by the
trials between them. `in all` begins before Ray starts and ends when MLflow is complete. CPU seconds
are those of all processes: driver, Ray's own, workers, and autotune's MLflow process.
"""

from __future__ import annotations

import os
import sqlite3
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _common import (
    Answer,
    Side,
    Task,
    arguments,
    in_turns,
    introduce,
    keep,
    measure,
    missing,
    ratios,
    repeats_of,
    serve,
    start_ray,
    summary,
)

REPORTS = 10
SIDES = (
    "autotune",
    "autotune-bare",
    "tune-reuse",
    "tune-reuse-bare",
    "tune-defaults",
    "tune-defaults-torch",
)
QUICK_SIDES = ("autotune", "tune-reuse")
PAIRS = (
    ("autotune", "tune-reuse", 10.0),
    ("autotune", "tune-defaults", 100.0),
    ("autotune", "tune-defaults-torch", None),
    ("autotune-bare", "tune-reuse-bare", None),
)


# --- autotune -----------------------------------------------------------------------------------


def autotune_side(task: Task) -> Answer:
    begin = time.monotonic()
    start_ray(task["concurrency"])
    import autotune

    seen: list[tuple[str, int, float]] = []
    folder = Path(task["folder"], "study")
    autotune.run(
        _experiment(),
        trials=task["trials"],
        sampler="random",
        pruner="none",
        out=folder,
        tracking_uri=None if task["mlflow"] else "off",
        seed=task["seed"],
        watch=lambda event, _: seen.append((type(event).__name__, event.trial, time.monotonic())),
    )
    wait_for_mirror()
    complete = time.monotonic()
    starts = [at for kind, _, at in seen if kind == "Started"]
    ends = [at for kind, _, at in seen if kind == "Ended"]
    answer = _answer(task, begin, starts, ends, complete)
    return {**answer, **_written(folder / "mlflow.db", task)}


def _experiment() -> Any:
    import autotune
    from autotune.trial import Milestone

    def train(config: dict[str, Any]) -> Iterator[Milestone]:
        yield Milestone(0, dict)
        for step in range(1, REPORTS + 1):
            metrics = {"score": config["lr"] + step}
            yield Milestone(step, metrics.copy)

    space = autotune.SearchSpace(
        {
            "lr": autotune.Float(1e-3, 1e-1, log=True),
            "momentum": autotune.Float(0.8, 0.99),
            "batch_size": autotune.Choice([64, 128, 256]),
        }
    )
    target = autotune.Target("score", float(REPORTS), limit=3600.0)
    return autotune.Experiment("trial-cost", train, space, target)


def wait_for_mirror(limit: float = 600) -> None:
    """Until the process that writes MLflow has ended, should the study have left it behind.

    Raises:
        psutil.TimeoutExpired: it has not after `limit` seconds.
    """
    import psutil

    for child in psutil.Process().children():
        if any("autotune.cli.mirror_process" in part for part in child.cmdline()):
            child.wait(limit)


# --- Ray Tune -----------------------------------------------------------------------------------


def tune_side(task: Task) -> Answer:
    begin = time.monotonic()
    if task["bare"]:
        os.environ["TUNE_DISABLE_AUTO_CALLBACK_LOGGERS"] = "1"
    start_ray(task["concurrency"])
    from ray import tune
    from ray.air.integrations.mlflow import MLflowLoggerCallback

    starts: list[float] = []
    ends: list[float] = []

    class Moments(tune.Callback):
        def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **_: Any) -> None:
            starts.append(time.monotonic())

        def on_trial_complete(
            self, iteration: int, trials: list[Any], trial: Any, **_: Any
        ) -> None:
            ends.append(time.monotonic())

    store = Path(task["folder"], "mlflow.db")
    uri = f"sqlite:///{store}"
    mlflow = [MLflowLoggerCallback(uri, experiment_name="trial-cost")] if task["mlflow"] else []
    made = _tune_class() if task["reuse"] else _tune_function(task["torch"])
    tuner = tune.Tuner(
        tune.with_resources(made, {"cpu": 1}),
        param_space={
            "lr": tune.loguniform(1e-3, 1e-1),
            "momentum": tune.uniform(0.8, 0.99),
            "batch_size": tune.choice([64, 128, 256]),
        },
        tune_config=tune.TuneConfig(num_samples=task["trials"], reuse_actors=task["reuse"]),
        run_config=tune.RunConfig(
            storage_path=task["folder"],
            name="study",
            verbose=0,
            checkpoint_config=tune.CheckpointConfig(
                checkpoint_at_end=False if task["reuse"] else None
            ),
            callbacks=[*mlflow, Moments()],  # a trial has ended when MLflow has it
        ),
    )
    results = tuner.fit()
    complete = time.monotonic()
    if results.errors:
        raise RuntimeError(f"Ray Tune: {results.errors[0]}")
    return {**_answer(task, begin, starts, ends, complete), **_written(store, task)}


def _tune_class() -> Any:
    from ray import tune

    class Trainer(tune.Trainable):
        def setup(self, config: dict[str, Any]) -> None:
            self.lr = config["lr"]
            self.done = 0

        def step(self) -> dict[str, Any]:
            self.done += 1
            return {"score": self.lr + self.done, "done": self.done == REPORTS}

        def reset_config(self, new_config: dict[str, Any]) -> bool:
            self.setup(new_config)
            return True

    return Trainer


def _tune_function(with_torch: bool) -> Any:
    def train(config: dict[str, Any]) -> None:
        from ray import tune

        if with_torch:
            import torch  # noqa: F401
        for step in range(1, REPORTS + 1):
            tune.report({"score": config["lr"] + step})

    return train


# --- both ---------------------------------------------------------------------------------------


def _answer(
    task: Task, begin: float, starts: list[float], ends: list[float], complete: float
) -> Answer:
    """The moments of a run as windows; raises where a trial is missing."""
    if len(starts) != task["trials"] or len(ends) != task["trials"]:
        raise RuntimeError(f"{len(starts)} trials started, {len(ends)} ended of {task['trials']}")
    ends = sorted(ends)
    warm, start = task["warm"], min(starts)
    return {
        "per_trial_seconds": (ends[-1] - ends[warm - 1]) / (len(ends) - warm),
        "windows": {
            "start_up": [begin, start],
            "trials": [start, ends[-1]],
            "until_mlflow": [start, complete],
            "in_all": [begin, complete],
        },
    }


def _written(store: Path, task: Task) -> Answer:
    """What MLflow has; raises where a report is missing."""
    if not task["mlflow"]:
        return {}
    with sqlite3.connect(store) as database:
        scores = "select count(*) from metrics where key = 'score'"
        (found,) = database.execute(scores).fetchone()
        (rows,) = database.execute("select count(*) from metrics").fetchone()
        ended = "select count(*) from runs where status = 'FINISHED'"
        (runs,) = database.execute(ended).fetchone()
    if found != task["trials"] * REPORTS or runs < task["trials"]:
        raise RuntimeError(f"MLflow has {found} scores and {runs} runs of {task['trials']} trials")
    return {"mlflow_metric_rows": rows}


def task_of(side: str, trials: int, concurrency: int, repeat: int) -> Task:
    return {
        "trials": trials,
        "concurrency": concurrency,
        "seed": repeat,
        "warm": min(2 * concurrency, trials - 1),
        "mlflow": not side.endswith("-bare"),
        "bare": side.endswith("-bare"),
        "reuse": side.startswith("tune-reuse"),
        "torch": side.endswith("-torch"),
    }


def show(concurrency: int, runs: dict[str, list[Answer]], trials: int) -> None:
    print(f"\n{trials} trials, {concurrency} at once: median (range)")
    for side, answers in runs.items():
        print(f"  {side}")
        print(f"    per trial          {summary(_milliseconds(answers), ' ms')}")
        for window in ("start_up", "trials", "until_mlflow", "in_all"):
            seconds = [a["windows"][window]["seconds"] for a in answers]
            cpu = [a["windows"][window]["cpu_seconds"] for a in answers]
            print(f"    {window:18} {summary(seconds, ' s'):34} CPU {summary(cpu, ' s')}")
        mirror = [a["windows"]["in_all"]["mirror_cpu_seconds"] for a in answers]
        if any(mirror):
            print(f"    {'of which mirror':53} CPU {summary(mirror, ' s')}")
        if "mlflow_metric_rows" in answers[0]:
            print(f"    metrics in MLflow  {answers[0]['mlflow_metric_rows']}")
    for side, peer, aim in PAIRS:
        if side in runs and peer in runs:
            _compare(peer, runs[peer], side, runs[side])
            print(f"      aim for the first: {aim:g}" if aim else "      (no aim)")


def _milliseconds(answers: list[Answer]) -> list[float]:
    return [1e3 * a["per_trial_seconds"] for a in answers]


def _compare(peer: str, theirs: list[Answer], side: str, ours: list[Answer]) -> None:
    print(f"  {peer} / {side}")
    print(f"      per trial         {summary(ratios(_milliseconds(theirs), _milliseconds(ours)))}")
    for window in ("until_mlflow", "in_all"):
        for kind in ("seconds", "cpu_seconds"):
            values = [[a["windows"][window][kind] for a in many] for many in (theirs, ours)]
            print(f"      {window + ' ' + kind:25}{summary(ratios(*values))}")


def main() -> None:
    parser = arguments(__doc__, repeats=3)
    parser.add_argument("--trials", type=int, help="of each side (100)")
    parser.add_argument("--concurrency", type=int, nargs="+", help="trials at once (2 1)")
    parser.add_argument("--sides", nargs="+", choices=SIDES, help="only these")
    options = parser.parse_args()
    trials = options.trials or (4 if options.quick else 100)
    concurrencies = options.concurrency or ([1] if options.quick else [2, 1])
    sides = options.sides or (QUICK_SIDES if options.quick else SIDES)
    absent = missing("ray.tune", "pyarrow", "tensorboardX")
    if absent:
        print(f"Ray Tune is skipped: {absent} (pip install 'time-to-target[bench]')")
        sides = [side for side in sides if not side.startswith("tune")]
    about = introduce()
    raw = []
    for concurrency in concurrencies:
        runs: dict[str, list[Answer]] = {side: [] for side in sides}
        for repeat, side in in_turns(sides, repeats_of(options)):
            answer = measure(__file__, side, task_of(side, trials, concurrency, repeat))
            runs[side].append(answer)
            raw.append({"side": side, "concurrency": concurrency, "repeat": repeat, **answer})
        show(concurrency, runs, trials)
    keep(options.json, about, trials=trials, runs=raw)


if __name__ == "__main__":
    made: dict[str, Side] = {
        side: autotune_side if side.startswith("autotune") else tune_side for side in SIDES
    }
    if not serve(made, sys.argv[1:]):
        main()
