"""What plans cost on this machine: processor seconds of a step of the digits trainer.

    python benchmarks/research/plan_speeds.py [--out benchmarks/research/plan_speeds.json]
    python benchmarks/research/plan_speeds.py --fastest

The second measures nothing: it says which plan of the table is the fastest at each batch size, and
how many times as long a step takes there in the plan that is the fastest at a batch of 64.
`two_stages.py --problem farm` plays this table on a virtual clock. A plan is what `VALUES` names;
fp16 and compiled steps, which take long to measure, are measured beside the default only, and are
worth the same factor beside the rest (`Speeds.step`). One rank with one thread; a figure is the
median over blocks of a few steps, on the clock of the processor, so that another process on the
machine matters little.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

from _shared import arguments, introduce, keep

FILE = Path(__file__).with_suffix(".json")
VALUES: Mapping[str, Sequence[Any]] = {
    "precision": ("fp32", "bf16", "fp16"),
    "channels_last": (False, True),
    "optimizer_implementation": ("auto", "foreach", "for-loop"),
    "activation_checkpoint_mode": ("none", "full"),
    "compile": (False, True),
}
"""The parameters of a plan; the first value of each is the default."""
DEFAULT = {name: values[0] for name, values in VALUES.items()}
BATCHES = (16, 64, 256)
Plan = Mapping[str, Any]


@dataclass(frozen=True)
class Speeds:
    """The measured table.

    Args:
        rows: each with a plan, a batch size, seconds of a step, and seconds of set-up.
    """

    rows: Sequence[Mapping[str, Any]]

    @classmethod
    def read(cls, file: Path = FILE) -> Speeds:
        return cls(json.loads(file.read_text())["rows"])

    def step(self, plan: Plan, batch_size: float) -> float:
        """Seconds of a step; between measured batch sizes linear in the logarithms."""
        if batch_size not in BATCHES:
            inside = min(max(batch_size, BATCHES[0]), BATCHES[-1])
            above = next(b for b in BATCHES[1:] if b >= inside)
            below = BATCHES[BATCHES.index(above) - 1]
            share = math.log(inside / below) / math.log(above / below)
            ends = [math.log(self.step(plan, b)) for b in (below, above)]
            return math.exp(ends[0] + share * (ends[1] - ends[0]))
        known = self._known.get((_key(plan), int(batch_size)))
        if known is not None:
            return float(known["seconds"])
        for name in ("precision", "compile"):  # fp16 or compiled beside what was not measured
            if plan[name] == VALUES[name][-1]:
                eager = {**plan, name: DEFAULT[name]}
                alone = {**DEFAULT, name: plan[name]}
                factor = self.step(alone, batch_size) / self.step(DEFAULT, batch_size)
                return factor * self.step(eager, batch_size)
        raise KeyError(f"{plan} was not measured")

    def setup(self, plan: Plan) -> float:
        """Seconds before the first step that a plan takes more than the default: compilation."""
        if not plan["compile"]:
            return 0.0
        found = (self._known[_key({**DEFAULT, "compile": c}), BATCHES[0]] for c in (True, False))
        compiled, eager = (float(row["setup"]) for row in found)
        return compiled - eager

    def fastest(self, batch_size: int) -> Plan:
        """The plan of the shortest steps."""
        return min(every_plan(), key=lambda plan: self.step(plan, batch_size))

    @cached_property
    def _known(self) -> dict[tuple[str, int], Mapping[str, Any]]:
        return {(_key(row["plan"]), row["batch_size"]): row for row in self.rows}


def _key(plan: Plan) -> str:
    return json.dumps({name: plan[name] for name in VALUES}, sort_keys=True)


def every_plan() -> list[dict[str, Any]]:
    return [dict(zip(VALUES, values, strict=True)) for values in product(*VALUES.values())]


def measured_plans() -> list[dict[str, Any]]:
    """The plans of the table."""
    eager = [p for p in every_plan() if not p["compile"] and p["precision"] != "fp16"]
    return [*eager, {**DEFAULT, "precision": "fp16"}, {**DEFAULT, "compile": True}]


def timed(plan: Plan, batch_size: int, blocks: int) -> dict[str, Any]:
    """Processor seconds of a step, the median over blocks after the first; compiled afresh."""
    import torch

    from search_spaces import digits

    torch.compiler.reset()  # after some recompilations it would fall back to eager steps

    made = digits.sgd()
    assert made.baseline is not None
    usual = made.space.config(made.space.complete(made.baseline)[1])
    steps = max(256 // batch_size, 2)
    own = {"batch_size": batch_size, "milestone": steps * batch_size, **plan}
    begun = time.process_time()
    training = made.train({**usual, **own})
    next(training)
    next(training)
    setup, spent = time.process_time() - begun, []
    for _ in range(blocks):
        begun = time.process_time()
        next(training)
        spent.append((time.process_time() - begun) / steps)
    training.close()
    return {
        "plan": dict(plan),
        "batch_size": batch_size,
        "seconds": statistics.median(spent),
        "spread": statistics.stdev(spent) / statistics.mean(spent),
        "setup": setup,
    }


def compare_batches(table: Speeds) -> None:
    """Print whether the plan that is chosen at one batch size is the fastest at the others."""
    usual = table.fastest(64)
    for batch_size in BATCHES:
        best = table.fastest(batch_size)
        changed = {name: value for name, value in best.items() if value != DEFAULT[name]}
        lost = table.step(usual, batch_size) / table.step(best, batch_size)
        gain = table.step(DEFAULT, batch_size) / table.step(best, batch_size)
        print(f"batch {batch_size:3}  {gain:.2f}x  the plan of 64 takes {lost:.3f}  {changed}")


def main() -> None:
    parser = arguments(__doc__, repeats=5)
    parser.add_argument("--fastest", action="store_true", help="of the table, by batch size")
    parser.add_argument("--out", type=Path, default=FILE, help=f"the table to write ({FILE.name})")
    options = parser.parse_args()
    if options.fastest:
        compare_batches(Speeds.read())
        return
    import torch

    about = introduce()
    os.environ["TORCHINDUCTOR_FORCE_DISABLE_CACHES"] = "1"  # set-up is that of a first compilation
    torch.set_num_threads(1)
    timed(DEFAULT, 64, 2)  # the first training of a process sets more up
    rows = []
    for plan in measured_plans()[: 2 if options.quick else None]:
        blocks = 2 if plan["precision"] == "fp16" else 5
        for batch_size in BATCHES[: 1 if options.quick else None]:
            rows.append(timed(plan, batch_size, blocks))
            changed = {n: v for n, v in plan.items() if v != DEFAULT[n]}
            print(
                f"{1e3 * rows[-1]['seconds']:8.2f} ms  batch {batch_size:3}  {changed}", flush=True
            )
    keep(options.out, about, rows=rows)
    keep(options.json, about, runs=rows)


if __name__ == "__main__":
    main()
