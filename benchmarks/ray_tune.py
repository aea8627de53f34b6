"""What a user would pick instead, end to end: autotune against Ray Tune in the same wall seconds.

    python benchmarks/ray_tune.py [--seconds 200] [--pairs 10] [--confirm 3] [--json FILE]

A pair is one search by each of the two, on the same recipe with one rank, two trials at a time, for
the same seconds; the pairs alternate which of them goes first. Then the two winners and the
recipe's baseline are run again in turns on fresh seeds, one at a time, alone on one core; a run
that misses the target counts as the target's limit.

    autotune    `autotune.run` with its defaults, on the backend that `auto` picks; its winner is
                `StudyResult.best`. It knows the shipped experience without that of the recipe's
                data set, unless `--experience` says otherwise
    tune        Ray Tune as its documentation has it: OptunaSearch (TPE) and ASHA by the target's
                metric at equal milestones, both with their defaults, `reuse_actors=True` with a
                class that has `reset_config`, and the baseline as the first point. A trial ends at
                the target or at its limit. Its winner is the trial that reached the target in the
                least training seconds

If no trial reached the target the winner is the one that came nearest. The seconds of a search
begin with `autotune.run`'s loop and with `Tuner.fit`: what both have started before (the
interpreter, imports, Ray) is not counted; workers and what they import are. Seconds of training are
counted in the same way: without set-up and evaluation. Both sides write what they write by default:
autotune MLflow on SQLite, Ray Tune its CSV and JSON files, and TensorBoard's if tensorboardX is
installed.

With `--json FILE` the file is written after every pair; `--first-pair N` goes on where it stopped.
The exit code is 1 if Ray Tune's confirmed seconds over autotune's (geometric mean over the pairs)
miss `--aim`, or if the 95 % interval reaches below 1.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _common import (
    Answer,
    SideError,
    introduce,
    measure,
    missing,
    serve,
)
from _end_to_end import BASELINE, OTHERS, autotune_side, confirm_side, load, tune_side
from _intervals import interval

TOOLS = ("autotune", "tune")
SHARED = ("recipe", "seconds", "confirm", "trials", "experience", "pruner")
"""Settings that the pairs of one file have in common."""


# --- arithmetic ---------------------------------------------------------------------------------


def confirmed(runs: Sequence[Mapping[str, Any]], limit: float) -> float:
    """Mean seconds of the runs; one that missed the target counts as the limit.

    >>> confirmed([{"seconds": 2.0, "reached": True}, {"seconds": 31.0, "reached": False}], 30.0)
    16.0
    """
    return statistics.fmean(run["seconds"] if run["reached"] else limit for run in runs)


@dataclass(frozen=True)
class Ratio:
    """A geometric mean of ratios over pairs, with its 95 % bootstrap interval."""

    mean: float
    low: float
    high: float
    pairs: int

    def __str__(self) -> str:
        pairs = f"{self.pairs} pair{'s' if self.pairs != 1 else ''}"
        return f"{self.mean:.2f} (95 % {self.low:.2f} to {self.high:.2f}, {pairs})"

    def meets(self, aim: float) -> bool:
        """Whether it is at least the aim, with an interval above 1."""
        return self.mean >= aim and self.low > 1


def ratio(over: Sequence[float], under: Sequence[float]) -> Ratio:
    """`over` divided by `under`, pair by pair; pairs are drawn again for the interval.

    >>> print(ratio([4.0, 1.0], [1.0, 1.0]))
    2.00 (95 % 1.00 to 4.00, 2 pairs)
    """
    logs = [math.log(a / b) for a, b in zip(over, under, strict=True)]
    low, high = interval(logs, statistics.fmean)
    mean = statistics.fmean(logs)
    return Ratio(math.exp(mean), math.exp(low), math.exp(high), len(logs))


def confirmed_of(pairs: Sequence[Answer], name: str) -> list[float]:
    """Of each pair the confirmed seconds of that configuration; without a winner, the limit."""
    return [
        confirmed(pair["runs"][name], pair["limit"]) if name in pair["runs"] else pair["limit"]
        for pair in pairs
    ]


# --- the whole ----------------------------------------------------------------------------------


def run_pair(pair: int, options: argparse.Namespace, tools: Sequence[str]) -> Answer:
    """Both searches of a pair, and their confirmation."""
    task = {name: getattr(options, name) for name in SHARED}
    order = tools if pair % 2 == 0 else tools[::-1]
    task["seed"] = pair
    patience = 4 * options.seconds + 600
    searches = {tool: measure(__file__, tool, task, patience) for tool in order}
    points = {t: searches[t]["point"] for t in tools if searches[t]["point"] is not None}
    again = measure(__file__, "confirm", {**task, "points": points})
    return {"pair": pair, "order": order, "searches": searches, **again}


def row(pair: Answer) -> str:
    """A pair in two or three lines."""
    lines = []
    for tool, search in sorted(pair["searches"].items()):
        tuned = search["tuned_seconds"]
        again = pair["runs"].get(tool, [])
        missed = sum(not run["reached"] for run in again)
        lines.append(
            f"{tool:>9}  tuned {'-' if tuned is None else f'{tuned:.2f} s':>8}"
            f"  confirmed {confirmed_of([pair], tool)[0]:6.2f} s"
            f"{f' ({missed} missed)' if missed else ''}"
            f"  {search['trials']} trials, {search['reached']} reached"
            + (f", {search['repeats']} repeats" if search["repeats"] else "")
        )
    lines.append(f"{BASELINE:>9}  {'':14}  confirmed {confirmed_of([pair], BASELINE)[0]:6.2f} s")
    return f"pair {pair['pair']}\n" + "\n".join(lines)


def verdict(pairs: Sequence[Answer], aim: float) -> bool:
    """Print the ratios over all pairs; whether the aim is met, or cannot be judged."""
    own = confirmed_of(pairs, "autotune")
    print(f"\nconfirmed seconds, geometric mean over the pairs ({len(pairs)})")
    for name in (*TOOLS, BASELINE):
        if name == BASELINE or any(name in pair["searches"] for pair in pairs):
            values = confirmed_of(pairs, name)
            print(f"  {name:>9}  {statistics.geometric_mean(values):.2f} s")
    print(f"  baseline / autotune  {ratio(confirmed_of(pairs, BASELINE), own)}")
    if not all("tune" in pair["searches"] for pair in pairs):
        print("  aim: not judged, as Ray Tune was not run")
        return True
    found = ratio(confirmed_of(pairs, "tune"), own)
    print(f"  Ray Tune / autotune  {found}")
    met = found.meets(aim)
    print(f"  aim: at least {aim:g}, with an interval above 1: {'met' if met else 'missed'}")
    return met


def earlier(options: argparse.Namespace) -> list[Answer]:
    """The pairs before `--first-pair` that the file has.

    Raises:
        ValueError: it has others, which would be lost, or pairs of other settings.
    """
    file = options.json
    if file is None or not file.exists():
        return []
    try:
        read = json.loads(file.read_text())
        pairs, settings = list(read["pairs"]), read["settings"]
        numbers = [int(pair["pair"]) for pair in pairs]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"--json {file}: not a file of this script ({error!r})") from None
    if any(number >= options.first_pair for number in numbers):
        go_on = f"--first-pair {max(numbers) + 1} goes on"
        raise ValueError(f"--json {file} has pairs {min(numbers)} to {max(numbers)}: {go_on}")
    for name in SHARED:
        if settings.get(name) != getattr(options, name):
            now, before = getattr(options, name), settings.get(name)
            raise ValueError(f"--json {file} was measured with {name} {before!r}, not {now!r}")
    return pairs


def save(options: argparse.Namespace, about: Mapping[str, Any], pairs: Sequence[Answer]) -> None:
    """Write all pairs so far; what was there stays until the new file is complete."""
    if options.json is None:
        return
    settings = {name: getattr(options, name) for name in SHARED}
    part = options.json.with_name(options.json.name + ".part")
    part.write_text(json.dumps({"machine": about, "settings": settings, "pairs": pairs}, indent=1))
    part.replace(options.json)


def measured(options: argparse.Namespace, pairs: list[Answer]) -> Iterator[Answer]:
    """The pairs that are left, one after the other."""
    absent = missing("ray.tune", "optuna", "pandas", "pyarrow")
    if absent:
        print(f"Ray Tune: not run, {absent} (pip install 'time-to-target[bench]')", flush=True)
    tools = TOOLS[:1] if absent else TOOLS
    for pair in itertools.count(options.first_pair):
        if len(pairs) >= options.pairs:
            return
        yield run_pair(pair, options, tools)


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--recipe", default="search_spaces.digits:sgd", help="what is tuned (digits:sgd)")
    add("--seconds", type=float, help="of each search (200)")
    add("--pairs", type=int, help="in all, those of an earlier run included (10)")
    add("--first-pair", type=int, default=0, metavar="N", help="go on with pair N (0)")
    add("--confirm", type=int, help="fresh seeds of each configuration (3)")
    add("--trials", type=int, default=1000, help="of autotune's study, at most (1000)")
    add("--pruner", default="auto", help="autotune's (auto)")
    add("--experience", default=OTHERS, metavar="DIR|off|others", help="others: shipped (others)")
    add("--aim", type=float, default=1.5, help="Ray Tune / autotune, at least (1.5)")
    add("--quick", action="store_true", help="a smoke run; its figures mean little")
    add("--json", type=Path, metavar="FILE", help="written after every pair")
    options = parser.parse_args(arguments)
    usual = {"seconds": (200.0, 30.0), "pairs": (10, 1), "confirm": (3, 1)}
    for name, (full, quick) in usual.items():
        if getattr(options, name) is None:
            setattr(options, name, quick if options.quick else full)
    for name, least in {**dict.fromkeys(usual, 1), "trials": 1, "first_pair": 0}.items():
        if not getattr(options, name) >= least:
            given = getattr(options, name)
            parser.error(f"--{name.replace('_', '-')} must be at least {least} but got {given}")
    return options


def main() -> int:
    options = parsed()
    try:
        load({"recipe": options.recipe})
        pairs = earlier(options)
    except ValueError as error:  # a `UserError` is one
        print(error, file=sys.stderr)
        return 2
    about = introduce()
    try:
        for pair in measured(options, pairs):
            pairs.append(pair)
            save(options, about, pairs)
            print(row(pair), flush=True)
    except SideError as error:
        print(error, file=sys.stderr)
        return 2
    met = verdict(pairs, options.aim)
    return 0 if met or options.quick else 1


if __name__ == "__main__":
    sides = {"autotune": autotune_side, "tune": tune_side, "confirm": confirm_side}
    if not serve(sides, sys.argv[1:]):
        sys.exit(main())
