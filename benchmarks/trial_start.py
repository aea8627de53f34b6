"""From asking for a two-rank trial until it trains: autotune's warm groups against Ray Train.

    python benchmarks/trial_start.py [--trials 10] [--repeats 3] [--json FILE]

"It trains" means: the trainer's function runs on both ranks, and an `all_reduce` between them is
done; the later rank counts, on the clock that all processes of a machine share. Ray is running
before either side is asked.

    autotune warm    from the moment at which the study's last trial ended, so it holds closing that
                     trial, the sampler, the journal, and the start on a group that is there
    autotune cold    from `autotune.run` to the first trial: processes, torch, the process group
    Ray Train        from making a `TorchTrainer` and calling `fit` to its training function, in a
                     process that has done so before (the first time is shown apart)
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
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
    missing,
    repeats_of,
    serve,
    spread,
    start_ray,
    summary,
)

RANKS = 2
RAY_CPUS = 6  # Ray Train's own actors find processes that Ray has started ahead, one for each CPU
AIM = 100.0


def ready_at() -> float:
    """When both ranks were running and had spoken to each other: seconds on the monotonic clock."""
    import torch
    import torch.distributed as dist

    dist.all_reduce(torch.ones(1))
    moment = torch.tensor(time.monotonic(), dtype=torch.float64)
    dist.all_reduce(moment, dist.ReduceOp.MAX)
    return float(moment)


def autotune_side(task: Task) -> Answer:
    start_ray(RAY_CPUS)
    import autotune

    begin = time.monotonic()
    ended: list[float] = []
    suggested: list[float] = []

    def watch(event: Any, _: object) -> None:
        if isinstance(event, autotune.trial.Ended):
            ended.append(time.monotonic())
        if isinstance(event, autotune.trial.Suggested):
            suggested.append(time.monotonic())

    result = autotune.run(
        _experiment(),
        trials=task["trials"] + 1,
        sampler="random",
        pruner="none",
        out=Path(task["folder"], "study"),
        seed=task["seed"],
        watch=watch,
    )
    ready = [trial.reports[-1].metrics["ready_at"] for trial in result.trials]
    return {
        "cold_seconds": ready[0] - begin,
        "warm_seconds": [at - end for at, end in zip(ready[1:], ended, strict=False)],
        "since_suggested_seconds": [
            at - asked for at, asked in zip(ready[1:], suggested[1:], strict=True)
        ],
    }


def _experiment() -> Any:
    import autotune
    from autotune.trial import Milestone

    def train(config: dict[str, Any]) -> Iterator[Milestone]:
        at = ready_at()
        yield Milestone(1, lambda: {"ready_at": at})

    space = autotune.SearchSpace({"lr": autotune.Float(1e-3, 1e-1, log=True)})
    target = autotune.Target("ready_at", 0.0, limit=3600.0)
    scaling = autotune.Scaling(num_workers=RANKS, max_concurrent_trials=1)
    return autotune.Experiment("trial-start", train, space, target, scaling=scaling)


def ray_train_side(task: Task) -> Answer:
    start_ray(RAY_CPUS)
    from ray import train
    from ray.train.torch import TorchTrainer

    def loop(config: dict[str, Any]) -> None:
        at = ready_at()
        if train.get_context().get_world_rank() == 0:
            Path(config["answer"]).write_text(repr(at))

    seconds = []
    for number in range(task["trials"] + 1):
        answer = Path(task["folder"], f"ready-{number}")
        begin = time.monotonic()
        trainer = TorchTrainer(
            loop,
            train_loop_config={"answer": str(answer)},
            scaling_config=train.ScalingConfig(num_workers=RANKS),
            run_config=train.RunConfig(name=f"run-{number}", storage_path=task["folder"]),
        )
        trainer.fit()
        seconds.append(float(answer.read_text()) - begin)
    return {"cold_seconds": seconds[0], "warm_seconds": seconds[1:]}


SIDES = {"autotune": autotune_side, "ray-train": ray_train_side}


def show(runs: dict[str, list[Answer]]) -> None:
    warm = {side: _all(answers, "warm_seconds") for side, answers in runs.items()}
    for side, answers in runs.items():
        cold = [a["cold_seconds"] for a in answers]
        print(f"  {side:10} first  {summary(cold, ' s')}")
        print(f"  {'':10} later  {summary([1e3 * s for s in warm[side]], ' ms')}")
        if "since_suggested_seconds" in answers[0]:
            since = [1e3 * s for s in _all(answers, "since_suggested_seconds")]
            print(f"  {'':10} later, since it was suggested  {summary(since, ' ms')}")
    if len(runs) == len(SIDES):
        print(f"  ray-train / autotune, repeat by repeat: {summary(_ratios(runs))} (aim: {AIM:g})")


def _all(answers: list[Answer], key: str) -> list[float]:
    return [value for answer in answers for value in answer[key]]


def _ratios(runs: dict[str, list[Answer]]) -> list[float]:
    medians = {s: [spread(a["warm_seconds"])[0] for a in runs[s]] for s in runs}
    return [a / b for a, b in zip(medians["ray-train"], medians["autotune"], strict=True)]


def main() -> None:
    parser = arguments(__doc__, repeats=3)
    parser.add_argument("--trials", type=int, help="warm starts in each repeat (10)")
    options = parser.parse_args()
    trials = options.trials or (1 if options.quick else 10)
    sides = list(SIDES)
    absent = missing("ray.train", "pyarrow", "pydantic")
    if absent:
        print(f"Ray Train is skipped: {absent} (pip install 'time-to-target[bench]')")
        sides.remove("ray-train")
    about = introduce()
    runs: dict[str, list[Answer]] = {side: [] for side in sides}
    for repeat, side in in_turns(sides, repeats_of(options)):
        task = {"trials": trials, "seed": repeat}
        runs[side].append(measure(__file__, side, task))
    show(runs)
    keep(options.json, about, runs=runs)


if __name__ == "__main__" and not serve(SIDES, sys.argv[1:]):
    main()
