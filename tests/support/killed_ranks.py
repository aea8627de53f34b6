"""Two ranks that save at every milestone, are killed at random moments, and go on.

Run as a program: `killed_ranks.py FOLDER KEYS`, with the keys of a configuration in JSON. FOLDER
then has the states of a training that was killed (`killed/`) and of one that was not (`whole/`),
and the line that is printed says from which milestones it went on, and which was the last.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from trainers import language

STEPS, TOKENS, RANKS = 2, 8 * 16, 2
"""Steps between milestones, tokens of a step, and ranks."""
CONFIG = {
    "text": "synthetic",
    "lr": 0.05,
    "layers": 1,
    "width": 8,
    "heads": 2,
    "batch_size": 8,
    "sequence_length": 16,
    "train_size": 9000,
    "val_size": 100,
    "milestone": STEPS * TOKENS,
}
_KILLS, _LEAST, _MORE = 2, 1, 6


def file(folder: Path, milestone: int, rank: int) -> Path:
    return folder / f"{milestone}-{rank}.pt"


def newest(folder: Path) -> int:
    """The last milestone whose state all ranks have written; 0 if there is none."""
    found = {int(path.stem.partition("-")[0]) for path in folder.glob("*-?.pt")}
    there = [m for m in found if all(file(folder, m, r).exists() for r in range(RANKS))]
    return max(there, default=0)


def _rank(
    folder: Path, keys: dict[str, Any], rank: int, store: Path, first: int, last: int | None
) -> None:
    """Train from one milestone to another, or on and on."""
    torch.set_num_threads(1)
    os.environ["LOCAL_RANK"] = str(rank)
    dist.init_process_group("gloo", f"file://{store}", rank=rank, world_size=RANKS)
    before = file(folder, first, rank)
    state = {"state": torch.load(before, weights_only=True)} if first else {}
    trainer = language.train({**CONFIG, **keys, **state})
    for milestone in trainer:
        number = milestone.step // (STEPS * TOKENS)
        part = folder / f"part-{rank}"
        torch.save(milestone.state(), part)
        if number > first:
            part.rename(file(folder, number, rank))
        if number == last:
            break
    trainer.close()
    dist.destroy_process_group()


def _started(
    folder: Path, keys: dict[str, Any], first: int, last: int | None = None
) -> list[BaseProcess]:
    folder.mkdir(exist_ok=True)
    store = folder / f"store-{first}-{time.monotonic_ns()}"
    context = get_context("fork")
    found: list[BaseProcess] = []
    for rank in range(RANKS):
        arguments = folder, keys, rank, store, first, last
        found.append(context.Process(target=_rank, args=arguments, daemon=True))
        found[-1].start()
    return found


def _ended(ranks: list[BaseProcess]) -> None:
    for rank in ranks:
        rank.join()
        assert rank.exitcode == 0, rank.exitcode


def main() -> None:
    import torch._dynamo  # by one process rather than by every rank, whose optimizer does

    assert torch._dynamo
    folder, keys = Path(sys.argv[1]), json.loads(sys.argv[2])
    chance = random.Random(repr(sorted(keys.items())))
    killed, first, resumed = folder / "killed", 0, []
    for _ in range(_KILLS):
        ranks = _started(killed, keys, first)
        while newest(killed) < first + chance.randint(_LEAST, _MORE):
            assert all(rank.is_alive() for rank in ranks)
            time.sleep(0.01)
        time.sleep(chance.uniform(0.0, 0.1))
        for rank in chance.sample(ranks, len(ranks)):
            rank.kill()
            time.sleep(chance.uniform(0.0, 0.05))
        for rank in ranks:
            rank.join()
        first = newest(killed)
        resumed.append(first)
    last = first + _MORE
    _ended(_started(killed, keys, first, last))
    _ended(_started(folder / "whole", keys, 0, last))
    print(json.dumps({"resumed": resumed, "last": last}))


if __name__ == "__main__":
    main()
