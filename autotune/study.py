"""`run`: chooses the collaborators of a study and sets its loop going.

The only room that knows all protocols. What then happens is told in `autotune.loop`.
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

from autotune import recipes, record, storage, warm_start
from autotune.auto import sampler_for
from autotune.errors import UserError
from autotune.experiment import Experiment
from autotune.loop import Controller, Loop, Plan, Watch
from autotune.metrics import Meter
from autotune.pools import Observed, Pool
from autotune.pruners import Pruner, make_pruner
from autotune.result import StudyResult
from autotune.samplers import Sampler
from autotune.samplers import policy as policies
from autotune.samplers.actor import from_document
from autotune.trackers.journal import JOURNAL, RECORD, REPORT, Journal
from autotune.trial import Ended, Event, Trial
from autotune.warm_start import Start

_SAMPLED = 20  # points of the space that the trainer is asked about


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
    racing: float = 0.0,
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
        sampler: `auto` (by `autotune.auto`, unless the study has one), `convergence`, `tpe`,
            `widening`, `policy` (or `policy:actor`, `policy:reinforce`, `policy:ppo`), `random`,
            `qmc`, `gp`, `cmaes`, `nsga2`, the dotted path of an Optuna sampler with keyword
            arguments, or an object with `ask(number, trials)`.
        pruner: `convergence`, `slower_than_best`, `bottom_at_same_time`, `asha`, `hyperband`,
            `forecast`, `none`, a function (see `autotune.pruners`), or its name as
            `module:function`.
        controller: turns knobs of running trials, or forks them: `policy`, `regulator`, either with
            keyword arguments, `pbt`, `pb2` (see `autotune.controllers`), a function
            (trial, others, target) -> Change | Fork | None, or its name as `module:function`.
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
            fresh seeds while the study searches (see `autotune.racing`); 0 for none.
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
        UserError: an argument outside its range, a folder that holds another study, a request that
            the cluster can never satisfy, or a metric that the trainer never reports.
        StudyError: the study could not go on; it can be resumed.
        KeyboardInterrupt: interrupted twice; it can be resumed.
    """
    _check(experiment, trials, time_limit, seed)
    _check_repeats(repeats, top, racing, seeds, trials)
    turning = _controller(controller, experiment, seed)
    folder = Path(out) if out is not None else Path("studies") / experiment.name
    if sampler == "auto":
        earlier = start_from is not None and not turning
        sampler, _ = auto_sampler(experiment, trials, folder, earlier)
    start = _start(start_from, folder, sampler, turning)
    turning = _begun(turning, experiment, start)
    rules = _pruner(pruner, turning), turning
    plan = Plan(
        experiment, trials, time_limit, seed, *rules, tuple(seeds), repeats, top, search, racing
    )
    asker = _asker(sampler, plan, start)
    told: dict[str, Any] = {"recipe": recipe, "trials": trials, "ray_address": ray_address}
    told |= {"repeats": repeats, "top": top, "racing": racing, "mirrored": mirror}
    told |= {"mix_hardware": mix_hardware}
    told |= warm_start.facts(start_from, start)
    told |= _named(sampler=sampler, pruner=pruner, controller=controller)
    facts = record.facts(experiment, seed=seed, tracking_uri=tracking_uri, **told)
    record.check(folder, facts, resume)
    place = _checkpoints(experiment, facts["study_id"])
    plan = replace(plan, checkpoints=place, mix_hardware=mix_hardware)
    room = pool if pool is not None else _ray_pool(experiment, trials if search else 1, ray_address)
    done, reason = _work(plan, folder, facts, tracking_uri, room, asker, watch)
    asked: dict[str, Any] = {"trials": trials, "sampler": sampler, "pruner": pruner}
    asked |= {"controller": controller, "tracking_uri": tracking_uri, "ray_address": ray_address}
    asked |= {"start_from": start_from, "recipe": recipe, "watch": watch, "pool": pool}
    asked |= {"out": folder, "seed": seed, "racing": racing, "mirror": mirror}
    asked |= {"mix_hardware": mix_hardware}
    again = partial(run, experiment, search=False, **asked)
    return StudyResult(folder, experiment.target, done, reason, again)


