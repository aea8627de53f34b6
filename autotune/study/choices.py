"""Options that were left to this program: what it chooses, and why."""

from __future__ import annotations

from dataclasses import dataclass, replace

from autotune.algorithms.names import ELITE, EXPERIENCED, NO_CONTROLLER, TRAINED
from autotune.study.beginnings import resolve_beginnings
from autotune.study.defaults import pruner_for, racing_for, sampler_for
from autotune.study.experience import starts
from autotune.study.experience.known import NOTHING, Known
from autotune.study.experiment import Experiment
from autotune.study.manifest import Manifest
from autotune.study.options import StudyOptions
from autotune.study.stages import resolve_stages


@dataclass(frozen=True)
class ResolvedOptions:
    """Options with a sampler and a share of races, and in one line why, where nobody chose them."""

    options: StudyOptions
    sampler_because: str | None = None
    racing_because: str | None = None
    pruner_because: str | None = None
    stages_because: str | None = None
    beginnings_because: str | None = None

    def notes(self) -> list[str]:
        """The choices in words."""
        chosen, notes = self.options, []
        if self.sampler_because is not None:
            notes.append(f"sampler: {chosen.sampler}, as {self.sampler_because}")
        if self.racing_because is not None:
            notes.append(f"racing: {chosen.racing:g} of the training, as {self.racing_because}")
        if self.pruner_because is not None:
            notes.append(f"pruner: {chosen.pruner}, as {self.pruner_because}")
        if self.stages_because is not None:
            notes.append(f"stages: {self.stages_because}")
        if self.beginnings_because is not None:
            notes.append(f"shared beginnings: {self.beginnings_because}")
        return notes


def resolve_options(
    experiment: Experiment,
    options: StudyOptions,
    existing: Manifest | None,
    known: Known = NOTHING,
) -> ResolvedOptions:
    """The options with a sampler and a share of races.

    Those of the study in the folder, whose manifest is `existing` if it has any result. `known` is
    what the study knows of others: without any, `experienced` is what `auto` would be.
    """
    sampler_because, racing_because, pruner_because = None, None, None
    if options.pruner == "auto":
        pruner, pruner_because = pruner_for(experiment.target)
        options = replace(options, pruner=pruner)
    if options.sampler == TRAINED and existing is not None and existing.options.sampler == ELITE:
        sampler_because = "the study began with it, when its name was policy"
        options = replace(options, sampler=ELITE)
    unknown = options.sampler == EXPERIENCED and not known.studies and options.search
    if options.sampler == "auto" or unknown:
        sampler, sampler_because = _auto_sampler(experiment, options, existing, known)
        if known.published and not known.studies:
            count = len(known.first)
            settings = f"{count} published setting{'' if count == 1 else 's'}"
            sampler_because += f"; {settings} of its optimizer run{'s' * (count == 1)} first"
        if unknown:
            sampler_because = f"no study like this one is known, and {sampler_because}"
        options = replace(options, sampler=sampler)
    if options.racing is None:
        racing, racing_because = _auto_racing(options, existing)
        options = replace(options, racing=racing)
    stages, stages_because = resolve_stages(experiment, options, existing)
    beginnings, beginnings_because = resolve_beginnings(experiment, options, existing)
    return ResolvedOptions(
        replace(options, stages=stages, shared_beginnings=beginnings),
        sampler_because,
        racing_because,
        pruner_because,
        stages_because,
        beginnings_because,
    )


def _auto_sampler(
    experiment: Experiment, options: StudyOptions, existing: Manifest | None, known: Known
) -> tuple[str, str]:
    before = existing.options.sampler if existing is not None else None
    if isinstance(before, str) and before != "auto" and not before.startswith("<"):
        return before, "the study has it already"
    learned = options.controller in NO_CONTROLLER and starts.only_learned(options)
    return sampler_for(experiment, options.trials, known.because, learned)


def _auto_racing(options: StudyOptions, existing: Manifest | None) -> tuple[float, str | None]:
    if options.seeds:  # all trials are repeats already
        return 0.0, None
    if existing is not None or not options.search:
        return (existing.options.racing if existing is not None else None) or 0.0, None
    return racing_for(options.sampler, options.trials, options.controller)
