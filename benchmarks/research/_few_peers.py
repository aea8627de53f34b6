"""The peers of `few_trials.py`: Optuna, told the time, and Syne Tune's transfer methods.

Optuna's TPE and Hyperband run on virtual workers of their own: a trial's value is its time to the
target, Hyperband prunes by accuracy, and a trial ends at the target or at the time of the fastest
so far, as ours do. Syne Tune's three methods learn nothing from trials, only from known tasks; so
they propose the points of studies that our driver runs, with the same pruner. They get the times to
target of the known tasks, completed as ours are where a trial was stopped. `ZeroShotTransfer`
needs the times of the same points in all tasks, and its own way to make them fails (0.16: it draws
other points for each task): forests impute them, one for each task.
"""

from __future__ import annotations

import contextlib
import heapq
import io
import itertools
import logging
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import peers
import search
from _shared import missing
from search import METRIC, Found, Leaders, Problem

import autotune as at
from autotune.algorithms.experience.canonical import CanonicalSpace
from autotune.algorithms.experience.known_task import KnownTask, log_times
from autotune.algorithms.experience.model import KnownTasks
from autotune.algorithms.samplers.optuna_space import draw
from autotune.space.encoding import unit_of, value_at
from autotune.space.parameters import Choice, Parameter, drawn, is_real
from autotune.trial import Params, Trial

TRANSFER = {
    "Syne Tune ZeroShotTransfer": "zero shot",
    "Syne Tune BoundingBox": "bounding box",
    "Syne Tune quantile-based": "quantiles",
}
_CANDIDATES = 500  # points that ZeroShotTransfer chooses from, and the best of each task


def absent() -> dict[str, str]:
    """The peers that are not installed, and why they do not run."""
    why = missing("syne_tune", "xgboost")
    return dict.fromkeys(TRANSFER, why) if why else {}


# --- Optuna ---------------------------------------------------------------------------------------


@dataclass
class _Job:
    trial: Any
    config: Mapping[str, Any]
    points: Sequence[Any]
    next: int = 0


