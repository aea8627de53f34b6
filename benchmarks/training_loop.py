"""Training under autotune against the same training in a loop written by hand.

    python benchmarks/training_loop.py [--epochs 80] [--repeats 5] [--json FILE]

Both sides train the model of `search_spaces.digits` on two ranks, one thread each, each rank on a
core of its own, the same on both sides, with the same data, global batch, augmentation (none),
optimizer and constants, and DDP with the same options. autotune's side is a study: reports,
evaluation, decisions, journal and MLflow at every milestone. The loop by hand is a `for` over
shuffled indices: no evaluation, no reports, constant learning rate. Samples per second are taken

    training clock    over the time in which the trial's clock ran
    wall clock        from the trial's first milestone to its last, less its evaluations: with
                      decisions, the journal, and every message between driver and ranks

"The trainer alone" leaves out everything around it: `trainers.image` and the loop by hand take
turns in the same two processes, milestone by milestone. Where it is 1 and the clocks are not, the
driver, Ray or MLflow disturb the ranks; where it is less, the trainer does more than it must.

Below it, the share of waiting for decisions and of checkpoints in a study of a recipe as it stands.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
    spread,
    summary,
)

RANKS = 2
AIM = 0.99
DECIDE_AIM = 0.01
WARM = 2  # milestones left out at the beginning of each run, on both sides


# --- autotune -----------------------------------------------------------------------------------


def autotune_side(task: Task) -> Answer:
    import autotune
    from trainers.image import train

    config = _config(task)
    space = autotune.SearchSpace({k: autotune.Fixed(v) for k, v in config.items()})
    moments: list[float] = []

    def watch(event: Any, _: object) -> None:
        if isinstance(event, autotune.trial.Reported):
            moments.append(time.monotonic())

    experiment = autotune.Experiment(
        "training-loop",
        train,
        space,
        autotune.Target("val_accuracy", 2.0, limit=3600.0),  # never reached
        scaling=autotune.Scaling(num_workers=RANKS),
        baseline={},
    )
    out = Path(task["folder"], "study")
    result = autotune.run(experiment, trials=1, out=out, seed=task["seed"], watch=watch)
    (trial,) = result.trials
    if trial.reason != "finished":
        raise RuntimeError(f"the trial ended as {trial.state}, {trial.reason}: {trial.error}")
    return _rates(trial, moments)


def _config(task: Task) -> dict[str, Any]:
    return {
        "data": "digits",
        "model": "resnet8",
        "width": task["width"],
        "optimizer": task["optimizer"],
        "lr": 0.05,
        "momentum": 0.9,
        "weight_decay": 5e-4,
        "batch_size": task["batch_size"],
        "milestone": task["milestone"],
        "horizon": float(task["epochs"]),
        "max_epochs": task["epochs"],
    }


def _rates(trial: Any, moments: list[float]) -> Answer:
    """Samples per second over the milestones after the first `WARM`, and each one's own."""
    first, last = trial.reports[WARM], trial.reports[-1]
    samples = last.step - first.step
    paused = last.clock.eval + last.clock.checkpoint - first.clock.eval - first.clock.checkpoint
    wall = moments[-1] - moments[WARM] - paused
    pairs = zip(trial.reports[WARM:], trial.reports[WARM + 1 :], strict=False)
    trained = last.clock.seconds("train") - first.clock.seconds("train")
    return {
        "training_clock": samples / trained,
        "wall_clock": samples / wall,
        "decide_share": (last.clock.decide - first.clock.decide) / trained,
        "stretches": [(b.step - a.step) / (b.seconds - a.seconds) for a, b in pairs],
    }


# --- by hand --------------------------------------------------------------------------------------


def on_ranks(side: str) -> Callable[[Task], Answer]:
    """A side that runs `side` on ranks of its own, each pinned as the study pins its ranks."""

    def start(task: Task) -> Answer:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        cores = sorted(os.sched_getaffinity(0))
        ranks = []
        for rank in range(RANKS):
            environment = {
                **os.environ,
                "CUDA_VISIBLE_DEVICES": "",  # as the study's ranks, which ask for no GPU
                "OMP_NUM_THREADS": "1",
                "MKL_NUM_THREADS": "1",
                "GLOO_SOCKET_IFNAME": "lo",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "RANK": str(rank),
                "WORLD_SIZE": str(RANKS),
            }
            answer = Path(task["folder"], f"rank-{rank}.json")
            command = [sys.executable, __file__, "--side", side, "--answer", str(answer)]
            own = json.dumps({**task, "core": cores[rank % len(cores)]})
            ranks.append(subprocess.Popen([*command, "--task", own], env=environment))
        if codes := [code for code in (process.wait() for process in ranks) if code]:
            raise RuntimeError(f"ranks ended with {codes}")
        found: Answer = json.loads(Path(task["folder"], "rank-0.json").read_text())
        return found

    return start


