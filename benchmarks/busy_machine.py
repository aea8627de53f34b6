"""What the marks of disturbed trials are worth on a machine that is busy now and then.

    python benchmarks/busy_machine.py [--repeats 20] [--parts virtual real] [--real-repeats 3]
        [--trials 30] [--slot 30] [--pruner convergence]

The same random search on a CPU-bound toy, whose every configuration's time on an idle machine is
known: alone, and beside a burner that runs in random half-minutes, once with what the ranks measure
and once without it (`plain`). `virtual` is on a virtual clock, where the burner takes half of each
core and the measured wait is right to about a tenth. `real` trains on Ray, one rank a core, beside
one process a core that computes.

Reported over all studies: the share of stopped trials that would have been faster than the
configuration that the study calls best (*wrong stops*); *regret*, the idle time of that
configuration over the least of all that were proposed (geometric mean); the disturbed trials; and
what the study spent, over the search alone on the machine. Ratios are seed by seed, with a 95 %
bootstrap interval.
"""

from __future__ import annotations

import math
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from _common import Answer, arguments, introduce, keep, measure, repeats_of, serve

import autotune as at
from autotune.backends.machine_load import SWITCH
from autotune.backends.protocol import Pool, Progress, Signal
from autotune.backends.simulator import SimCurve, SimPoint, SimPool
from autotune.trial import Config, Params, State, Trial, undisturbed

METRIC, WORKERS, STEPS = "val_accuracy", 2, 20
SPACE = at.SearchSpace({"lr": at.Float(1e-2, 10, log=True), "momentum": at.Float(0.0, 1.0)})
SIDES = ("alone", "marked", "plain")
ERROR = 0.1  # of the wait that is measured, on the virtual clock


def idle_seconds(config: Config, least: float) -> float:
    """Seconds to the target on an idle machine."""
    off = math.log10(config["lr"]) ** 2 + 4 * (config["momentum"] - 0.6) ** 2
    return least * math.exp(off)


class Evenly:
    """Random search, from the study's seed and the trial's number: the same beside a burner."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def ask(self, number: int, trials: Sequence[Trial]) -> Params:
        return SPACE.sample(1, self._seed * 1_000_003 + number)[0]


class Burner:
    """Whether other processes are at work, by half-minutes (or slots of another length)."""

    def __init__(self, seed: int, slot: float) -> None:
        self._seed, self._slot = seed, slot

    def on(self, slot: int) -> bool:
        return Random(f"burner {self._seed} {slot}").random() < 0.5

    def after(self, begin: float, work: float) -> float:
        """The time at which so many seconds of work are done that begin at `begin`."""
        now = begin
        while work > 1e-9:
            slot = math.floor(now / self._slot + 1e-9)
            speed = 0.5 if self.on(slot) else 1.0
            left = (slot + 1) * self._slot - now
            step = min(left, work / speed)
            now, work = now + step, work - step * speed
        return now


# --- on a virtual clock ---------------------------------------------------------------------------


def virtual(seed: int, side: str, options: Any) -> Answer:
    """One study on a virtual clock."""
    least, burner = 10.0, Burner(seed, options.slot)
    target = at.Target(METRIC, 1.0, limit=12 * least)

    def curve(config: Config, run: int) -> SimCurve:
        took, begin, points = idle_seconds(config, least), pool.now(), []
        error = 1 + ERROR * Random(f"error {seed} {run}").gauss(0, 1)
        for step in range(2 * STEPS + 1):
            work = took * step / STEPS
            seconds = work if side == "alone" else burner.after(begin, work) - begin
            waited = max(seconds - work, 0.0) * error if side == "marked" else 0.0
            metric = {METRIC: step / STEPS}
            points.append(SimPoint(step, seconds, metric, min(waited, seconds)))
        return SimCurve(points)

    pool = SimPool(curve, WORKERS)
    experiment = at.Experiment("busy", _no_trainer, SPACE, target)
    with tempfile.TemporaryDirectory(dir=_memory()) as folder:
        result = _run(experiment, Path(folder) / "s", seed, options, pool)
    return outcome(result, least)


def _no_trainer(config: Config) -> Iterator[at.Milestone]:
    """Stands for a trainer where curves stand for its runs."""
    yield from ()


def _memory() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


# --- on this machine ------------------------------------------------------------------------------


class Unmarked:
    """A pool whose reports do not say how long their ranks waited."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)

    def wait(self, timeout: float | None) -> Signal | None:
        signal: Signal | None = self._pool.wait(timeout)
        if not isinstance(signal, Progress) or signal.report is None:
            return signal
        return replace(signal, report=replace(signal.report, waited=None))


