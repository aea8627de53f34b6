"""Process groups: NCCL with one rank; with two GPUs DDP, FSDP2, and a rank out of memory."""

from __future__ import annotations

import concurrent.futures
import time
from collections.abc import Iterator

import torch

from autotune.backends.worker.checkpoint_io import all_ranks
from gpu_stages.correctness import Config, images, words
from gpu_stages.findings import Finding, Run, checked, close, measured, not_run
from gpu_stages.processes import Group, group
from gpu_stages.ranks import warm_up_without_memory
from gpu_stages.toys import by_name


def one_rank(run: Run) -> Iterator[Finding]:
    """A group of one rank reduces over NCCL, as a trial of one worker does."""
    with group(by_name, 1, run.gpus) as ranks:
        ranks.start({"trainer": "reduces"})
        (answer,) = ranks("resume", None, None)
        right = answer.metrics == {"sum": 4.0}
        yield checked("a sum over one rank", right, answer.error[-500:] or str(answer.metrics))
        ranks("stop", None)
        (again,) = ranks.start({"trainer": "reduces"})
        yield checked("again in the next trial", again.kind == "milestone", again.error[-500:])


def shared(run: Run) -> Iterator[Finding]:
    """Two ranks share one GPU, which NCCL refuses: they reduce with gloo."""
    with group(by_name, 2, run.gpus / 2) as ranks:
        ranks.start({"trainer": "reduces"})
        answers = ranks("resume", None, None)
        sums = [(a.metrics or {}).get("sum") for a in answers]
        text = "; ".join(a.error[-300:] for a in answers if a.error) or str(sums)
        yield checked("two ranks on one GPU reduce", sums == [8.0, 8.0], text)
    config = words(run, optimizer="adamw", lr=1e-3, sharding="full")
    config["milestone"] = 2 * config["batch_size"] * config["sequence_length"]
    with group(by_name, 2, run.gpus / 2) as ranks:
        ranks.start({**config, "trainer": "language"})
        answers = ranks("resume", None, None)
        fine = all(a.kind == "milestone" for a in answers)
        text = "; ".join(a.error[-300:] for a in answers if a.error)
        yield checked("a model sharded over them trains", fine, text)


CLASSES: Config = {
    "data": "identities",
    "identities": 1001,
    "lr": 0.05,
    "batch_size": 128,
    "milestone": 256,
    "margin_scale": 16.0,
}
"""One rank has 501 of the classes, the other 500."""


def two_ranks(run: Run) -> Iterator[Finding]:
    """Two ranks train what one trains; one that runs out of memory does not hang the other."""
    if run.on_gpu and torch.cuda.device_count() < 2:
        yield not_run("two ranks", "one GPU is here")
        return
    yield from _equal(run)
    with group(by_name, 2, run.gpus) as both:
        yield from warm_up_without_memory(run, both, 1)
    yield from _runs_out(run)


def _equal(run: Run) -> Iterator[Finding]:
    pictures = images(run, norm="group", lr=0.05)
    pictures["milestone"] = 2 * pictures["batch_size"]
    text = words(run, optimizer="sgd", lr=0.05)  # AdamW's first steps are gradients' signs
    text["milestone"] = 2 * text["batch_size"] * text["sequence_length"]
    levels, first = ({"all_reduce_topology": n} for n in ("two_dimensional", "hierarchical"))
    ahead = {"fsdp_prefetch_units": 2}
    cases = (
        ("DDP", "image", pictures),
        ("DDP in two dimensions", "image", {**pictures, **levels, "bucket_cap_mb": 0.1}),
        ("ZeRO-1, hierarchical", "image", {**pictures, **first, "shard_optimizer_state": True}),
        ("divided classes", "retrieval", CLASSES),
        ("FSDP2", "language", {**text, "sharding": "full"}),
        ("FSDP2, gathered ahead", "language", {**text, "sharding": "full", **ahead}),
        ("FSDP2 in bf16", "language", {**text, "sharding": "full", "precision": "bf16"}),
    )
    for label, trainer, config in cases:
        yield _against_one(run, label, {**config, "trainer": trainer}, {})
    text |= {"layers": run.pick(4, 2), "trainer": "language"}
    divided = {"enable_sequence_parallel": True, "enable_loss_parallel": True}
    for name, more in (("tensor", divided), ("pipeline", {}), ("context", {})):
        plan = {f"{name}_parallel_degree": 2, **more}
        yield _against_one(run, f"{name} parallel", text, plan)
    sparse = {"attention": "sliding_window", "attention_window": run.pick(64, 4)}
    plan = {"context_parallel_degree": 2}  # masks scores, where one rank has FlexAttention's kernel
    yield _against_one(run, "context parallel, sliding window", {**text, **sparse}, plan)


def _against_one(run: Run, label: str, config: Config, plan: Config) -> Finding:
    """Two ranks end with the weights of one, which trains without the plan."""
    ends = []
    for ranks, keys in ((1, config), (2, {**config, **plan})):
        with group(by_name, ranks, run.gpus) as made:
            ends.append(_weights(run, made, keys, f"{label}-{ranks}"))
    most = 2e-2 if "bf16" in label else 1e-4
    return close(f"{label} on two ranks against one", _apart(*ends), most)


def _weights(run: Run, ranks: Group, config: Config, name: str) -> dict[str, torch.Tensor]:
    """The weights after one milestone, from the checkpoint of all ranks."""
    answers = ranks.start(config)
    answers = ranks("resume", None, None) if answers[0].kind == "milestone" else answers
    if any(a.kind == "raised" for a in answers):
        raise RuntimeError("\n".join(a.error for a in answers))
    folder = str(run.folder / name.replace(" ", "-"))
    ended = ranks("stop", folder)
    found = all_ranks(folder, [""] * len(ended))[0]["learner"]["model"]
    return {key: value for key, value in found.items() if value.is_floating_point()}


def _apart(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    one, other = (torch.cat([v.double().flatten() for v in x.values()]) for x in (a, b))
    return float((one - other).norm() / other.norm())


def _runs_out(run: Run) -> Iterator[Finding]:
    """Rank 1 has no memory while rank 0 waits for it; then both are ended."""
    with group(by_name, 2, run.gpus) as ranks:
        ranks.start({"trainer": "reduces", "runs_out": 1})
        waiting = ranks.send("resume", None, None)
        begin = time.perf_counter()
        concurrent.futures.wait([waiting[1]], timeout=30)
        failed = waiting[1].done() and waiting[1].result().out_of_memory
        yield checked("the rank without memory says so", failed)
        yield measured("after", (time.perf_counter() - begin) * 1000, "ms")
        yield checked("the other one waits for it", not waiting[0].done())
    begin = time.perf_counter()
    with group(by_name, 2, run.gpus) as ranks:
        ranks.start({"trainer": "reduces"})
        answers = ranks("resume", None, None)
        sums = [(a.metrics or {}).get("sum") for a in answers]
        yield checked("a new group reduces", sums == [8.0, 8.0], str(sums))
    yield measured("replacing the group", time.perf_counter() - begin, "s")
