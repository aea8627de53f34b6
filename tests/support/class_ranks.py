"""What ranks of a gloo group do with divided classes, each of them in one go."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from autotune.backends.worker.sharded_tensors import assemble, encode_shards
from trainers import retrieval
from trainers.data.stream import NO_LABEL
from trainers.models.recognition import Classes, Margin
from trainers.parallel.classes import rows_of
from trainers.parallel.ranks import Ranks
from trainers.parallel.rows import RowsUpdate
from trainers.parallel.states import whole
from trainers.recall import recall_at_1

CPU = torch.device("cpu")
WIDTH = 6
MANY = 100_000
MARGINS = (
    Margin("none", 0.0, 16.0),
    Margin("cosface", 0.35, 16.0),
    Margin("arcface", 0.5, 16.0),
    Margin("arcface", 1.4, 8.0),
)
CASES = [(margin, count) for margin in MARGINS for count in (11, 12)] + [
    (Margin("arcface", 0.5, 64.0), MANY)
]
"""Margins, and numbers of classes that two ranks divide evenly or not."""

TRAINED: dict[str, Any] = {
    "data": "identities",
    "identities": 51,
    "unseen": 11,
    "samples_per_identity": 5,
    "width": 16,
    "features": 8,
    "batch_size": 16,
    "milestone": 16,
    "lr": 0.05,
    "weight_decay": 0.01,
    "margin_scale": 16.0,
}
UNEVEN = {"batch_size": 15, "gradient_accumulation_steps": 2}
PLANS: dict[str, dict[str, Any]] = {
    "copies": {"data_parallel_replicate_degree": 2},
    "uneven, accumulated": UNEVEN,
    "buckets, cosface": {"bucket_cap_mb": 0.001, "margin": "cosface"},
    "static graph, no margin": {"static_graph": True, "margin": "none"},
    "hierarchical, adamw": {
        "all_reduce_topology": "hierarchical",
        "optimizer": "adamw",
        "lr": 0.01,
        "eps": 0.001,
    },
    "recomputed, resnet8": {
        **UNEVEN,
        "activation_checkpoint_mode": "selective",
        "model": "resnet8",
        "norm": "group",
        "width": 4,
    },
    "for-loop, nadamw": {
        "optimizer": "nadamw",
        "lr": 0.01,
        "eps": 0.001,
        "optimizer_implementation": "for-loop",
    },
}
MOVED = ("copies", "hierarchical, adamw")
"""Those whose states are read by two ranks and by one."""
STEPS, SAVED = 5, 2


def problem(count: int, samples: int = 7, dtype: Any = torch.float64) -> tuple[Tensor, ...]:
    """Features, labels and the directions of all classes; the same everywhere."""
    random = torch.Generator().manual_seed(count)
    x = torch.nn.functional.normalize(
        torch.randn(samples, WIDTH, generator=random, dtype=torch.float64)
    )
    y = torch.randint(0, count, (samples,), generator=random)
    weight = torch.randn(count, WIDTH, generator=random, dtype=torch.float64)
    return x.to(dtype), y, weight.to(dtype)


def compared(
    ranks: Ranks, margin: Margin, count: int, chosen: Tensor | None = None, **more: Any
) -> dict[str, Any]:
    """Loss and gradients of this rank's samples, of which it has one more or less than others.

    Args:
        chosen: of all classes, those that are compared with; None: as `rate` says.
        more: `rate` and `dtype`.
    """
    x, y, weight = problem(count, dtype=more.get("dtype", torch.float64))
    start, stop = ranks.share(0, len(y))
    x, y = x[start:stop].clone().requires_grad_(), y[start:stop]
    rate = more.get("rate", 1.0)
    head = Classes(count, WIDTH, ranks, margin, lambda progress: rate, 3)
    first, last = rows_of(count, ranks.rank, ranks.size)
    head.weight = torch.nn.Parameter(weight[first:last].clone())
    seen: list[Tensor] = []
    choose = head._chosen

    def choosing(targets: Tensor) -> Tensor | None:
        found = choose(targets) if chosen is None else chosen
        if found is not None:
            assert {*targets[targets >= 0].tolist()} <= {*found.tolist()}
            seen.append(first + found)
        return found

    head._chosen = choosing  # type: ignore[method-assign]
    loss = head.loss(x, y, 0.0, "sum")
    loss.backward()  # type: ignore[no-untyped-call]
    assert head.weight.grad is not None
    with torch.no_grad():
        judged = head.judged(x, y)
    return {
        "loss": loss.item(),
        "x": x.grad,
        "weight": head.weight.grad,
        "judged": judged,
        "chosen": seen,
        "bytes": head.weight.nbytes + head.weight.grad.nbytes,
    }


def formulas(rank: int) -> list[dict[str, Any]]:
    ranks = Ranks(rank, dist.get_world_size(), CPU)
    return [compared(ranks, *case) for case in CASES]


def samplings(rank: int) -> list[dict[str, Any]]:
    ranks = Ranks(rank, dist.get_world_size(), CPU)
    return [compared(ranks, MARGINS[2], 101, rate=rate) for rate in (0.02, 0.3, 0.3, 1.0)]


def unlabelled(rank: int) -> dict[str, Any]:
    """A rank with samples that have no label: they count for nothing."""
    ranks = Ranks(rank, dist.get_world_size(), CPU)
    x, y, weight = problem(12)
    if rank == 1:
        y = torch.full_like(y, NO_LABEL)
    head = Classes(12, WIDTH, ranks, MARGINS[2], lambda progress: 1.0, 0)
    first, last = rows_of(12, rank, ranks.size)
    head.weight = torch.nn.Parameter(weight[first:last].clone())
    loss = head.loss(x.requires_grad_(), y, 0.0, "sum")
    loss.backward()  # type: ignore[no-untyped-call]
    with torch.no_grad():
        judged = head.judged(x, y)
    return {"loss": loss.item(), "x": x.grad, "weight": head.weight.grad, "judged": judged}


class Scaler:
    """Leaves out a step as torch's scaler does: where a gradient of this rank is not finite."""

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"]]
        if all(bool(g.isfinite().all()) for g in gradients):
            optimizer.step()

    def update(self) -> None: ...


