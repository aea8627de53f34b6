"""What a new study finds out of other studies, once, when it begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from autotune.algorithms.experience.canonical import CanonicalSpace
from autotune.algorithms.names import EXPERIENCED, weights_file
from autotune.errors import UserError
from autotune.study.experience import first, policy_weights, ranking, store
from autotune.study.experience.document import Summary, TooLargeError
from autotune.study.experience.known import Known, warn
from autotune.study.experience.shortlist import shortlist
from autotune.study.experience.summary import Identity, identity_of

if TYPE_CHECKING:
    from autotune.study.experiment import Experiment
    from autotune.study.options import StudyOptions


def find(
    experiment: Experiment,
    options: StudyOptions,
    sources: Sequence[Summary],
    own: str,
) -> Known:
    """What is known to a study that begins.

    Args:
        experiment: the study's.
        options: the study's; its sampler is as it was asked for.
        sources: the studies to start from, which any sampler can.
        own: the sampler that would be used without experience.

    Raises:
        UserError: the store cannot be read, or the study has nothing in common with a source.
    """
    space = CanonicalSpace(experiment.space, experiment.canonical)
    folders = options.sources[: len(sources)]
    points = first.points(sources, folders, space, experiment, options.seed)
    if sources and not points:
        warn(
            "no point of the studies to start from (--from) lies in this space, so none is run "
            "first"
        )
    alone = policy_weights.with_weights(
        Known(first=points, canonical=experiment.canonical, own=own), options
    )
    trained = weights_file(options.sampler) is not None
    if options.sampler not in ("auto", EXPERIENCED) and not trained:
        return alone
    identity = identity_of(experiment)
    stored = _stored(options)
    times = ranking.written(options, [*stored, *sources], sources)
    few = shortlist(stored, space, identity, times)
    candidates = {one.study_id: one for one in [*few, *sources]}
    ranked = ranking.ranked(candidates.values(), space, identity, times)
    published = _published(options, space)
    if not ranked:
        own_points = points or trained
        fit = () if own_points else first.of_published(published, space, experiment, options.seed)
        points, published = points or fit, published if fit else []
    found = replace(alone, first=points, published=tuple(published))
    return _with_studies(found, ranked, identity)


def _with_studies(found: Known, ranked: Sequence[Summary], own: Identity) -> Known:
    """What is known with the studies that are most like the new one: as many as its file can have.

    Raises:
        UserError: it is too large without any.
    """
    studies = tuple(sorted(ranked, key=lambda study: (study.name, study.study_id)))
    same = tuple(study.fingerprint == own.fingerprint for study in studies)
    first_of = ranked[0].name if ranked else ""
    made = replace(found, studies=studies, same=same, most_alike=first_of)
    if not made:
        return made
    try:
        _ = made.packed
    except TooLargeError as error:
        if not ranked:
            raise UserError(f"what the study begins with cannot be kept: {error}") from None
        fewer = ranked[: len(ranked) * 3 // 4]
        return _with_studies(found if fewer else replace(found, published=()), fewer, own)
    return made


def _published(options: StudyOptions, space: CanonicalSpace) -> list[Mapping[str, Any]]:
    """The published settings of an optimizer that the space can have, or that it does not say."""
    off = store.folder_of(options.experience) is None
    if off or (on_virtual_clock(options) and options.experience is None):
        return []
    adopted = (space.adopted(point) for point in store.published())
    return [point for point in adopted if point is not None]


def _stored(options: StudyOptions) -> list[Summary]:
    """The summaries of the store, where the study is to know of them."""
    if on_virtual_clock(options) and options.experience is None:
        return []
    folder = store.folder_of(options.experience)
    if folder is None:
        return []
    try:
        return store.known(folder, warn)
    except UserError as error:
        if options.experience is not None:
            raise
        warn(f"experience: {error}")  # nobody asked for this folder
        return store.shipped(warn)


def on_virtual_clock(options: StudyOptions) -> bool:
    """Whether the study is simulated: then it neither reads nor writes experience unasked."""
    return options.pool is not None and not options.pool.realtime
