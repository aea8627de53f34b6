"""Studies for a cluster whose nodes come and go; `NODES_LOG` names the trainers' own log."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import toys

import autotune as at


class Paced(dict[str, Any]):
    """A configuration whose pace is in a file, to be changed, or paused, while it trains."""

    def get(self, key: str, default: Any = None) -> Any:
        if key != "nap":
            return super().get(key, default)
        file = Path(self["log"]).with_name("nap")
        while (said := file.read_text()) == "hold":
            time.sleep(0.05)
        return float(said)


def noted(config: dict[str, Any]) -> Iterator[at.Milestone]:
    """A toy of any pace, which also notes the interfaces and the GPUs that its rank was given."""
    names = (os.environ.get(f"{kind}_SOCKET_IFNAME") for kind in ("GLOO", "NCCL"))
    toys.note(config, f"interfaces {' '.join(str(name) for name in names)}")
    toys.note(config, f"sees {os.environ.get('CUDA_VISIBLE_DEVICES')}")
    yield from toys.toy(Paced(config))


def swelling(config: dict[str, Any]) -> Iterator[at.Milestone]:
    """A toy that holds `mib` MiB for each sample; those of a whole batch until it is ended."""
    state = config.get("state") or {"step": 0}
    microbatch = config.get("microbatch") or config["batch_size"]
    toys.note(config, f"start {state['step']} {config.get('microbatch')}")
    for step in range(state["step"], 1001, 100):
        memory = torch.ones(microbatch * config["mib"] * 2**18) if step >= 300 else None
        whole = memory is not None and microbatch == config["batch_size"]
        time.sleep(60.0 if whole else 1.0 if memory is not None else 0.05)
        del memory
        yield at.Milestone(
            step, lambda now=step: {toys.METRIC: now / 1000}, lambda now=step: {"step": now + 100}
        )


swelling.memory_keys = ("mib",)  # type: ignore[attr-defined]


def swells(gpus: float = 0.0) -> at.Experiment:
    """7 GiB at once at its full batch, 3.5 GiB at half of it."""
    given = {"batch_size": 64, "mib": 112, "log": os.environ["NODES_LOG"]}
    return at.Experiment(
        "swells",
        swelling,
        at.SearchSpace({name: at.Fixed(value) for name, value in given.items()}),
        at.Target(toys.METRIC, 0.4, limit=6000),
        scaling=at.Scaling(gpus_per_worker=gpus),
        failure=at.FailurePolicy(checkpoint_interval=0, hang_timeout=900, max_retries=int(gpus)),
    )


def swells_beside_a_gpu() -> at.Experiment:
    return swells(gpus=1.0)


def study(**options: Any) -> at.Experiment:
    space = at.SearchSpace(
        {"rate": at.Float(0.4, 1.0), "log": at.Fixed(os.environ["NODES_LOG"])},
    )
    options = {"failure": at.FailurePolicy(checkpoint_interval=0, hang_timeout=900), **options}
    target = at.Target(toys.METRIC, 0.95, limit=6000)
    return at.Experiment("nodes", noted, space, target, baseline={"rate": 0.5}, **options)


def of_a_kind() -> at.Experiment:
    return study(scaling=at.Scaling(accelerator="T9"))


def pair() -> at.Experiment:
    return study(scaling=at.Scaling(num_workers=2))


def apart() -> at.Experiment:
    return study(scaling=at.Scaling(num_workers=2, placement_strategy="SPREAD"))
