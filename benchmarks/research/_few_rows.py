"""The rows of `few_trials.py`: one study of each on a problem, and what it had found by when."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from unittest.mock import patch

import _few_peers
import search
from _few_problems import Case
from _few_sources import WRONG, apart, for_space, published_for
from _shared import Answer
from search import Leaders

import autotune as at
from autotune.algorithms.experience.canonical import CanonicalSpace
from autotune.algorithms.experience.known_task import KnownTask
from autotune.algorithms.experience.model import KnownTasks
from autotune.algorithms.samplers import Sampler, convergence
from autotune.algorithms.samplers.convergence import ConvergenceSampler
from autotune.algorithms.samplers.experienced import KNOWN_FIRST, ExperiencedSampler
from autotune.algorithms.samplers.optuna import OptunaSampler
from autotune.algorithms.samplers.trained_policy.sampler import TrainedPolicySampler
from autotune.study.defaults import sampler_for
from autotune.trial import Config, Params, Trial

SPENDS = (3, 5, 10, 20, 40)
MOST_TRIALS = 60
PRUNER = "convergence"  # the default; it caps trials at the time of the fastest, too
ALL_FIRST = 10**6  # ended trials: the posterior never hands over
NEW, OWN, RANDOM = "the new default", "convergence", "random"
NEW_BASED, OWN_BASED = f"{NEW}, baseline", f"{OWN}, baseline"
WRONG_ROWS = {"posterior, reversed": "reversed", "posterior, permuted": "permuted"}
OTHER = "posterior, another family"


@dataclass(frozen=True)
class Study:
    """What the rows of one table run on: a problem, a seed, workers, and the known tasks.

    Args:
        known: the known tasks, without the problem itself.
        other: those of another family; None where there are none.
        fitted: models of known tasks by their kind, shared by the studies of a problem.
        spends: after so many full trials it is looked what was found; the study ends at the most.
    """

    case: Case
    seed: int
    workers: int
    known: Sequence[KnownTask]
    other: Sequence[KnownTask] | None
    fitted: dict[str, KnownTasks]
    spends: Sequence[int] = SPENDS

    @property
    def seconds(self) -> float:
        """The seconds of the study's clock."""
        return max(self.spends) * self.case.problem.target.limit / self.workers

    @cached_property
    def canonical(self) -> CanonicalSpace:
        return CanonicalSpace(self.case.problem.space)

    def tasks(self, kind: str) -> list[KnownTask]:
        """Known tasks: `right` ones, these `apart`, `another family`, or a kind of `WRONG`.

        Apart are studies of one problem with different optimizers, which are joined else.
        """
        if kind == "another family":
            return for_space(self.other or (), self.canonical)
        if kind == "apart":
            return apart(self.known, self.canonical)
        right = for_space(self.known, self.canonical)
        if kind == "right":
            return right
        return for_space([WRONG[kind](t, self.canonical) for t in right], self.canonical)


class Experienced(ExperiencedSampler):
    """The sampler with models that were fitted before."""

    fitted: KnownTasks

    @property
    def models(self) -> KnownTasks:
        return self.fitted


def experienced(study: Study, kind: str, baseline: Config | None, first: int) -> Sampler:
    """The sampler over known tasks of a kind; its own search is what `auto` would choose."""
    problem = study.case.problem
    experiment = at.Experiment(
        problem.name, search._nothing, problem.space, problem.target, baseline=baseline
    )
    about = problem.space, problem.target, study.seed
    name, _ = sampler_for(experiment, MOST_TRIALS)
    own: Sampler = (
        ConvergenceSampler(*about) if name == "convergence" else OptunaSampler(name, *about)
    )
    if kind not in study.fitted:
        study.fitted[kind] = KnownTasks(study.canonical, study.tasks(kind))
    models = study.fitted[kind]
    if not models.tasks:
        return own
    published = published_for(study.canonical)
    sampler = Experienced(*about, study.canonical, models.tasks, own, first, published)
    sampler.fitted = models
    return sampler


@dataclass(frozen=True)
class Knowing:
    """The best configuration that is known first, then random ones."""

    space: at.SearchSpace
    best: Params
    seed: int

    def ask(self, number: int, trials: Sequence[Trial]) -> Params:
        """A point, from the seed and the number."""
        return self.best if number == 0 else self.space.sample(1, self.seed * 1_000_003 + number)[0]


Row = Callable[[Study], tuple[Leaders, int]]
"""Runs a study: who was the best when, and how many trials it had."""


