"""A driver to be killed: runs a study of toys, or takes it up.

`killed_driver.py FOLDER ADDRESS NAP`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import toys

import autotune as at


def experiment(folder: Path) -> at.Experiment:
    space = at.SearchSpace(
        {
            "rate": at.Float(0.4, 1.0),
            "log": at.Fixed(str(folder.parent / "log")),
        }
    )
    return at.Experiment(
        "killed",
        toys.paced,
        space,
        at.Target(toys.METRIC, 0.95, limit=6000),
        baseline={"rate": 0.5},
        failure=at.FailurePolicy(checkpoint_interval=0),
        scaling=at.Scaling(max_concurrent_trials=1),
    )


def main(folder: Path, address: str, nap: float) -> None:
    (folder.parent / "nap").write_text(str(nap))
    result = at.run(
        experiment(folder),
        trials=5,
        out=folder,
        sampler="random",
        pruner="none",
        racing=0,  # when a race is due depends on the seconds that trials really took
        tracking_uri="off",
        ray_address=address or None,
    )
    print(result.ended)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]))
