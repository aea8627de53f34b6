"""The tables of `few_trials.py`: regrets and ratios with intervals over tasks, and its aims.

A study is a dictionary as `_few_rows.measured` returns it.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from _few_rows import NEW, NEW_BASED, OTHER, OWN, OWN_BASED, RANDOM, WRONG_ROWS
from _shared import Answer
from _tables import by_task

from autotune.errors import UserError

HALF, NEAR, NO_WORSE = 0.5, 1.5, 1.1  # the aims: see `aims`
WITHOUT = {NEW: OWN, NEW_BASED: OWN_BASED, "posterior alone": OWN}
WITHOUT |= dict.fromkeys((*WRONG_ROWS, OTHER), OWN)
"""The same search without experience."""
Group = tuple[str, int]  # target, workers


def with_regrets(studies: Sequence[Answer]) -> list[Answer]:
    """The studies with `regret` after each spend.

    The best there is is the least that is known of a task: calibrated, or found by any study.
    """
    best: dict[tuple[str, str], float] = {}
    for one in studies:
        key = one["task"], one["target"]
        best[key] = min([best.get(key, math.inf), one["best"], *one["seconds"].values()])
    return [
        {**one, "regret": {s: v / best[one["task"], one["target"]] for s, v in found.items()}}
        for one in studies
        for found in [one["seconds"]]
    ]


def groups(studies: Sequence[Answer]) -> dict[Group, dict[str, list[Answer]]]:
    """The studies of each row, by target and workers."""
    found: dict[Group, dict[str, list[Answer]]] = {}
    for one in studies:
        rows = found.setdefault((one["target"], one["workers"]), {})
        rows.setdefault(one["row"], []).append(one)
    return found


def mean(values: Sequence[float]) -> float:
    """The geometric mean.

    >>> mean([1.0, 4.0])
    2.0
    """
    return math.exp(statistics.fmean(map(math.log, values)))


def paired(rows: Mapping[str, Sequence[Answer]], over: str, under: str, spend: str) -> list[Answer]:
    """Regret of `over` divided by that of `under` for each task and seed that both have."""
    theirs = {(r["task"], r["seed"]): r["regret"][spend] for r in rows.get(under, ())}
    return [
        {"task": r["task"], "ratio": r["regret"][spend] / theirs[r["task"], r["seed"]]}
        for r in rows.get(over, ())
        if (r["task"], r["seed"]) in theirs
    ]


def table(studies: Sequence[Answer], absent: Mapping[str, str]) -> str:
    """All tables of the studies."""
    lines: list[str] = []
    for (target, workers), rows in groups(with_regrets(studies)).items():
        spends = list(next(iter(rows.values()))[0]["regret"])
        count = len(next(iter(rows.values())))
        lines += [
            f"\ntarget {target}, {workers} worker{'' if workers == 1 else 's'}, "
            f"{len({r['task'] for r in next(iter(rows.values()))})} tasks, {count} studies a row",
            "regret after so many full trials: geometric mean (95 % over tasks)",
            _heads(spends),
        ]
        lines += [_row(name, own, spends) for name, own in rows.items()]
        lines += [f"{name:>28}  not run: {why}" for name, why in absent.items()]
        lines += ["over random's, paired", *_ratios(rows, dict.fromkeys(rows, RANDOM), spends)]
        lines += ["over that without experience, paired", *_ratios(rows, WITHOUT, spends)]
    return "\n".join(lines)


def _heads(spends: Sequence[str]) -> str:
    return "  ".join(["row".rjust(28), *(s.rjust(19) for s in spends), "trials", "    took"])


def _row(name: str, own: Sequence[Answer], spends: Sequence[str]) -> str:
    tasks = [r["task"] for r in own]
    cells = [by_task([r["regret"][s] for r in own], tasks).rjust(19) for s in spends]
    trials, took = (statistics.fmean(r[key] for r in own) for key in ("trials", "cpu"))
    return "  ".join([name.rjust(28), *cells, f"{trials:6.0f}", f"{took:6.1f} s"])


def _ratios(
    rows: Mapping[str, Sequence[Answer]], against: Mapping[str, str], spends: Sequence[str]
) -> list[str]:
    lines = []
    for name in rows:
        under = against.get(name)
        if under is None or under == name or under not in rows:
            continue
        each = [paired(rows, name, under, spend) for spend in spends]
        if each[0]:
            cells = [by_task([p["ratio"] for p in own], [p["task"] for p in own]) for own in each]
            lines.append("  ".join([name.rjust(28), *(cell.rjust(19) for cell in cells)]))
    return lines


# --- the aims -------------------------------------------------------------------------------------


def aims(studies: Sequence[Answer], recorded: bool) -> list[tuple[bool, str]]:
    """Whether each aim is met, and its sentence with the figure.

    They are judged at the least number of workers, and with the quantile as the target where there
    are studies of it. An aim whose rows or spends were not run is left out.
    """
    found = groups(with_regrets(studies))
    if not found:
        return []
    target, workers = min(found, key=lambda group: (group[0] != "quantile", group[1]))
    rows = found[target, workers]
    measured = next(iter(rows.values()))[0]["regret"]
    judged = []
    if "5" not in measured:
        return []
    if half := [p["ratio"] for p in paired(rows, NEW, RANDOM, "5")]:
        judged.append((mean(half) <= HALF, f"regret at 5 over random's {mean(half):.2f}", HALF))
    if recorded and NEW in rows and "10" in measured:
        near = mean([r["regret"]["10"] for r in rows[NEW]])
        judged.append((near < NEAR, f"regret at 10 {near:.2f}", NEAR))
    for name in (*WRONG_ROWS, OTHER):
        over = [[p["ratio"] for p in paired(rows, name, under, "5")] for under in (RANDOM, OWN)]
        if all(over):
            worse = max(mean(each) for each in over)
            text = f"{name}: regret at 5 over the better of random's and {OWN}'s {worse:.2f}"
            judged.append((worse <= NO_WORSE, text, NO_WORSE))
    return [(met, f"{text} (aim: {aim})") for met, text, aim in judged]


# --- several files --------------------------------------------------------------------------------


def merged(files: Sequence[Path]) -> tuple[str, list[Answer], dict[str, str]]:
    """The problem, the studies and the rows that were not run of several `--json` files.

    Raises:
        UserError: a file cannot be read, they are of different problems, or a study is there twice.
    """
    problems, studies, absent = set[str](), list[Answer](), dict[str, str]()
    seen: set[tuple[str, ...]] = set()
    for file in files:
        try:
            read = json.loads(file.read_text())
            problems.add(read["problem"])
            absent |= read["not_run"]
            new = read["runs"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"--merge {file}: not a file of --json: {error!r}") from None
        for one in new:
            key = tuple(str(one[k]) for k in ("row", "task", "seed", "workers", "target"))
            if key in seen:
                raise UserError(f"--merge {file}: {', '.join(key)} is there twice")
            seen.add(key)
        studies += new
    if len(problems) > 1:
        raise UserError(f"--merge: files of different problems: {', '.join(sorted(problems))}")
    ran = {one["row"] for one in studies}
    return problems.pop(), studies, {k: v for k, v in absent.items() if k not in ran}
