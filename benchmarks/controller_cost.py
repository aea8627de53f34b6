"""What controllers cost: the trainer's statistics in a step, and a decision in the loop.

Stretches of one training with the statistics and without them take turns; the difference is shown
as a share of the training's processor time. No peer, as it is the same run. The same for the
gradient noise scale, measured at every n-th step.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _common import introduce, keep

from autotune.algorithms.controllers import policy
from autotune.trial import Change, Report, State, Target, Trial
from trainers.image import train
from trainers.noise_scale import NoiseScale
from trainers.statistics import Statistics

CASES = {
    "mlp, batch 64": {"model": "mlp", "width": 64, "batch_size": 64},
    "mlp, batch 512": {"model": "mlp", "width": 64, "batch_size": 512},
    "resnet8, batch 64": {"model": "resnet8", "width": 32, "batch_size": 64},
    "resnet18, batch 128": {"model": "resnet18", "width": 16, "batch_size": 128},
}
NOISE = {
    f"{name}, noise scale at every {nth}": {**CASES[name], "noise_scale_every": every}
    for name in ("mlp, batch 64", "resnet8, batch 64")
    for every, nth in ((8, "8th step"), (1, "step"))
}


def _nothing(*arguments: Any, **named: Any) -> None:
    """Stands for the statistics where they are left out."""


def _unmeasured(scale: Any, items: int, most: int | None) -> tuple[bool, int | None]:
    """Stands for a step whose noise scale is not measured."""
    return False, most


OFF = {"next": _nothing, "before": _nothing}
TARGET = Target("val_accuracy", 0.97, limit=12.0)


def share(
    config: dict[str, Any],
    pairs: int,
    seconds: float = 60.0,
    owner: type = Statistics,
    off: Mapping[str, Callable[..., Any]] = OFF,
) -> list[float]:
    """The statistics' share of the training's processor time, pair by pair.

    Stretches with and without them take turns within one training. Clocks around their calls would
    cost more than they do: at most steps they only count. Ends after `seconds`, but not before
    eight pairs.
    """
    kept = {name: getattr(owner, name) for name in off}
    running = train({"data": "digits", "lr": 0.05, "milestone": 2560, **config})
    next(running)
    next(running)

    def stretch_seconds(measured: bool) -> float:
        for name, function in kept.items():
            setattr(owner, name, function if measured else off[name])
        begin = time.thread_time()
        next(running)
        return time.thread_time() - begin

    shares: list[float] = []
    end = time.monotonic() + seconds
    try:
        for number in range(pairs):
            if number >= 8 and time.monotonic() > end:
                break
            first = number % 2 == 0
            one, other = stretch_seconds(first), stretch_seconds(not first)
            with_them, without = (one, other) if first else (other, one)
            shares.append(1 - without / with_them)
    finally:
        for name, function in kept.items():
            setattr(owner, name, function)
        running.close()
    return shares


def middle(shares: list[float]) -> str:
    """The median in per cent, with a 95 % bootstrap interval."""
    draws = np.random.default_rng(0).choice(shares, (2000, len(shares)))
    low, high = np.quantile(np.median(draws, axis=1), [0.025, 0.975])
    return f"{np.median(shares):.2f} % ({low:.2f} to {high:.2f}, n={len(shares)})"


def ended(number: int) -> Trial:
    """A trial of 40 milestones and 20 changes that reached the target."""
    metrics = {"train_loss": 0.5, "lr": 0.1, "grad_norm": 1.0, "weight_norm": 9.0, "momentum": 0.9}
    reports = [
        Report(i, i * (1 + number / 100) / 4, {**metrics, "val_accuracy": i / 40})
        for i in range(41)
    ]
    changes = [(i, Change(1 + 0.01 * (i * number % 7 - 3))) for i in range(2, 41, 2)]
    seconds = reports[-1].seconds
    return Trial(
        number,
        {"lr": 0.1},
        seed=number,
        state=State.REACHED,
        seconds=seconds,
        reports=tuple(reports),
        changes=tuple(changes),
        attempts=1,
        ended_at=float(number),
    )


def decision(trials: int) -> tuple[float, float]:
    """Milliseconds of a decision, and of one after another trial has ended."""
    others = [ended(i) for i in range(trials)]
    made, now = policy(), ended(trials)
    running = Trial(trials, {}, reports=now.reports[:20], changes=now.changes[:5])
    running = replace(running, seconds=running.reports[-1].seconds)
    first: list[float] = []
    later: list[float] = []
    made(running, others[:-8], TARGET)
    for count in range(trials - 7, trials + 1):
        for times in (first, later):
            begin = time.perf_counter()
            made(running, others[:count], TARGET)
            times.append(1000 * (time.perf_counter() - begin))
    return statistics.median(later), max(first)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=400, help="stretches with and without (400)")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    about, runs = introduce(), {}
    pairs, cases = (4, list(CASES)[:1]) if options.quick else (options.pairs, list(CASES))
    for name in cases:
        runs[name] = [100 * own for own in share(CASES[name], pairs)]
        print(f"{name:<22} {middle(runs[name])} of training", flush=True)
    for name in list(NOISE)[: 1 if options.quick else None]:
        off = {"next": _unmeasured}
        runs[name] = [100 * own for own in share(NOISE[name], pairs, 60.0, NoiseScale, off)]
        print(f"{name:<44} {middle(runs[name])} of training", flush=True)
    for trials in (16, 128):
        usual, most = decision(trials)
        runs[f"{trials} trials"] = [usual, most]
        cost = f"a decision {usual:.2f} ms; after a trial's end {most:.1f} ms at most"
        print(f"policy, {trials} trials: {cost}", flush=True)
    keep(options.json, about, runs=runs)


if __name__ == "__main__":
    main()
