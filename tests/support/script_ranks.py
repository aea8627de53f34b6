"""One of two ranks that run a script as a trainer twice, in a process group as workers have it."""

from __future__ import annotations

import sys
from pathlib import Path

import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[2]))

import autotune as at
from autotune.backends.worker.reporting import steps


def main() -> None:
    train = at.script(sys.argv[1])
    found = []
    for _ in range(2):
        if not dist.is_initialized():
            dist.init_process_group("gloo")
        found.append([(m.step, dict(m.evaluate())) for m in steps(train, {"seed": 1})])
    print(found)


if __name__ == "__main__":
    main()
