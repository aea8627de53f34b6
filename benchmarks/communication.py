"""What is each way to communicate less worth, in seconds to a target?

    python benchmarks/communication.py --data-dir DIR [--parts techniques study images]
        [--mbit 10] [--only NAME ...] [--seeds 5] [--seconds 240] [--quick] [--json FILE]

Two ranks of one thread each, on loopback and over a cable of so many Mbit/s (`_slow_link.py`).

`techniques`: a small GPT on Shakespeare. Each technique is run once at each of two learning
rates; the best of them on fresh seeds, all techniques in turns. A run that misses the target counts
as its limit. Ratios are over averaged gradients (DDP) with the better of SGD and AdamW, by seeds,
with 95 % bootstrap intervals.
A name with `A to B` has a schedule of that key, over a horizon of about one run.
`study`: two searches by autotune for the same wall seconds, one over the learning rate of DDP with
AdamW, one over all techniques and three optimizers as well, in two stages. Both winners are run on
fresh seeds, in turns.
`images`: the same as `techniques` for a residual network on Fashion-MNIST, with the three
techniques that the first part names the best, or `--best`.
Four ranks are for tests, and prove equality: two cores cannot show their speed. So averaging in two
levels is not here.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from _common import arguments, introduce, keep
from _intervals import interval
from _link_runs import Config, Problem, measured
from _link_study import study
from _slow_link import available, is_speed, network

from autotune.schedules import Exponential, Linear

TEXT: dict[str, Any] = {
    "text": "tinyshakespeare",
    "layers": 2,
    "width": 48,
    "heads": 3,
    "sequence_length": 64,
    "batch_size": 16,
    "val_size": 16_384,
    "milestone": 16 * 64 * 10,
    "horizon": 100,
}
GPT = Problem("trainers.language", TEXT, "val_loss", 2.5, -1, 45.0)
IMAGES = Problem(
    "trainers.image",
    {
        "data": "fashion_mnist",
        "model": "resnet8",
        "width": 8,
        "norm": "group",
        "val_size": 2000,
        "batch_size": 64,
        "milestone": 64 * 10,
        "horizon": 100,
    },
    "val_accuracy",
    0.8,
    1,
    45.0,
)
SGD: dict[str, Any] = {"optimizer": "sgd", "momentum": 0.9}
ADAMW: dict[str, Any] = {"optimizer": "adamw"}
RATES = {"sgd": (0.1, 0.3), "adamw": (3e-3, 1e-2), "lamb": (1e-2, 3e-2)}
LATE = (1e-3, 3e-3)  # learning rates of gradients that are late
DDP = ("DDP, SGD", "DDP, AdamW")
TECHNIQUES: dict[str, dict[str, Any]] = {
    DDP[0]: SGD,
    DDP[1]: ADAMW,
    "fp16": {**ADAMW, "gradient_compression": "fp16"},
    "bf16": {**ADAMW, "gradient_compression": "bf16"},
    "PowerSGD, rank 2": {**ADAMW, "gradient_compression": "powersgd"},
    "PowerSGD, rank 2, fp16": {
        **ADAMW,
        "gradient_compression": "powersgd",
        "powersgd_wire": "fp16",
    },
    "PowerSGD, rank 4 to 1": {
        **ADAMW,
        "gradient_compression": "powersgd",
        "powersgd_rank": Linear(4, 1),
        "horizon": 0.1,
    },
    "DGC, 1 %": {**SGD, "gradient_compression": "dgc"},
    "DGC, 10 to 0.1 %": {
        **SGD,
        "gradient_compression": "dgc",
        "dgc_ratio": Exponential(0.1, 1e-3),
        "horizon": 0.4,
    },
    "1-bit Adam": {
        "optimizer": "adamw",
        "weight_decay": 0.0,
        "gradient_compression": "one_bit",
        "one_bit_warmup_steps": 30,
    },
    "1-bit LAMB": {
        "optimizer": "lamb",
        "weight_decay": 0.0,
        "gradient_compression": "one_bit",
        "one_bit_warmup_steps": 30,
    },
    "local SGD, every 8": {**ADAMW, "synchronization": "local_sgd"},
    "local SGD, every 32": {**ADAMW, "synchronization": "local_sgd", "local_sgd_period": 32},
    "post-local SGD, every 16": {
        **ADAMW,
        "synchronization": "local_sgd",
        "local_sgd_period": 16,
        "local_sgd_start": 20,
    },
    "local SGD, every 2 to 64": {
        **ADAMW,
        "synchronization": "local_sgd",
        "local_sgd_period": Exponential(2, 64),
        "horizon": 0.1,
    },
    "DiLoCo, every 32": {**ADAMW, "synchronization": "diloco"},
    "Geo-SGD, every 8": {**ADAMW, "synchronization": "geo_sgd"},
    "stale by 1": {**ADAMW, "synchronization": "bounded_staleness"},
}


# --- figures --------------------------------------------------------------------------------------


def ratio(pairs: Sequence[tuple[float, float]]) -> float:
    """Of the sums of pairs.

    >>> ratio([(4.0, 2.0), (6.0, 3.0)])
    2.0
    """
    return sum(one for one, _ in pairs) / sum(other for _, other in pairs)


def seconds_of(runs: Sequence[Mapping[str, Any]], limit: float) -> list[float]:
    """Of runs in the order of their seeds; one that missed the target counts as the limit."""
    ordered = sorted(runs, key=lambda run: run["seed"])
    return [run["seconds"] if run["reached"] else limit for run in ordered]


def table(runs: Sequence[Mapping[str, Any]], problem: Problem, head: str) -> list[str]:
    """Rows of techniques: seconds a step, samples and seconds to the target, ratio over DDP.

    Returns:
        the techniques but DDP, the fastest first.
    """
    fresh: dict[str, list[Mapping[str, Any]]] = {}
    for run in runs:
        if not run["tuning"]:
            fresh.setdefault(run["technique"], []).append(run)
    seconds = {name: seconds_of(of, problem.limit) for name, of in fresh.items()}
    means = {name: statistics.fmean(of) for name, of in seconds.items()}
    least = min((name for name in DDP if name in means), key=means.__getitem__)
    per_step = problem.fixed["batch_size"] * problem.fixed.get("sequence_length", 1)
    print(f"\n{head}\n{'':<26}{'lr':>7}{'ms/step':>9}{'samples':>10}{'reached':>9}", end="  ")
    print(f"{'seconds':<24}{least} over it")
    for name, of in fresh.items():
        speed = 1000 * statistics.fmean(r["seconds"] / (r["samples"] / per_step) for r in of)
        arrived = [r["samples"] for r in of if r["reached"]]
        samples = f"{statistics.fmean(arrived):.0f}" if arrived else "-"
        pairs = [*zip(seconds[least], seconds[name], strict=True)]
        low, high = interval(seconds[name], statistics.fmean)
        over = "{:.2f} ({:.2f} to {:.2f})".format(ratio(pairs), *interval(pairs, ratio))
        rate = of[0]["config"]["lr"]
        print(
            f"{name:<26}{rate:7.3g}{speed:9.1f}{samples:>10}{len(arrived):>6}/{len(of)}"
            f"  {f'{means[name]:.2f} ({low:.2f} to {high:.2f})':<24}{over}",
            flush=True,
        )
    return sorted((name for name in fresh if name not in DDP), key=means.__getitem__)


# --- parts ----------------------------------------------------------------------------------------


def with_rates(techniques: Mapping[str, Config], quick: bool) -> dict[str, list[Config]]:
    """Each technique at each of its learning rates."""

    def rates(keys: Config) -> Sequence[float]:
        late = keys.get("synchronization") == "bounded_staleness"
        return LATE if late else RATES[keys["optimizer"]]

    return {
        name: [{**keys, "lr": lr} for lr in rates(keys)[: 1 if quick else None]]
        for name, keys in techniques.items()
    }


def _data(folder: str | None) -> tuple[Config, Config]:
    if folder is None:
        return {"text": "synthetic"}, {"data": "synthetic", "image_size": 16}
    return {"data_dir": folder}, {"data_dir": folder}


def main() -> None:
    parser = arguments(__doc__ or "", 1)
    parts = ("techniques", "study", "images")
    parser.add_argument("--parts", nargs="+", choices=parts, default=parts[:2])
    parser.add_argument("--data-dir", help="folder of the data sets (without it made up data)")
    parser.add_argument("--mbit", type=float, nargs="*", default=[10.0], help="of the cable (10)")
    parser.add_argument("--no-loopback", action="store_true", help="the cable only")
    parser.add_argument("--seeds", type=int, default=5, help="fresh ones of each technique (5)")
    parser.add_argument("--seconds", type=float, default=240.0, help="of each search (240)")
    parser.add_argument("--only", nargs="+", choices=[*TECHNIQUES], help="beside DDP with AdamW")
    parser.add_argument("--best", nargs="+", choices=[*TECHNIQUES], help="techniques for `images`")
    options = parser.parse_args()
    if "images" in options.parts and "techniques" not in options.parts and not options.best:
        parser.error("--parts images needs --best, or the part techniques, which names the best")
    if wrong := [speed for speed in options.mbit if not is_speed(speed)]:
        parser.error(f"--mbit must be a finite number above 0 but got {wrong[0]:g}")
    cables = options.mbit if options.mbit and available() else []
    links = [*([] if options.no_loopback else [None]), *cables]
    if not links:
        parser.error("--no-loopback leaves nothing: a cable needs --mbit, root and iproute2")
    about = introduce()
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    quick, seeds = options.quick, [*range(100, 101 + (1 if options.quick else options.seeds))]
    gpt, images = (
        replace(p, fixed={**p.fixed, **where}, limit=5.0 if quick else p.limit)
        for p, where in zip((GPT, IMAGES), _data(options.data_dir), strict=True)
    )
    names = [name for name in TECHNIQUES if name in {DDP[1], *(options.only or TECHNIQUES)}]
    names = names[: 3 if quick else None]
    found: dict[str, Any] = {}
    try:
        for mbit in links:
            place = "loopback" if mbit is None else f"{mbit:g} Mbit/s"
            with network(mbit) as link, tempfile.TemporaryDirectory() as folder:
                best = options.best
                if "techniques" in options.parts:
                    rates = with_rates({name: TECHNIQUES[name] for name in names}, quick)
                    runs = found[f"techniques, {place}"] = measured(
                        link, gpt, rates, seeds, Path(folder)
                    )
                    best = options.best or table(runs, gpt, f"GPT on Shakespeare, {place}")[:3]
                if "images" in options.parts:
                    chosen = with_rates({name: TECHNIQUES[name] for name in (*DDP, *best)}, quick)
                    runs = found[f"images, {place}"] = measured(
                        link, images, chosen, seeds, Path(folder)
                    )
                    table(runs, images, f"ResNet on Fashion-MNIST, {place}")
                if "study" in options.parts:
                    arms = {}
                    for name, everything in (("DDP, AdamW", False), ("all techniques", True)):
                        print(f"search, {name}, {place}", flush=True)
                        budget = 10.0 if quick else options.seconds
                        arms[name] = [study(gpt, link, budget, options.seeds, everything)]
                    runs = measured(link, gpt, arms, seeds, Path(folder))
                    found[f"study, {place}"] = runs
                    table(runs, gpt, f"winners of searches of {options.seconds:g} s, {place}")
    finally:
        keep(options.json, about, runs=found)


if __name__ == "__main__":
    main()
