"""What the driver costs when a study is large: many trials, many at once, many metrics.

    python benchmarks/driver.py [--parts virtual suggest mirror peers] [--json FILE]
        [--trials 1000 5000 20000] [--at-once 1000] [--history 100 1000 5000 20000]
        [--mirror 100 1000 100] [--mirror-seconds 9000]
        [--peer-trials 100 1000 10000] [--peer-seconds 900]

    virtual   studies of no-op trials with ten reports on a virtual clock, `--at-once` of them at a
              time, flushed to a file system in memory: events handled a CPU second, the driver's
              greatest memory, and CPU seconds to resume the finished study
    suggest   CPU seconds of a suggestion when so many trials have ended
    mirror    a study of `--mirror` trials, milestones and metrics, with MLflow and without: what
              the driver takes for it, until when MLflow has all (an hour for the ten million
              points of the default, `--mirror-seconds` at most), and the mirror's greatest memory
    peers     real trials on Ray that report once, against Ray Tune with `reuse_actors`: the time of
              each and the driver's part of it. A side that is not done after `--peer-seconds` is
              cut off, and the row says after how many trials; what all would take is drawn on

Where the clock is virtual, figures are CPU seconds of the driver, so that other work on the
machine changes them little.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from pathlib import Path
from random import Random
from typing import Any

import trial_cost
from _common import Answer, Side, Task, arguments, introduce, keep, measure, missing, serve
from _noop import SIDES, row

import autotune as at
from autotune.backends.simulator import SimCurve, SimPoint, SimPool
from autotune.storage.journal import JOURNAL
from autotune.trial import Config, Report, State, Trial

MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
PARTS = ("virtual", "suggest", "mirror", "peers")
SPACE = at.SearchSpace(
    {
        "lr": at.Float(1e-3, 1e-1, log=True),
        "momentum": at.Float(0.8, 0.99),
        "batch_size": at.Choice([64, 128, 256]),
    }
)
TARGET = at.Target("score", 0.75, limit=60.0)
REPORTS = 10


def experiment() -> at.Experiment:
    return at.Experiment("driver", _nothing, SPACE, TARGET)


def _nothing(config: Config) -> Any:
    """Stands for a trainer where none is run."""


def learning(config: Config, seed: int) -> SimCurve:
    """Ten reports on the way to 1, the sooner the larger the learning rate."""
    random = Random(seed)
    speed = 0.02 + config["lr"] * random.random()
    points = [(5.0 * i + random.random(), i) for i in range(1, REPORTS + 1)]
    return SimCurve(
        [SimPoint(i, t, {"score": 1 - 1 / (1 + speed * t), "loss": 1.0}) for t, i in points]
    )


# --- a virtual clock ------------------------------------------------------------------------------


def virtual(task: Task) -> Answer:
    events = 0

    def watch(*_: Any) -> None:
        nonlocal events
        events += 1

    def study(folder: Path, **more: Any) -> float:
        begin = time.process_time()
        pool = SimPool(learning, task["at_once"])
        options = {k: task[k] for k in ("sampler", "racing")} | {"pruner": "convergence", "seed": 0}
        at.run(experiment(), trials=task["trials"], pool=pool, out=folder, **options, **more)
        return time.process_time() - begin

    with tempfile.TemporaryDirectory(dir=MEMORY) as place:
        took = study(Path(place, "study"), watch=watch)
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        size = Path(place, "study", JOURNAL).stat().st_size / 2**20
        again = study(Path(place, "study"))
    return {"events": events, "cpu": took, "rss_mb": most, "journal_mb": size, "resume": again}


def suggest(task: Task) -> Answer:
    from autotune.study.factory import make_parts
    from autotune.study.options import StudyOptions

    random = Random(0)
    trials = [_ended(number, random) for number in range(task["history"])]
    options = StudyOptions(trials=10**6, sampler=task["sampler"], racing=0.0)
    sampler = make_parts(experiment(), options, None).sampler
    begin = time.process_time()
    sampler.ask(len(trials), trials)  # a resumed driver's first
    first, took = time.process_time() - begin, []
    for _ in range(5):  # one trial ends between two suggestions
        trials.append(_ended(len(trials), random))
        begin = time.process_time()
        sampler.ask(len(trials), trials)
        took.append(time.process_time() - begin)
    return {"first": first, "next": sorted(took)[2]}


def _ended(number: int, random: Random) -> Trial:
    point = SPACE.suggest(lambda _, p: _drawn(p, random))
    seconds = 5 + 50 * random.random()
    met = random.random() < 0.3
    reports = tuple(
        Report(
            i, seconds * i / 5, {"score": 0.75 * i / 5 if met else 0.7 * i / 5 * random.random()}
        )
        for i in range(1, 6)
    )
    state, reason = (State.REACHED, "target") if met else (State.CENSORED, "capped")
    config = SPACE.config(point)
    return Trial(number, config, point, state=state, reason=reason, seconds=seconds, attempts=1,
                 reports=reports, ended_at=float(number))  # fmt: skip


def _drawn(parameter: Any, random: Random) -> Any:
    from autotune.space.parameters import drawn

    return drawn(parameter, random)


# --- MLflow ---------------------------------------------------------------------------------------


def mirror(task: Task) -> Answer:
    names = [f"metric_{i:03d}" for i in range(task["metrics"] - 1)]

    def many(config: Config, seed: int) -> SimCurve:
        steps = range(1, task["milestones"] + 1)
        shown = [dict.fromkeys(names, 1.0 / i) | {"score": 0.0} for i in steps]
        return SimCurve([SimPoint(i, 0.01 * i, m) for i, m in zip(steps, shown, strict=True)])

    folder = Path(task["folder"], "study")
    uri = f"sqlite:///{folder / 'mlflow.db'}" if task["mlflow"] else "off"
    pool = SimPool(many, 10)
    ends: list[float] = []
    begin = time.monotonic(), time.process_time()
    at.run(
        experiment(),
        trials=task["trials"],
        sampler="random",
        pruner="none",
        pool=pool,
        out=folder,
        tracking_uri=uri,
        watch=lambda event, _: ends.append(time.monotonic()),
    )
    used = time.process_time() - begin[1]
    answer = {"driver": ends[-1] - begin[0], "driver_cpu": used, "until_mlflow": 0.0, "rss_mb": 0.0}
    answer["events"] = len(ends)
    answer["driver_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    if task["mlflow"]:
        answer["rss_mb"] = _wait_and_weigh(task["patience"])
        answer["until_mlflow"] = time.monotonic() - begin[0]
        answer["points"] = _points(folder / "mlflow.db")
        wanted = task["trials"] * task["milestones"] * task["metrics"]
        if answer["points"] < wanted:
            raise RuntimeError(f"MLflow has {answer['points']} points of {wanted}")
    return answer


def _wait_and_weigh(limit: float) -> float:
    """Until the mirror has ended; the most memory that it had, in MiB."""
    trial_cost.wait_for_mirror(limit)
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024


def _points(store: Path) -> int:
    import sqlite3

    with sqlite3.connect(store) as database:
        (found,) = database.execute(
            "select count(*) from metrics where key = 'score' or key like 'metric_%'"
        ).fetchone()
    return int(found)


# --- what is measured -----------------------------------------------------------------------------


def tell_virtual(options: Any) -> list[Answer]:
    measured = []
    for trials in options.trials:
        at_once = min(options.at_once, trials)
        task = {"trials": trials, "at_once": at_once, "sampler": options.sampler}
        task |= {"racing": options.racing}
        found = measure(__file__, "virtual", task)
        measured.append({**task, **found})
        print(
            f"  {trials} trials, {at_once} at once, {options.sampler}: {found['events']} events, "
            f"{found['events'] / found['cpu']:.0f} a second, {found['rss_mb']:.0f} MiB, resumed in "
            f"{found['resume']:.1f} s from {found['journal_mb']:.0f} MiB",
            flush=True,
        )
    return measured


def tell_suggest(options: Any) -> list[Answer]:
    measured = []
    for sampler in options.samplers:
        for history in options.history:
            task = {"sampler": sampler, "history": history}
            found = measure(__file__, "suggest", task)
            measured.append({**task, **found})
            print(
                f"  {sampler} after {history} trials: {1e3 * found['next']:.1f} ms "
                f"(a resumed driver's first {1e3 * found['first']:.0f} ms)",
                flush=True,
            )
    return measured


def tell_mirror(options: Any) -> list[Answer]:
    trials, milestones, metrics = options.mirror
    measured = []
    for mlflow in (False, True):
        task = {"trials": trials, "milestones": milestones, "metrics": metrics, "mlflow": mlflow}
        task |= {"patience": options.mirror_seconds}
        measured.append({**task, **measure(__file__, "mirror", task, 2 * options.mirror_seconds)})
        last = measured[-1]
        where = (
            f"MLflow has {last['points']} points after {last['until_mlflow']:.0f} s, its "
            f"process {last['rss_mb']:.0f} MiB"
            if mlflow
            else "no MLflow"
        )
        each = 1e3 * last["driver_cpu"] / last["events"]
        print(
            f"  {trials} trials x {milestones} x {metrics}: the driver {last['driver']:.1f} s "
            f"({last['driver_cpu']:.1f} s of CPU, {each:.2f} ms an event, "
            f"{last['driver_mb']:.0f} MiB); {where}",
            flush=True,
        )
    return measured


def tell_peers(options: Any) -> list[Answer]:
    sides = options.peers
    absent = missing("ray.tune", "pyarrow", "tensorboardX")
    if absent:
        print(f"  Ray Tune is skipped: {absent} (pip install 'time-to-target[bench]')")
        sides = [side for side in sides if not side.startswith("tune")]
    measured = []
    for trials in options.peer_trials:
        for side in sides:
            found = measure(__file__, side, {"trials": trials, "limit": options.peer_seconds})
            measured.append({"side": side, "trials": trials, **found})
            print(row(side, trials, found), flush=True)
    return measured


def main() -> None:
    parser = arguments(__doc__, repeats=1)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--trials", type=int, nargs="+", default=[1000, 5000, 20000])
    parser.add_argument("--at-once", type=int, default=1000)
    parser.add_argument("--sampler", default="random", help="of the part `virtual`")
    parser.add_argument("--racing", type=float, default=0.0, help="likewise, a share")
    parser.add_argument(
        "--samplers", nargs="+", default=["random", "tpe", "convergence", "policy:elite"]
    )
    parser.add_argument("--history", type=int, nargs="+", default=[100, 1000, 5000, 20000])
    parser.add_argument("--mirror", type=int, nargs=3, default=[100, 1000, 100])
    parser.add_argument("--mirror-seconds", type=float, default=9000.0)
    parser.add_argument("--peer-trials", type=int, nargs="+", default=[100, 1000, 10000])
    parser.add_argument("--peers", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--peer-seconds", type=float, default=900.0)
    options = parser.parse_args()
    if options.quick:
        options.trials, options.history, options.mirror = [40], [40], [1, 20, 5]
        options.parts = [part for part in options.parts if part != "peers"]
        options.samplers = ["random", "convergence"]
    about = introduce()
    tellers = {
        "virtual": tell_virtual,
        "suggest": tell_suggest,
        "mirror": tell_mirror,
        "peers": tell_peers,
    }
    raw: dict[str, list[Answer]] = {}
    for part in options.parts:
        print(part)
        raw[part] = tellers[part](options)
    keep(options.json, about, **raw)


if __name__ == "__main__":
    made: dict[str, Side] = {"virtual": virtual, "suggest": suggest, "mirror": mirror, **SIDES}
    if not serve(made, sys.argv[1:]):
        main()
