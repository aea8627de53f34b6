"""What a study begins with: the studies that `start_from` names, and the store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.algorithms.names import ELITE, NO_CONTROLLER
from autotune.errors import UserError
from autotune.storage import driver_lock
from autotune.storage import manifest as manifest_file
from autotune.storage.journal import JOURNAL
from autotune.study import result
from autotune.study.defaults import sampler_for
from autotune.study.experience import finding, known, policy_weights, store, summary
from autotune.study.experience.document import Summary
from autotune.study.experience.known import Known
from autotune.study.experience.summary import UnfitError
from autotune.study.experiment import Experiment
from autotune.study.manifest import Manifest
from autotune.study.option import OFF
from autotune.study.options import StudyOptions

SAMPLER_POLICY_FILE = "policy.json"


def begun(
    experiment: Experiment,
    options: StudyOptions,
    existing: Manifest | None,
    kept: Manifest | None,
) -> Known:
    """What the study knows of others: as its folder says it, or found now.

    Args:
        experiment: the study's.
        options: the study's; its sampler is as it was asked for.
        existing: the manifest in the study's folder, if it has one.
        kept: the same, if the study has any result.

    Raises:
        UserError: there is nothing to start from where that was asked for, or what the study in the
            folder began with is missing or damaged.
    """
    if not options.search or options.seeds:
        return Known()
    folder = options.folder(experiment.name)
    if existing is not None and known.goes_on(existing, kept, experiment.space):
        try:
            found = known.read(existing, folder)
            return policy_weights.with_weights(found, options, existing.options)
        except UserError:
            if kept is not None:
                raise  # else nothing is lost by beginning anew
    sources = () if takes_policy(options) else options.sources
    named = [_source(source, folder) for source in sources]
    if not experiment.space.parameters():
        if named:
            raise UserError(f"start_from (--from) {str(sources[0])!r}: nothing is searched")
        return policy_weights.with_weights(Known(), options)
    own, _ = sampler_for(experiment, options.trials)
    return finding.find(experiment, options, named, own)


def switched(options: StudyOptions, kept: Manifest | None) -> StudyOptions:
    """The options, with experience off where AUTOTUNE_EXPERIENCE turned it off as the study began.

    So its manifest says it, as of the option: `status` shows it, and a study that goes on stays so
    unless the option says otherwise. `kept` is the manifest in the study's folder, if the study has
    any result.
    """
    if options.experience is not None:
        return options
    off = store.folder_of(None) is None if kept is None else kept.options.experience == OFF
    return replace(options, experience=OFF) if off else options


def entry(knows: Known, options: StudyOptions, existing: Manifest | None) -> Mapping[str, Any]:
    """What the manifest says of what the study knows; without a search what it said before."""
    if options.search or existing is None:
        return knows.entry()
    return existing.known


def takes_policy(options: StudyOptions) -> bool:
    """Whether the one study to start from gives its policy to the sampler or the controller."""
    if len(options.sources) != 1:
        return False
    return options.sampler == ELITE or controller_learns(options) or only_learned(options)


def controller_learns(options: StudyOptions) -> bool:
    """Whether the controller can start from the policy of an earlier study."""
    controller: Any = options.controller
    if controller in NO_CONTROLLER:
        return False
    from autotune.algorithms.controllers import can_warm_start, make_controller, parse_controller

    if not isinstance(controller, str):
        return can_warm_start(controller)
    if controller.partition("(")[0].strip() != "policy":
        return False
    return parse_controller(controller)[0] == "policy" and can_warm_start(
        make_controller(controller, ("lr",))
    )


def only_learned(options: StudyOptions) -> bool:
    """Whether the folder to start from has a policy and no study."""
    if len(options.sources) != 1 or options.sampler not in ("auto", ELITE):
        return False
    (source,) = options.sources
    return not manifest_file.exists(source) and (source / SAMPLER_POLICY_FILE).is_file()


def _source(source: Path, folder: Path) -> Summary:
    """The summary of a study to start from, however few trials it has.

    Of one that is still running, its trials that have ended count, and a line says so.

    Raises:
        UserError: it is none, or no trial of it has ended.
    """
    said = f"start_from (--from) {str(source)!r}"
    if folder.absolute() == source.absolute():
        raise UserError(f"{said} is the study's own folder")
    if not source.is_dir():
        raise UserError(f"{said} is no folder")
    if not manifest_file.exists(source) and (source / SAMPLER_POLICY_FILE).is_file():
        raise UserError(f"{said} has a {SAMPLER_POLICY_FILE} and no study: take policy:elite")
    if not manifest_file.exists(source):
        raise UserError(f"{said} has neither a study nor a {SAMPLER_POLICY_FILE}")
    manifest = Manifest.read(source)
    running = driver_lock.is_held(source / JOURNAL)
    trials = result.read(source, manifest.target).trials
    try:
        found = summary.of_study(manifest, source, trials, least=1)
    except UnfitError:
        yet = " yet: it is still running" if running else ""
        raise UserError(f"{said}: no trial of it has ended{yet}") from None
    if running:
        known.warn(f"{said} is still running: its trials that have ended are used")
    return found