def train(config: dict[str, Any]) -> Iterator[at.Milestone]:
    """Compute as long as the configuration needs, in counted steps."""
    took = idle_seconds(config, config["least"])
    rounds = round(_rounds_a_second() * took / STEPS)
    yield at.Milestone(0, partial(_metrics, 0))
    for step in range(1, 2 * STEPS + 1):
        _compute(rounds)
        yield at.Milestone(step, partial(_metrics, step))


def _metrics(step: int) -> dict[str, float]:
    return {METRIC: step / STEPS}


def _compute(rounds: int) -> int:
    total = 0
    for turn in range(rounds):
        total += turn & 7
    return total


def _rounds_a_second() -> float:
    """How much this process computes in a second of its own CPU time."""
    rounds, begin = 2_000_000, time.process_time()
    _compute(rounds)
    return rounds / (time.process_time() - begin)


def real(task: dict[str, Any]) -> Answer:
    """One study of warm child processes, in a process of its own."""
    from types import SimpleNamespace

    from autotune.backends.local.pool import LocalPool

    os.environ.pop(SWITCH, None)  # tests set it
    options, least = SimpleNamespace(**task["options"]), task["least"]
    space = at.SearchSpace({**SPACE.parameters(), "least": at.Fixed(least)})
    target = at.Target(METRIC, 1.0, limit=12 * least)
    experiment = at.Experiment("busy", train, space, target, scaling=at.Scaling(cpus_per_worker=1))
    pool: Pool = LocalPool(experiment.train, experiment.scaling)
    if task["side"] == "plain":
        pool = Unmarked(pool)
    burning = beside(Burner(task["seed"], options.slot)) if task["side"] != "alone" else idle()
    with burning:
        folder = Path(task["folder"]) / "study"
        result = _run(experiment, folder, task["seed"], options, pool)
    return outcome(result, least)


@contextmanager
def idle() -> Iterator[None]:
    yield


