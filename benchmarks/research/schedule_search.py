"""What searching schedules is worth: all of them, the learning rate's only, or constants only.

    python benchmarks/research/schedule_search.py [--problem digits] [--trials 24]
        [--seeds 5] [--confirm 5]

Three spaces are cut from one recipe, `search_spaces.PROBLEM:schedules`: `schedules` is all of it,
`lr` keeps batch size, image size and momentum constant, `constants` keeps the learning rate
constant too and has no warm-up. The rest (weight decay, label smoothing, horizon), target and
number of trials are the same; `SPACE:SAMPLER` takes another sampler for one. Each seed is one study
a space, then the winners and the recipe's baseline run again in turns, `--confirm` times on fresh
seeds with nothing pruned. A run that misses the target counts as the target's limit. Intervals are
bootstraps over the study seeds.

`--target`, `--limit` and `--set width=64` make a problem as small as the machine needs it; the
first line of the output says what was changed. `--first-seed` and `--join` spread the seeds over
several runs.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from _shared import Answer, Task, arguments, introduce, keep, measure, serve

SPACES = ("schedules", "lr", "constants", "schedules:widening", "lr:widening")
CONFIRM_SEED = 1_000_000  # added to the study's seed, so that no trial's seed comes back


def narrowed(experiment: Any, space: str) -> Any:
    """The experiment with the schedules of `space` only; its baseline is cut to what is left."""
    from autotune.space.search_space import ScheduleSpace, SearchSpace

    entries = dict(experiment.space.entries)
    for name, entry in entries.items():
        if not isinstance(entry, ScheduleSpace) or space == "schedules":
            continue
        if name != "lr":
            entries[name] = replace(entry, family="constant", mirrors=None)
        elif space == "constants":
            entries[name] = replace(entry, family="constant", warmup=0.0)
    left = SearchSpace(entries)
    baseline = {k: v for k, v in experiment.baseline.items() if k in left.parameters()}
    return replace(experiment, space=left, baseline=baseline)


def _experiment(task: Task) -> Any:
    from autotune.space.search_space import Fixed, SearchSpace
    from autotune.study import recipes

    found = recipes.load(f"search_spaces.{task['problem']}:schedules")
    assert found.baseline is not None, "every recipe of these has one"
    target = {k: task[k] for k in ("value", "limit") if task[k] is not None}
    scaling = {"num_workers": task["workers"], "max_concurrent_trials": task["concurrency"]}
    fixed = {key: Fixed(value) for key, value in task["set"].items()}
    space = SearchSpace({**found.space.entries, **fixed})
    return replace(
        found,
        space=space,
        baseline={k: v for k, v in found.baseline.items() if k in space.parameters()},
        target=replace(found.target, **target),
        scaling=replace(found.scaling, **scaling),
    )


def study_side(task: Task) -> Answer:
    """One study in one space: its best configuration as JSON, and what it cost."""
    import autotune
    from autotune.storage.codec import encode

    begin = time.monotonic()
    space, _, sampler = task["space"].partition(":")
    result = autotune.run(
        narrowed(_experiment(task), space),
        trials=task["trials"],
        sampler=sampler or task["sampler"],
        out=Path(task["folder"], "study"),
        tracking_uri="off",
        experience="off",
        seed=task["seed"],
    )
    states = [str(trial.state) for trial in result.trials]
    best = result.best
    return {
        "best_seconds": best.seconds if best else None,
        "config": encode(best.config) if best else None,
        "text": {k: str(v) for k, v in best.config.items()} if best else None,
        "reached": states.count("REACHED"),
        "spent_seconds": result.spent_seconds,
        "wall_seconds": time.monotonic() - begin,
    }


def confirm_side(task: Task) -> Answer:
    """The winners and the baseline in turns, each `confirm` times."""
    import autotune
    from autotune.storage.codec import decode_config

    experiment = _experiment(task)
    given = [experiment.baseline, *(decode_config(c) for c in task["configs"])]
    result = autotune.run(
        replace(experiment, baseline=None, configs=given * task["confirm"]),
        trials=len(given) * task["confirm"],
        sampler="random",
        pruner="none",
        out=Path(task["folder"], "confirm"),
        tracking_uri="off",
        experience="off",
        seed=task["seed"] + CONFIRM_SEED,
    )
    limit = experiment.target.limit
    seconds = [t.time_to_target or limit for t in result.trials]
    return {"seconds": [seconds[i :: len(given)] for i in range(len(given))], "limit": limit}


def interval(logs: Sequence[float]) -> str:
    """Geometric mean of ratios given as logarithms, with a 95 % bootstrap interval.

    >>> interval([0.0, 0.0])
    '1.00 (1.00-1.00)'
    """
    draws = np.random.default_rng(0).choice(np.asarray(logs), (10_000, len(logs))).mean(axis=1)
    low, high = np.exp(np.quantile(draws, [0.025, 0.975]))
    return f"{math.exp(statistics.fmean(logs)):.2f} ({low:.2f}-{high:.2f})"


def _study(task: Task) -> tuple[dict[str, Answer], Answer | None]:
    studies = {s: measure(__file__, "study", {**task, "space": s}) for s in task["spaces"]}
    winners = [s for s in task["spaces"] if studies[s]["config"] is not None]
    if not task["confirm"] or not winners:
        return studies, None
    configs = [studies[s]["config"] for s in winners]
    again = measure(__file__, "confirm", {**task, "configs": configs})
    again["by_side"] = dict(zip(("baseline", *winners), again.pop("seconds"), strict=True))
    return studies, again


def medians_of(found: Answer) -> dict[str, float]:
    """Each side's median time of one study seed; a study that found nothing has the limit's."""
    if not found["confirm"]:
        return {}
    nothing = dict.fromkeys(found["studies"], found["confirm"]["limit"])
    sides = found["confirm"]["by_side"]
    return nothing | {side: statistics.median(seconds) for side, seconds in sides.items()}


def table(spaces: Sequence[str], found: Sequence[Answer], against: str) -> list[str]:
    """For each space: found and confirmed speedup over the baseline, and over space `against`."""
    lines = [f"{'space':>21}  {'reached':>8}  {'spend':>8}  {'found':>8}  {'confirmed':>9}  "]
    lines[0] += f"{'over baseline':>19}  {'over ' + against:>22}"
    medians = [medians_of(f) for f in found if f["confirm"]]
    for space in ("baseline", *spaces):
        own = [f["studies"][space] for f in found if space in f["studies"]]
        best = [a["best_seconds"] for a in own if a["best_seconds"] is not None]
        both = [m for m in medians if space in m]
        over = [math.log(m["baseline"] / m[space]) for m in both]
        last = [math.log(m[against] / m[space]) for m in both if against in m]
        cells = [
            f"{statistics.fmean(a['reached'] for a in own):8.1f}" if own else f"{'':8}",
            f"{statistics.fmean(a['spent_seconds'] for a in own):6.0f} s" if own else f"{'':8}",
            f"{statistics.median(best):6.2f} s" if best else f"{'-':>8}",
            f"{statistics.median(m[space] for m in both):7.2f} s" if both else f"{'-':>9}",
            f"{interval(over) if over else '-':>19}",
            f"{interval(last) if last else '-':>22}",
        ]
        lines.append(f"{space:>21}  " + "  ".join(cells))
    return lines


def joined(files: Sequence[Path]) -> tuple[Task, list[Answer]]:
    """The studies of several runs of this script in the spaces that all of them had.

    Raises:
        SystemExit: they differ in something else than spaces and seeds.
    """
    runs = [json.loads(file.read_text()) for file in files]
    common = [s for s in runs[0]["task"]["spaces"] if all(s in r["task"]["spaces"] for r in runs)]
    task = {**runs[0]["task"], "spaces": common}
    for file, run in zip(files, runs, strict=True):
        if {**run["task"], "spaces": common} != task:
            sys.exit(f"{file} ran something else than {files[0]}; only seeds and spaces may differ")
    return task, [study for run in runs for study in run["studies"]]


def _arguments() -> argparse.ArgumentParser:
    parser = arguments(__doc__, repeats=1)
    parser.add_argument("--problem", default="digits", help="a module of search_spaces (digits)")
    parser.add_argument("--trials", type=int, help="of each study, the baseline included (24)")
    parser.add_argument("--seeds", type=int, help="studies of each space (5)")
    parser.add_argument("--first-seed", type=int, default=0, help="of the studies (0)")
    parser.add_argument("--confirm", type=int, help="runs of each winner on fresh seeds (5)")
    parser.add_argument("--workers", type=int, default=1, help="ranks of a trial (1)")
    parser.add_argument("--target", type=float, help="another value of the target's metric")
    parser.add_argument("--limit", type=float, help="another limit of the target, in seconds")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="hold a key of the recipe at a JSON value, or else a text; may be repeated",
    )
    parser.add_argument("--concurrency", type=int, help="trials at once (as many as fit)")
    parser.add_argument("--sampler", default="tpe")
    parser.add_argument(
        "--spaces", default=",".join(SPACES), help="which, with :SAMPLER or without"
    )
    parser.add_argument("--against", help="the space of the last column (the last of --spaces)")
    parser.add_argument(
        "--join", nargs="+", type=Path, metavar="FILE", help="only print the table of these --json"
    )
    return parser


def _literal(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def _task(options: argparse.Namespace) -> Task:
    quick = options.quick
    given = ("problem", "workers", "concurrency", "limit", "sampler")
    task: Task = {key: getattr(options, key) for key in given}
    task["value"] = options.target if options.target is not None or not quick else 0.5
    fixed = [pair.partition("=") for pair in options.set]
    task["set"] = {key: _literal(value) for key, _, value in fixed}
    task["spaces"] = options.spaces.split(",")
    task["trials"] = options.trials or (2 if quick else 24)
    task["confirm"] = options.confirm if options.confirm is not None else 1 if quick else 5
    return task


def main() -> None:
    options = _arguments().parse_args()
    if options.join:
        task, before = joined(options.join)
        print("\n".join(table(task["spaces"], before, options.against or task["spaces"][-1])))
        return
    task = _task(options)
    about = introduce()
    print(", ".join(f"{key} {value}" for key, value in task.items() if value))
    found: list[Answer] = []
    first, count = options.first_seed, options.seeds or (1 if options.quick else 5)
    for seed in range(first, first + count):
        studies, again = _study({**task, "seed": seed})
        found.append({"seed": seed, "studies": studies, "confirm": again})
        medians = {s: round(v, 2) for s, v in medians_of(found[-1]).items()}
        print(f"seed {seed}: confirmed medians {medians}", flush=True)
        keep(options.json, about, task=task, studies=found)
    print("\n".join(table(task["spaces"], found, options.against or task["spaces"][-1])))


if __name__ == "__main__" and not serve(
    {"study": study_side, "confirm": confirm_side}, sys.argv[1:]
):
    main()