def _work(
    plan: Plan,
    folder: Path,
    facts: dict[str, Any],
    tracking_uri: str | None,
    room: Pool,
    asker: Sampler,
    watch: Watch | None,
) -> tuple[tuple[Trial, ...], str]:
    """Open the folder and drive the study; all its trials, and why the driver left."""
    with contextlib.closing(room), Journal(folder) as journal:
        record.write(folder, facts)
        # Closed twice: before MLflow is waited for, and where the folder cannot be opened.
        with _tracking(folder, tracking_uri, room), contextlib.closing(room):
            seen = _metered(_saving(plan, folder, watch), plan, folder, room)
            loop = Loop(plan, folder, journal, room, asker, seen)
            try:
                reason = loop.run()
            finally:
                warm_start.keep(folder, asker, tuple(loop.trials.values()))
    _write_report(folder, room)
    return tuple(loop.trials.values()), reason


def _checkpoints(experiment: Experiment, study_id: str) -> str:
    """The folder or URL of this study's checkpoints; empty for the study folder."""
    given = experiment.failure.checkpoint_folder
    if given is None:
        return ""
    if not storage.is_url(given):
        given = str(Path(given).absolute())
    try:
        storage.reach(given)
    except (ValueError, ImportError) as error:
        raise UserError(f"checkpoint_folder {given!r} cannot be used: {error}") from None
    return storage.join(given, f"{experiment.name}-{study_id[:8]}")


def auto_sampler(
    experiment: Experiment, trials: int, folder: Path, earlier: bool = False
) -> tuple[str, str]:
    """The sampler that `auto` stands for, and why: the one that the study in `folder` has.

    `earlier`: an earlier study is to be begun with.
    """
    held = record.load(folder).get("sampler") if (folder / RECORD).is_file() else None
    if isinstance(held, str) and held != "auto" and not held.startswith("<"):
        return held, "the study has it already"
    return sampler_for(experiment, trials, earlier)


def _check(experiment: Experiment, trials: int, time_limit: float | None, seed: int) -> None:
    if not isinstance(experiment, Experiment):
        raise UserError(f"run needs an Experiment but got {experiment!r:.80}")
    if isinstance(trials, bool) or not isinstance(trials, int) or trials < 1:
        raise UserError(f"trials must be a whole number >= 1 but got {trials!r}")
    if time_limit is not None and not time_limit > 0:
        raise UserError(f"time_limit must be more than 0 seconds but got {time_limit!r}")
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise UserError(f"seed must be a whole number >= 0 but got {seed!r}")
    _check_configs(experiment)


