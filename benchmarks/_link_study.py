"""A search by autotune for the fastest way of two ranks to communicate over a network."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from _link_runs import Config, Problem
from _slow_link import Link

import autotune as at

WAYS = ("every_step", "local_sgd", "diloco", "geo_sgd", "bounded_staleness")
START: dict[str, Any] = {
    "optimizer": "adamw",
    "synchronization": "every_step",
    "gradient_compression": "none",
    "precision": "fp32",
}
"""AdamW with averaged gradients (DDP): the baseline's values of what `techniques` searches."""
_OPTIMIZERS = ("adamw", "sgd", "lamb")
_TAKE = {"dgc": ("sgd",), "one_bit": ("adamw", "lamb")}
"""The optimizers that take a compression; the others are for all."""


def _taken(config: Config) -> bool:
    return config["optimizer"] in _TAKE.get(config.get("gradient_compression", ""), _OPTIMIZERS)


def techniques() -> dict[str, Any]:
    """What is searched beside AdamW's learning rate: optimizers, and how two ranks communicate."""
    every, local, diloco, geo, late = ({"synchronization": way} for way in WAYS)
    kinds = ("powersgd", "dgc", "one_bit")
    powersgd, dgc, one_bit = ({"gradient_compression": kind} for kind in kinds)
    sgd, lamb = ({"optimizer": rule} for rule in ("sgd", "lamb"))
    return {
        "optimizer": at.Choice(_OPTIMIZERS),
        "lr:sgd": at.Float(0.03, 1.0, log=True, when=sgd),
        "lr:lamb": at.Float(3e-3, 0.1, log=True, when=lamb),
        "momentum": at.Float(0.8, 0.95, when=sgd),
        "synchronization": at.Choice([*WAYS]),
        "local_sgd_period": at.Int(2, 64, log=True, when=local),
        "local_sgd_start": at.Int(0, 40, when=local),
        "diloco_period": at.Int(8, 64, log=True, when=diloco),
        "diloco_outer_lr": at.Float(0.3, 1.0, when=diloco),
        "diloco_outer_momentum": at.Float(0.5, 0.95, when=diloco),
        "geo_sgd_period": at.Int(2, 64, log=True, when=geo),
        "geo_sgd_delay": at.Int(0, 1, when=geo),
        "staleness_bound": at.Int(1, 4, when=late),
        "gradient_compression": at.Choice(["none", "fp16", "bf16", *kinds], when=every),
        "powersgd_rank": at.Int(1, 8, log=True, when=powersgd),
        "powersgd_start": at.Int(2, 20, log=True, when=powersgd),
        "powersgd_wire": at.Choice(["fp32", "fp16"], when=powersgd),
        "dgc_ratio": at.Float(1e-3, 0.1, log=True, when=dgc),
        "dgc_warmup_steps": at.Int(0, 60, when=dgc),
        "one_bit_warmup_steps": at.Int(10, 60, log=True, when=one_bit),
        # It changes only the seconds of a step: probed first, then fixed.
        "precision": at.Choice(["fp32", "bf16"]),
    }


def experiment(problem: Problem, everything: bool) -> at.Experiment:
    """A search over AdamW's learning rate with DDP, or over optimizers and techniques as well."""
    from trainers import language

    fixed = {key: at.Fixed(value) for key, value in problem.fixed.items()}
    searched = techniques() if everything else {"optimizer": at.Fixed("adamw")}
    rate = {"lr:adamw": at.Float(1e-3, 3e-2, log=True, when={"optimizer": "adamw"})}
    taken = at.Constraint("the optimizer takes the compression", _taken)
    mode = "max" if problem.sign > 0 else "min"
    return at.Experiment(
        "communication",
        language.train,
        at.SearchSpace({**fixed, **searched, **rate}, (taken,) if everything else ()),
        at.Target(problem.metric, problem.value, mode=mode, limit=problem.limit),
        baseline={"lr:adamw": 1e-2, **(START if everything else {})},
        scaling=at.Scaling(num_workers=2, cpus_per_worker=1),
    )


def study(problem: Problem, link: Link, seconds: float, seed: int, everything: bool) -> Config:
    """The configuration that a search over the link found in so many wall seconds."""
    from _slow_pool import SlowLinkPool

    made = experiment(problem, everything)
    with tempfile.TemporaryDirectory() as folder:
        result = at.run(
            made,
            trials=1000,
            time_limit=seconds,
            seed=seed,
            out=Path(folder, "study"),
            experience="off",
            backend=SlowLinkPool(made.train, link),
            progress=False,
        )
    best = result.best
    if best is None:
        raise SystemExit("no trial of this search reached the target: it needs more --seconds")
    print(f"  {len(result.trials)} trials, best {best.seconds:.2f} s: {best.params}", flush=True)
    kept = {key: value for key, value in best.config.items() if key not in problem.fixed}
    return {key: value(0.0) if callable(value) else value for key, value in kept.items()}
