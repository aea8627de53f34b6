"""Studies for a cluster whose nodes come and go; `NODES_LOG` names the trainers' own log."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import toys

import autotune as at


class Paced(dict[str, Any]):
    """A configuration whose pace is in a file, to be changed, or held, while it trains."""

    def get(self, key: str, default: Any = None) -> Any:
        if key != "nap":
            return super().get(key, default)
        file = Path(self["log"]).with_name("nap")
        while (said := file.read_text()) == "hold":
            time.sleep(0.05)
        return float(said)


def noted(config: dict[str, Any]) -> Iterator[at.Milestone]:
    """A toy of any pace, which also notes the interfaces that its rank was given."""
    names = (os.environ.get(f"{kind}_SOCKET_IFNAME") for kind in ("GLOO", "NCCL"))
    toys.note(config, f"interfaces {' '.join(str(name) for name in names)}")
    yield from toys.toy(Paced(config))


def study(**options: Any) -> at.Experiment:
    space = at.SearchSpace(
        {"rate": at.Float(0.4, 1.0), "log": at.Fixed(os.environ["NODES_LOG"])},
    )
    options = {"failure": at.FailurePolicy(checkpoint_interval=0, hang_timeout=120), **options}
    target = at.Target(toys.METRIC, 0.95, limit=600)
    return at.Experiment("nodes", noted, space, target, baseline={"rate": 0.5}, **options)


def pair() -> at.Experiment:
    return study(scaling=at.Scaling(num_workers=2))


def apart() -> at.Experiment:
    return study(scaling=at.Scaling(num_workers=2, placement_strategy="SPREAD"))