def plain_rank(task: Task) -> Answer:
    with _joined(task):
        return _plain(task)


def _plain(task: Task) -> Answer:
    moments = [(0, time.perf_counter())]
    moments += [(seen, time.perf_counter()) for seen in _plain_loop(task)]
    (before, begin), (after, end) = moments[WARM], moments[-1]
    rate = (after - before) / (end - begin)
    pairs = zip(moments[WARM:], moments[WARM + 1 :], strict=False)
    stretches = [(b[0] - a[0]) / (b[1] - a[1]) for a, b in pairs]
    return {"training_clock": rate, "wall_clock": rate, "stretches": stretches}


def paired_rank(task: Task) -> Answer:
    """A stretch of the trainer, a stretch of the loop by hand, and so on, in the same processes."""
    with _joined(task):
        return _in_turns(task)


def _in_turns(task: Task) -> Answer:
    import torch.distributed as dist

    from trainers.image import train

    sides = {"trainer": train({**_config(task), "seed": 0}), "plain": _plain_loop(task)}
    next(sides["trainer"])  # its set-up
    seconds: dict[str, list[float]] = {side: [] for side in sides}
    for turn in range(task["epochs"]):
        for side in sides if turn % 2 == 0 else reversed(sides):
            dist.barrier()
            begin = time.perf_counter()
            if next(sides[side], None) is None:
                return _paired(seconds)
            seconds[side].append(time.perf_counter() - begin)
    return _paired(seconds)


def _paired(seconds: dict[str, list[float]]) -> Answer:
    pairs = zip(seconds["plain"][WARM:], seconds["trainer"][WARM:], strict=False)
    return {"ratios": [plain / trainer for plain, trainer in pairs]}


@contextmanager
def _joined(task: Task) -> Iterator[None]:
    """In the group of all ranks, which is closed at the end: its threads may not outlive Python."""
    import torch

    from trainers.parallel.ranks import process_group

    os.sched_setaffinity(0, {task["core"]})
    torch.set_num_threads(1)
    with process_group():
        yield