def _check_repeats(
    repeats: int, top: int, racing: float, seeds: Sequence[int], trials: int
) -> None:
    for name, value, least in (("repeats", repeats, 0), ("top", top, 1)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise UserError(f"{name} must be a whole number >= {least} but got {value!r}")
    if isinstance(racing, bool) or not isinstance(racing, int | float) or not 0 <= racing < 1:
        raise UserError(f"racing must be a share, at least 0 and below 1, but got {racing!r}")
    if seeds and (repeats or racing):
        raise UserError("repeats confirm a search, but with seeds all trials are repeats already")
    if seeds and len(seeds) < trials:
        raise UserError(f"seeds must be one for each of {trials} trials but got {len(seeds)}")


def _check_configs(experiment: Experiment) -> None:
    """Ask the trainer, if it has a `check`, about the given configurations and the space.

    A space none of whose points the trainer takes is a mistake; some of them may be.
    """
    check = getattr(experiment.train, "check", None)
    if check is None:
        return
    space = experiment.space
    for number, given in enumerate(experiment.given()):
        first = number == 0 and experiment.baseline is not None
        try:
            check(space.complete(given)[0])
        except ValueError as error:
            raise UserError(f"{'baseline' if first else 'configs'}: {error}") from None
    faults, asked = [], 0
    for point in space.sample(_SAMPLED):
        try:
            config = space.config(point)
            if space.broken(config):
                continue
            asked += 1
            check(config)
        except ValueError as error:
            faults.append(str(error))
    if faults and len(faults) >= asked:
        raise UserError(f"the trainer takes no point of the search space: {faults[0]}")


def _pruner(pruner: str | Pruner, controller: Controller | None) -> Pruner:
    if pruner == "convergence" and controller is not None:
        pruner = "slower_than_best"  # no forecast knows what a controller will yet turn
    by_path = isinstance(pruner, str) and ":" in pruner
    return make_pruner(recipes.find(pruner, "pruner") if by_path else pruner)  # type: ignore[arg-type]


def _controller(
    controller: str | Controller | None, experiment: Experiment, seed: int
) -> Controller | None:
    if controller is None or controller == "none":
        return None
    from autotune.controllers import POPULATIONS, is_named, make_controller

    if isinstance(controller, str) and controller in POPULATIONS:
        return _population(controller, experiment, seed)
    if isinstance(controller, str) and not is_named(controller):
        controller = recipes.find(controller, "controller")
    return make_controller(controller, experiment.knobs)


def _begun(
    controller: Controller | None, experiment: Experiment, start: Start
) -> Controller | None:
    """The controller, gone on from what the study starts with."""
    if controller is None or start.controller is None:
        return controller
    from autotune.controllers import make_controller

    return make_controller(controller, experiment.knobs, start.controller)


def _saving(plan: Plan, folder: Path, watch: Watch | None) -> Watch | None:
    """A watch that also writes down what a controller has learned, whenever a trial has ended."""
    document = getattr(plan.controller, "document", None)
    if document is None:
        return watch
    from autotune.controllers import saved

    def saving(event: Event, trials: Mapping[int, Trial]) -> None:
        if isinstance(event, Ended):
            told = document(tuple(trials.values()), plan.experiment.target)
            saved.write(folder, plan.experiment.name, told)
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


def _population(name: str, experiment: Experiment, seed: int) -> Controller:
    if experiment.scaling.max_concurrent_trials == 1:
        raise UserError(f"controller {name} compares trials that run at the same time, but one may")
    if name == "pb2":
        from autotune.controllers.pb2 import pb2

        return pb2(experiment.space, experiment.target, seed=seed)
    from autotune.controllers.population import pbt

    return pbt(experiment.space, experiment.target, seed=seed)


def _named(**parts: Any) -> dict[str, str | None]:
    """What `experiment.json` says of a sampler, pruner or controller."""
    return {
        what: part
        if part is None or isinstance(part, str)
        else f"<{getattr(part, '__qualname__', type(part).__qualname__)}>"
        for what, part in parts.items()
    }


def _start(
    start_from: str | Path | None, folder: Path, sampler: Any, controller: Controller | None
) -> Start:
    """What to begin with; what the study itself wrote down of it, where it goes on."""
    if start_from is None:
        return Start()
    from autotune.controllers import goes_on

    takes = sampler in policies.NAMES, goes_on(controller)
    if not any(takes):
        raise UserError(
            f"start_from (--from) {str(start_from)!r} needs sampler or controller 'policy' but got "
            f"sampler {_named(sampler=sampler)['sampler']!r} and no such controller"
        )
    return warm_start.found(Path(start_from), folder, *takes)


def _asker(sampler: str | Any, plan: Plan, start: Start) -> Sampler:
    """The sampler; it begins afresh where only the controller can use what there is."""
    try:
        return _make_sampler(sampler, plan, start.sampler)
    except UserError:
        if start.sampler is None or start.controller is None:
            raise
        return _make_sampler(sampler, plan)


def _make_sampler(sampler: str | Any, plan: Plan, start: dict[str, Any] | None = None) -> Sampler:
    if hasattr(sampler, "ask"):
        made: Sampler = sampler
        return made
    if sampler == "convergence":
        from autotune.samplers.convergence import ConvergenceSampler

        return ConvergenceSampler(plan.experiment.space, plan.experiment.target, plan.seed)
    if isinstance(sampler, str) and sampler.partition(":")[0] == "policy":
        about = plan.experiment.space, plan.experiment.target, plan.seed
        return policies.PolicySampler(sampler, *about, from_document(start) if start else None)
    from autotune.samplers.optuna import OptunaSampler

    return OptunaSampler(sampler, plan.experiment.space, plan.experiment.target, plan.seed)


def _tracking(
    folder: Path, uri: str | None, pool: Pool
) -> contextlib.AbstractContextManager[object]:
    """The MLflow view of the journal, made by a process of its own."""
    if uri == "off" or (uri is None and not pool.realtime):
        return contextlib.nullcontext()
    from autotune.trackers.mirror import Mirror

    return Mirror(folder, uri)


def _write_report(folder: Path, pool: Pool) -> None:
    """Write the report, unless the process that shows the study in MLflow has written it."""
    file = folder / REPORT
    if not pool.realtime:
        return
    if file.is_file() and file.stat().st_mtime_ns >= (folder / JOURNAL).stat().st_mtime_ns:
        return
    from dashboards.report import write_study

    try:
        write_study(folder, file)
    except Exception as error:  # the study is done, and a picture of it is not worth its result
        print(f"{file} is not written: {error}", file=sys.stderr)


def _ray_pool(experiment: Experiment, trials: int, address: str | None) -> Pool:
    from autotune.pools.ray import RayPool

    scaling = experiment.scaling
    most = min(trials, scaling.max_concurrent_trials or trials)
    return RayPool(
        experiment.train,
        replace(scaling, max_concurrent_trials=most),
        hang_timeout=experiment.failure.hang_timeout,
        address=address,
    )
