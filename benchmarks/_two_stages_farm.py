"""Pairs of studies of `two_stages.py` on the farm: real small networks, measured steps, no waiting.

A study runs on a virtual clock, so that all studies run in this process, one after the other, and
another process on the machine changes nothing. A configuration is judged by its mean seconds on
fresh seeds. Two levels are asked for: within 25 % of the best that any study of the task has found,
and what the studies in one stage end with (their median).
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

from _aims import Judged, exit_code
from _common import Answer, in_turns
from _intervals import interval

SIDES = ("one", "two", "random", "default", "ceiling")
NEAR = 1.25
SOONER = 2 / 3  # of one stage's seconds to a configuration so near: the aim
SHARE = 0.05  # of a study's seconds: probes take less
MOMENTS = (0.25, 0.5, 1.0)  # of the search's seconds


def fixed(made: Any) -> Any:
    """The experiment in the plan of its baseline, of which nothing is searched."""
    from autotune.algorithms.plans.parameters import (
        ProbedParameters,
        effects_of,
        probed_names,
        without,
    )
    from autotune.study.stages import in_space
    from autotune.trial.plan_text import plan_keys

    point = made.space.complete(made.baseline)[1]
    names = tuple(probed_names(made.space, effects_of(made.train)))
    about = ProbedParameters(
        made.space, names, plan_keys(made.train), point, made.scaling.num_workers
    )
    return in_space(made, without(made.space, about.fixed(point)))


@contextmanager
def random_plans(seed: int) -> Iterator[None]:
    """Probes of plans that are drawn, in place of one change each and then combinations."""
    from autotune.algorithms.plans.parameters import ProbedParameters, values
    from autotune.trial.values import point_key

    def drawn(about: ProbedParameters) -> list[Any]:
        random, parameters = Random(f"plans {seed}"), about.space.parameters()
        rows = [{n: random.choice(values(parameters[n])) for n in about.names} for _ in range(200)]
        points = [point for row in rows if (point := about._point(row)) is not None]
        found = {point_key(point): point for point in points}
        found.pop(point_key(about.default), None)
        return list(found.values())

    with patch.multiple(ProbedParameters, alternatives=drawn, together=_never):
        yield


def _never(*_: Any) -> None:
    """No combination."""


def study(problem: Any, name: str, seed: int, seconds: float) -> Answer:
    """One search, and what its best was worth at each time."""
    import autotune as at
    from autotune.algorithms.plans import words
    from autotune.algorithms.ranking.repeats import probes
    from autotune.backends.simulator import SimPool

    own = replace(problem, plan=problem.fastest) if name == "ceiling" else problem
    made = own.experiment()
    made = fixed(made) if name in ("default", "ceiling") else made
    drawing = random_plans(seed) if name == "random" else nullcontext()
    with drawing, tempfile.TemporaryDirectory(dir=_memory()) as place:
        result = at.run(
            made,
            time_limit=seconds,
            trials=1000,
            stages="auto" if name in ("two", "random") else "off",
            sampler="widening",  # what a study of few trials with a baseline has
            racing=0,
            seed=seed,
            out=Path(place, "study"),
            pool=SimPool(problem.study(), 1),
            tracking_uri="off",
        )
    return {
        "found": [(at, problem.seconds(config)) for at, config in incumbents(result)],
        "trials": len(result.searched),
        "probes": len(probes(result.trials)),
        "probe_seconds": math.fsum(t.spent_seconds for t in probes(result.trials)),
        "plan": words.decision(result.trials),
    }


def _memory() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def incumbents(result: Any) -> Iterator[tuple[float, Mapping[str, Any]]]:
    """When a study had another best than before, and its configuration."""
    done = [t for t in result.searched if t.time_to_target is not None]
    best = math.inf
    for trial in sorted(done, key=lambda t: t.ended_at):
        if trial.seconds < best:
            best = trial.seconds
            yield trial.ended_at, trial.config


def reached_at(answer: Answer, level: float, seconds: float) -> float:
    """When the study had a configuration as good as that; its end if it never had."""
    times = (at for at, value in answer["found"] if value <= level)
    return min(next(times, seconds), seconds)


def value_at(answer: Answer, moment: float, limit: float) -> float:
    """What the best of the study is worth then; the limit where there is none."""
    found = (float(value) for at, value in answer["found"] if at <= moment)
    return [limit, *found][-1]


def mean(values: Sequence[float]) -> float:
    """The geometric one."""
    return math.exp(statistics.fmean(math.log(value) for value in values))


def run(
    pairs: int, first: int, seconds: float, settled: bool, sides: Sequence[str] = SIDES
) -> list[Answer]:
    """All studies; prints the tables.

    Args:
        pairs: of sides, each with another task or seed.
        first: the first pair.
        settled: whether the baselines have the fastest plan already.
    """
    import numpy as np
    from threadpoolctl import threadpool_limits

    _farm_plans = farm_plans()
    problems = [_farm_plans.problem(i, settled) for i in range(len(_farm_plans.TASKS))]
    rows, begun = [], time.process_time()
    with np.errstate(all="ignore"), threadpool_limits(1):  # some diverge; all are small
        for pair, name in in_turns(sides, pairs):
            number = first + pair
            task = problems[number % len(problems)]
            answer = study(task, name, number, seconds)
            rows.append({"side": name, "pair": number, "task": task.task.name, **answer})
            if name == sides[-1] and pair % 10 == 9:
                spent = time.process_time() - begun
                print(f"{pair + 1} pairs, {spent:.0f} processor seconds", flush=True)
    print(f"\nthe farm, {seconds:g} s of search, {pairs} pairs; {settled=}")
    show(rows, seconds, _farm_plans.LIMIT)
    return rows


def farm_plans() -> Any:
    """The farm's tasks with plans: a module of the research scripts."""
    sys.path.append(str(Path(__file__).parent / "research"))
    import _farm_plans

    return _farm_plans


