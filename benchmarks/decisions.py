"""What decisions cost the driver: those of pruners, and the model of the search.

    python benchmarks/decisions.py [--repeats 40] [--json FILE]

Of a pruner's decision it is processor time, by how many trials have ended.

Each ended trial has 30 reports; the trial that is judged has just passed one of the rungs of
`asha`. The first decision, which reads all curves, is that of a driver that has resumed the study;
the later ones are the usual ones. No peer: there is nothing to compare, only to know.

Of the model, a Gaussian process fitted to so many trials with eight parameters, it is the wait on a
machine whose cores all train. In turns it is fitted on one thread, as the driver does it, and with
as many threads as the libraries take by themselves, which is what it is compared with.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from random import Random

import numpy as np
from _common import arguments, introduce, keep, repeats_of
from _intervals import interval

from autotune.algorithms.pruners.rules import PRUNERS, make_pruner
from autotune.algorithms.samplers.gaussian_process import fit
from autotune.trial import Report, State, Target, Trial

METRIC = "val_accuracy"
TARGET = Target(METRIC, 0.9, limit=108.0)  # rungs at 4, 12 and 36 seconds
ENDED, RUNNING = 30, 12  # reports
TRIALS, PARAMETERS = (20, 60, 200), 8


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


@contextlib.contextmanager
def busy() -> Iterator[None]:
    """As many processes as there are cores, which compute all the time."""
    count = len(os.sched_getaffinity(0))
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        time.sleep(1.0)
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def fits(count: int, repeats: int) -> list[tuple[float, float]]:
    """Milliseconds until a model of so many trials is fitted: on one thread, and on all."""
    random = np.random.default_rng(count)
    x, took = random.random((count, PARAMETERS)), []
    weights = random.normal(size=PARAMETERS)
    for number in range(repeats + 1):
        y, pair = x @ weights + 0.1 * random.normal(size=count), dict[bool, float]()
        for one in (True, False) if number % 2 else (False, True):
            begin = time.monotonic()
            (fit if one else inspect.unwrap(fit))(x, y, np.ones(count))
            pair[one] = 1000 * (time.monotonic() - begin)
        took.append((pair[True], pair[False]))
    return took[1:]  # the first imports, and starts the threads


def ratio(pairs: Sequence[tuple[float, float]]) -> float:
    """How many times as long the fit takes on all threads, geometric mean."""
    return math.exp(statistics.fmean(math.log(many / one) for one, many in pairs))


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
    fitted = {}
    with busy():
        for count in TRIALS[:1] if options.quick else TRIALS:
            pairs = fitted[f"{count}"] = fits(count, max(repeats_of(options) // 2, 2))
            one, many = (statistics.median(times) for times in zip(*pairs, strict=True))
            low, high = interval(pairs, ratio)
            print(
                f"model of {count:3d} trials: {one:7.1f} ms, on all threads {many:7.1f} ms: "
                f"{ratio(pairs):.1f} times (95 % {low:.1f} to {high:.1f})",
                flush=True,
            )
    keep(options.json, about, runs=runs, fitted=fitted)


if __name__ == "__main__":
    main()
