"""What few trials are worth: how good the best is after 3, 5, 10, 20 and 40 full trials.

    python benchmarks/few_trials.py --problem recorded --data FILE
        [--source shipped|others|FILE] [--target quantile|baseline|both] [--workers 1 4]
        [--spends 3 5 10 20 40] [--tasks 17] [--seeds 1] [--json FILE]
    python benchmarks/few_trials.py --problem farm [--data FILE]
    python benchmarks/few_trials.py --problem shipped|optimizers [--workers 1] [--seeds 4]
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
"another family" only those of other families (`research/_few_shipped.py`). `optimizers`: the same
where the optimizer is searched, over the studies of a problem together
(`research/_few_optimizers.py`); in rows that end in "studies apart" the known ones are not joined.

`--source`: the known tasks. `shipped` (the default): what the package brings, without the task
under test, which is looked for by name and by content (equal curves). `others`: the other tasks of
`--data`; of the farm always so, from random configurations. A file's tasks may not have the task
under test among them, of real training none of its data set (exit code 2).

`--target quantile`: the accuracy that 5 % of the configurations reach; `baseline`: what the
baseline's configuration ends with before the limit (not of `shipped` and `optimizers`). Rows with
wrong experience: every parameter turned around, or points permuted, or tasks of another family (for
tables the farm's, for the farm those of `--data`). The aims are judged at the least number of
workers. Exit code 1: one is missed.
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
import _few_sources as sources
from _common import Answer, arguments, introduce, keep, repeats_of
from _few_kinds import KINDS, Kind, Known
from _few_tables import aims, merged, table

from autotune.errors import UserError

QUICK_ROWS = (rows.RANDOM, rows.NEW, rows.OWN, "posterior, permuted")


@dataclass(frozen=True)
class Job:
    """All rows on one task with one seed, for all targets and numbers of workers."""

    kind: Kind
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

    known: Known = field(default_factory=dict)
    other: Known | None = None


_process = Process()


def begin(known: Known, other: Known | None) -> None:
    """Give this process the known tasks."""
    _process.known, _process.other = known, other


def worked(job: Job) -> list[Answer]:
    """The studies of a job, without targets that cannot be reached."""
    seed = 100 * job.seed + job.number  # another one for each task, as first points must differ
    fitted: dict[str, Any] = {}
    found = []
    for target in job.targets:
        case = job.kind.case(job.number, target)
        for workers in job.workers if case is not None else ():
            known, other = _process.known[job.number], (_process.other or {}).get(job.number)
            study = rows.Study(case, seed, workers, known, other, fitted, job.spends)
            found += [{**rows.measured(study, name), "seed": job.seed} for name in job.rows]
    return found


# --- a run ----------------------------------------------------------------------------------------


def simulated(options: argparse.Namespace) -> tuple[list[Answer], dict[str, str]]:
    """All studies of recorded tasks or of the farm, and the rows that were not run."""
    kind = KINDS[options.problem](
        options.data, options.source, options.source_trials, options.quick
    )
    if options.target != "quantile" and kind.own_target:
        raise UserError(
            f"--target must be quantile with --problem {options.problem}, whose tasks have a "
            "target of their own"
        )
    names = kind.names()
    numbers = list(range(len(names)))[options.first_task :][: options.tasks]
    if not numbers:
        raise UserError(f"--first-task must be below {len(names)}, the number of tasks")
    known = kind.known(numbers)
    for i in numbers:
        usable = sources.for_space(known[i], kind.space(i))
        print(f"{names[i]}: {len(usable)} known tasks", flush=True)
    other = kind.unlike(numbers) if rows.OTHER in options.rows else None
    absent = rows.not_run(options.rows, other, kind.based)
    for name, why in absent.items():
        print(f"{name}: not run: {why}", flush=True)
    chosen = [name for name in options.rows if name not in absent]
    first, spends = options.first_seed, options.spends
    targets = problems.TARGETS if options.target == "both" else [options.target]
    if not chosen:
        raise UserError(f"--rows: none of them can run here: {'; '.join(options.rows)}")
    jobs = [
        Job(kind, number, seed, options.workers, targets, chosen, spends)
        for seed in range(first, first + repeats_of(options))
        for number in numbers
    ]
    found = [one for done in executed(jobs, known, other, options.processes) for one in done]
    order = {name: i for i, name in enumerate((*rows.ROWS, *rows.VARIANTS))}
    found.sort(key=lambda one: (one["target"], one["workers"], order[one["row"]], one["seed"]))
    return found, absent


def executed(
    jobs: Sequence[Job], known: Known, other: Known | None, processes: int
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
    parser.add_argument("--problem", choices=(*KINDS, "real"), default="recorded")
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
    check_numbers(options)
    if options.quick:
        options.tasks, options.workers, options.source_trials = 1, [1], 6 if real else 32
    about = introduce()
    found, absent = _few_real.studies(options) if real else simulated(options)
    keep(options.json, about, problem=options.problem, not_run=absent, runs=found)
    return found, absent


def check_numbers(options: argparse.Namespace) -> None:
    """Check the numbers of the options; a run of no study judges no aim.

    Raises:
        UserError: one is too small.
    """
    least = dict.fromkeys(("tasks", "repeats", "processes", "source_trials", "confirm"), 1)
    for name, low in {**least, "first_task": 0, "first_seed": 0}.items():
        check_least(name, getattr(options, name), low)
    for name in ("workers", "spends"):
        for value in getattr(options, name):
            check_least(name, value, 1)


def check_least(name: str, value: int | None, least: int) -> None:
    """Check a number, if it is given.

    Raises:
        UserError: it is too small.
    """
    if value is not None and value < least:
        said = "--seeds" if name == "repeats" else f"--{name.replace('_', '-')}"
        raise UserError(f"{said} must be at least {least}, but got {value}")


if __name__ == "__main__":
    sys.exit(main())
