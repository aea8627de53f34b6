"""Whether a study searches in two stages: plans are probed first, and then fixed."""

from __future__ import annotations

from dataclasses import dataclass, replace

from autotune.algorithms.names import FORKING
from autotune.algorithms.plans.choice import SHARE, budget
from autotune.algorithms.plans.parameters import effects_of, probed_names, within
from autotune.space.search_space import SearchSpace
from autotune.space.variants import key_of
from autotune.study.experiment import Experiment
from autotune.study.manifest import Manifest
from autotune.study.option import OFF
from autotune.study.options import StudyOptions
from autotune.trial import STEPS

_NAMED = 4  # parameters of a line


@dataclass(frozen=True)
class Stages:
    """What is probed in the first stage.

    Args:
        names: the searched parameters that change only the seconds per sample.
        seconds: what the probes may take.
    """

    names: tuple[str, ...]
    seconds: float


def resolve_stages(
    experiment: Experiment, options: StudyOptions, existing: Manifest | None
) -> tuple[str, str | None]:
    """`auto` where the study searches in two stages, else `off`; and in one line why.

    A study that goes on stays as it began; without such parameters there is nothing to say.

    Args:
        existing: the manifest of the study in the folder, if it has any result.
    """
    if existing is not None:
        return existing.options.stages, None
    names = _names(experiment)
    if options.stages == OFF or not names or options.seeds or not options.search:
        return OFF, None
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    listed = f"what changes only the seconds per sample ({', '.join(names[:_NAMED])}{more})"
    if why := _why_not(experiment, options):
        return OFF, f"{OFF}, as {why}: {listed} is searched like all else"
    seconds = _seconds(experiment, options)
    return "auto", (
        f"auto: {listed} is probed first, for about {seconds:.0f} s ({SHARE:.0%} of the study) or "
        "3 to 5 probes if they take longer, and then fixed"
    )


def made_stages(experiment: Experiment, options: StudyOptions) -> Stages | None:
    """The first stage of a study whose option is resolved; None where it has none."""
    names = _names(experiment)
    if options.stages == OFF or not names:
        return None
    return Stages(names, _seconds(experiment, options))


def in_space(experiment: Experiment, space: SearchSpace) -> Experiment:
    """The experiment over a narrower space, with the part of its baseline that lies there."""
    whole, baseline = experiment.space, experiment.baseline
    point = whole.complete(baseline)[1] if baseline is not None else None
    keys = {key_of(name, entry.when) for name, entry in space.entries.items()}
    known = {*keys, *space.entries, *space.parameters()}
    return replace(
        experiment,
        space=space,
        baseline=within(space, point),
        configs=(),
        canonical={k: v for k, v in experiment.canonical.items() if k in known},
    )


def _names(experiment: Experiment) -> tuple[str, ...]:
    return tuple(probed_names(experiment.space, effects_of(experiment.train)))


def _seconds(experiment: Experiment, options: StudyOptions) -> float:
    """What probes may take; 0 where nothing says it: then one alternative is probed."""
    limit = options.time_limit
    assert not isinstance(limit, str), "read by now"
    return budget(options.trials, experiment.target.limit, limit) or 0.0


def _why_not(experiment: Experiment, options: StudyOptions) -> str:
    """Why such a study is not searched in two stages, in words; empty where it is."""
    if experiment.target.clock == STEPS:
        return "the target counts steps and no seconds"
    if len(experiment.given()) >= options.trials:
        return "only given configurations run"
    if len(_names(experiment)) == len(experiment.space.parameters()):
        return "nothing else is searched"
    if not isinstance(options.sampler, str):
        return "its sampler is an object that knows the whole space"
    controller = options.controller
    if isinstance(controller, str) and controller.partition("(")[0] in FORKING:
        return f"controller {controller} changes the points of running trials"
    if not _seconds(experiment, options):
        return "neither a limit of the target nor a time limit says how long it may take"
    return ""
