"""What checkpoints cost, as a share of training: beside it, in the loop, none.

    python benchmarks/checkpoints.py [--sizes 1 10 100] [--intervals 2 10] [--seconds 30]
        [--folder DIR] [--json FILE]

A perceptron with a state (parameters and momenta) of so many MB trains on one core in a rank as a
worker has it, and is asked for a checkpoint as often as the interval says.

    none      no checkpoints
    beside    as autotune saves: copied at the milestone, written by a thread while training goes on
    loop      written before training goes on, by the same code

All three make the same steps in turns. `held up` is the time for which training stood still, as the
trial's clock has it; `in all` is the wall time beyond that of `none`, which also has what the
thread takes from the core. `at 60 s` is the cost of one checkpoint (in all, by the shortest
interval) over the default interval of 60 s. With `--folder` checkpoints go to that disk; by default
to the temporary folder's.
"""

from __future__ import annotations

import os
import statistics
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
    repeats_of,
    serve,
    summary,
)

BATCH, LAYERS = 32, 4
MILESTONE_SECONDS = 0.1
DEFAULT_SECONDS = 60.0


def train(config: dict[str, Any]) -> Iterator[Any]:
    """A perceptron whose parameters and momenta take so many MB, on random numbers."""
    import torch
    from torch import nn

    from autotune.trial import Milestone

    width = round((config["mb"] * 1e6 / 8 / LAYERS) ** 0.5)
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(LAYERS)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, foreach=True)
    x, step = torch.randn(BATCH, width), 0

    def state() -> dict[str, Any]:
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    while True:
        yield Milestone(step * BATCH, dict, state)
        for _ in range(config["steps"]):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            step += 1


def _in_the_loop(save: Any) -> Any:
    def saving(state: dict[str, Any], folder: str, blocking: bool) -> None:
        save(state, folder, True)

    return saving


def side(task: Task) -> Answer:
    """Train for so many milestones, with a checkpoint whenever the interval has passed."""
    import cloudpickle
    import torch

    from autotune.backends.protocol import Launch
    from autotune.backends.worker.messages import Rendezvous
    from autotune.backends.worker.rank import Rank
    from autotune.trial import Clock

    torch.set_num_threads(1)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    rank = Rank(cloudpickle.dumps(train), sys.path, 0, 1)
    rank.place("here", "127.0.0.1", 1)
    rank.join("127.0.0.1", rank.serve("127.0.0.1"), Rendezvous(False, 0, 600.0))
    if task["how"] == "loop":
        writer = rank._writer()
        writer.save = _in_the_loop(writer.save)  # type: ignore[method-assign]
    rank.start(Launch(0, {"mb": task["mb"], "steps": task["steps"]}, 0))
    rank.resume(None, None)  # what is slow once
    place = Path(task.get("place") or task["folder"], f"checkpoints-{os.getpid()}")
    clock, saved_at, written, least = Clock(), 0.0, 0, float("inf")
    begin = time.perf_counter()
    for number in range(task["milestones"]):
        due = task["how"] != "none" and clock.train - saved_at >= task["interval"]
        folder = str(place / f"step-{number % 2}") if due else None
        saved_at = clock.train if due else saved_at
        answer = rank.resume(None, folder)
        if answer.kind != "milestone" or answer.save_error:
            raise RuntimeError(f"{answer.kind}: {answer.error or answer.save_error}")
        clock, written = clock + answer.clock, written + (answer.saved is not None)
        least = min(least, answer.clock.train)
    wall = time.perf_counter() - begin
    rank.stop(None)
    if task["how"] != "none" and not written:
        raise RuntimeError(f"no checkpoint in {clock.train:.2g} s of training: raise --seconds")
    file = next(iter(place.glob("*/rank-0.pt")), None)
    size = file.stat().st_size / 1e6 if file is not None else 0.0
    for old in place.glob("*/*"):
        old.unlink()
    return {"wall": wall, "train": clock.train, "held": clock.checkpoint, "written": written,
            "least": least, "mb": size}  # fmt: skip


def steps_of(mb: float) -> tuple[int, float]:
    """Steps of a milestone of about a tenth of a second, and how long such a one takes."""
    task = {"mb": mb, "steps": 1, "milestones": 20, "how": "none", "interval": 0.0}
    second = measure(__file__, "side", task)["least"]
    return max(1, round(MILESTONE_SECONDS / second)), max(second, MILESTONE_SECONDS)


def show(mb: float, interval: float, runs: dict[str, list[Answer]], first: bool) -> None:
    """One line for each way to save."""
    for how in ("beside", "loop"):
        held = [100 * r["held"] / r["train"] for r in runs[how]]
        both = list(zip(runs[how], runs["none"], strict=True))
        more = [100 * (r["wall"] / none["wall"] - 1) for r, none in both]
        each = [(r["wall"] - none["wall"]) / max(r["written"], 1) for r, none in both]
        usual = (
            f"; at {DEFAULT_SECONDS:g} s: {100 * statistics.median(each) / DEFAULT_SECONDS:.2g} %"
        )
        print(
            f"  {mb:g} MB every {interval:g} s, {how:6}: held up {summary(held, ' %')}, in all "
            f"{summary(more, ' %')}, {runs[how][0]['written']} written{usual if first else ''}",
            flush=True,
        )


def main() -> None:
    parser = arguments(__doc__, repeats=3)
    parser.add_argument("--sizes", type=float, nargs="+", default=[1, 10, 100], help="MB")
    parser.add_argument("--intervals", type=float, nargs="+", default=[2, 10], help="seconds")
    parser.add_argument("--seconds", type=float, default=30, help="of training in each run")
    parser.add_argument("--folder", type=Path, help="where checkpoints are written")
    options = parser.parse_args()
    if options.quick:
        options.sizes, options.intervals, options.seconds = [8], [0.2], 1
    about, raw = introduce(), []
    for mb in options.sizes:
        steps, seconds = steps_of(mb)
        milestones = max(2, round(options.seconds / seconds))
        for number, interval in enumerate(sorted(options.intervals)):
            task = {"mb": mb, "steps": steps, "milestones": milestones, "interval": interval}
            task["place"] = str(options.folder.absolute()) if options.folder else None
            runs: dict[str, list[Answer]] = {"none": [], "beside": [], "loop": []}
            for repeat, how in in_turns(list(runs), repeats_of(options)):
                found = measure(__file__, "side", {**task, "how": how})
                runs[how].append(found)
                raw.append({**task, "how": how, "repeat": repeat, **found})
            show(mb, interval, runs, number == 0)
    keep(options.json, about, runs=raw)


if __name__ == "__main__":
    made: dict[str, Side] = {"side": side}
    if not serve(made, sys.argv[1:]):
        main()
