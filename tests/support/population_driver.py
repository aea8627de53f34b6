"""A driver of a population of toys, to be killed: `population_driver.py FOLDER ADDRESS`."""

from __future__ import annotations

import sys
from pathlib import Path

import toys

import autotune as at
from autotune.algorithms.controllers.pbt import pbt

TRIALS = 12


def main(folder: Path, address: str) -> None:
    space = at.SearchSpace({"rate": at.Float(0.4, 1.0), "nap": at.Fixed(0.02)})
    target = at.Target(toys.METRIC, 99.0, limit=1.5)
    made = at.Experiment(
        "population", toys.toy, space, target, scaling=at.Scaling(max_concurrent_trials=2)
    )
    result = at.run(
        made,
        trials=TRIALS,
        out=folder,
        sampler="random",
        controller=pbt(space, target, interval=0.3, knobs=["rate"]),
        tracking_uri="off",
        ray_address=address,
    )
    print(result.ended)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
