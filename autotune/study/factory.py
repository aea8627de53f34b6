"""Who works on a study: its sampler, pruner, controller and pool, made of what was asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autotune.algorithms import specs
from autotune.algorithms.pruners.rules import Pruner, make_pruner
from autotune.algorithms.samplers import Sampler
from autotune.algorithms.samplers import policy as policies
from autotune.algorithms.samplers.distribution import from_document
from autotune.backends.protocol import Pool
from autotune.errors import UserError
from autotune.storage import checkpoint_files
from autotune.storage.journal import RECORD
from autotune.study import manifest, recipes, warm_start
from autotune.study.defaults import racing_for, sampler_for
from autotune.study.driver.plan import Controller, Plan
from autotune.study.experiment import Experiment
from autotune.study.options import Request, name_of
from autotune.study.warm_start import Start


@dataclass(frozen=True)
class Chosen:
    """The plan with its rules, the sampler, and what the study begins with."""

    plan: Plan
    sampler: Sampler
    start: Start


def chosen(asked: Request) -> Chosen:
    """Who decides in the study.

    Raises:
        UserError: there is no such sampler, pruner or controller, or nothing to start from.
    """
    controller = _controller(asked.controller, asked.experiment, asked.seed)
    start = _start(asked, controller)
    controller = _begun(controller, asked.experiment, start)
    plan = Plan(
        asked.experiment,
        trials=asked.trials,
        time_limit=asked.time_limit,
        seed=asked.seed,
        pruner=_pruner(asked.pruner, controller),
        controller=controller,
        seeds=tuple(asked.seeds),
        repeats=asked.repeats,
        top=asked.top,
        search=asked.search,
        racing=asked.racing or 0.0,
        mix_hardware=asked.mix_hardware,
    )
    return Chosen(plan, _sampler(asked.sampler, plan, start), start)


# --- samplers -------------------------------------------------------------------------------------


def settled(asked: Request) -> tuple[Request, str | None, str | None]:
    """The request with a sampler and a share of races, and why these, where nobody asked for them.

    Those of the study in the folder, if it has any result: one without may give way to another.
    """
    if asked.sampler != "auto" and asked.racing is not None:
        return asked, None, None
    held, why, raced = _held(asked.folder), None, None
    if asked.sampler == "auto":
        sampler, why = _auto_sampler(asked, held)
        asked = replace(asked, sampler=sampler)
    if asked.racing is None:
        racing, raced = _auto_racing(asked, held)
        asked = replace(asked, racing=racing)
    return asked, why, raced


def _auto_sampler(asked: Request, held: Mapping[str, Any]) -> tuple[str, str]:
    has = held.get("sampler")
    if isinstance(has, str) and has != "auto" and not has.startswith("<"):
        return has, "the study has it already"
    earlier = asked.start_from is not None and asked.controller in (None, "none")
    return sampler_for(asked.experiment, asked.trials, earlier)


def _auto_racing(asked: Request, held: Mapping[str, Any]) -> tuple[float, str | None]:
    if asked.seeds:  # all trials are repeats already
        return 0.0, None
    if held or not asked.search:
        return float(held.get("racing", 0.0)), None
    return racing_for(asked.sampler, asked.trials, asked.controller)


def _held(folder: Path) -> dict[str, Any]:
    """The record of the study in the folder; empty where there is none, or it has no result."""
    if not (folder / RECORD).is_file():
        return {}
    held = manifest.load(folder)
    return {} if manifest.without_result(folder, held["target"]["metric"]) else held


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
    from autotune.algorithms.controllers import POPULATIONS, called, make_controller

    if isinstance(controller, str) and specs.is_path(controller):
        controller = recipes.find(controller, "controller")
    if isinstance(controller, str) and called(controller)[0] in POPULATIONS:
        return _population(controller, experiment, seed)
    return make_controller(controller, experiment.knobs)


def _population(text: str, experiment: Experiment, seed: int) -> Controller:
    from autotune.algorithms.controllers import called, made
    from autotune.algorithms.controllers.pbt import pbt

    name, _ = called(text)
    if experiment.scaling.max_concurrent_trials == 1:
        raise UserError(f"controller {name} compares trials that run at the same time, but one may")
    return made(text, pbt, experiment.space, experiment.target, seed=seed)


# --- what a study begins with ---------------------------------------------------------------------


def _start(asked: Request, controller: Controller | None) -> Start:
    """What to begin with; what the study itself wrote down of it, where it goes on."""
    start_from, sampler = asked.start_from, asked.sampler
    if start_from is None:
        return Start()
    from autotune.algorithms.controllers import goes_on

    takes = sampler in policies.NAMES, goes_on(controller)
    if not any(takes):
        raise UserError(
            f"start_from (--from) {str(start_from)!r} needs sampler or controller 'policy' but got "
            f"sampler {name_of(sampler)!r} and no such controller"
        )
    return warm_start.found(Path(start_from), asked.folder, *takes)


def _begun(
    controller: Controller | None, experiment: Experiment, start: Start
) -> Controller | None:
    """The controller, gone on from what the study starts with."""
    if controller is None or start.controller is None:
        return controller
    from autotune.algorithms.controllers import make_controller

    return make_controller(controller, experiment.knobs, start.controller)


# --- where it runs and saves ----------------------------------------------------------------------


def ray_pool(experiment: Experiment, trials: int, address: str | None) -> Pool:
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
    if not checkpoint_files.is_url(given):
        given = str(Path(given).absolute())
    try:
        checkpoint_files.reach(given)
    except (ValueError, ImportError, OSError) as error:
        raise UserError(f"checkpoint_folder {given!r} cannot be used: {error}") from None
    return checkpoint_files.join(given, f"{experiment.name}-{study_id[:8]}")