@contextmanager
def beside(burner: Burner) -> Iterator[None]:
    """Have a process a core compute whenever the burner is on."""
    over = threading.Event()
    thread = threading.Thread(target=_burn, args=(burner, over), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _burn(burner: Burner, over: threading.Event) -> None:
    command = [sys.executable, "-c", "while True: pass"]
    for slot in range(10**6):
        count = WORKERS if burner.on(slot) else 0
        burning = [subprocess.Popen(command) for _ in range(count)]
        stopped = over.wait(burner._slot)
        for process in burning:
            process.kill()
            process.wait()
        if stopped:
            return


# --- what a study found ---------------------------------------------------------------------------


def _run(
    experiment: at.Experiment, folder: Path, seed: int, options: Any, pool: Pool
) -> at.StudyResult:
    asked = {"pruner": options.pruner, "seed": seed, "racing": 0, "tracking_uri": "off"}
    sampler = Evenly(seed)
    return at.run(
        experiment, trials=options.trials, out=folder, sampler=sampler, pool=pool, **asked
    )


def outcome(result: at.StudyResult, least: float) -> Answer:
    """The figures of a study, all in seconds on an idle machine."""
    own = {t.number: idle_seconds(t.config, least) for t in result.searched}
    best = own[result.best.number] if result.best is not None else math.inf
    stopped = [t for t in result.searched if t.state is State.CENSORED]
    ended = [t for t in result.searched if t.state is State.REACHED]
    return {
        "stopped": len(stopped),
        "wrong": sum(own[t.number] < best for t in stopped),
        "regret": best / min(own.values()),
        "disturbed": sum(t.disturbed for t in result.searched),
        "again": len(result.trials) - len(result.searched),
        "spent": sum(t.spent_seconds for t in result.trials),
        "raw": [t.seconds / own[t.number] for t in ended],
        "estimate": [undisturbed(t).seconds / own[t.number] for t in ended],
        "shares": [t.cpu_share for t in result.searched if t.cpu_share is not None],
    }


def spread(values: Sequence[float]) -> str:
    """The median, and the least and the greatest."""
    if not values:
        return "-"
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def geometric(values: Sequence[float]) -> float:
    return math.exp(statistics.fmean(math.log(v) for v in values))


def interval(
    values: Sequence[float], of: Callable[[Sequence[float]], float]
) -> tuple[float, float]:
    """A 95 % bootstrap interval over studies."""
    random = Random(0)
    made = sorted(of([random.choice(values) for _ in values]) for _ in range(2000))
    return made[50], made[-51]


def report(part: str, found: dict[str, list[Answer]]) -> None:
    """Print the figures of all studies of a part, a line a side, and then the comparison."""
    print(f"\n{part}: {len(found['alone'])} studies a side", flush=True)
    for side, studies in found.items():
        stopped, wrong = (sum(s[key] for s in studies) for key in ("stopped", "wrong"))
        spent = geometric(
            [s["spent"] / a["spent"] for s, a in zip(studies, found["alone"], strict=True)]
        )
        shares = [share for s in studies for share in s["shares"]]
        print(
            f"  {side:7} wrong stops {wrong} of {stopped} ({wrong / max(stopped, 1):.1%}), "
            f"regret {geometric([s['regret'] for s in studies]):.3f}, disturbed "
            f"{sum(s['disturbed'] for s in studies)}, run again "
            f"{sum(s['again'] for s in studies)}, spent {spent:.2f} of alone, median share "
            f"{statistics.median(shares or [math.nan]):.2f}"
        )
        took, left = ([r for s in studies for r in s[key]] for key in ("raw", "estimate"))
        print(f"          reached in {spread(took)} of the idle time; without waits {spread(left)}")
    both = list(zip(found["marked"], found["plain"], strict=True))
    ratios = [m["regret"] / p["regret"] for m, p in both]
    low, high = interval(ratios, geometric)
    print(f"  regret with marks over without: {geometric(ratios):.3f} ({low:.3f} to {high:.3f})")
    fewer = [p["wrong"] - m["wrong"] for m, p in both]
    low, high = interval(fewer, statistics.fmean)
    less = f"{statistics.fmean(fewer):.2f} ({low:.2f} to {high:.2f})"
    print(f"  wrong stops a study fewer with marks: {less}")


def main() -> None:
    parser = arguments(__doc__ or "", 20)
    parser.add_argument("--parts", nargs="+", choices=("virtual", "real"),
                        default=["virtual", "real"])  # fmt: skip
    parser.add_argument("--real-repeats", type=int, default=3)
    parser.add_argument("--trials", type=int, default=30)
    parser.add_argument("--slot", type=float, default=30.0, help="seconds of a slot (30)")
    parser.add_argument("--least", type=float, default=4.0, help="fastest of real trials, s (4)")
    parser.add_argument("--pruner", default="convergence")
    options = parser.parse_args()
    about, repeats = introduce(), repeats_of(options)
    raw: dict[str, Any] = {}
    if "virtual" in options.parts:
        seeds = range(3 if options.quick else repeats)
        raw["virtual"] = {s: [virtual(seed, s, options) for seed in seeds] for s in SIDES}
        report("virtual", raw["virtual"])
    if "real" in options.parts:
        if options.quick:
            options.trials, options.slot, options.least = 6, 5.0, 1.0
        seeds = range(1 if options.quick else options.real_repeats)
        raw["real"] = {side: [] for side in SIDES}
        task = {"options": {k: getattr(options, k) for k in ("trials", "slot", "pruner")}}
        for seed in seeds:
            for side in SIDES:
                asked = {**task, "seed": seed, "side": side, "least": options.least}
                raw["real"][side].append(measure(__file__, "real", asked))
        report("real", raw["real"])
    keep(options.json, about, runs=raw)


if __name__ == "__main__":
    if not serve({"real": real}, sys.argv[1:]):
        main()