def overflowing(rank: int) -> list[bool]:
    """Whether this rank has made its step, where the first one's gradients overflow or not."""
    ranks, found = Ranks(rank, dist.get_world_size(), CPU), []
    for value in (torch.inf, torch.nan, 1.0):
        head = Classes(12, WIDTH, ranks, MARGINS[0], lambda progress: 1.0, 0)
        before, optimizer = head.weight.detach().clone(), torch.optim.SGD(head.parameters(), 0.1)
        head.weight.grad = torch.ones_like(head.weight)
        if rank == 0:
            head.weight.grad[1, 2] = value
        RowsUpdate(head).step(optimizer, Scaler())  # type: ignore[arg-type]
        found.append(not torch.equal(before, head.weight))
    return found


def found_again(rank: int) -> float:
    ranks = Ranks(rank, dist.get_world_size(), CPU)
    x, y, _ = problem(3, 21, torch.float32)
    start, stop = ranks.share(0, len(y))
    return recall_at_1(x[start:stop], y[start:stop], ranks)


def steps(plan: dict[str, Any], states: Sequence[Any] | None = None) -> dict[str, Any]:
    """Train `STEPS` steps, a milestone each, and show them as whole tensors.

    Args:
        states: of all ranks after `SAVED` steps, to make the other steps from.
    """
    config = {**TRAINED, **plan}
    config["milestone"] = config["batch_size"]
    if states is not None:
        own = dist.get_rank() if dist.is_initialized() else 0
        load: Callable[[int, str], Any] = lambda file, device: states[file]  # noqa: E731
        config["state"] = assemble(states[own % len(states)], load, len(states))
    trainer = retrieval.train(config)
    milestone = next(trainer)
    learner = milestone.evaluate.__self__._learner  # type: ignore[attr-defined]
    found: dict[str, Any] = {"begun": _whole(milestone.state()), "metrics": [milestone.evaluate()]}
    for step in range(0 if states is None else SAVED, STEPS):
        milestone = next(trainer)
        found["metrics"].append(milestone.evaluate())
        if step + 1 == SAVED:
            state = milestone.state()
            found |= {"saved": _whole(state), "state": copy.deepcopy(encode_shards(state))}
    found["ended"] = _whole(milestone.state())
    head = learner.model.classes.weight
    kept = learner.optimizer.state[head].values()
    found["bytes"] = head.nbytes + sum(v.nbytes for v in kept if v.shape == head.shape)
    trainer.close()
    return found


def _whole(state: Any) -> dict[str, Tensor]:
    """Weights by their names, and what the optimizer keeps of each parameter."""
    kept = state["learner"]["optimizer"]["state"]
    found = dict(state["learner"]["model"]) | {
        f"{index} {name}": value
        for index, values in kept.items()
        for name, value in values.items()
        if isinstance(value, torch.Tensor)
    }
    return {name: whole(value).detach().clone() for name, value in found.items()}


def trainings(rank: int, plans: dict[str, dict[str, Any]], alone: list[Any]) -> dict[str, Any]:
    """Trainings under all plans, and from states of two ranks and of one."""
    found: dict[str, Any] = {name: steps(plan) for name, plan in plans.items()}
    for name in MOVED:
        both = [None] * dist.get_world_size()
        dist.all_gather_object(both, found[name]["state"])
        found[f"again: {name}"] = steps(plans[name], copy.deepcopy(both))
        found[name]["states"] = both
    found["from one"] = steps(plans["copies"], alone)
    return found


def everything(rank: int, plans: dict[str, dict[str, Any]], alone: bytes) -> bytes:
    """All of this file on one rank: ranks are started once.

    As bytes: torch would share the memory of each tensor with the process that asks.
    """
    found = {
        "formulas": formulas(rank),
        "samplings": samplings(rank),
        "unlabelled": unlabelled(rank),
        "overflow": overflowing(rank),
        "recall": found_again(rank),
        "trainings": trainings(rank, plans, pickle.loads(alone)),
        "sampled": [steps({"class_sample_rate": 0.4}) for _ in range(2)],
        "bf16": steps({"precision": "bf16"}),
    }
    return pickle.dumps(found)
