"""How near are predictions of a trainer's memory to what the training then needs?

    python benchmarks/memory_prediction.py [--json FILE]

Each configuration is predicted in this process, and trained in one of its own for each rank: its
warm-up, the first milestone, and both evaluations. Two numbers are measured, in two trainings one
after the other. `tensors` is the peak of what torch allocated for tensors (its profiler; on a GPU
the allocator's peak), with which a prediction is calibrated (`CALIBRATION` in
`trainers.memory.predict`). `process` is by how much the resident set grew: with what NumPy and the
libraries of kernels allocate, and what the C library keeps after it was freed, none of which is
predicted. Of several ranks the largest counts.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
from _common import introduce, keep, summary

TEXT = {
    "text": "synthetic",
    "optimizer": "adamw",
    "lr": 1e-3,
    "layers": 4,
    "width": 192,
    "heads": 4,
    "sequence_length": 128,
    "batch_size": 16,
    "train_size": 40_000,
    "val_size": 2048,
    "milestone": 4096,
}
IMAGES = {
    "data": "digits",
    "lr": 0.1,
    "model": "resnet8",
    "width": 32,
    "batch_size": 256,
    "milestone": 512,
}
RECOMPUTED = {"activation_checkpoint_mode": "full"}
SHARDED = {"data_parallel_shard_degree": -1}
CASES: dict[str, tuple[int, dict[str, Any]]] = {
    "text": (1, TEXT),
    "text, recomputed": (1, {**TEXT, **RECOMPUTED}),
    "text, microbatch 4": (1, {**TEXT, "microbatch": 4}),
    "text, bf16": (1, {**TEXT, "precision": "bf16"}),
    "text, adafactor": (1, {**TEXT, "optimizer": "adafactor"}),
    "text, foreach": (1, {**TEXT, "optimizer_implementation": "foreach"}),
    "text, sliding window": (1, {**TEXT, "attention": "sliding_window", "attention_window": 32}),
    "text, width 512": (1, {**TEXT, "width": 512, "batch_size": 4}),
    "images": (1, IMAGES),
    "images, recomputed": (1, {**IMAGES, **RECOMPUTED}),
    "images, resnet18": (1, {**IMAGES, "model": "resnet18"}),
    "text, two ranks": (2, TEXT),
    "text, zero-1": (2, {**TEXT, "shard_optimizer_state": True}),
    "text, zero-2": (2, {**TEXT, **SHARDED, "fsdp_reshard_after_forward": "never"}),
    "text, zero-3": (2, {**TEXT, **SHARDED}),
}


def predicted(config: dict[str, Any], ranks: int) -> tuple[int, int]:
    """Bytes of a rank, and those of its data among them."""
    from trainers import image, language
    from trainers.data.blank import images, texts
    from trainers.settings import read_settings

    if "text" not in config:
        settings = read_settings(config)
        return image.memory(config, ranks), images(settings, ranks).kept
    of_text = language.read_settings(config)
    blank = texts(language._task(of_text).stream, of_text.val_sequence_length, ranks)
    return language.memory(config, ranks), blank.kept


def needed(config: dict[str, Any], ranks: int) -> list[int]:
    """Bytes of tensors, and by which the process grew, of the ranks that need most."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(ranks)}
    command = [sys.executable, __file__, "--rank", json.dumps(config)]
    own = [{**place, "RANK": str(r), "LOCAL_RANK": str(r)} for r in range(ranks)]
    started = [
        subprocess.Popen(
            command,
            env={**os.environ, **(env if ranks > 1 else {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for env in own
    ]
    said = [process.communicate(timeout=900)[0] for process in started]
    if any(process.returncode for process in started):
        raise RuntimeError(f"a rank of {config} failed")
    found = [json.loads(lines.splitlines()[-1]) for lines in said]
    return [max(of) for of in zip(*found, strict=True)]


def rank(config: dict[str, Any]) -> tuple[int, int]:
    """What this process needs for its part of the training, in bytes: of tensors, and in all."""
    import torch
    import torch.distributed as dist

    from trainers import image, language
    from trainers.memory import measure

    torch.set_num_threads(1)
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    train = language.train if "text" in config else image.train
    before = psutil.Process().memory_info().rss
    for _ in measure.train_for(train, config, 1):
        pass
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    return measure.peak(train, config), grown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rank", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank is not None:
        print(json.dumps(rank(options.rank)))
        return
    about, runs = introduce(), {}
    print(f"{'MiB':<24}{'predicted':>10}{'tensors':>10}{'error':>8}{'process':>10}")
    for name, (ranks, config) in [*CASES.items()][: 1 if options.quick else None]:
        if options.quick:
            config = {**config, "layers": 1, "width": 32}
        whole, data = predicted(config, ranks)
        tensors, process = needed(config, ranks)
        error = (whole - data) / tensors - 1
        runs[name] = {"predicted": whole, "data": data, "tensors": tensors, "process": process}
        of = [f"{n / 2**20:10.1f}" for n in (whole - data, tensors)]
        print(f"{name:<24}{''.join(of)}{100 * error:7.1f}%{process / 2**20:10.1f}", flush=True)
    errors = [100 * abs((r["predicted"] - r["data"]) / r["tensors"] - 1) for r in runs.values()]
    print(f"error without its sign: {summary(errors, ' %')}")
    keep(options.json, about, runs=runs)


if __name__ == "__main__":
    main()
