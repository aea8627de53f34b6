"""What a pruner's decision costs: processor time of the driver, by how many trials have ended.

    python benchmarks/decisions.py [--repeats 40] [--json FILE]

Each ended trial has 30 reports; the trial that is judged has just passed one of the rungs of
`asha`. The first decision, which reads all curves, is that of a driver that has resumed the study;
the later ones are the usual ones. No peer: there is nothing to compare, only to know.
"""

from __future__ import annotations

import math
import statistics
import time
from random import Random

from _common import arguments, introduce, keep, repeats_of

from autotune.algorithms.pruners.rules import PRUNERS, make_pruner
from autotune.trial import Report, State, Target, Trial

METRIC = "val_accuracy"
TARGET = Target(METRIC, 0.9, limit=108.0)  # rungs at 4, 12 and 36 seconds
ENDED, RUNNING = 30, 12  # reports


def made(number: int, reports: int, state: State, reason: str) -> Trial:
    """A trial with a report about every second, whose accuracy approaches 1."""
    random = Random(number)
    speed = 0.03 * random.uniform(0.5, 2.0)
    curve = tuple(
        Report(i, i + 0.1 * random.random(), {METRIC: 1 - math.exp(-speed * i)})
        for i in range(1, reports + 1)
    )
    config = {"lr": 0.1}
    return Trial(
        number,
        config,
        config,
        state=state,
        reason=reason,
        seconds=curve[-1].seconds,
        reports=curve,
        attempts=1,
        ended_at=float(number),
    )


def decisions(name: str, count: int, repeats: int) -> list[float]:
    """Milliseconds of `repeats` decisions of a pruner beside `count` ended trials."""
    others = [made(n, ENDED, State.CENSORED, "capped") for n in range(count - 1)]
    others.append(made(count, 40, State.REACHED, "target"))
    prune, took = make_pruner(name), []
    for number in range(count + 1, count + 1 + repeats):
        trial = made(number, RUNNING, State.RUNNING, "")
        begin = time.thread_time()
        prune(trial, others, TARGET)
        took.append(1000 * (time.thread_time() - begin))
    return took


def main() -> None:
    options = arguments(__doc__, repeats=40).parse_args()
    about, runs = introduce(), {}
    for name in PRUNERS:
        for count in (100,) if options.quick else (100, 1000):
            first, *later = runs[f"{name}, {count}"] = decisions(
                name, count, max(repeats_of(options), 2)
            )
            usual = f"{statistics.median(later):7.3f} ms"
            print(f"{name:>20}, {count:4d} ended: {usual}, the first {first:7.2f} ms", flush=True)
    keep(options.json, about, runs=runs)


if __name__ == "__main__":
    main()
