"""The points that a new study runs first: the best of other studies, or published ones."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from autotune.algorithms.experience.canonical import CanonicalSpace
from autotune.algorithms.experience.names import LR, OPTIMIZER
from autotune.algorithms.experience.translation import translated
from autotune.algorithms.samplers import Sampler
from autotune.errors import UserError
from autotune.space.encoding import unit_of
from autotune.space.parameters import Choice
from autotune.study.experience.document import Summary
from autotune.study.experience.summary import with_texts
from autotune.study.manifest import Manifest
from autotune.trial import Params, Trial

if TYPE_CHECKING:
    from autotune.study.experiment import Experiment

_MOST = 3  # points of all studies together
_MOST_BEYOND = 0.1  # ranges that a number may lie outside: one that is clipped more is another one
_LEAST_SAID = 2  # searched parameters of which a published point says something
_EQUAL = 1e-3  # of a range: nearer numbers are one


class FirstPoints:
    """Proposes given points that no trial has, and then what another sampler proposes.

    Args:
        points: of the space, in their order.
        then: the other sampler.
    """

    def __init__(self, points: Sequence[Params], then: Sampler) -> None:
        self.then = then
        self._points = tuple(points)

    def ask(self, number: int, trials: Sequence[Trial]) -> Params | None:
        tried = [trial.params for trial in trials]
        left = next((point for point in self._points if point not in tried), None)
        return dict(left) if left is not None else self.then.ask(number, trials)


def points(
    sources: Sequence[Summary],
    folders: Sequence[Path],
    space: CanonicalSpace,
    experiment: Experiment,
    seed: int,
) -> tuple[Params, ...]:
    """The best points of studies that lie in a space, three at most, the best of each first.

    Names are translated, numbers a little outside are clipped to their ranges, and what a study
    does not say is as in the baseline, or else drawn. Points with an optimizer that the space
    cannot have, and such as lie farther outside, are left out.

    Args:
        folders: those of the studies, for messages.

    Raises:
        UserError: a study has no parameter in common with the space, or only other optimizers.
    """
    for source, folder in zip(sources, folders, strict=True):
        _check_common(source, folder, space)
        _check_optimizers(source, space)
    each = [_in_order(source) for source in sources]
    rows = (row for turn in zip_longest(*each) for row in turn if row is not None)
    return _fitting(rows, space, experiment, seed)


def of_published(
    published: Sequence[Mapping[str, Any]],
    space: CanonicalSpace,
    experiment: Experiment,
    seed: int,
) -> tuple[Params, ...]:
    """The published points that lie in a space, three at most, in their order.

    They have a learning rate of an optimizer that the space names, and say more than that.
    """
    searched = [name for name in space.searched if name != OPTIMIZER]
    if space.optimizers() is None or not any(LR in space.same(name) for name in searched):
        return ()
    fit = [
        point
        for point in published
        if point.get(OPTIMIZER) is not None
        and LR in point
        and sum(any(n in point for n in space.same(name)) for name in searched)
        >= min(_LEAST_SAID, len(searched))
    ]
    return _fitting(fit, space, experiment, seed)


def _fitting(
    rows: Iterable[Mapping[str, Any]], space: CanonicalSpace, experiment: Experiment, seed: int
) -> tuple[Params, ...]:
    """The first three canonical points that lie in a space and differ in what they say."""
    given = [experiment.space.complete(one)[1] for one in experiment.given()]
    baseline = given[0] if experiment.baseline is not None else None
    random = Random(f"{seed}/first")
    found: list[Params] = []
    said: list[Mapping[str, Any]] = []
    for row in rows:
        own = space.adopted(with_texts(row, space.texts))
        if own is None:
            continue
        point, outside = translated(own, space, baseline or {}, random)
        positions = _positions(space, point, own)
        if outside <= _MOST_BEYOND and positions not in said and point not in given:
            found.append(point)
            said.append(positions)
        if len(found) == _MOST:
            break
    return tuple(found)


def _positions(
    space: CanonicalSpace, point: Params, canonical: Mapping[str, Any]
) -> dict[str, Any]:
    """Where a point lies in what a canonical one says of it, rounded."""
    parameters, missing = space.space.parameters(), object()
    found: dict[str, Any] = {}
    for name, value in point.items():
        if space.value(name, canonical, missing) is missing:
            continue
        parameter = parameters[name]
        if isinstance(parameter, Choice):
            found[name] = value
        else:
            found[name] = round(unit_of(parameter, value) / _EQUAL)
    return found


def _check_common(source: Summary, folder: Path, space: CanonicalSpace) -> None:
    theirs = {name for point in source.points for name in point}
    if any(theirs & {*space.same(name)} for name in space.searched):
        return
    manifest = Manifest.read(folder)
    other = CanonicalSpace(manifest.search_space(folder), manifest.canonical)
    raise UserError(
        f"start_from (--from) {source.name!r} has no parameter in common with this one: it has "
        f"{_listed(other)}, and this one {_listed(space)}"
    )


def _listed(space: CanonicalSpace) -> str:
    """The study's own names of what it searches, with canonical ones that differ."""
    flats = space.space.parameters()
    names = {flat: space.names.get(flat, flat) for flat in flats}
    return ", ".join(flat if flat == n else f"{flat} (as {n})" for flat, n in names.items())


def _check_optimizers(source: Summary, space: CanonicalSpace) -> None:
    named = [with_texts(point, space.texts) for point in source.points]
    if all(space.adopted(point) is None for point in named):
        theirs = dict.fromkeys(str(point[OPTIMIZER]) for point in named)
        ours = ", ".join(map(str, space.optimizers() or ()))
        raise UserError(
            f"start_from (--from) {source.name!r} has trials of the optimizer "
            f"{', '.join(theirs)} only, and this one has {ours}"
        )


def _in_order(source: Summary) -> list[Mapping[str, Any]]:
    """The points of a study, the best first: by time, and those that did not reach by metric."""

    def key(row: int) -> tuple[float, float]:
        time, seen = source.times[row], [v for v in source.curves[row] if v is not None]
        return math.inf if time is None else time, -max(seen, default=-math.inf)

    return [source.points[row] for row in sorted(range(len(source.points)), key=key)]
