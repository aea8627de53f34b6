"""What few trials are worth: how good the best is after 3, 5, 10, 20 and 40 full trials.

    python benchmarks/few_trials.py --problem recorded --data FILE
        [--source shipped|others|FILE] [--target quantile|baseline|both] [--workers 1 4]
        [--spends 3 5 10 20 40] [--tasks 17] [--seeds 1] [--json FILE]
    python benchmarks/few_trials.py --problem farm [--data FILE]
    python benchmarks/few_trials.py --problem shipped [--workers 1] [--seeds 4]
    python benchmarks/few_trials.py --problem real --data-dir DIR [--seeds 10] [--virtual]
    python benchmarks/few_trials.py --merge FILE ...

Reported is *regret*: the time to target of the best configuration found so far over that of the
best there is (geometric mean, 95 % over tasks and seeds; a study that found nothing counts as the
limit), after so many full trials: a full trial is the limit's seconds of training on one worker.
All studies have at most 60 trials. All rows get the same target and the default pruner, which also
caps a trial at the time of the fastest (Optuna's own row: Hyperband and that cap), and those that
can the same known tasks, the policy too. Where tasks are known, published settings are proposed
like their points, as in a study. The policy's weights were trained on LCBench's development tasks:
there its row is no test. Other rows than those named "baseline" have none.

`recorded`: curves of the form of `lcbench_dev.npz`, the nearest configuration stands for a
proposed one, its recorded time is exact. `farm`: real training of small networks in virtual time
(`farm.py`), judged by means over fresh seeds; a task of one family knows only tasks of the other
one. `real`: digits, Fashion-MNIST and Shakespeare, see `research/_few_real.py`. `shipped`: each
study of the shipped experience as a table, where the others on other data are known, and in the row
"another family" only those of other families (`research/_few_shipped.py`).

`--source`: the known tasks. `shipped` (the default): what the package brings, without the task
under test, which is looked for by name and by content (equal curves). `others`: the other tasks of
`--data`; of the farm always so, from random configurations. A file's tasks may not have the task
under test among them, of real training none of its data set (exit code 2).

`--target quantile`: the accuracy that 5 % of the configurations reach; `baseline`: what the
baseline's configuration ends with before the limit. Rows with wrong experience: every parameter
turned around, or points permuted, or tasks of another family (for tables the farm's, for the farm
those of `--data`). The aims are judged at the least number of workers. Exit code 1: one is missed.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from _aims import exit_code

sys.path.append(str(Path(__file__).parent / "research"))

import _few_problems as problems
import _few_real
import _few_rows as rows
import _few_shipped
import _few_sources as sources
import farm
from _common import Answer, arguments, introduce, keep, repeats_of
from _few_tables import aims, merged, table

from autotune.algorithms.experience.canonical import CanonicalSpace
from autotune.algorithms.experience.known_task import KnownTask
from autotune.errors import UserError

SOURCE_TRIALS = {"recorded": 300, "farm": 128}
"""Random configurations of a known task that is made here."""
QUICK_ROWS = (rows.RANDOM, rows.NEW, rows.OWN, "posterior, permuted")


@dataclass(frozen=True)
class Job:
    """All rows on one task with one seed, for all targets and numbers of workers."""

    problem: str
    data: str | None
    number: int
    seed: int
    workers: Sequence[int]
    targets: Sequence[str]
    rows: Sequence[str]
    spends: Sequence[int]


@dataclass
class Process:
    """What a process that runs jobs keeps from one to the next.

    Args:
        known: the known tasks of each task under test.
        other: those of another family; None where there are none.
    """

    known: dict[int, list[KnownTask]] = field(default_factory=dict)
    other: dict[int, list[KnownTask]] | None = None


_process = Process()


def begin(known: dict[int, list[KnownTask]], other: dict[int, list[KnownTask]] | None) -> None:
    """Give this process the known tasks."""
    _process.known, _process.other = known, other


def worked(job: Job) -> list[Answer]:
    """The studies of a job, without targets that cannot be reached."""
    seed = 100 * job.seed + job.number  # another one for each task, as first points must differ
    fitted: dict[str, Any] = {}
    found = []
    for target in job.targets:
        case = case_of(job, target)
        for workers in job.workers if case is not None else ():
            known, other = _process.known[job.number], (_process.other or {}).get(job.number)
            study = rows.Study(case, seed, workers, known, other, fitted, job.spends)
            found += [{**rows.measured(study, name), "seed": job.seed} for name in job.rows]
    return found


def case_of(job: Job, target: str) -> problems.Case | None:
    """The problem of a job with a target."""
    if job.problem == "farm":
        return problems.trained_case(job.number, target)
    if job.problem == "shipped":
        return _few_shipped.case(job.number)
    return problems.recorded_case(str(job.data), job.number, target)


# --- known tasks ----------------------------------------------------------------------------------


def known_of_table(options: argparse.Namespace, numbers: Sequence[int]) -> dict[int, Any]:
    """The known tasks of each task of a table.

    Raises:
        UserError: a task under test is among the tasks of a given file, or nothing is shipped.
    """
    trials = options.source_trials or SOURCE_TRIALS["recorded"]
    if options.source == "shipped":
        known, given = sources.shipped(), None
    elif options.source == "others":
        known, given = sources.of_table(options.data, trials), None
    else:
        known, given = sources.of_table(options.source, trials), options.source
    return {
        i: sources.checked(problems.recorded_task(options.data, i), known, given) for i in numbers
    }


def known_of_farm(options: argparse.Namespace, numbers: Sequence[int]) -> dict[int, Any]:
    """The known tasks of each task of the farm: those of the other family."""
    trials = options.source_trials or SOURCE_TRIALS["farm"]
    tasks, known = farm.tasks(), dict[str, list[KnownTask]]()
    for name in {sources.family(tasks[i].name) for i in numbers}:
        others = [task for task in tasks if sources.family(task.name) != name]
        known[name] = sources.of_farm(trials, others[:1] if options.quick else others)
    return {i: known[sources.family(tasks[i].name)] for i in numbers}


def known_of_shipped(options: argparse.Namespace, numbers: Sequence[int]) -> dict[int, Any]:
    """The known tasks of each shipped study: those on other data."""
    return {i: _few_shipped.on_other_data(_few_shipped.tasks()[i]) for i in numbers}


KNOWN = {"recorded": known_of_table, "farm": known_of_farm, "shipped": known_of_shipped}


def other_family(options: argparse.Namespace, numbers: Sequence[int]) -> dict[int, Any] | None:
    """Known tasks that have nothing to do with each under test; None where none are given."""
    if options.problem == "shipped":
        return {i: _few_shipped.unlike(_few_shipped.tasks()[i]) for i in numbers}
    if options.problem == "recorded":
        one_of_each = {sources.family(task.name): task for task in reversed(farm.tasks())}
        trials = options.source_trials or SOURCE_TRIALS["farm"]
        found = sources.of_farm(trials, list(one_of_each.values()))
    elif options.data:
        found = sources.of_table(options.data, options.source_trials or SOURCE_TRIALS["recorded"])
    else:
        return None
    return dict.fromkeys(numbers, found)


# --- a run ----------------------------------------------------------------------------------------


def simulated(options: argparse.Namespace) -> tuple[list[Answer], dict[str, str]]:
    """All studies of recorded tasks or of the farm, and the rows that were not run."""
    names = names_of(options)
    numbers = list(range(len(names)))[options.first_task :][: options.tasks]
    known = KNOWN[options.problem](options, numbers)
    for i in numbers:
        space = space_of(options, i)
        print(f"{names[i]}: {len(sources.for_space(known[i], space))} known tasks", flush=True)
    other = other_family(options, numbers) if rows.OTHER in options.rows else None
    absent = rows.not_run(options.rows, other)
    for name, why in absent.items():
        print(f"{name}: not run: {why}", flush=True)
    chosen = [name for name in options.rows if name not in absent]
    first, spends = options.first_seed, options.spends
    targets = problems.TARGETS if options.target == "both" else [options.target]
    jobs = [
        Job(options.problem, options.data, number, seed, options.workers, targets, chosen, spends)
        for seed in range(first, first + repeats_of(options))
        for number in numbers
    ]
    found = [one for done in executed(jobs, known, other, options.processes) for one in done]
    order = {name: i for i, name in enumerate((*rows.ROWS, *rows.VARIANTS))}
    found.sort(key=lambda one: (one["target"], one["workers"], order[one["row"]], one["seed"]))
    return found, absent


def names_of(options: argparse.Namespace) -> list[str]:
    """The names of all tasks of the problem."""
    if options.problem == "recorded":
        return list(problems.table(options.data).names)
    return [t.name for t in (farm.tasks() if options.problem == "farm" else _few_shipped.tasks())]


def space_of(options: argparse.Namespace, number: int) -> CanonicalSpace:
    """The space of a task, in canonical names."""
    if options.problem == "farm":
        return CanonicalSpace(farm.tasks()[number].space())
    if options.problem == "shipped":
        return CanonicalSpace(_few_shipped.case(number).problem.space)
    case = problems.recorded_case(options.data, number, "quantile")
    assert case is not None, "5 % of the configurations reach the quantile"
    return CanonicalSpace(case.problem.space)


def executed(
    jobs: Sequence[Job], known: dict[int, Any], other: Any, processes: int
) -> Iterator[list[Answer]]:
    """The studies of each job as it ends, in so many processes."""
    if processes == 1:
        begin(known, other)
        for job in jobs:
            yield shown(job, worked(job))
        return
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")  # of each process
    context = get_context("spawn")
    with ProcessPoolExecutor(processes, context, begin, (known, other)) as pool:
        running = {pool.submit(worked, job): job for job in jobs}
        for future in as_completed(running):
            yield shown(running[future], future.result())


def shown(job: Job, found: list[Answer]) -> list[Answer]:
    """Tell on the error output that a job is done, and what of it is left out."""
    took = sum(one["cpu"] + one["judged_cpu"] for one in found)
    said = f"task {job.number}, study {job.seed}: {took:.0f} s of CPU time"
    for target in job.targets:
        if not any(one["target"] == target for one in found):
            said += f"; nothing reaches the target {target}"
    print(said, file=sys.stderr, flush=True)
    return found


def main() -> int:
    parser = arguments(__doc__ or "", repeats=1)
    add_options(parser)
    options = parser.parse_args()
    try:
        return reported(options)
    except UserError as error:
        print(f"{Path(__file__).name}: {error}", file=sys.stderr)
        return 2


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--problem", choices=(*KNOWN, "real"), default="recorded")
    parser.add_argument("--data", metavar="FILE", help="a table of curves")
    parser.add_argument(
        "--data-dir", metavar="DIR", help="where Fashion-MNIST and Shakespeare are (real)"
    )
    parser.add_argument("--spends", type=int, nargs="+", help="in full trials (3 5 10, and 20 40)")
    parser.add_argument("--virtual", action="store_true", help="count seconds by steps (real)")
    parser.add_argument("--source", help="shipped, others or a FILE (shipped; of the farm others)")
    parser.add_argument("--source-trials", type=int, help="of a known task made here (300, 128)")
    parser.add_argument("--target", choices=(*problems.TARGETS, "both"), default="quantile")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 4], help="at once (1 4)")
    parser.add_argument("--first-task", type=int, default=0, help="number of the first task (0)")
    parser.add_argument("--tasks", type=int, help="how many tasks (all)")
    parser.add_argument("--first-seed", type=int, default=0, help="number of the first study (0)")
    parser.add_argument("--seeds", dest="repeats", type=int, help="studies of each task (1)")
    parser.add_argument("--rows", help="some of the rows, separated by ';'")
    parser.add_argument("--confirm", type=int, default=3, help="fresh seeds of each winner (real)")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="(one for each core)")
    parser.add_argument("--merge", nargs="+", type=Path, metavar="FILE", help="of several --json")


def reported(options: argparse.Namespace) -> int:
    """Run what the options say and print it; the exit code."""
    begun = time.monotonic()
    if options.merge:
        problem, found, absent = merged(options.merge)
    else:
        problem, (found, absent) = options.problem, ran(options)
    print(table(found, absent))
    code = exit_code(aims(found, problem == "recorded") if problem != "real" else [])
    if not options.merge:
        print(f"{time.monotonic() - begun:.0f} s")
    return code


def ran(options: argparse.Namespace) -> tuple[list[Answer], dict[str, str]]:
    """The studies, which are kept in a file if one is given."""
    real = options.problem == "real"
    allowed = _few_real.ROWS if real else (*rows.ROWS, *rows.VARIANTS)
    options.spends = options.spends or (_few_real.SPENDS if real else rows.SPENDS)
    usual = QUICK_ROWS if options.quick else tuple(rows.ROWS)
    usual = _few_real.ROWS if real else usual
    options.rows = options.rows.split(";") if options.rows else list(usual)
    wrong = [name for name in options.rows if name not in allowed]
    if wrong:
        raise UserError(f"--rows: unknown row {wrong[0]!r}; there are: {'; '.join(allowed)}")
    if options.problem == "recorded" and not options.data:
        raise UserError("--problem recorded needs --data FILE, a table of curves")
    if options.quick:
        options.tasks, options.workers, options.source_trials = 1, [1], 6 if real else 32
    options.source = source_of(options)
    about = introduce()
    found, absent = _few_real.studies(options) if real else simulated(options)
    keep(options.json, about, problem=options.problem, not_run=absent, runs=found)
    return found, absent


def source_of(options: argparse.Namespace) -> str:
    """The source that was asked for, or the usual one.

    Raises:
        UserError: the problem has no other than its own.
    """
    why = {
        "farm": ("others", "whose tasks know those of its other family"),
        "shipped": ("shipped", "whose tasks know the others on other data"),
    }
    if options.problem not in why:
        return options.source or ("others" if options.quick else "shipped")
    only, reason = why[options.problem]
    if options.source not in (None, only):
        raise UserError(
            f"--source must be {only} with --problem {options.problem}, {reason}, "
            f"but got {options.source!r}"
        )
    return only


if __name__ == "__main__":
    sys.exit(main())
