"""Is what `autotune scale` predicts from a study on one worker what two workers then need?

    python benchmarks/scale_prediction.py [--repeats 3] [--confirm 5] [--json FILE]

Each repeat, with a seed of its own, on `digits:sgd`:

1. a study on one worker, one trial at a time: the baseline, over fewer epochs, at each batch size
   with three learning rates, without a pruner (the default one stops what is slower than the best,
   so that few batch sizes have reached trials, and `scale` needs three);
2. `scale` from it, for one worker and two: alone, and with one trial on two workers (`--also`);
3. the best configuration at the batch size that was predicted with both, at half and at twice of
   it, on one worker and on two, on fresh seeds. Its learning rate follows the batch size.

Predicted times are those of the configurations that needed the fewest samples, each of which ran
once, and so may have been lucky: what was measured over what was predicted says how much. The time
on one worker over that on two, measured and predicted, changes less by luck. A run that misses the
target counts as the limit.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from _common import Answer, Task, arguments, introduce, keep, measure, repeats_of, serve, summary

WORKERS = (1, 2)
AROUND = (0.5, 1.0, 2.0)  # times the predicted batch size
SIZES = (16, 32, 64, 128, 256, 512)
EPOCHS = 20.0  # of the schedule: the recipe's baseline has more than it needs
RATES = (0.5, 1.0, 2.0)  # times the baseline's learning rate
FRESH = 1000  # seeds from here on are those of no study
PLACE: dict[str, Any] = {
    "backend": "local",
    "max_concurrent_trials": 1,
    "tracking_uri": "off",
    "racing": 0,
    "pruner": "none",
    "progress": False,
}


def predict_and_train(task: Task) -> Answer:
    """One study, what is predicted from it, and what was measured for that."""
    import autotune as at
    from autotune.cli.console import study_in
    from autotune.errors import UserError
    from autotune.evaluation.scaling.document import document
    from autotune.evaluation.scaling.trials import fitted
    from autotune.evaluation.scaling.values import TooLittleError
    from search_spaces import digits

    folder = Path(task["folder"])
    made = replace(digits.sgd(), scaling=at.Scaling(num_workers=1))
    options = {**PLACE, "seed": task["seed"]}
    points = _points(made, task["sizes"])
    given = replace(made, baseline=points[0], configs=points[1:])
    result = at.run(given, trials=len(points), out=folder / "study", **options)
    if result.best is None:
        return {"missing": "no trial reached the target"}
    point = dict(result.best.params or {})
    wider = replace(made, scaling=at.Scaling(num_workers=2), baseline=point)
    at.run(wider, trials=1, out=folder / "other", **options)
    studies = [study_in(folder / name) for name in ("study", "other")]
    try:
        fits = {"alone": fitted(studies[:1]), "also": fitted(studies)}
    except (TooLittleError, UserError) as error:
        return {"missing": str(error)}
    manifest = studies[0][0]
    predicted: dict[str, list[dict[str, Any]]] = {
        name: document(fit, manifest, folder / "study", WORKERS)["workers"]
        for name, fit in fits.items()
    }
    measured = [
        {"workers": count, "batch_size": size, **_trained(made, point, count, size, task)}
        for count, size in (
            (found["workers"], size)
            for found in predicted["also"]
            for size in _sizes(found["batch_size"])
        )
    ]
    return {"found": result.best.seconds, "predicted": predicted, "measured": measured}


def _points(made: Any, sizes: Sequence[int]) -> list[dict[str, Any]]:
    usual = {**made.baseline, "horizon": EPOCHS}
    return [
        {**usual, "batch_size": size, "lr.peak": rate * usual["lr.peak"]}
        for size in sizes
        for rate in RATES
    ]


def _sizes(best: int) -> list[int]:
    """The powers of two that the recipe has, nearest to those of interest."""
    from search_spaces.digits import PROBLEM

    low, high = PROBLEM.batch_size.low, PROBLEM.batch_size.high
    near = 2 ** round(math.log2(best))
    return sorted({min(max(int(near * factor), low), high) for factor in AROUND})


def _trained(made: Any, point: Any, workers: int, size: int, task: Task) -> dict[str, Any]:
    """The mean seconds of the point at this batch size on fresh seeds; a miss is the limit."""
    import autotune as at

    one = replace(
        made,
        scaling=at.Scaling(num_workers=workers),
        baseline={**point, "batch_size": size},
    )
    results, reached = [], 0
    for number in range(task["confirm"]):  # studies of one trial: each has a training seed
        out = Path(task["folder"], f"{workers}-{size}-{number}")
        seed = FRESH * (task["seed"] + 1) + number
        best = at.run(one, trials=1, seed=seed, out=out, **PLACE).best
        reached += best is not None
        results.append(made.target.horizon if best is None else best.seconds)
    return {"seconds": statistics.fmean(results), "results": results, "reached": reached}


def show(answer: Answer) -> None:
    """One repeat: what was predicted, and what was measured for it."""
    for name, rows in answer["predicted"].items():
        for row in rows:
            low, high = (math.inf if end is None else end for end in row["seconds_interval"])
            print(
                f"  predicted ({name}), {row['workers']} workers: batch size {row['batch_size']}, "
                f"{row['seconds']:.2f} s ({low:.2f} to {high:.2f})"
            )
    for row in answer["measured"]:
        print(
            f"  measured, {row['workers']} workers: batch size {row['batch_size']}, "
            f"{row['seconds']:.2f} s, {row['reached']} of {len(row['results'])} reached"
        )


def figures(answers: Sequence[Answer]) -> dict[str, list[float]]:
    """The ratios of all repeats."""
    found: dict[str, list[float]] = {}
    for answer in answers:
        least = {
            count: min(r["seconds"] for r in answer["measured"] if r["workers"] == count)
            for count in WORKERS
        }
        one, two = WORKERS
        found.setdefault("gain by two workers, measured", []).append(least[one] / least[two])
        for name, rows in answer["predicted"].items():
            seconds = {row["workers"]: row["seconds"] for row in rows}
            gain = f"gain by two workers, predicted ({name})"
            found.setdefault(gain, []).append(seconds[one] / seconds[two])
            for count in WORKERS:
                over = f"measured over predicted ({name}), {count} workers"
                found.setdefault(over, []).append(least[count] / seconds[count])
    return found


def main() -> int:
    parser = arguments(__doc__, repeats=3)
    parser.add_argument("--confirm", type=int, help="runs of a configuration on fresh seeds (5)")
    parser.add_argument("--first-seed", type=int, default=0, help="of the first repeat (0)")
    options = parser.parse_args()
    about = introduce()
    task = {
        "sizes": SIZES[1:4] if options.quick else SIZES,
        "confirm": options.confirm or (1 if options.quick else 5),
    }
    raw: list[Answer] = []
    for number in range(repeats_of(options)):
        seed = options.first_seed + number
        answer = measure(__file__, "study", {**task, "seed": seed})
        raw.append({"seed": seed, **answer})
        print(f"seed {seed}: {answer.get('missing', '')}", flush=True)
        if "missing" not in answer:
            show(answer)
        keep(options.json, about, **task, repeats=raw)
    for name, values in figures([a for a in raw if "missing" not in a]).items():
        print(f"{name}: {summary(values)}")
    return 0


if __name__ == "__main__":
    if not serve({"study": predict_and_train}, sys.argv[1:]):
        sys.exit(main())
