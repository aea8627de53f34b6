"""Makes the parts of a study that decide, of its options: sampler, pruner and controller."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any

from autotune.algorithms import specs
from autotune.algorithms.experience.canonical import CanonicalSpace
from autotune.algorithms.names import ELITE, EXPERIENCED, FORKING, LIMITED, weights_file
from autotune.algorithms.plans.parameters import first_plan, within
from autotune.algorithms.pruners.rules import Pruner, make_pruner, never
from autotune.algorithms.samplers import Sampler
from autotune.algorithms.samplers.distribution import from_document
from autotune.algorithms.samplers.elite_policy import PolicySampler
from autotune.algorithms.samplers.optuna_names import parse_sampler
from autotune.algorithms.samplers.planned import PlannedSampler
from autotune.algorithms.samplers.shorter import ShorterFirst
from autotune.errors import UserError, shown
from autotune.space.search_space import SearchSpace
from autotune.study import place, recipes, warm_start
from autotune.study.beginnings import made_beginnings
from autotune.study.choices import ResolvedOptions, resolve_options
from autotune.study.defaults import sampler_for
from autotune.study.driver.settings import StudySettings
from autotune.study.experience import policy_weights, starts
from autotune.study.experience.first import FirstPoints
from autotune.study.experience.known import NOTHING, Known
from autotune.study.experiment import Experiment
from autotune.study.manifest import Manifest
from autotune.study.options import Controller, StudyOptions
from autotune.study.place import Backend
from autotune.study.stages import in_space, made_stages
from autotune.study.warm_start import Start
from autotune.trial import Target

_SHORTENS = (EXPERIENCED, "convergence", "widening")
"""The samplers before which the baseline is tried with a shorter schedule."""


@dataclass(frozen=True)
class Parts:
    """The settings, the sampler, and what the study begins with and knows of others."""

    settings: StudySettings
    sampler: Sampler
    start: Start
    known: Known = NOTHING


def decided(
    experiment: Experiment,
    options: StudyOptions,
    existing: Manifest | None,
    kept: Manifest | None,
) -> tuple[ResolvedOptions, Backend | None, Parts]:
    """The options, the backend and the parts of the study; no backend where there is a pool.

    `existing` is the manifest in its folder, and `kept` the same if it has any result.

    Raises:
        UserError: a part cannot be made, or what the study is to begin with cannot be read.
    """
    known = starts.begun(experiment, options, existing, kept)
    choice = resolve_options(experiment, options, kept, known)
    options, backend = choice.options, None
    if options.pool is None:
        backend = place.backend_for(experiment, options, kept)
        options = replace(options, backend=backend.name)
    parts = make_parts(experiment, options, existing, known)
    return replace(choice, options=options), backend, parts


def make_parts(
    experiment: Experiment,
    options: StudyOptions,
    existing: Manifest | None,
    known: Known = NOTHING,
) -> Parts:
    """Make what decides in the study, whose options are resolved and who knows `known` of others.

    Raises:
        UserError: there is no such sampler, pruner or controller, or nothing to start from.
    """
    controller = _controller(options.controller, experiment, options.seed)
    start = _start(experiment, options, existing, controller)
    controller = _begun(controller, experiment, start)
    pruner = _pruner(options, controller, experiment.target, known.pruner_weights)
    own = {"experiment": experiment, "pruner": pruner, "controller": controller, "checkpoints": ""}
    own["look"] = None  # until it is known where the trials run
    own["stages"] = made_stages(experiment, options)
    own["shared_beginnings"] = made_beginnings(experiment, options)
    named = [f.name for f in fields(StudySettings) if f.name not in own]
    values: dict[str, Any] = {**own, **{name: getattr(options, name) for name in named}}
    settings = StudySettings(**values)
    stages, space = settings.stages, experiment.space
    if stages is None:
        return Parts(settings, _proposing(options, settings, start, known), start, known)

    def narrow(space: SearchSpace) -> Sampler:
        """The sampler of the second stage."""
        rest = replace(settings, experiment=in_space(experiment, space))
        return _proposing(options, rest, start, known)

    sampler = PlannedSampler(space, narrow, first_plan(space, stages.names))
    return Parts(settings, sampler, start, known)


def check_named(options: StudyOptions) -> None:
    """Check sampler, pruner and controller as far as they are given by name.

    Neither the recipe nor Optuna, Ray, MLflow or torch is imported for it; a dotted path or a
    `file.py:function` is not checked.

    Raises:
        UserError: an unknown name or argument, or one that is out of range.
    """
    if isinstance(options.sampler, str):
        parse_sampler(options.sampler)
    pruner = options.pruner
    if isinstance(pruner, str) and pruner != "auto" and not specs.is_path(pruner):
        trained = policy_weights.file_of_pruner(pruner) is not None
        # In place of a file, which a study that has begun need not have any more.
        make_pruner(pruner, weights=policy_weights.file_bytes("") if trained else b"")
    controller = options.controller
    if isinstance(controller, str) and controller != "none" and not specs.is_path(controller):
        from autotune.algorithms.controllers import check_controller

        check_controller(controller)


def _proposing(
    options: StudyOptions, settings: StudySettings, start: Start, known: Known
) -> Sampler:
    """The sampler of the space, after the points with which it begins."""
    if options.sampler == EXPERIENCED:
        sampler = _experienced(settings, known)
    elif weights_file(options.sampler) is not None:
        sampler = _trained(settings, known)
    else:
        sampler = _sampler(options.sampler, settings, start)
    first = known.first
    if settings.stages is not None:
        own = (within(settings.experiment.space, point) for point in first)
        first = tuple(point for point in own if point is not None)
    if first:
        return FirstPoints(first, sampler)
    if options.sampler in _SHORTENS and settings.experiment.target.timed:
        canonical = CanonicalSpace(settings.experiment.space, settings.experiment.canonical)
        return ShorterFirst(canonical, sampler)
    return sampler


# --- samplers -------------------------------------------------------------------------------------


def _sampler(sampler: str | Any, settings: StudySettings, start: Start) -> Sampler:
    """The sampler; it begins afresh where only the controller can use what there is."""
    try:
        return make_sampler(sampler, settings, start.sampler)
    except UserError:
        if start.sampler is None or start.controller is None:
            raise
        return make_sampler(sampler, settings)


def _experienced(settings: StudySettings, known: Known) -> Sampler:
    """The sampler that begins with what is known, and ends in the study's own search.

    Where nothing is known there is no search, but only confirmations.
    """
    own = make_sampler(known.own or sampler_for(settings.experiment, settings.trials)[0], settings)
    if not known.studies:
        return own
    from autotune.algorithms.samplers.experienced import ExperiencedSampler

    space, target = settings.experiment.space, settings.experiment.target
    canonical = known.space(space)
    about = space, target, settings.seed, canonical, known.tasks(space), own
    return ExperiencedSampler(*about, published=known.published)


def _trained(settings: StudySettings, known: Known) -> Sampler:
    """The sampler whose policy was trained before, with what is known of other studies."""
    from autotune.algorithms.samplers.experienced import ExperiencedSampler
    from autotune.algorithms.samplers.trained_policy import network
    from autotune.algorithms.samplers.trained_policy.sampler import TrainedPolicySampler

    own = _experienced(settings, known)
    weights = network.parsed(known.weights, "of this study") if known.weights else None
    space, target = settings.experiment.space, settings.experiment.target
    other = own if isinstance(own, ExperiencedSampler) else None
    # Not how many trials are planned: a study that gets more goes on as if it had had them.
    return TrainedPolicySampler(space, target, settings.seed, own, other, weights=weights)


def make_sampler(
    sampler: str | Any, settings: StudySettings, start: dict[str, Any] | None = None
) -> Sampler:
    """The sampler of that name, or the object itself; it begins with the policy `start`."""
    if hasattr(sampler, "ask"):
        made: Sampler = sampler
        return made
    about = settings.experiment.space, settings.experiment.target, settings.seed
    if sampler == "convergence":
        from autotune.algorithms.samplers.convergence import ConvergenceSampler

        return ConvergenceSampler(*about)
    if sampler == ELITE:
        return PolicySampler(*about, from_document(start) if start else None)
    if not isinstance(sampler, str) and not hasattr(sampler, "sample_relative"):
        needed = "a name, a sampler of Optuna, or an object with ask(number, trials)"
        raise UserError(f"sampler must be {needed}, but got {shown(sampler)}")
    from autotune.algorithms.samplers.optuna import OptunaSampler

    return OptunaSampler(sampler, *about)


# --- pruners and controllers ----------------------------------------------------------------------


def _pruner(
    options: StudyOptions, controller: Controller | None, target: Target, weights: bytes
) -> Pruner:
    pruner = options.pruner
    if (not options.search or options.seeds) and policy_weights.file_of_pruner(pruner) is not None:
        return never  # repeats are not pruned, and the file of the weights may be gone
    if pruner in ("convergence", "convergence()") and controller is not None:
        pruner = "slower_than_best"  # no forecast knows what a controller will yet turn
    by_path = isinstance(pruner, str) and specs.is_path(pruner)
    found = recipes.find(str(pruner), "pruner") if by_path else pruner
    return make_pruner(found, target, weights)


def _controller(
    controller: str | Controller | None, experiment: Experiment, seed: int
) -> Controller | None:
    if controller is None or controller == "none":
        return None
    from autotune.algorithms.controllers import make_controller, parse_controller

    if isinstance(controller, str) and specs.is_path(controller):
        controller = recipes.find(controller, "controller")
    if isinstance(controller, str):
        name, _ = parse_controller(controller)
        if name in FORKING:
            return _forking(controller, experiment, seed)
        if name in LIMITED and not math.isfinite(experiment.target.horizon):
            raise UserError(f"controller {controller!r} needs a Target with a limit on its clock")
    return make_controller(controller, experiment.knobs)


def _forking(text: str, experiment: Experiment, seed: int) -> Controller:
    from autotune.algorithms.controllers import build_controller, forking, parse_controller

    name, _ = parse_controller(text)
    given, seeded = (experiment.space, experiment.target), {"seed": seed} if name == "pbt" else {}
    if name == "pbt" and experiment.scaling.max_concurrent_trials == 1:
        raise UserError(f"controller {name} compares trials that run at the same time, but one may")
    return build_controller(text, forking(name), *given, **seeded)


# --- what a study begins with ---------------------------------------------------------------------


def _start(
    experiment: Experiment,
    options: StudyOptions,
    existing: Manifest | None,
    controller: Controller | None,
) -> Start:
    """What to begin with; where the study goes on, what its manifest has of it."""
    if not options.sources:
        return warm_start.shipped(controller, options.folder(experiment.name), existing)
    from autotune.algorithms.controllers import can_warm_start

    takes = {"sampler": options.sampler == ELITE, "controller": can_warm_start(controller)}
    if takes["controller"] and len(options.sources) > 1:
        given = ", ".join(map(str, options.sources))
        raise UserError(f"controller 'policy' starts from one study (--from) but got {given}")
    if not any(takes.values()) or len(options.sources) > 1:
        return Start()  # their best points run first
    (source,) = options.sources
    return warm_start.find(source, options.folder(experiment.name), existing, **takes)


def _begun(
    controller: Controller | None, experiment: Experiment, start: Start
) -> Controller | None:
    """The controller, gone on from what the study starts with."""
    if controller is None or start.controller is None:
        return controller
    from autotune.algorithms.controllers import make_controller

    return make_controller(controller, experiment.knobs, start.controller)
