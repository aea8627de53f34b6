"""Makes the parts of a study of its options: sampler, pruner, controller and pool."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.algorithms import specs
from autotune.algorithms.pruners.rules import Pruner, make_pruner
from autotune.algorithms.samplers import Sampler
from autotune.algorithms.samplers import policy as policies
from autotune.algorithms.samplers.distribution import from_document
from autotune.backends.protocol import Pool
from autotune.errors import UserError, shown
from autotune.storage import checkpoint_files
from autotune.study import recipes, warm_start
from autotune.study.defaults import racing_for, sampler_for
from autotune.study.driver.plan import Plan
from autotune.study.experiment import Experiment
from autotune.study.manifest import Manifest
from autotune.study.option import name_of
from autotune.study.options import Controller, StudyOptions
from autotune.study.warm_start import Start
from autotune.trial.scaling import Scaling

if TYPE_CHECKING:
    from autotune.backends.ray.pool import RayPool


@dataclass(frozen=True)
class Parts:
    """The plan with its rules, the sampler, and what the study begins with."""

    plan: Plan
    sampler: Sampler
    start: Start


def make_parts(experiment: Experiment, options: StudyOptions, existing: Manifest | None) -> Parts:
    """Make what decides in the study, whose options are resolved.

    Raises:
        UserError: there is no such sampler, pruner or controller, or nothing to start from.
    """
    controller = _controller(options.controller, experiment, options.seed)
    start = _start(experiment, options, existing, controller)
    controller = _begun(controller, experiment, start)
    pruner = _pruner(options.pruner, controller)
    own = {"experiment": experiment, "pruner": pruner, "controller": controller, "checkpoints": ""}
    own["look"] = None  # until it is known where the trials run
    planned = [f.name for f in fields(Plan) if f.name not in own]
    values: dict[str, Any] = {**own, **{name: getattr(options, name) for name in planned}}
    plan = Plan(**values)
    return Parts(plan, _sampler(options.sampler, plan, start), start)


# --- options that were left to this program -------------------------------------------------------


@dataclass(frozen=True)
class ResolvedOptions:
    """Options with a sampler and a share of races, and in one line why, where nobody chose them."""

    options: StudyOptions
    sampler_because: str | None = None
    racing_because: str | None = None

    def notes(self) -> list[str]:
        """The choices in words."""
        chosen, notes = self.options, []
        if self.sampler_because is not None:
            notes.append(f"sampler: {chosen.sampler}, as {self.sampler_because}")
        if self.racing_because is not None:
            notes.append(f"racing: {chosen.racing:g} of the training, as {self.racing_because}")
        return notes


def resolve_options(
    experiment: Experiment, options: StudyOptions, existing: Manifest | None
) -> ResolvedOptions:
    """The options with a sampler and a share of races.

    Those of the study in the folder, whose manifest is `existing` if it has any result.
    """
    if options.sampler != "auto" and options.racing is not None:
        return ResolvedOptions(options)
    sampler_because, racing_because = None, None
    if options.sampler == "auto":
        sampler, sampler_because = _auto_sampler(experiment, options, existing)
        options = replace(options, sampler=sampler)
    if options.racing is None:
        racing, racing_because = _auto_racing(options, existing)
        options = replace(options, racing=racing)
    return ResolvedOptions(options, sampler_because, racing_because)


def _auto_sampler(
    experiment: Experiment, options: StudyOptions, existing: Manifest | None
) -> tuple[str, str]:
    before = existing.options.sampler if existing is not None else None
    if isinstance(before, str) and before != "auto" and not before.startswith("<"):
        return before, "the study has it already"
    earlier = options.start_from is not None and options.controller in (None, "none")
    return sampler_for(experiment, options.trials, earlier)


def _auto_racing(options: StudyOptions, existing: Manifest | None) -> tuple[float, str | None]:
    if options.seeds:  # all trials are repeats already
        return 0.0, None
    if existing is not None or not options.search:
        return (existing.options.racing if existing is not None else None) or 0.0, None
    return racing_for(options.sampler, options.trials, options.controller)


# --- samplers -------------------------------------------------------------------------------------


def _sampler(sampler: str | Any, plan: Plan, start: Start) -> Sampler:
    """The sampler; it begins afresh where only the controller can use what there is."""
    try:
        return make_sampler(sampler, plan, start.sampler)
    except UserError:
        if start.sampler is None or start.controller is None:
            raise
        return make_sampler(sampler, plan)


def make_sampler(sampler: str | Any, plan: Plan, start: dict[str, Any] | None = None) -> Sampler:
    """The sampler of that name, or the object itself; it begins with the policy `start`."""
    if hasattr(sampler, "ask"):
        made: Sampler = sampler
        return made
    if sampler == "convergence":
        from autotune.algorithms.samplers.convergence import ConvergenceSampler

        return ConvergenceSampler(plan.experiment.space, plan.experiment.target, plan.seed)
    if isinstance(sampler, str) and sampler.partition(":")[0] == "policy":
        about = plan.experiment.space, plan.experiment.target, plan.seed
        return policies.PolicySampler(sampler, *about, from_document(start) if start else None)
    if not isinstance(sampler, str) and not hasattr(sampler, "sample_relative"):
        needed = "a name, or an object with ask(number, trials)"
        raise UserError(f"sampler must be {needed}, but got {shown(sampler)}")
    from autotune.algorithms.samplers.optuna import OptunaSampler

    return OptunaSampler(sampler, plan.experiment.space, plan.experiment.target, plan.seed)


# --- pruners and controllers ----------------------------------------------------------------------


def _pruner(pruner: str | Pruner, controller: Controller | None) -> Pruner:
    if pruner in ("convergence", "convergence()") and controller is not None:
        pruner = "slower_than_best"  # no forecast knows what a controller will yet turn
    by_path = isinstance(pruner, str) and specs.is_path(pruner)
    return make_pruner(recipes.find(pruner, "pruner") if by_path else pruner)  # type: ignore[arg-type]


def _controller(
    controller: str | Controller | None, experiment: Experiment, seed: int
) -> Controller | None:
    if controller is None or controller == "none":
        return None
    from autotune.algorithms.controllers import POPULATIONS, make_controller, parse_controller

    if isinstance(controller, str) and specs.is_path(controller):
        controller = recipes.find(controller, "controller")
    if isinstance(controller, str) and parse_controller(controller)[0] in POPULATIONS:
        return _population(controller, experiment, seed)
    return make_controller(controller, experiment.knobs)


def _population(text: str, experiment: Experiment, seed: int) -> Controller:
    from autotune.algorithms.controllers import build_controller, parse_controller
    from autotune.algorithms.controllers.pbt import pbt

    name, _ = parse_controller(text)
    if experiment.scaling.max_concurrent_trials == 1:
        raise UserError(f"controller {name} compares trials that run at the same time, but one may")
    return build_controller(text, pbt, experiment.space, experiment.target, seed=seed)


# --- what a study begins with ---------------------------------------------------------------------


def _start(
    experiment: Experiment,
    options: StudyOptions,
    existing: Manifest | None,
    controller: Controller | None,
) -> Start:
    """What to begin with; where the study goes on, what its manifest has of it."""
    source, sampler = options.start_from, options.sampler
    if source is None:
        return Start()
    from autotune.algorithms.controllers import can_warm_start

    takes = {"sampler": sampler in policies.NAMES, "controller": can_warm_start(controller)}
    if not any(takes.values()):
        raise UserError(
            f"start_from (--from) {str(source)!r} needs sampler or controller 'policy' but got "
            f"sampler {name_of(sampler)!r} and no such controller"
        )
    return warm_start.find(Path(source), options.folder(experiment.name), existing, **takes)


def _begun(
    controller: Controller | None, experiment: Experiment, start: Start
) -> Controller | None:
    """The controller, gone on from what the study starts with."""
    if controller is None or start.controller is None:
        return controller
    from autotune.algorithms.controllers import make_controller

    return make_controller(controller, experiment.knobs, start.controller)


# --- where it runs and saves ----------------------------------------------------------------------


def scaled(experiment: Experiment, options: StudyOptions, existing: Manifest | None) -> Experiment:
    """The experiment with the workers, cores and GPUs that the options name, if they do.

    What neither says is what the study in the folder has, whose manifest is `existing` if it has
    any result, or is decided once the cluster is known.

    Raises:
        UserError: the options do not go with the experiment's scaling.
    """
    named = {
        "num_workers": options.workers,
        "cpus_per_worker": options.cpus_per_worker,
        "gpus_per_worker": options.gpus_per_worker,
    }
    try:
        scaling = replace(experiment.scaling, **{k: v for k, v in named.items() if v is not None})  # type: ignore[arg-type]
    except ValueError as error:
        raise UserError(str(error)) from None
    if existing is not None:
        scaling = replace(scaling, **{name: existing.scaling[name] for name in _open(scaling)})
    return replace(experiment, scaling=scaling)


def without_decided(existing: Manifest | None, scaling: Scaling) -> Manifest | None:
    """The study's manifest without the cores and GPUs that are decided again.

    What another cluster decides does not make another study of one that has no result.
    """
    if existing is None:
        return None
    again = {name: getattr(scaling.decided, name) for name in _open(scaling)}
    return replace(existing, scaling={**existing.scaling, **again})


def _open(scaling: Scaling) -> list[str]:
    return [name for name in _LEFT_OPEN if getattr(scaling, name) is None]


_LEFT_OPEN = ("cpus_per_worker", "gpus_per_worker")  # of a scaling, to be decided by the cluster


def place(experiment: Experiment, options: StudyOptions) -> tuple[Pool, Experiment, str]:
    """Where the trials run, the experiment as it is there, and what was decided, in one line.

    Raises:
        UserError: no such cluster, or one on which a trial can never fit.
        StudyError: Ray does not start.
    """
    scaling = experiment.scaling
    if options.pool is not None:
        return options.pool, replace(experiment, scaling=scaling.decided), ""
    pool = ray_pool(experiment, options.trials if options.search else 1, options.ray_address)
    here = {name: getattr(pool.scaling, name) for name in _LEFT_OPEN}
    return pool, replace(experiment, scaling=replace(scaling, **here)), pool.decided


def ray_pool(experiment: Experiment, trials: int, address: str | None) -> RayPool:
    """Worker groups on Ray, no more of them than there are trials."""
    from autotune.backends.ray.pool import RayPool

    scaling = experiment.scaling
    most = min(trials, scaling.max_concurrent_trials or trials)
    return RayPool(
        experiment.train,
        replace(scaling, max_concurrent_trials=most),
        hang_timeout=experiment.failure.hang_timeout,
        address=address,
    )


def checkpoints(experiment: Experiment, study_id: str) -> str:
    """The folder or URL of this study's checkpoints; empty for the study folder."""
    given = experiment.failure.checkpoint_folder
    if given is None:
        return ""
    root = checkpoint_files.root_in(given, experiment.name, study_id)
    try:
        checkpoint_files.reach(root)
    except (ValueError, ImportError, OSError) as error:
        raise UserError(f"checkpoint_folder {given!r} cannot be used: {error}") from None
    return root
