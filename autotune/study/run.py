"""`run`: chooses the collaborators of a study and sets its loop going.

The only room that knows all protocols. What then happens is told in `autotune.study.driver.loop`.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from autotune.algorithms.pruners.rules import Pruner
from autotune.algorithms.samplers import Sampler
from autotune.backends.monitoring import Meter
from autotune.backends.protocol import Observed, Pool
from autotune.storage.journal import JOURNAL, Journal
from autotune.study import factory, manifest, warm_start
from autotune.study.driver.loop import Loop
from autotune.study.driver.plan import Controller, Plan, Watch
from autotune.study.driver.state import Book
from autotune.study.experiment import Experiment
from autotune.study.options import Request, check_trainer, name_of
from autotune.study.result import StudyResult
from autotune.study.warm_start import Start
from autotune.trial import Ended, Event, Trial


def run(
    experiment: Experiment,
    *,
    trials: int,
    time_limit: float | None = None,
    sampler: str | Any = "auto",
    pruner: str | Pruner = "convergence",
    controller: str | Controller | None = None,
    out: str | Path | None = None,
    tracking_uri: str | None = None,
    ray_address: str | None = None,
    seed: int = 0,
    seeds: Sequence[int] = (),
    repeats: int = 0,
    top: int = 3,
    search: bool = True,
    racing: float | None = None,
    resume: bool = True,
    start_from: str | Path | None = None,
    recipe: str | None = None,
    mirror: bool = False,
    mix_hardware: bool = False,
    watch: Watch | None = None,
    pool: Pool | None = None,
) -> StudyResult:
    """Search the configuration that reaches the experiment's target soonest.

    Args:
        trials: how many trials the study has in all, baseline and given configurations included.
        time_limit: seconds after which running trials are censored (`budget`) and the study ends.
        sampler: `auto` (by `study.defaults`, unless the study has one), `convergence`, `tpe`,
            `widening`, `policy` (or `policy:actor`, `policy:reinforce`, `policy:ppo`), `random`,
            `qmc`, `gp`, `cmaes`, `nsga2`, the dotted path of an Optuna sampler with keyword
            arguments, or an object with `ask(number, trials)`.
        pruner: `convergence`, `slower_than_best`, `bottom_at_same_time`, `asha`, `hyperband`,
            `forecast`, `none`, by name or with keyword arguments as in `asha(reduction=2)`, a
            function (see `autotune.algorithms.pruners.rules`), or its name as `module:function` or
            `file.py:function`.
        controller: turns knobs of running trials, or forks them: `policy`, `regulator`, `pbt`,
            each with or without keyword arguments (see `algorithms.controllers`), a function
            (trial, others, target) -> Change | Fork | None, or its name as for a pruner.
        out: the study folder; `studies/NAME` by default.
        tracking_uri: MLflow's tracking store; by default `mlflow.db` in the study folder
            (none on a virtual clock); "off" for none.
        ray_address: a Ray cluster's address; by default Ray is started on this machine.
        seed: of the sampler and, with the trial's number, of each trial.
        seeds: of the trials themselves, one for each, when all are repeats of one configuration
            (`kind` "confirm", as in a replay).
        repeats: how often the best configurations and the baseline are run again on fresh seeds
            when the search is over, in turns and each alone on the hardware; these trials are on
            top of `trials`. See `StudyResult.confirmed`.
        top: how many of the best configurations are.
        search: False to search no more, and only to do what `repeats` asks for.
        racing: share of the seconds trained, below 1, that goes into running the leader again on
            fresh seeds in the second half of the search (see `ranking.racing`); 0 for none. By
            default (None) what the study has, or what `defaults.racing_for` says: a fifth in
            a search of at least 100 trials by `convergence` without a controller, else none.
        resume: go on with the study that the folder holds; False refuses such a folder.
        start_from: the folder of an earlier study. Sampler `policy` begins with what was learned
            there, whatever its sampler, if the spaces overlap; controller `policy` begins with the
            weights in its `controller.json`. Where both could, one that finds nothing of its own
            begins afresh.
        recipe: where the experiment comes from, kept for `autotune resume`.
        mirror: have MLflow keep a copy of what `autotune resume --from-mlflow` needs: the journal,
            the record and checkpoints. `tracking_uri` is then that of an MLflow server.
        mix_hardware: rank times on unequal hardware together, as the stamps of its trials then say.
            By default only like is ranked with like.
        watch: called after each event with the event and all trials, to display them.
        pool: where trials run; by default worker groups on Ray.

    Raises:
        UserError: an argument outside its range, a folder that holds another study, a study that
            is to be mirrored and runs elsewhere, a request that the cluster can never satisfy, or a
            metric that the trainer never reports.
        StudyError: the study could not go on; it can be resumed.
        KeyboardInterrupt: interrupted twice; it can be resumed.
    """
    return _carried_out(Request(**locals()))  # all arguments, and nothing else yet


def _carried_out(asked: Request) -> StudyResult:
    """Choose who works on the study, see that the folder is its own, and let them work."""
    check_trainer(asked.experiment)
    asked, why, raced = factory.settled(asked)
    chosen = factory.chosen(asked)
    facts = _facts(asked, chosen.start) | {"sampler_chosen_because": why}
    manifest.check(asked.folder, facts, asked.resume)
    _check_mirrored(asked)
    checkpoints = factory.checkpoints(asked.experiment, facts["study_id"])
    plan, pool = replace(chosen.plan, checkpoints=checkpoints), asked.pool
    if pool is None:
        trials = asked.trials if asked.search else 1
        pool = factory.ray_pool(asked.experiment, trials, asked.ray_address)
    watch = asked.watch
    notes = [f"sampler: {asked.sampler}, as {why}"] if why is not None else []
    notes += [f"racing: {asked.racing:g} of the training, as {raced}"] if raced is not None else []
    if notes and pool.realtime:
        watch = _saying("\n".join(notes), watch)
    done, reason = _work(replace(asked, pool=pool, watch=watch), plan, chosen.sampler, facts)
    target, again = asked.experiment.target, partial(_confirmed, asked)
    return StudyResult(asked.folder, target, done, reason, again)


def _check_mirrored(asked: Request) -> None:
    """See that the study, of which MLflow keeps a copy, is not worked on elsewhere.

    Where the folder has none yet, no driver may be at work on one of its name. One that it has
    begun may have been killed just now; what counts is whether it has gone on elsewhere since.

    Raises:
        UserError: a driver is, it has, or there is no MLflow server to ask.
    """
    if not asked.mirror:
        return
    from autotune.tracking import mirror
    from autotune.tracking.uris import check_keeps, keeps

    if not (asked.folder / JOURNAL).is_file():
        check_keeps(asked.tracking_uri)
        mirror.refuse_second(str(asked.tracking_uri), asked.experiment.name)
    elif keeps(asked.tracking_uri):
        mirror.refuse_stale(str(asked.tracking_uri), asked.folder)


def _confirmed(asked: Request, repeats: int, top: int) -> StudyResult:
    """The study, whose search is over, with the `top` best run `repeats` times again."""
    more = replace(asked, out=asked.folder, search=False, time_limit=None, seeds=(), resume=True)
    return _carried_out(replace(more, repeats=repeats, top=top))


def _facts(asked: Request, start: Start) -> dict[str, Any]:
    """What `experiment.json` says of the study."""
    told: dict[str, Any] = {"recipe": asked.recipe, "trials": asked.trials}
    told |= {"ray_address": asked.ray_address, "repeats": asked.repeats, "top": asked.top}
    told |= {"racing": asked.racing, "mirrored": asked.mirror}
    told |= {"mix_hardware": asked.mix_hardware}
    told |= warm_start.facts(asked.start_from, start)
    told |= {what: name_of(getattr(asked, what)) for what in ("sampler", "pruner", "controller")}
    return manifest.facts(
        asked.experiment, seed=asked.seed, tracking_uri=asked.tracking_uri, **told
    )


def _work(
    asked: Request, plan: Plan, sampler: Sampler, facts: dict[str, Any]
) -> tuple[tuple[Trial, ...], str]:
    """Open the folder and drive the study; all its trials, and why the driver left."""
    folder, pool = asked.folder, asked.pool
    assert pool is not None, "chosen by now"
    with contextlib.closing(pool), Journal(folder) as journal:
        manifest.write(folder, facts)
        # Closed twice: before MLflow is waited for, and where the folder cannot be opened.
        with _tracking(folder, asked.tracking_uri, pool), contextlib.closing(pool):
            watch = _metered(_saving(plan, folder, asked.watch), plan, folder, pool)
            book = Book(plan, folder, journal, pool, watch)
            try:
                reason = Loop(book, sampler).run()
            finally:
                warm_start.keep(folder, sampler, tuple(book.trials.values()))
    return tuple(book.trials.values()), reason


def _saying(note: str, watch: Watch | None) -> Watch:
    """A watch that says `note` first, once the study has really begun."""
    left = [note]

    def saying(event: Event, trials: Mapping[int, Trial]) -> None:
        if left:
            print(left.pop(), file=sys.stderr, flush=True)
        if watch is not None:
            watch(event, trials)

    return saying


def _saving(plan: Plan, folder: Path, watch: Watch | None) -> Watch | None:
    """A watch that also writes down what a controller has learned, whenever a trial has ended."""
    document = getattr(plan.controller, "document", None)
    if document is None:
        return watch
    from autotune.algorithms.controllers import weights_file

    def saving(event: Event, trials: Mapping[int, Trial]) -> None:
        if isinstance(event, Ended):
            told = document(tuple(trials.values()), plan.experiment.target)
            weights_file.write(folder, plan.experiment.name, told)
        if watch is not None:
            watch(event, trials)

    return saving


def _metered(watch: Watch | None, plan: Plan, folder: Path, pool: Pool) -> Watch | None:
    """A watch that also shows how the study stands where the pool can show it.

    Where that is, is written for Prometheus beside the journal.
    """
    if not pool.realtime or not isinstance(pool, Observed):
        return watch
    scaling = plan.experiment.scaling
    meter = Meter(plan.experiment.name, plan.trials, scaling.gpus_per_worker, pool.observe)
    found = [{"labels": {"job": "ray"}, "targets": pool.endpoints()}]
    with contextlib.suppress(OSError):
        (folder / "prometheus.json").write_text(json.dumps(found) + "\n")

    def metered(event: Event, trials: Mapping[int, Trial]) -> None:
        meter(event, trials)
        if watch is not None:
            watch(event, trials)

    return metered


def _tracking(
    folder: Path, uri: str | None, pool: Pool
) -> contextlib.AbstractContextManager[object]:
    """The MLflow view of the journal, made by a process of its own."""
    if uri == "off" or (uri is None and not pool.realtime):
        return contextlib.nullcontext()
    from autotune.tracking.mirror import Mirror

    return Mirror(folder, uri)