def _ours(sampler: Callable[[Study, Config | None], Any], based: bool = False) -> Row:
    def run(study: Study) -> tuple[Leaders, int]:
        problem = study.case.problem
        search.WORKERS = study.workers
        baseline = problem.baseline if based else None
        answer = search.our_study(
            problem,
            sampler(study, baseline),
            PRUNER,
            study.seed,
            study.seconds,
            baseline=baseline,
            trials=MOST_TRIALS,
        )
        return answer["leaders"], answer["trials"]

    return run


def _policy(study: Study, baseline: Config | None) -> TrainedPolicySampler:
    """The trained policy with the known tasks of the other rows."""
    own = experienced(study, "right", baseline, KNOWN_FIRST)
    known = own if isinstance(own, ExperiencedSampler) else None
    problem = study.case.problem
    return TrainedPolicySampler(problem.space, problem.target, study.seed, own, known)


def _named(name: str, based: bool = False) -> Row:
    return _ours(lambda study, baseline: name, based)


def _experienced(kind: str, based: bool = False, first: int = KNOWN_FIRST) -> Row:
    return _ours(lambda study, baseline: experienced(study, kind, baseline, first), based)


def _transfer(method: str) -> Row:
    def sampler(study: Study, baseline: Config | None) -> Any:
        return _few_peers.transfer(method, study.canonical, study.tasks("right"), study.seed)

    return _ours(sampler)


def _optuna(study: Study) -> tuple[Leaders, int]:
    problem, workers = study.case.problem, study.workers
    return _few_peers.optuna_study(problem, study.seed, study.seconds, workers, MOST_TRIALS)


def _knowing(study: Study, baseline: Config | None) -> Knowing:
    return Knowing(study.case.problem.space, study.case.known_best, study.seed)


def _altered(**constants: int) -> Row:
    """The own search with other constants of its module."""

    def run(study: Study) -> tuple[Leaders, int]:
        with patch.multiple(convergence, **constants):
            return ROWS[OWN](study)

    return run


VARIANTS: Mapping[str, Row] = {
    f"{OWN}, model after 8 trials": _altered(_FIRST=8),
    f"{OWN}, model after 5 trials": _altered(_FIRST=5),
    f"{OWN}, 256 candidates": _altered(_CANDIDATES=256, _EXPLORED=128),
    f"{NEW}, studies apart": _experienced("apart"),
    f"{NEW_BASED}, studies apart": _experienced("apart", based=True),
}
"""Rows that run only if they are named."""
ROWS: Mapping[str, Row] = {
    RANDOM: _named("random"),
    "tpe": _named("tpe"),
    "Optuna TPE + Hyperband, time": _optuna,
    **{name: _transfer(method) for name, method in _few_peers.TRANSFER.items()},
    "widening, baseline": _named("widening", based=True),
    OWN: _named("convergence"),
    OWN_BASED: _named("convergence", based=True),
    NEW: _experienced("right"),
    NEW_BASED: _experienced("right", based=True),
    "policy": _ours(_policy),
    "posterior alone": _experienced("right", first=ALL_FIRST),
    **{name: _experienced(kind) for name, kind in WRONG_ROWS.items()},
    OTHER: _experienced("another family"),
    "the ceiling": _ours(_knowing),
}
BASED = ("widening, baseline", OWN_BASED, NEW_BASED, f"{NEW_BASED}, studies apart")


def not_run(rows: Sequence[str], other: Any, based: bool) -> dict[str, str]:
    """The rows that cannot run here, and why.

    Args:
        other: known tasks of another family, or None.
        based: whether the tasks have a baseline.
    """
    why = _few_peers.absent()
    if not based:
        why |= dict.fromkeys(BASED, "these tasks have no baseline")
    if other is None:
        why |= {OTHER: "no tasks of another family are given"}
    return {name: why[name] for name in rows if name in why}


def measured(study: Study, name: str) -> Answer:
    """One study of a row: the seconds that its best configuration is worth after each spend.

    A configuration is worth at most the limit, and a study that found nothing the limit.
    """
    problem, begin = study.case.problem, time.process_time()
    leaders, trials = {**ROWS, **VARIANTS}[name](study)
    took = time.process_time() - begin
    limit, found = problem.target.limit, {}
    for spend in study.spends:
        now = [config for since, config in leaders if since <= spend * limit / study.workers]
        found[f"{spend}"] = min(problem.judge(now[-1]), limit) if now else limit
    return {
        "row": name,
        "task": problem.name,
        "seed": study.seed,
        "workers": study.workers,
        "target": study.case.target,
        "limit": limit,
        "best": problem.best,
        "seconds": found,
        "trials": trials,
        "cpu": took,
        "judged_cpu": time.process_time() - begin - took,
    }
