"""Time of one LARS or LAMB step as a ratio to torch's own foreach SGD and AdamW.

    python benchmarks/optimizers.py [--repeats 31] [--threads N] [--device cpu] [--clock wall]

All contenders share one model's tensors and take turns in random order, so that a busy machine
slows them alike. A ratio is the median over rounds of (own time / floor's time in that round);
beside it stand the 10th and 90th percentile. On a machine shared with others, `--threads 1
--clock cpu` counts processor time, to which waiting adds nothing. `pytorch_optimizer` computes
something else under these names and is here for its speed alone.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import json
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1]))

from trainers.optimizers import LAMB, LARS, variant_settings

Groups = list[dict[str, Any]]
FLOORS = {
    "lars": "torch SGD foreach",
    "nesterov": "torch SGD foreach nesterov",
    "lamb": "torch AdamW foreach",
}
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
LR = 1e-6


def resnet50_shapes() -> list[tuple[int, ...]]:
    """The 161 parameters of torchvision's ResNet-50, 25.6 million numbers."""
    shapes: list[tuple[int, ...]] = []

    def convolution(out: int, into: int, size: int) -> None:
        shapes.extend([(out, into, size, size), (out,), (out,)])

    convolution(64, 3, 7)
    into = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            convolution(width, into, 1)
            convolution(width, width, 3)
            convolution(4 * width, width, 1)
            if block == 0:
                convolution(4 * width, into, 1)
            into = 4 * width
    return [*shapes, (1000, 2048), (1000,)]


def small_shapes() -> list[tuple[int, ...]]:
    numbers = random.Random(0)
    return [(numbers.randint(1, 64), 64) for _ in range(1000)]


CASES: dict[str, Callable[[], list[tuple[int, ...]]]] = {
    "8 tensors of 4 M": lambda: [(2000, 2000)] * 8,
    "ResNet-50, 161 tensors, 25.6 M": resnet50_shapes,
    "1000 tensors of 64 to 4096": small_shapes,
}


def contenders(groups: Callable[[], Groups]) -> dict[str, tuple[str, torch.optim.Optimizer]]:
    """Name -> (whose floor counts, optimizer); `groups` gives fresh group dicts."""
    sgd: dict[str, Any] = {"lr": LR, "momentum": 0.9, "weight_decay": 1e-4}
    adam: dict[str, Any] = {"lr": LR, "weight_decay": 1e-2}
    built: dict[str, tuple[str, torch.optim.Optimizer]] = {
        FLOORS["lars"]: ("lars", torch.optim.SGD(groups(), **sgd, foreach=True)),
        "torch SGD fused": ("lars", torch.optim.SGD(groups(), **sgd, fused=True)),
        FLOORS["nesterov"]: (
            "nesterov",
            torch.optim.SGD(groups(), **sgd, foreach=True, nesterov=True),
        ),
        FLOORS["lamb"]: ("lamb", torch.optim.AdamW(groups(), **adam, foreach=True)),
        "torch AdamW fused": ("lamb", torch.optim.AdamW(groups(), **adam, fused=True)),
        "LARS nesterov": ("nesterov", LARS(groups(), **sgd, nesterov=True)),
        "LARS max_grad_norm": ("lars", LARS(groups(), **sgd, max_grad_norm=1.0)),
    }
    for variant in ("paper", "optax", "timm", "larc"):
        settings = {**sgd, **variant_settings("lars", variant)}
        built[f"LARS {variant}"] = "lars", LARS(groups(), **settings)
    for variant in ("paper", "nvidia"):
        settings = {**adam, **variant_settings("lamb", variant)}
        built[f"LAMB {variant}"] = "lamb", LAMB(groups(), **settings)
    try:
        other = importlib.import_module("pytorch_optimizer")
    except ImportError as error:
        print(f"pytorch_optimizer left out: {error}", file=sys.stderr)
        return built
    built["pytorch_optimizer LARS"] = "lars", other.LARS(groups(), **sgd)
    built["pytorch_optimizer Lamb"] = "lamb", other.Lamb(groups(), **adam)
    return built


def make_groups(shapes: list[tuple[int, ...]], device: torch.device) -> Callable[[], Groups]:
    params = [nn.Parameter(torch.randn(shape, device=device)) for shape in shapes]
    for p in params:
        p.grad = torch.randn_like(p) * 0.01
    matrices = [p for p in params if p.ndim > 1]
    vectors = [p for p in params if p.ndim <= 1]

    def groups() -> Groups:
        made: Groups = [{"params": matrices}]
        if vectors:
            made.append({"params": vectors, "weight_decay": 0.0, "adapt": "never"})
        return made

    return groups


def measure(case: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    entries = contenders(make_groups(CASES[case](), options.device))
    times: dict[str, list[float]] = {name: [] for name in entries}
    names, order = list(entries), random.Random(0)
    for turn in range(options.repeats + 3):
        order.shuffle(names)
        for name in names:
            seconds = timed(entries[name][1].step, options)
            if turn >= 3:  # the first rounds make state and warm up
                times[name].append(seconds)
    rows: list[dict[str, Any]] = []
    for name, (kind, _) in entries.items():
        floor = times[FLOORS[kind]]
        ratios = [own / base for own, base in zip(times[name], floor, strict=True)]
        rows.append({"case": case, "optimizer": name, "floor": FLOORS[kind]})
        rows[-1] |= {"ms": spread([1e3 * t for t in times[name]]), "ratio": spread(ratios)}
    return sorted(rows, key=lambda row: (row["floor"], row["ratio"][1]), reverse=True)


def timed(step: Callable[[], Any], options: argparse.Namespace) -> float:
    clock = CLOCKS[options.clock]
    begin = clock()
    step()
    if options.device.type == "cuda":
        torch.cuda.synchronize(options.device)
    return clock() - begin


def spread(values: list[float]) -> list[float]:
    """The 10th percentile, the median and the 90th percentile."""
    tenths = statistics.quantiles(values, n=10)
    return [round(x, 3) for x in (tenths[0], statistics.median(values), tenths[-1])]


def machine(device: torch.device) -> dict[str, Any]:
    try:
        other = importlib.metadata.version("pytorch_optimizer")
    except importlib.metadata.PackageNotFoundError:
        other = None
    cpu = Path("/proc/cpuinfo")
    lines = cpu.read_text().splitlines() if cpu.exists() else []
    models = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "cpu": models[0] if models else platform.processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        "torch": torch.__version__,
        "pytorch_optimizer": other,
    }


def show(row: dict[str, Any]) -> str:
    low, middle, high = row["ms"]
    bottom, ratio, top = row["ratio"]
    times = f"{middle:8.2f} ms ({low:.2f} to {high:.2f})"
    return f"  {row['optimizer']:28}{times:34}{ratio:6.2f} x floor ({bottom:.2f} to {top:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=31, help="timed rounds (31)")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"))
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    about = {**machine(options.device), "clock": options.clock}
    if not options.json:
        print(json.dumps(about))
    rows = []
    for case in CASES:
        rows += measure(case, options)
        if not options.json:
            print(case, *map(show, [row for row in rows if row["case"] == case]), sep="\n")
    if options.json:
        print(json.dumps({"machine": about, "rows": rows}))


if __name__ == "__main__":
    main()
