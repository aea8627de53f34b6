"""Trials that report once and do nothing else: what a driver costs, ours and Ray Tune's.

Both run as many at once as Ray has CPUs, draw the same three parameters at random and end after so
many seconds, whatever is left; nothing is written to MLflow, and Tune goes without its log files.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _common import Answer, Task, start_ray

CPUS = 2
WARM = 2 * CPUS  # trials whose workers had to be started


def autotune_side(task: Task) -> Answer:
    start_ray(CPUS)
    import autotune
    from autotune.trial import Milestone

    def train(config: dict[str, Any]) -> Iterator[Milestone]:
        yield Milestone(0, dict)
        yield Milestone(1, lambda: {"score": config["lr"] + 1})

    space = autotune.SearchSpace(
        {
            "lr": autotune.Float(1e-3, 1e-1, log=True),
            "momentum": autotune.Float(0.8, 0.99),
            "batch_size": autotune.Choice([64, 128, 256]),
        }
    )
    ends: list[tuple[float, float]] = []

    def watch(event: Any, _: Any) -> None:
        if type(event).__name__ == "Ended" and event.reason not in ("budget", "interrupted"):
            ends.append((time.monotonic(), time.process_time()))

    autotune.run(
        autotune.Experiment("no-op", train, space, autotune.Target("score", 1.0, limit=3600.0)),
        trials=task["trials"],
        time_limit=task["limit"],
        sampler="random",
        pruner="none",
        out=Path(task["folder"], "study"),
        tracking_uri="off",
        watch=watch,
    )
    return _answer(ends)


def tune_side(task: Task) -> Answer:
    os.environ["TUNE_DISABLE_AUTO_CALLBACK_LOGGERS"] = "1"
    start_ray(CPUS)
    from ray import tune

    ends: list[tuple[float, float]] = []

    class Moments(tune.Callback):
        def on_trial_complete(
            self, iteration: int, trials: list[Any], trial: Any, **_: Any
        ) -> None:
            if trial.last_result.get("score") is not None:
                ends.append((time.monotonic(), time.process_time()))

    def train(config: dict[str, Any]) -> None:
        tune.report({"score": config["lr"] + 1})

    tuner = tune.Tuner(
        tune.with_resources(train, {"cpu": 1}),
        param_space={
            "lr": tune.loguniform(1e-3, 1e-1),
            "momentum": tune.uniform(0.8, 0.99),
            "batch_size": tune.choice([64, 128, 256]),
        },
        tune_config=tune.TuneConfig(
            num_samples=task["trials"], reuse_actors=True, time_budget_s=task["limit"]
        ),
        run_config=tune.RunConfig(
            storage_path=task["folder"], name="study", verbose=0, callbacks=[Moments()]
        ),
    )
    results = tuner.fit()
    if results.errors:
        raise RuntimeError(f"Ray Tune: {results.errors[0]}")
    return _answer(ends)


def _answer(ends: list[tuple[float, float]]) -> Answer:
    """Of the trials that ended: their number, and what each took once the workers were warm."""
    if len(ends) <= WARM:
        raise RuntimeError(f"only {len(ends)} trials ended in time: raise --peer-seconds")
    (begin, used), (end, all_used) = ends[WARM - 1], ends[-1]
    count = len(ends) - WARM
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"ended": len(ends), "each": (end - begin) / count, "driver": (all_used - used) / count,
            "rss_mb": memory}  # fmt: skip


SIDES = {"autotune": autotune_side, "tune-reuse": tune_side}


def row(side: str, trials: int, found: Answer) -> str:
    """One line of the table; a run that was cut says so, and that its total is drawn on."""
    line = (
        f"  {side:10} {trials:6} trials: {1e3 * found['each']:7.1f} ms each, of which the driver's "
        f"CPU {1e3 * found['driver']:.2f} ms; {found['rss_mb']:.0f} MiB"
    )
    if found["ended"] >= trials:
        return f"{line}; all ended"
    hours = found["each"] * trials / 3600
    return f"{line}; CUT after {found['ended']} trials: all would take about {hours:.2g} h"
