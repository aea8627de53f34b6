"""Epochs and processor seconds to a recipe's target: its baseline, and settings near it.

    python benchmarks/optimizer_baselines.py search_spaces.digits:muon --vary lr.peak=0.001,0.003

Every combination of the varied settings is trained with seeds 1, 2, ... in one process on one
thread, to the target or to the end of the horizon. Processor seconds leave evaluation out, and do
not grow while other programs use the machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from autotune.study import recipes
from autotune.study.experiment import Experiment


def trained(experiment: Experiment, point: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """One training: whether and when it reached the target, and the best metric."""
    config = experiment.space.complete({**(experiment.baseline or {}), **point})[0]
    target, better = experiment.target, max if experiment.target.mode == "max" else min
    trainer = experiment.train({**config, "seed": seed})
    best: float | None = None
    epochs, spent, reached = 0.0, 0.0, False
    begun = time.process_time()
    for milestone in trainer:
        spent += time.process_time() - begun if milestone.step else 0.0
        metrics = milestone.evaluate()
        value, epochs = metrics[target.metric], metrics["progress"] * config["horizon"]
        best = value if best is None else better(best, value)
        reached = better(value, target.value) == value
        if reached or metrics["progress"] >= 1:
            break
        begun = time.process_time()
    trainer.close()
    return {"seed": seed, "reached": reached, "epochs": epochs, "cpu": spent, "best": best}


def shown(point: Mapping[str, Any], runs: list[dict[str, Any]]) -> str:
    """One line of the table."""
    hits = [run for run in runs if run["reached"]]
    numbers = ["-", "-"]
    if hits:
        numbers = [
            f"{statistics.median(found):.1f} ({min(found):.1f} to {max(found):.1f})"
            for found in ([run[key] for run in hits] for key in ("epochs", "cpu"))
        ]
    best = statistics.median(run["best"] for run in runs)
    settings = " ".join(f"{k}={v:g}" for k, v in point.items()) or "baseline"
    return f"| {settings} | {len(hits)}/{len(runs)} | {numbers[0]} | {numbers[1]} | {best:.4f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipe", help="package.module:function")
    parser.add_argument("--vary", action="append", default=[], help="NAME=VALUE,VALUE,...")
    parser.add_argument("--seeds", type=int, default=3, help="trainings of each setting (3)")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    options = parser.parse_args()
    torch.set_num_threads(1)
    experiment = recipes.load(options.recipe)
    varied = dict(given.split("=", 1) for given in options.vary)
    values = [[float(v) for v in text.split(",")] for text in varied.values()]
    rows = []
    if not options.json:
        print(f"{options.recipe}\n| settings | reached | epochs | CPU s | best |")
        print("|---|---|---|---|---|")
    for chosen in product(*values):
        point = dict(zip(varied, chosen, strict=True))
        runs = [trained(experiment, point, seed) for seed in range(1, options.seeds + 1)]
        rows.append({"settings": point, "runs": runs})
        if not options.json:
            print(shown(point, runs), flush=True)
    if options.json:
        print(json.dumps({"recipe": options.recipe, "torch": torch.__version__, "rows": rows}))


if __name__ == "__main__":
    main()
