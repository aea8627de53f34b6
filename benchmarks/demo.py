"""What `make demo` does, over several seeds: what a search finds, what it costs, what is left.

    python benchmarks/demo.py [--recipe search_spaces.digits:optimizers] [--trials 48] [--seeds 5]

Each seed is a study of its own, run as `make demo` runs it: the baseline, the search with the
sampler and pruner that are the defaults, then the best three and the baseline again on `--confirm`
fresh seeds, in turns and each alone. "Found" is the baseline's time to target over the best
trial's, one run each: the best of many noisy runs has the winner's curse. "Confirmed" is the
ratio of the confirmed times (geometric means, the same seeds) of the baseline and of the best. A
run that misses the target within the target's limit counts as that limit, which is marked.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from _common import Answer, Task, arguments, introduce, keep, measure, serve, summary


def study_side(task: Task) -> Answer:
    import autotune
    from autotune.study import recipes

    begin = time.monotonic()
    result = autotune.run(
        recipes.load(task["recipe"]),
        trials=task["trials"],
        time_limit=task["time_limit"],
        sampler=task["sampler"],
        pruner=task["pruner"],
        repeats=task["confirm"],
        out=Path(task["folder"], "study"),
        seed=task["seed"],
    )
    wall = {"wall_seconds": time.monotonic() - begin}
    return {**_found(result), **wall, **_confirmed(result)}


def _found(result: Any) -> Answer:
    clocks = [trial.clock for trial in result.trials]
    training = sum(c.train + c.data for c in clocks)
    states = [str(trial.state) for trial in result.searched]
    baseline, best = result.baseline, result.best
    return {
        "states": {state: states.count(state) for state in sorted(set(states))},
        "baseline_seconds": baseline.time_to_target if baseline else None,
        "best_seconds": best.time_to_target if best else None,
        "best_trial": best.number if best else None,
        "speedup": result.speedup,
        "spent_seconds": result.spent_seconds,
        "train_seconds": training,
        "decide_share": sum(c.decide for c in clocks) / training if training else 0.0,
        "config": {k: str(v) for k, v in best.config.items()} if best else None,
    }


def _confirmed(result: Any) -> Answer:
    """What the study confirmed, if anything."""
    best = result.confirmation(result.best) if result.best is not None else None
    base = result.confirmation(result.baseline) if result.baseline is not None else None
    if best is None or base is None:
        return {}
    return {
        "confirm_baseline_seconds": base.times,
        "confirm_best_seconds": best.times,
        "confirm_missed": sum(len(one.runs) - one.reached for one in (best, base)),
        "confirmed": result.confirmed_speedup,
    }


def row(seed: int, answer: Answer) -> str:
    missed = answer.get("confirm_missed")
    cells = [
        f"{seed:4}",
        _cell(answer["baseline_seconds"], " s"),
        _cell(answer["best_seconds"], " s"),
        _cell(answer["speedup"], " x"),
        _cell(answer.get("confirmed"), f" x{'*' if missed else ''}"),
        _cell(answer["spent_seconds"], " s"),
        _cell(answer["wall_seconds"], " s"),
        _cell(100 * answer["decide_share"], " %"),
        ", ".join(f"{count} {state.lower()}" for state, count in answer["states"].items()),
    ]
    return "  ".join(cells)


def _cell(value: float | None, unit: str) -> str:
    return f"{'-' if value is None else f'{value:.2f}' + unit:>10}"


def geometric(values: list[float]) -> str:
    """Geometric mean and range.

    >>> geometric([1.0, 4.0])
    '2.00 x (1.00 to 4.00, n=2)'
    """
    if not values:
        return "-"
    mean = math.exp(statistics.fmean(map(math.log, values)))
    return f"{mean:.2f} x ({min(values):.2f} to {max(values):.2f}, n={len(values)})"


def main() -> None:
    parser = arguments(__doc__, repeats=1)
    parser.add_argument("--recipe", default="search_spaces.digits:optimizers")
    parser.add_argument("--trials", type=int, help="of each study, the baseline included (48)")
    parser.add_argument("--time-limit", type=float, help="seconds of each study")
    parser.add_argument("--seeds", type=int, help="how many studies (5)")
    parser.add_argument("--sampler", default="auto")
    parser.add_argument("--pruner", default="convergence")
    parser.add_argument(
        "--confirm", type=int, help="fresh seeds of the best 3 and the baseline (5)"
    )
    options = parser.parse_args()
    quick = options.quick
    seeds = options.seeds or (1 if quick else 5)
    task = {key: getattr(options, key) for key in ("recipe", "time_limit", "sampler", "pruner")}
    if quick and task["time_limit"] is None:
        task["time_limit"] = 5.0
    task["trials"] = options.trials or (2 if quick else 48)
    task["confirm"] = (0 if quick else 5) if options.confirm is None else options.confirm
    about = introduce()
    print(", ".join(f"{key} {value}" for key, value in task.items() if value is not None))
    heads = ("baseline", "best", "found", "confirmed", "spend", "wall", "decide")
    print("  ".join(["seed", *(f"{head:>10}" for head in heads), "trials"]))
    answers = []
    for seed in range(seeds):
        answers.append(measure(__file__, "study", {**task, "seed": seed}))
        print(row(seed, answers[-1]), flush=True)
    for name in ("speedup", "confirmed"):
        values = [a[name] for a in answers if a.get(name)]
        print(f"geometric mean, {'found' if name == 'speedup' else name}: {geometric(values)}")
    print(f"decide share: {summary([100 * a['decide_share'] for a in answers], ' %')}")
    if any(a.get("confirm_missed") for a in answers):
        print("* a run missed the target and counts as its limit")
    keep(options.json, about, task=task, studies=answers)


if __name__ == "__main__" and not serve({"study": study_side}, sys.argv[1:]):
    main()
