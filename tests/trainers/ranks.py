"""Two ranks of a real gloo group: the first reads jobs from its parent, writes what both recorded.

Run as a program by `conftest.py`; `record` is also called there in the parent's own process.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import os
import pickle
import sys
import weakref
from collections.abc import Iterator
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import compressing
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

from autotune.trial import Change
from trainers import image, language
from trainers.data.stream import MemoryStream
from trainers.memory import measure

sys.path.append(str(Path(__file__).parents[1] / "support"))
FAST = {"data": "digits", "lr": 0.1, "batch_size": 32, "horizon": 2, "milestone": 300}
FAST_TEXT = {
    "optimizer": "adamw",
    "lr": 3e-3,
    "batch_size": 8,
    "milestone": 1024,
    "layers": 1,
    "width": 16,
    "heads": 2,
    "sequence_length": 32,
    "train_size": 9000,
    "val_size": 1000,
}


def record(
    config: dict[str, Any],
    milestones: int,
    *,
    changes: dict[int, Change] | None = None,
    evaluations: int = 1,
    save_at: int | None = None,
    restore: list[dict[str, Any]] | None = None,
    full: int | None = None,
    full_in: str = "loss",
    peak: bool = False,
    done: bool = False,
    by_hand: bool = False,
    sent: bool = False,
) -> dict[str, Any]:
    """Train for so many milestones after the first; what was yielded, and the state at the end.

    A configuration with a `text` is the language trainer's. `restore` holds the state of every
    rank. On the rank `full` the first loss, or the first batch, finds no memory (`full_in`). With
    `peak` it is only found how many bytes the training of a text needs. With `done` the metrics are
    futures, which are awaited. With `by_hand` they are steps of `averaged_steps`. With `sent` it is
    found how many bytes were given to collectives in steps; the first milestones are a step each.
    """
    if by_hand:
        from averaged_steps import taken

        return taken(config, milestones)
    if peak:
        return {"peak": measure.peak(language.train, config, milestones)}
    if full is not None:
        with out_of_memory(full, full_in):
            return record(config, milestones)
    state = {} if restore is None else {"state": restore[dist.get_rank()]}
    if sent:
        return bytes_sent(config, milestones)
    if "text" in config:
        trainer = language.train({**FAST_TEXT, **config, **state})
    else:
        trainer = image.train({**FAST, **config, **state})
    found: dict[str, Any] = {"steps": [], "metrics": [], "state": None}
    change = None
    try:
        for number in range(milestones + 1):
            milestone = trainer.send(change)
            found["steps"].append(milestone.step)
            for _ in range(evaluations):
                metrics = milestone.evaluate()
            if evaluations:
                found["metrics"].append(metrics.result() if done else metrics)
            if number == save_at:
                found["state"] = copy.deepcopy(milestone.state())
            change = (changes or {}).get(number)
        found["final"] = milestone.state()
        network = weakref.ref(milestone.evaluate.__self__._learner.parallel.network)
    except StopIteration:
        pass
    finally:
        trainer.close()
    if "final" in found:
        gc.collect()
        found["freed"] = network() is None
    return found


def bytes_sent(config: dict[str, Any], steps: int) -> dict[str, Any]:
    """The bytes that this rank gives to collectives in each of so many steps, and around them."""
    trainer = language.train({**FAST_TEXT, **config})
    with compressing.counted() as warmed:
        learner = next(trainer).evaluate.__self__._learner
    words = learner.model.embedding.num_embeddings
    found: dict[str, Any] = {"sent": [], "warmed": sum(warmed), "words": words}
    step = learner.step

    def counted(*given: Any) -> None:
        with compressing.counted() as sizes:
            step(*given)
        found["sent"].append(sum(sizes))

    learner.step = counted
    with compressing.counted() as trained:
        for _ in range(steps):
            milestone = next(trainer)
    with compressing.counted() as evaluated:
        milestone.evaluate()
    trainer.close()
    return found | {"trained": sum(trained), "evaluated": sum(evaluated)}


@contextlib.contextmanager
def out_of_memory(on: int, place: str) -> Iterator[None]:
    """A loss or a batch raises what torch does on a full GPU, on one of the ranks.

    From then on that rank can make no tensor at all.
    """
    owner, name = {"loss": (F, "cross_entropy"), "batch": (MemoryStream, "warm")}[place]

    with pytest.MonkeyPatch.context() as patch:
        real = getattr(owner, name)

        def no_memory(*given: Any, **named: Any) -> Any:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB")

        def full(*given: Any, **named: Any) -> Any:
            if dist.get_rank() != on:
                return real(*given, **named)
            for maker in ("tensor", "ones", "zeros", "empty", "full"):
                patch.setattr(torch, maker, no_memory)
            return no_memory()

        patch.setattr(owner, name, full)
        yield


def answer(arguments: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
    import click_ranks  # beside this program

    try:
        recorder = click_ranks.record if click_ranks.is_own(arguments[0]) else record
        return recorder(*arguments, **named)
    except (ValueError, RuntimeError) as error:
        return {"error": str(error), "on_all_ranks": getattr(error, "on_all_ranks", "")}


def joined(rank: int) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    dist.init_process_group("gloo")


def second(asked: Connection, other: Connection) -> None:
    """Answer as the second rank what the first one passes on, until that has ended."""
    other.close()  # or it would not be seen to end
    joined(1)
    with contextlib.suppress(EOFError):
        while True:
            asked.send_bytes(pickle.dumps(answer(*pickle.loads(asked.recv_bytes()))))
    dist.destroy_process_group()


def asked() -> Any:
    """The next job; None once there are no more."""
    with contextlib.suppress(EOFError):
        return pickle.load(sys.stdin.buffer)
    return None


def main() -> None:
    """The second rank is a copy of this process, which has imported and read what both need."""
    torch.set_num_threads(1)
    answers, sys.stdout = sys.stdout.buffer, sys.stderr
    for task in ({"model": "mlp"}, {"text": "synthetic"}):
        record(task, 0)
    context = get_context("fork")
    ours, theirs = context.Pipe()
    other = context.Process(target=second, args=(theirs, ours), daemon=True)
    other.start()
    theirs.close()
    joined(0)
    while (job := asked()) is not None:
        ours.send_bytes(pickle.dumps(job))
        pickle.dump([answer(*job), pickle.loads(ours.recv_bytes())], answers)
        answers.flush()
    dist.destroy_process_group()
    ours.close()
    other.join()
    assert other.exitcode == 0


if __name__ == "__main__":
    main()
