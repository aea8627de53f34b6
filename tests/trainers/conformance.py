"""Ranks of real gloo groups that train a few steps and show every gradient.

Run as a program by `test_conformance.py`, which also calls `steps` in its own process.
"""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from contextlib import suppress
from functools import partial
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import compressing
import torch
import torch.distributed as dist
import torch.distributed.nn.functional as functional
from torch.nn.parallel import DistributedDataParallel

from autotune.backends.worker.sharded_tensors import assemble, encode_shards
from trainers import image, language
from trainers.models.gpt import GPT
from trainers.parallel import topology
from trainers.parallel.context import gathered
from trainers.parallel.matrices import divide
from trainers.parallel.mesh import opened
from trainers.parallel.ranks import Ranks
from trainers.parallel.states import whole

STEPS, SAVED = 5, 2
COMPILE = torch.compile
COMMON = {"optimizer": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 0.01, "horizon": 100}
TEXT = {
    **COMMON,
    "text": "synthetic",
    "layers": 3,
    "width": 16,
    "heads": 2,
    "sequence_length": 16,
    "train_size": 9000,
    "val_size": 200,
    "batch_size": 8,
}
IMAGES = {
    **COMMON,
    "data": "digits",
    "model": "resnet8",
    "width": 4,
    "norm": "group",
    "val_size": 64,
    "batch_size": 16,
}
LARGER = {
    **{key: value for key, value in IMAGES.items() if key not in ("width", "norm")},
    "data": "synthetic",
    "image_size": 32,
    "train_size": 256,
    "lr": 0.01,
}
TASKS = {
    "text": (language.train, TEXT),
    "images": (image.train, IMAGES),
    "transformers": (language.train, {**TEXT, "model": "transformers:gpt2"}),
    "timm": (image.train, {**LARGER, "model": "timm:test_vit"}),
    "torchvision": (image.train, {**LARGER, "model": "torchvision:squeezenet1_1"}),
}
USED = (
    "torch._dynamo",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "torch.distributed.tensor.parallel",
)
"""What plans import when they are made: by one process rather than by every rank."""


def steps(task: str, plan: dict[str, Any], states: list[Any] | None = None) -> dict[str, Any]:
    """Train `STEPS` steps, a milestone each, and show them as whole tensors on the host.

    Args:
        plan: its keys, and others that differ from the task's; None takes one away.
        states: of all ranks after `SAVED` steps, to make the other steps from.
    """
    if plan.get("compile"):  # the graphs are what may be wrong; their kernels take half a minute
        torch.compile = partial(COMPILE, backend="aot_eager")
    train, config = TASKS[task]
    config = {key: value for key, value in {**config, **plan}.items() if value is not None}
    config["milestone"] = config["batch_size"] * config.get("sequence_length", 1)
    if states is not None:
        config["state"] = _mine(states)
    trainer = train(config)
    found: dict[str, Any] = {"losses": [], "gradients": []}
    milestone = next(trainer)
    learner = milestone.evaluate.__self__._learner
    learner.statistics.before = lambda scaler: found["gradients"].append(
        [
            None if p.grad is None else _unscaled(_flat(p.grad), scaler)
            for p in learner.model.parameters()
        ]
    )
    found["begun"] = _whole(milestone.state())
    found["val_loss"] = [milestone.evaluate()["val_loss"]]
    for step in range(0 if states is None else SAVED, STEPS):
        milestone = next(trainer)
        metrics = milestone.evaluate()
        found["losses"].append(metrics["train_loss"])
        found["val_loss"].append(metrics["val_loss"])
        if step + 1 == SAVED:
            state = milestone.state()
            found |= {"saved": _whole(state), "state": _copy(encode_shards(state))}
    found["ended"] = _whole(milestone.state())
    trainer.close()
    return found


def _unscaled(gradient: torch.Tensor, scaler: torch.amp.GradScaler | None) -> torch.Tensor:
    found = gradient.cpu().clone()
    return found if scaler is None else found / scaler.get_scale()


def _mine(states: list[Any]) -> Any:
    """This rank's state, as a worker reads it from the files of all."""
    rank = dist.get_rank() if dist.is_initialized() else 0
    return assemble(states[rank % len(states)], lambda file, device: states[file], len(states))


def _whole(state: Any) -> dict[str, Any]:
    """Weights by their names, and what the optimizer keeps of each parameter."""
    model = {k: _flat(v) for k, v in state["learner"]["model"].items()}
    kept = state["learner"]["optimizer"]["state"]
    momenta = {
        f"{index} {name}": _flat(value)
        for index, values in kept.items()
        for name, value in values.items()
        if isinstance(value, torch.Tensor)
    }
    return {**model, **momenta}