def _plain_loop(task: Task) -> Iterator[int]:
    """Train, yielding the samples seen after every `milestone` of them."""
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F

    from trainers.data.images import read_images

    images = read_images("digits", None, torch.device("cpu"))
    x, y = images.train_x, images.train_y
    model = _model(images, task)
    optimizer = _optimizer(model.module, task["optimizer"])
    size, share = task["batch_size"], task["batch_size"] // RANKS
    mine = slice(dist.get_rank() * share, (dist.get_rank() + 1) * share)
    random = torch.Generator().manual_seed(0)
    seen, due = 0, task["milestone"]
    for _ in range(task["epochs"]):
        for batch in torch.randperm(len(y), generator=random).split(size)[: len(y) // size]:
            own = batch[mine]
            F.cross_entropy(model(x[own]), y[own]).backward()
            optimizer.step()
            optimizer.zero_grad()
            seen += size
            if seen >= due:
                due += task["milestone"]
                yield seen


def _model(images: Any, task: Task) -> Any:
    """The trainer's model, with DDP's options as the trainer sets them."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    from trainers.models.images import make_model
    from trainers.parallel.replicate import OWN_BUFFERS

    torch.manual_seed(0)
    model = make_model("resnet8", images.shape, images.classes, task["width"], "batch")
    return DistributedDataParallel(model, gradient_as_bucket_view=True, **OWN_BUFFERS)


def _optimizer(model: Any, name: str) -> Any:
    """torch's SGD with the settings that a person would give it; of the others, the trainer's."""
    import torch

    settings: dict[str, Any] = {"lr": 0.05, "momentum": 0.9, "weight_decay": 5e-4}
    if name == "sgd":
        return torch.optim.SGD(model.parameters(), **settings, fused=True)
    from trainers.optimizers import make_optimizer

    return make_optimizer(name, model, **settings)


# --- a recipe as it stands ------------------------------------------------------------------------


def recipe_side(task: Task) -> Answer:
    import autotune
    from autotune.study import recipes

    result = autotune.run(
        recipes.load(task["recipe"]),
        trials=task["trials"],
        out=Path(task["folder"], "study"),
        seed=task["seed"],
    )
    clocks = [trial.clock for trial in result.trials if trial.reports]
    train = sum(c.train + c.data for c in clocks)
    return {
        "train_seconds": train,
        "decide_share": sum(c.decide for c in clocks) / train,
        "checkpoint_share": sum(c.checkpoint for c in clocks) / train,
        "by_trial": [c.decide / (c.train + c.data) for c in clocks if c.train],
    }


SIDES: dict[str, Callable[[Task], Answer]] = {
    "autotune": autotune_side,
    "plain": on_ranks("plain-rank"),
    "paired": on_ranks("paired-rank"),
    "plain-rank": plain_rank,
    "paired-rank": paired_rank,
    "recipe": recipe_side,
}


def show(runs: dict[str, list[Answer]]) -> None:
    paired = [spread(answer["ratios"])[0] for answer in runs.pop("paired")]
    for clock in ("training_clock", "wall_clock"):
        rates = {side: [a[clock] for a in answers] for side, answers in runs.items()}
        print(clock.replace("_", " "))
        for side, values in rates.items():
            print(f"  {side:10} {summary(values, ' samples/s', 5)}")
        print(f"  autotune / plain  {summary(ratios(rates['autotune'], rates['plain']), '', 4)}")
        print(f"  aim: at least {AIM}")
    medians = {s: [spread(a["stretches"])[0] for a in runs[s]] for s in runs}
    steady = summary(ratios(medians["autotune"], medians["plain"]), "", 4)
    print(f"by each run's median stretch, training clock: {steady}")
    shares = [100 * a["decide_share"] for a in runs["autotune"]]
    print(f"waiting for decisions: {summary(shares, ' %')} of training")
    print(f"the trainer alone / plain, in turns in the same processes: {summary(paired, '', 4)}")


def show_recipe(name: str, answers: list[Answer]) -> None:
    print(
        f"{name}: {summary([a['train_seconds'] for a in answers], ' s')} of training in each study"
    )
    for key, aim in (
        ("decide_share", f" (aim: below {100 * DECIDE_AIM:g} %)"),
        ("checkpoint_share", ""),
    ):
        print(f"  {key.replace('_', ' '):18}{summary([100 * a[key] for a in answers], ' %')}{aim}")


def main() -> None:
    parser = arguments(__doc__, repeats=5)
    parser.add_argument("--epochs", type=int, help="of each run (80)")
    parser.add_argument("--batch-size", type=int, default=128, help="of both ranks together (128)")
    parser.add_argument(
        "--milestone", type=int, default=1536, help="samples between reports (1536)"
    )
    parser.add_argument("--width", type=int, default=32, help="of the residual network (32)")
    parser.add_argument("--optimizer", choices=("sgd", "lars"), default="sgd")
    parser.add_argument("--recipe", default="search_spaces.digits:lars")
    parser.add_argument("--trials", type=int, default=6, help="of the recipe's study (6)")
    options = parser.parse_args()
    about = introduce()
    keys = ("batch_size", "milestone", "width", "optimizer", "recipe", "trials")
    task = {key: getattr(options, key) for key in keys}
    task["epochs"] = options.epochs or (6 if options.quick else 80)
    print(", ".join(f"{k} {v}" for k, v in task.items()))
    repeats = repeats_of(options)
    runs: dict[str, list[Answer]] = {"autotune": [], "plain": [], "paired": []}
    for repeat, side in in_turns(list(runs), repeats):
        runs[side].append(measure(__file__, side, {**task, "seed": repeat}))
    show(dict(runs))
    studies = (
        [measure(__file__, "recipe", {**task, "seed": seed}) for seed in range(min(repeats, 3))]
        if not options.quick
        else []
    )
    if studies:
        show_recipe(options.recipe, studies)
    keep(options.json, about, task=task, runs=runs, recipe=studies)


if __name__ == "__main__" and not serve(SIDES, sys.argv[1:]):
    main()