def optuna_study(
    problem: Problem, seed: int, spend: float, workers: int, trials: int
) -> tuple[Leaders, int]:
    """TPE and Hyperband, told the time: who was the fastest when, and how many trials were begun.

    Args:
        spend: seconds of tuning time, on `workers` at once.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore")
    study = optuna.create_study(
        study_name=f"{seed}",  # Hyperband chooses brackets by it
        direction="minimize",
        sampler=optuna.samplers.TPESampler(seed=seed, multivariate=True, constant_liar=workers > 1),
        pruner=optuna.pruners.HyperbandPruner(1, problem.milestones, 3),
    )
    simulate, order = problem.simulate(), itertools.count()
    found: Found = []
    agenda: list[tuple[float, int, _Job]] = []

    def start(now: float) -> None:
        trial = study.ask()
        params = problem.space.suggest(lambda name, parameter: draw(trial, name, parameter))
        config = problem.space.config(params)
        job = _Job(trial, config, simulate(config, 1000 * seed + trial.number).points)
        heapq.heappush(agenda, (now + job.points[0].seconds, next(order), job))

    for _ in range(min(workers, trials)):
        start(0.0)
    while agenda:
        now, place, job = heapq.heappop(agenda)
        if now > spend:
            break
        cap = min([problem.target.limit, *(seconds for _, seconds, _ in found)])
        ended, took = _judged(job, problem.target.value, cap)
        if took is not None:
            found.append((now, took, job.config))
            study.tell(job.trial, took)
        elif ended or _pruned(job):
            study.tell(job.trial, state=optuna.trial.TrialState.PRUNED)
            ended = True
        if not ended:
            job.next += 1
            gap = job.points[job.next].seconds - job.points[job.next - 1].seconds
            heapq.heappush(agenda, (now + gap, place, job))
        elif len(study.trials) < trials:
            start(now)
    return search.fastest(found), len(study.trials)


def _judged(job: _Job, value: float, cap: float) -> tuple[bool, float | None]:
    """Whether a trial ends at its milestone without a pruner, and its time if it got there."""
    point = job.points[job.next]
    if point.seconds < cap and point.metrics[METRIC] >= value:
        return True, float(point.seconds)
    return point.seconds >= cap or job.next + 1 == len(job.points), None


def _pruned(job: _Job) -> bool:
    job.trial.report(-job.points[job.next].metrics[METRIC], job.next + 1)
    return bool(job.trial.should_prune())


# --- Syne Tune ------------------------------------------------------------------------------------


def transfer(method: str, canonical: CanonicalSpace, tasks: Sequence[KnownTask], seed: int) -> Any:
    """A sampler of our driver that proposes what a method of Syne Tune does.

    Args:
        method: a value of `TRANSFER`.
        tasks: as `experience.model.useful` returned them.
    """
    logging.getLogger("syne_tune").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    made = {"zero shot": _zero_shot, "bounding box": _bounding_box, "quantiles": _quantiles}
    np.random.seed(seed)
    with contextlib.redirect_stdout(io.StringIO()):
        return _Proposed(canonical.space, made[method](canonical, tasks, seed))


@dataclass
class _Proposed:
    """The points of an endless source, in their order, whatever the trials show."""

    space: at.SearchSpace
    source: Any

    def ask(self, number: int, trials: Sequence[Trial]) -> Params:
        """The next point."""
        return peers.point_of(self.space, self.source())


def _zero_shot(canonical: CanonicalSpace, tasks: Sequence[KnownTask], seed: int) -> Any:
    from syne_tune.optimizer.schedulers.transfer_learning.zero_shot import ZeroShotTransfer

    random, space = Random(f"{seed}/candidates"), canonical.space
    points = space.sample(_CANDIDATES, seed=random.getrandbits(31))
    for task in tasks:
        best = np.argsort(log_times(task)[:, 0], kind="stable")[:10]
        points += [_in_space(canonical, task.points[i], random) for i in best]
    models = KnownTasks(canonical, tasks)
    logs = models.at(points).logs
    first = [models.owner.index(i) for i in range(len(tasks))]
    rows = [_complete(space, point, random) for point in points]
    known = {f"{i}": _evaluations(space, rows, logs[own]) for i, own in enumerate(first)}
    scheduler = ZeroShotTransfer(
        peers.syne_tune_space(space),
        "time",
        known,
        do_minimize=True,
        sort_transfer_learning_evaluations=False,
        random_seed=seed,
    )
    return scheduler.get_config  # `suggest` draws at random in 0.16


def _bounding_box(canonical: CanonicalSpace, tasks: Sequence[KnownTask], seed: int) -> Any:
    from syne_tune.optimizer.baselines import RandomSearch
    from syne_tune.optimizer.schedulers.transfer_learning.bounding_box import BoundingBox

    def inner(box: Any, metric: str, _: bool, inner_seed: int) -> Any:
        return RandomSearch(box, [metric], random_seed=inner_seed)

    own, known = _own_evaluations(canonical, tasks, seed)
    box = BoundingBox(inner, own, "time", known, do_minimize=True, random_seed=seed)
    return lambda: box.suggest().config


def _quantiles(canonical: CanonicalSpace, tasks: Sequence[KnownTask], seed: int) -> Any:
    from syne_tune.optimizer.schedulers.transfer_learning.quantile_based import (
        quantile_based_searcher as quantile_based,
    )

    own, known = _own_evaluations(canonical, tasks, seed)
    return quantile_based.QuantileBasedSurrogateSearcher(own, known, random_seed=seed).suggest


def _own_evaluations(
    canonical: CanonicalSpace, tasks: Sequence[KnownTask], seed: int
) -> tuple[Params, dict[str, Any]]:
    """The space, and each task's own trials, in Syne Tune's terms."""
    random, space, known = Random(f"{seed}/rows"), canonical.space, {}
    for number, task in enumerate(tasks):
        points = [_in_space(canonical, point, random) for point in task.points]
        rows = [_complete(space, point, random) for point in points]
        known[f"{number}"] = _evaluations(space, rows, log_times(task)[:, 0])
    return peers.syne_tune_space(space), known


def _evaluations(space: at.SearchSpace, rows: Sequence[Params], logs: Any) -> Any:
    import pandas
    from syne_tune.optimizer.schedulers.transfer_learning import (
        transfer_learning_task_evaluation as evaluation,
    )

    return evaluation.TransferLearningTaskEvaluations(
        peers.syne_tune_space(space),
        pandas.DataFrame(list(rows)),
        ["time"],
        np.asarray(logs, dtype=float).reshape(-1, 1, 1, 1),
    )


def _in_space(canonical: CanonicalSpace, point: Mapping[str, Any], random: Random) -> Params:
    """A known point in the space; what it does not say is drawn."""

    def value(flat: str, parameter: Parameter) -> Any:
        known = canonical.value(flat, point)
        if isinstance(parameter, Choice):
            return known if known in parameter.options else drawn(parameter, random)
        if not is_real(known):
            return drawn(parameter, random)
        return value_at(parameter, min(max(unit_of(parameter, known), 0.0), 1.0))

    return canonical.space.suggest(value)


def _complete(space: at.SearchSpace, point: Params, random: Random) -> Params:
    """A point in Syne Tune's terms: inactive parameters are drawn, powers of two are exponents."""
    row = {}
    for name, parameter in space.parameters().items():
        value = point[name] if name in point else drawn(parameter, random)
        exponent = isinstance(parameter, at.Int) and parameter.power_of_two
        row[name] = round(math.log2(value)) if exponent else value
    return row