def _flat(value: torch.Tensor) -> torch.Tensor:
    """The whole tensor; queries, keys and values as the one matrix that they are on one rank."""
    found = whole(value).detach().cpu().clone()
    return found.flatten(0, 1) if found.ndim == 3 else found


def gathered_gradients(ours: bool) -> dict[str, Any]:
    """A gradient that comes back through an all-gather as a transposed matrix, and what it is."""
    rank, size = dist.get_rank(), dist.get_world_size()
    x = torch.zeros(3, 2, requires_grad=True)
    ranks = Ranks(rank, size, torch.device("cpu"), dist.group.WORLD)
    factors = torch.arange(6.0 * size * size).view(size, size, 2, 3)
    if ours:
        (gathered(x, ranks).transpose(1, 2) * factors[rank]).sum().backward()
    else:
        parts = functional.all_gather(x, group=dist.group.WORLD)
        sum((p.t() * part).sum() for p, part in zip(parts, factors[rank], strict=True)).backward()
    return {"found": x.grad, "wanted": factors[:, rank].sum(0).t().contiguous()}


def mixed_tensors() -> dict[str, Any]:
    """What torch says to a list of tensors of two kinds, and the kinds in a divided model."""
    mesh = opened("cpu", {"tp": dist.get_world_size()})
    model = GPT(11, 2, width=16, heads=2)
    weights = [*model.parameters()]
    divide(model, mesh, in_parts=True)
    found = [*model.parameters()]
    try:
        torch._foreach_norm([found[0], weights[-1]])
        said = ""
    except RuntimeError as error:
        said = str(error)
    kinds = {(type(p.data).__name__, p.device_mesh == mesh) for p in found}
    return {"said": said, "kinds": kinds, "placements": [str(p.placements[0]) for p in found]}


def hooks() -> list[str]:
    """What DDP says to our communication hook, and to one whose parameter has another name."""
    said = []
    for hook in (topology.hook, lambda state, gradients: topology.hook(state, gradients)):
        network = DistributedDataParallel(torch.nn.Linear(2, 2))
        try:
            network.register_comm_hook(None, hook)
            said.append("")
        except Exception as error:
            said.append(repr(error))
    return said


def _copy(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().cpu().clone()
    if isinstance(value, dict):
        return {k: _copy(v) for k, v in value.items()}
    return [_copy(v) for v in value] if isinstance(value, list) else value


def averaged(*given: Any) -> dict[str, Any]:
    """Steps of `averaged_steps`."""
    sys.path.append(str(Path(__file__).parents[1] / "support"))
    from averaged_steps import taken

    return taken(*given)


def differences(name: str) -> list[float]:
    """Between what ranks had and what they have sent and kept."""
    ranks = Ranks(dist.get_rank(), dist.get_world_size(), torch.device("cpu"))
    return compressing.differences(name, ranks)


OTHERS = {
    "averaged": averaged,
    "gathered": gathered_gradients,
    "mixed": mixed_tensors,
    "hooks": hooks,
    "differences": differences,
}


def _rank(asked: Connection, rank: int, size: int, port: int) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "LOCAL_RANK": str(rank)}
    dist.init_process_group("gloo", rank=rank, world_size=size)
    while (arguments := pickle.loads(asked.recv_bytes())) is not None:
        try:
            name, *given = arguments
            answer = OTHERS[name](*given) if name in OTHERS else steps(*arguments)
        except Exception:  # the next plan may work
            answer = {"error": traceback.format_exc()}
        asked.send_bytes(pickle.dumps(answer))
    dist.destroy_process_group()


def _started(size: int, port: int) -> list[tuple[BaseProcess, Connection]]:
    """Ranks as copies of this process, which has imported all that they need."""
    context, found = get_context("fork"), []
    for rank in range(size):
        ours, theirs = context.Pipe()
        process = context.Process(target=_rank, args=(theirs, rank, size, port), daemon=True)
        process.start()
        found.append((process, ours))
    return found


def main() -> None:
    """Answer what is asked of so many ranks; they are started when they are first needed."""
    torch.set_num_threads(1)
    for name in USED:
        import_module(name)
    for task in ("text", "images"):  # which also makes and reads the data, for all ranks
        steps(task, {})
    answers, sys.stdout = sys.stdout.buffer, sys.stderr
    started: dict[int, list[tuple[BaseProcess, Connection]]] = {}
    with suppress(EOFError):
        while True:
            size, port, arguments = pickle.load(sys.stdin.buffer)
            if size not in started:
                started[size] = _started(size, port)
            for _, rank in started[size]:
                rank.send_bytes(pickle.dumps(arguments))
            pickle.dump([rank.recv_bytes() for _, rank in started[size]], answers)
            answers.flush()
    for process, rank in [one for ranks in started.values() for one in ranks]:
        rank.send_bytes(pickle.dumps(None))
        process.join()
        assert process.exitcode == 0


if __name__ == "__main__":
    main()
