"""What a search in two stages is worth, after the same wall seconds, probes included.

    python benchmarks/two_stages.py [--problem digits] [--pairs 5] [--seconds 600]
        [--confirm 5] [--first-pair 0] [--sides one two] [--json FILE]
    python benchmarks/two_stages.py --merge FILE ...

    one       all parameters are searched together (`stages="off"`)
    two       what changes only the seconds per sample is probed first, and then fixed
    random    the same with as many seconds of probes, of plans that are drawn
    default   only the parameters that change the learning are searched, in the baseline's plan
    ceiling   the same in the plan that much longer probes find, whose seconds are not counted

Each side searches for so many seconds of wall time, its probes too; then its best configuration and
the baseline run again on fresh seeds. The figure is the time of the best on these over the other
sides', pair by pair: a pair has one seed, and its sides take turns. A search in two stages that
probed nothing is a fault, and an aim that is missed is said (exit code 1 for either; `--quick`
judges no aim): probes below 5 % of the seconds; on the farm two thirds of one stage's seconds to a
configuration near the best; on the control at most 5 % lost to one stage.

    digits       the recipe `digits:plans`, on two ranks of this machine
    shakespeare  the recipe `shakespeare:plans`, without the plans that it gives
    control      a small network over the loopback interface, where no way to communicate can be
                 worth anything, and half precision is many times slower: the default must be kept,
                 and fp16 be out after one probe (exit code 1)
    farm         small networks that really train, on a virtual clock with measured seconds of plans
                 (`_two_stages_farm.py`): the seconds until a configuration within 25 % of the best
    settled      the same where the baseline has the fastest plan already
    simulated    a virtual clock, where it is known what each parameter is worth; one is five times
                 as fast and learns nothing, which no probe may fix (exit code 1)
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from _aims import Judged, exit_code
from _common import (
    Answer,
    Task,
    arguments,
    in_turns,
    introduce,
    keep,
    measure,
    ratios,
    serve,
    summary,
)
from _two_stages_farm import SIDES, aims, fixed, mean, merged, probes_aim, random_plans
from _two_stages_farm import run as farm

FARMS = ("farm", "settled")
PROBLEMS = ("digits", "shakespeare", "control", "simulated", *FARMS)
UNCOUNTED = 0.5  # of the search's seconds: what the probes of the ceiling may take
PROBING = ("two", "random")
LOST = 1.05  # to one stage on the control, at most
MANY = 1000  # trials, of which the seconds are over before
LEARNS_NOTHING = "skip_updates"
_SPEED: Mapping[tuple[str, Any], float] = {
    ("fused", True): 1.5,
    ("precision", "bf16"): 1.2,
    ("precision", "fp16"): 0.11,
    (LEARNS_NOTHING, True): 5.0,
}


def learn(config: dict[str, Any]) -> Iterator[Any]:
    """Stands for the trainer of the simulated problem, which is not run."""
    yield from ()


learn.effects = {  # type: ignore[attr-defined]
    "rate": "statistical",
    "fused": "exact",
    "precision": "rounding",
    LEARNS_NOTHING: "both",
}


def simulated() -> Any:
    """The experiment on a virtual clock."""
    import autotune as at

    space: dict[str, Any] = {
        "rate": at.Float(0.25, 4.0, log=True),
        "fused": at.Choice((False, True)),
        "precision": at.Choice(("fp32", "bf16", "fp16")),
        LEARNS_NOTHING: at.Choice((False, True)),
    }
    baseline = {"rate": 0.5, "fused": False, "precision": "fp32", LEARNS_NOTHING: False}
    target = at.Target("accuracy", 0.9, limit=60.0)
    return at.Experiment("simulated", learn, at.SearchSpace(space), target, baseline=baseline)


def curve(config: Mapping[str, Any], seed: int) -> Any:
    """What the simulated trainer reports: it learns fastest at a rate of 1."""
    import math
    from random import Random

    from autotune.backends.simulator import SimCurve, SimPoint

    random, seconds = Random(seed), 0.0
    speed = math.prod(v for (name, value), v in _SPEED.items() if config[name] == value)
    learns = 0.0 if config[LEARNS_NOTHING] else math.exp(-(math.log(config["rate"]) ** 2))
    learns *= 1 + 0.1 * random.gauss(0, 1)
    points = [SimPoint(0, 0.0, {})]
    for i in range(1, 151):
        seconds += 0.2 / speed * math.exp(random.gauss(0, 0.02))
        points.append(SimPoint(64 * i, seconds, {"accuracy": 1 - math.exp(-0.03 * learns * i)}))
    return SimCurve(points, setup_seconds=1.0)


def control() -> Any:
    """Digits with a small network: copies over loopback, and half precision on a CPU."""
    import autotune as at
    from search_spaces import digits

    made = digits.sgd()
    given = dict(made.space.entries)
    entries = {
        **given,
        "width": at.Fixed(8),
        "precision": at.Choice(("fp32", "fp16")),
        "bucket_cap_mb": at.Choice((None, 1, 100)),
        "static_graph": at.Choice((False, True)),
    }
    plan = {"precision": "fp32", "bucket_cap_mb": None, "static_graph": False}
    return replace(
        made,
        name="control",
        space=replace(made.space, entries=entries),
        baseline={**(made.baseline or {}), **plan},
    )


def experiment(problem: str) -> Any:
    if problem == "simulated":
        return simulated()
    if problem == "control":
        return control()
    from search_spaces import digits, shakespeare

    made = digits.plans() if problem == "digits" else shakespeare.plans()
    return replace(made, configs=())


def side(name: str, task: Task) -> Answer:
    """Search for so many seconds, then confirm."""
    import autotune as at
    from autotune.algorithms.plans import words
    from autotune.algorithms.plans.probed import probed_plans
    from autotune.algorithms.ranking.repeats import probes

    made = experiment(task["problem"])
    if name == "ceiling":
        made = settled(made, task)
    if name in ("default", "ceiling"):
        made = fixed(made)
    options: dict[str, Any] = {
        "stages": "auto" if name in PROBING else "off",
        "tracking_uri": "off",
        "racing": 0,
        "sampler": "widening",  # what a study of few trials with a baseline has
        "seed": task["seed"],
        "out": Path(task["folder"], "study"),
        "trials": task["trials"],
    }
    with random_plans(task["seed"]) if name == "random" else nullcontext():
        result = at.run(made, time_limit=task["seconds"], **options, **_place(task))
    again = {"search": False, "repeats": task["confirm"], "top": 1}
    result = at.run(made, **again, **options, **_place(task))
    own = {c.number: c for c in result.confirmed}
    best, baseline = result.best, result.baseline
    plans = {words.plan_of(f): f.runs for f in probed_plans(result.trials)}
    return {
        "best": own[best.number].mean if best is not None and best.number in own else None,
        "baseline": own[baseline.number].mean if baseline and baseline.number in own else None,
        "limit": result.target.horizon,
        "trials": len(result.searched),
        "probes": len(probes(result.trials)),
        "probe_seconds": sum(t.spent_seconds for t in probes(result.trials)),
        "plan": words.decision(result.trials),
        "probed": plans,
        "kept": [line.plan for line in words.lines(result.trials) if line.kept],
    }


def settled(made: Any, task: Task) -> Any:
    """The experiment from its baseline in the plan that is kept after many probes."""
    import autotune as at
    from autotune.algorithms.plans import choice

    with patch.object(choice, "SHARE", UNCOUNTED):
        result = at.run(
            made,
            time_limit=task["seconds"],
            trials=2,  # the baseline, and what follows the probes
            sampler="random",
            racing=0,
            seed=task["seed"],
            out=Path(task["folder"], "plans"),
            tracking_uri="off",
            **_place(task),
        )
    kept = choice.chosen(result.trials)
    changes = dict(kept.changes) if kept is not None else {}
    return replace(made, baseline={**made.baseline, **changes})


def _place(task: Task) -> dict[str, Any]:
    """Where trials run: one at a time here, or on a virtual clock."""
    if task["problem"] != "simulated":
        return {"backend": "local", "max_concurrent_trials": 1}
    from autotune.backends.simulator import SimPool

    return {"pool": SimPool(curve, 1)}


def faults(problem: str, answers: list[Answer]) -> list[str]:
    """What a control shows that it must not."""
    found = []
    for answer in answers:
        probed, kept = answer["probed"], ", ".join(answer["kept"])
        if not probed:
            found.append("nothing was probed beside the default")
        if probed.get("precision fp16", 1) > 1 or "fp16" in kept:
            found.append(f"fp16 was not out after one probe: {answer['plan']}")
        if any(LEARNS_NOTHING in plan for plan in probed):
            found.append(f"what learns nothing was probed: {answer['plan']}")
        if problem == "control" and kept:
            found.append(f"another plan than the default was kept: {answer['plan']}")
    return found


def judged_aims(problem: str, runs: dict[str, list[Answer]], seconds: float) -> list[Judged]:
    """Whether each aim is met, and its sentence; an aim whose sides were not run is left out."""
    judged = probes_aim(runs["two"], seconds) if runs.get("two") else []
    if problem == "control" and runs.get("two") and runs.get("one"):
        times = times_of(runs)
        lost = mean(ratios(times["two"], times["one"]))
        judged.append((lost <= LOST, f"the best over one stage's {lost:.2f} (aim: {LOST})"))
    return judged


def times_of(runs: dict[str, list[Answer]]) -> dict[str, list[float]]:
    """The confirmed times of each side; the limit where the best was not confirmed."""
    return {
        name: [a["limit"] if a["best"] is None else a["best"] for a in answers]
        for name, answers in runs.items()
    }


def show(runs: dict[str, list[Answer]]) -> None:
    """Print the confirmed times of each side, and the ratios of those of `two` to the others'."""
    times = times_of(runs)
    for name, answers in runs.items():
        tried = summary([a["trials"] for a in answers])
        print(f"  {name:8} best {summary(times[name], ' s'):34} trials {tried}")
    for name in (name for name in PROBING if name in runs):
        print(f"  probes   {name} {summary([a['probe_seconds'] for a in runs[name]], ' s')}")
        for answer in runs[name]:
            print(f"  plan     {name}: {answer['plan']}")
    for name in (name for name in runs if name != "two" and "two" in runs):
        print(f"  {name} / two: {summary(ratios(times[name], times['two']))}")