def merged(files: Sequence[str]) -> int:
    """Tables and aims of the pairs of several `--json` files of a farm; the exit code."""
    read = [json.loads(Path(file).read_text()) for file in files]
    if len(alike := {(one["problem"], one["seconds"]) for one in read}) > 1:
        print(f"--merge: files of different problems: {sorted(alike)}", file=sys.stderr)
        return 2
    rows = [row for one in read for row in one["runs"]]
    show(rows, read[0]["seconds"], farm_plans().LIMIT)
    return exit_code(aims(rows, read[0]["seconds"]))


def show(rows: Sequence[Answer], seconds: float, limit: float) -> None:
    """What each side found, and how two stages stand to the others."""
    best = best_known(rows)
    print("  best known: " + ", ".join(f"{k} {v:.2f} s" for k, v in best.items()))
    own = by_side(rows)
    levels = {
        "within 25 % of the best": {task: NEAR * value for task, value in best.items()},
        "as good as one's end": usual(own.get("one", []), seconds, limit),
    }
    for name, mine in own.items():
        worth = [
            [value_at(r, at * seconds, limit) / best[r["task"]] for r in mine] for at in MOMENTS
        ]
        spent = statistics.fmean(r["probe_seconds"] / seconds for r in mine)
        trials = statistics.fmean(r["trials"] for r in mine)
        print(
            f"  {name:8} regret {', '.join(f'{mean(w):.2f}' for w in worth)} after {MOMENTS} "
            f"of the search; probes {spent:.1%}; trials {trials:.0f}"
        )
    for of, level in levels.items():
        times = {
            name: [reached_at(r, level[r["task"]], seconds) for r in mine]
            for name, mine in own.items()
            if level
        }
        for name, after in times.items():
            found = statistics.fmean(one < seconds for one in after)
            print(f"  {of}: {name:8} after {mean(after):4.0f} s, {found:.0%} at all")
        for name in times:
            if name != "two" and "two" in times:
                pairs = list(zip(times["two"], times[name], strict=True))
                print(f"    seconds of two / {name}: {_ratio(pairs)}")
    for name, mine in own.items():
        if name != "two" and "two" in own:
            ends = [
                (value_at(a, seconds, limit), value_at(b, seconds, limit))
                for a, b in zip(own["two"], mine, strict=True)
            ]
            print(f"  best at the end, two / {name}: {_ratio(ends)}")
    decided = [row["plan"].split(" is kept")[0] for row in own.get("two", [])]
    for plan in sorted(set(decided), key=decided.count, reverse=True):
        print(f"  kept {decided.count(plan)} times: {plan}")


def by_side(rows: Sequence[Answer]) -> dict[str, list[Answer]]:
    """The studies of each side, in the order of their pairs."""
    own: dict[str, list[Answer]] = {}
    for row in sorted(rows, key=lambda row: row["pair"]):
        own.setdefault(row["side"], []).append(row)
    return own


def best_known(rows: Sequence[Answer]) -> dict[str, float]:
    """What the best configuration of any study is worth, for each task."""
    best: dict[str, float] = {}
    for row in rows:
        known = [value for _, value in row["found"]]
        best[row["task"]] = min([*known, best.get(row["task"], math.inf)])
    return best


def aims(rows: Sequence[Answer], seconds: float) -> list[Judged]:
    """Whether each aim is met, and its sentence; an aim whose sides were not run is left out."""
    best = best_known(rows)
    own = by_side(rows)
    judged = probes_aim(own["two"], seconds) if "two" in own else []
    if "one" in own and "two" in own:
        one, two = (
            [reached_at(row, NEAR * best[row["task"]], seconds) for row in own[name]]
            for name in ("one", "two")
        )
        sooner = mean([a / b for a, b in zip(two, one, strict=True)])
        text = f"seconds to within 25 % of the best over one stage's {sooner:.2f}"
        judged.append((sooner <= SOONER, f"{text} (aim: {SOONER:.2f})"))
    return judged


def probes_aim(answers: Sequence[Answer], seconds: float) -> list[Judged]:
    """Whether the probes of these searches take little of their seconds."""
    share = statistics.fmean(answer["probe_seconds"] / seconds for answer in answers)
    return [(share < SHARE, f"probes take {share:.1%} of the search (aim: below {SHARE:.0%})")]


def usual(rows: Sequence[Answer], seconds: float, limit: float) -> dict[str, float]:
    """What these studies end with, the median of each task."""
    ends: dict[str, list[float]] = {}
    for row in rows:
        ends.setdefault(row["task"], []).append(value_at(row, seconds, limit))
    return {task: statistics.median(values) for task, values in ends.items()}


def _ratio(pairs: Sequence[tuple[float, float]]) -> str:
    """Of the first to the second, pair by pair."""

    ratios = [a / b for a, b in pairs]
    low, high = interval(ratios, mean, 2000)
    sooner, later = sum(r < 1 for r in ratios), sum(r > 1 for r in ratios)
    return f"{mean(ratios):.2f} (95 % {low:.2f} to {high:.2f}), less in {sooner}, more in {later}"
