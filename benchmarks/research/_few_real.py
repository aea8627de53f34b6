"""The part of `few_trials.py` that really trains: digits, Fashion-MNIST and Shakespeare.

Studies of one data set know experience of other data sets only. A pair is a data set and a seed,
on which all rows run in turns, in this process, for as long as ten full trials of five seconds.
Spends are wall seconds of tuning. The best configuration after each spend is trained again with
`--confirm` fresh seeds, those of all rows in turns: it is worth the mean of their times, where a
miss is the limit. Regret is over the best such mean of the data set. With `--virtual` training is
as real, but its seconds are those of `COSTS`, so that a busy machine changes nothing; the time that
samplers take is then not counted.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import _few_problems as problems
import _few_sources as sources
import numpy as np
import search
from _few_kinds import TABLE_TRIALS
from _few_rows import MOST_TRIALS, NEW, OWN, PRUNER, RANDOM
from _live import live
from _shared import Answer, repeats_of

import autotune as at
from autotune.algorithms.experience.canonical import CanonicalSpace
from autotune.algorithms.experience.known_task import KnownTask
from autotune.algorithms.samplers.convergence import ConvergenceSampler
from autotune.algorithms.samplers.experienced import ExperiencedSampler
from autotune.backends.simulator import SimPool
from autotune.errors import UserError
from autotune.storage import journal
from autotune.trial import Config, Params, State, Trial
from autotune.trial.scaling import Scaling
from search_spaces import _image, shakespeare
from search_spaces.digits import PROBLEM as DIGITS
from search_spaces.fashion_mnist import PROBLEM as FASHION_MNIST

ROWS = (RANDOM, "tpe", NEW, OWN)
SPENDS = (3, 5, 10)
LIMIT = 5.0  # seconds of a trial
COSTS = {
    "digits": (5e-3, 120e-6),
    "fashion_mnist": (0.7e-3, 9e-6),
    "shakespeare": (1.3e-3, 7.4e-6),
}
"""CPU seconds of a step and of each sample, or token, measured with one thread: for `--virtual`."""
SOURCE_TRIALS = 24  # random trials of a known task that is made here
_ONE = Scaling(num_workers=1, max_concurrent_trials=1)


def experiments(data_dir: str | None) -> dict[str, at.Experiment]:
    """Small problems on the three data sets, without a baseline.

    Raises:
        UserError: Fashion-MNIST or Shakespeare is not in the folder.
    """
    if data_dir is not None:
        os.environ["AUTOTUNE_DATA"] = str(Path(data_dir).resolve())
    digits = replace(
        DIGITS,
        setting={"model": "resnet8", "width": 16, "milestone": 2560},
        target=at.Target("val_accuracy", 0.97, limit=LIMIT),
        scaling=_ONE,
        image_size=None,
    )
    fashion = replace(
        FASHION_MNIST,
        setting={"model": "mlp", "width": 128, "val_size": 5000, "milestone": 10_000},
        target=at.Target("val_accuracy", 0.86, limit=LIMIT),
        scaling=_ONE,
        horizon=at.Float(1.0, 10.0, log=True),
    )
    try:
        usual = {**_image.SGD_BASELINE, "batch_size": 128, "horizon": 10.0}
        made = {p.data: _image.searched(p, "sgd", usual) for p in (digits, fashion)}
        made["shakespeare"] = text()
    except FileNotFoundError as error:
        raise UserError(f"--data-dir {data_dir}: {error}") from None
    return {name: replace(one, baseline=None) for name, one in made.items()}


def text() -> at.Experiment:
    """The recipe of Shakespeare for AdamW with a smaller model, and lengths that fit the limit."""
    recipe = shakespeare.adamw()
    small = {"layers": 1, "width": 48, "heads": 2, "val_size": 8192, "milestone": 16_384}
    entries = {**recipe.space.entries, **{key: at.Fixed(value) for key, value in small.items()}}
    entries["horizon"] = at.Float(0.1, 1.0, log=True)
    return replace(
        recipe,
        space=replace(recipe.space, entries=entries),
        target=at.Target("val_loss", 2.2, mode="min", limit=LIMIT),
        scaling=_ONE,
        baseline=None,
    )


# --- known tasks ----------------------------------------------------------------------------------


def known_for(
    name: str, options: argparse.Namespace, all_of: dict[str, at.Experiment]
) -> list[KnownTask]:
    """Known tasks of other data sets.

    Raises:
        UserError: a given file has a task of this data set, or nothing is shipped.
    """
    source = sources.chosen(options.source, options.quick)
    if source == "others":
        trials = options.source_trials or SOURCE_TRIALS
        others = [one for other, one in all_of.items() if other != name]
        return [made_here(one, trials, options.virtual) for one in others]
    own = name.partition("_")[0]  # fashion_mnist is also spelled otherwise
    if source != "shipped":
        given = sources.of_table(source, options.source_trials or TABLE_TRIALS)
        shipped = sources.shipped() if sources.SHIPPED.exists() else []
        trained = [task for task in shipped if own in task.name.casefold()]
        for task in given:
            if own in task.name.casefold():
                raise sources.among_its_own(source, task.name, name, "the same name")
            if any(sources.same_content(task, one) for one in trained):
                raise sources.among_its_own(source, task.name, name, "equal curves")
        return given
    shipped = sources.shipped()
    left = [task for task in shipped if own in task.name.casefold()]
    for task in left:
        print(f"{name}: {task.name} is left out of its sources (the same data set)", flush=True)
    return [task for task in shipped if task not in left]


def made_here(experiment: at.Experiment, trials: int, virtual: bool) -> KnownTask:
    """A known task from a random search in which no trial is stopped before its limit."""
    ran = Ran("none", problems.SOURCE_SEED, trials, None, virtual)
    result, _ = _searched(experiment, "random", ran)
    return as_known(experiment, [t for t in result.trials if t.reports and t.params])


def as_known(experiment: at.Experiment, trials: Sequence[Trial]) -> KnownTask:
    """Trials of a study as a known task."""
    canonical, target = CanonicalSpace(experiment.space, experiment.canonical), experiment.target
    longest = max(len(t.reports) for t in trials)
    accuracy, seconds = (np.full((len(trials), longest), fill) for fill in (-np.inf, np.inf))
    for row, trial in enumerate(trials):
        for i, report in enumerate(trial.reports):
            value = report.metrics.get(target.metric, -np.inf)  # the first report has none
            accuracy[row, i] = np.nan_to_num(value, nan=-np.inf, neginf=-np.inf)
            seconds[row, i] = report.seconds
    points = [trial.params or {} for trial in trials]
    goal = float(target.value or 0.0), target.limit
    task = problems.known_task(experiment.name, canonical, points, (accuracy, seconds), goal)
    return replace(task, curves=np.where(np.isfinite(task.curves), task.curves, np.nan))


# --- studies --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ran:
    """How a study is run: see `at.run`; `virtual` is on the clock of `COSTS`."""

    pruner: str
    seed: int
    trials: int
    time_limit: float | None
    virtual: bool


@dataclass(frozen=True)
class Winner:
    """The best point of a row after a spend; None where nothing was found."""

    row: str
    spend: int
    point: Params | None


def studies(options: argparse.Namespace) -> tuple[list[Answer], dict[str, str]]:
    """All pairs that were asked for; no row is left out."""
    all_of, found = experiments(options.data_dir), list[Answer]()
    chosen = list(all_of)[options.first_task :][: options.tasks]
    if not chosen:
        raise UserError(f"--first-task must be below {len(all_of)}, the number of tasks")
    known: dict[str, list[KnownTask]] = {}
    for name in chosen if NEW in options.rows else ():
        space = CanonicalSpace(all_of[name].space, all_of[name].canonical)
        known[name] = sources.for_space(known_for(name, options, all_of), space)
        print(f"{name}: {len(known[name])} known tasks", flush=True)
    first = options.first_seed
    for seed in range(first, first + repeats_of(options)):
        for name in chosen:
            begin = time.monotonic()
            found += pair(all_of[name], known.get(name, []), seed, options)
            print(
                f"{name}, study {seed}: {time.monotonic() - begin:.0f} s",
                file=sys.stderr,
                flush=True,
            )
    return found, {}


def pair(
    experiment: at.Experiment, known: list[KnownTask], seed: int, options: argparse.Namespace
) -> list[Answer]:
    """All rows on a data set with a seed, and what their best points are worth."""
    order = list(options.rows) if seed % 2 == 0 else list(reversed(options.rows))
    winners, about = list[Winner](), dict[str, Answer]()
    spend = (1 if options.quick else max(options.spends)) * LIMIT
    for row in order:
        sampler, begin = sampler_of(row, experiment, known, seed), time.process_time()
        ran = Ran(PRUNER, seed, MOST_TRIALS, spend, options.virtual)
        result, leaders = _searched(experiment, sampler, ran)
        about[row] = {"trials": len(result.searched), "cpu": time.process_time() - begin}
        for spent in options.spends:
            now = [config for since, config in leaders if since <= spent * LIMIT]
            same = [t.params for t in result.trials if now and t.config == now[-1]]
            winners.append(Winner(row, spent, same[0] if same else None))
    runs = 1 if options.quick else options.confirm
    worth = confirmed(experiment, winners, runs, seed, options.virtual)
    return [
        {
            "row": row,
            "task": experiment.name,
            "seed": seed,
            "workers": 1,
            "target": "fixed",
            "limit": LIMIT,
            "best": LIMIT,
            "seconds": {f"{w.spend}": worth[_key(w.point)] for w in winners if w.row == row},
            **about[row],
        }
        for row in options.rows
    ]


def sampler_of(row: str, experiment: at.Experiment, known: list[KnownTask], seed: int) -> Any:
    """The sampler of a row."""
    if row != NEW:
        return row
    about = experiment.space, experiment.target, seed
    own = ConvergenceSampler(*about)
    canonical = CanonicalSpace(experiment.space, experiment.canonical)
    if not known:
        return own
    published = sources.published_for(canonical)
    return ExperiencedSampler(*about, canonical, known, own, published=published)


@dataclass(frozen=True)
class Repeated:
    """The same points again and again, in turns."""

    points: Sequence[Params]

    def ask(self, number: int, trials: Sequence[Trial]) -> Params:
        """A point, by its number."""
        return self.points[number % len(self.points)]


def confirmed(
    experiment: at.Experiment, winners: Sequence[Winner], runs: int, seed: int, virtual: bool
) -> dict[str, float]:
    """What each point is worth on fresh seeds: the mean of its times; a miss is the limit."""
    points = {_key(w.point): w.point for w in winners if w.point is not None}
    if not points:
        return {_key(None): LIMIT}
    again = Repeated(list(points.values()))
    ran = Ran("none", problems.FRESH + seed, runs * len(points), None, virtual)
    result, _ = _searched(experiment, again, ran)
    times: dict[str, list[float]] = {}
    for trial in result.trials:
        took = trial.seconds if trial.state is State.REACHED else LIMIT
        times.setdefault(_key(trial.params), []).append(took)
    return {_key(None): LIMIT, **{key: statistics.fmean(own) for key, own in times.items()}}


def _searched(experiment: at.Experiment, sampler: Any, ran: Ran) -> tuple[Any, search.Leaders]:
    """A study in this process: its result, and who was the best when."""
    virtual = SimPool(partial(_trained, experiment), workers=1) if ran.virtual else None
    with tempfile.TemporaryDirectory() as folder:
        result = at.run(
            experiment,
            trials=ran.trials,
            time_limit=ran.time_limit,
            sampler=sampler,
            pruner=ran.pruner,
            backend="local",
            pool=virtual,
            out=Path(folder, "study"),
            seed=ran.seed,
            racing=0.0,
            progress=False,
            experience="off",
        )
        read = journal.read(Path(folder, "study"))
    events = [e for e in read if not isinstance(e, journal.Opened | journal.Closed)]
    return result, search.led(events, experiment.target)


def _trained(experiment: at.Experiment, config: Config, seed: int) -> Any:
    """A training whose seconds are those of its steps and samples, or tokens."""
    of_step, of_sample = next(c for name, c in COSTS.items() if experiment.name.startswith(name))
    each = of_sample + of_step / (config["batch_size"] * config.get("sequence_length", 1))
    return live(experiment.train, dict(config), seed, epoch=1 / each)


def _key(point: Params | None) -> str:
    return "none" if point is None else repr(sorted(point.items()))