def main() -> int:
    parser = arguments(__doc__, repeats=5)
    parser.add_argument("--problem", choices=PROBLEMS, default="digits")
    parser.add_argument("--pairs", type=int, help="of sides, each with another seed (5)")
    parser.add_argument("--first-pair", type=int, default=0, help="go on with this one (0)")
    parser.add_argument("--seconds", type=float, help="of wall time for each search (600)")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=SIDES)
    parser.add_argument("--confirm", type=int, help="runs of the best on fresh seeds (5)")
    parser.add_argument("--merge", nargs="+", metavar="FILE", help="of several --json of a farm")
    options = parser.parse_args()
    small = options.problem if options.problem in FARMS else "simulated"
    problem = small if options.quick else options.problem
    pairs = options.pairs or options.repeats or (1 if options.quick else options.full_repeats)
    seconds = options.seconds or (120.0 if options.quick and problem in FARMS else 600.0)
    trials = 6 if options.quick else MANY
    confirm = options.confirm or (1 if options.quick else 5)
    if options.merge:
        return merged(options.merge)
    about = introduce()
    if problem in FARMS:
        found = farm(pairs, options.first_pair, seconds, problem == "settled", options.sides)
        keep(options.json, about, problem=problem, seconds=seconds, runs=found)
        return 0 if options.quick else exit_code(aims(found, seconds))
    runs: dict[str, list[Answer]] = {name: [] for name in options.sides}
    raw = []
    for pair, name in in_turns(options.sides, pairs):
        seed = options.first_pair + pair
        task = {"problem": problem, "seed": seed, "seconds": seconds, "trials": trials}
        answer = measure(__file__, name, {**task, "confirm": confirm})
        runs[name].append(answer)
        raw.append({"side": name, "pair": seed, **answer})
        keep(options.json, about, problem=problem, seconds=seconds, runs=raw)  # of hours, so far
    print(f"\n{problem}, {seconds:g} s of search: median (range)")
    show(runs)
    wrong = faults(problem, runs.get("two", []))
    for fault in wrong:
        print(fault)
    missed = 0 if options.quick else exit_code(judged_aims(problem, runs, seconds))
    return 1 if wrong else missed


if __name__ == "__main__":
    if not serve({name: partial(side, name) for name in SIDES}, sys.argv[1:]):
        sys.exit(main())
