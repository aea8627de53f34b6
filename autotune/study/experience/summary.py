"""The summary of a study, made of its manifest and its trials."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.algorithms.experience.thinned import thinned
from autotune.algorithms.ranking.repeats import with_mean_times
from autotune.algorithms.samplers.elite import is_informative
from autotune.backends.recipe_modules import FILE_PREFIX
from autotune.errors import UserError
from autotune.storage.codec import encode
from autotune.study import source
from autotune.study.experience.checks import LARGEST
from autotune.study.experience.document import Summary
from autotune.study.experience.words import is_common
from autotune.study.manifest import Manifest
from autotune.study.space_json import describe
from autotune.trial import MISSED_REASONS, State, Target, Trial, usual_hardware

if TYPE_CHECKING:
    from autotune.study.experiment import Experiment

_DIGITS = 6  # significant ones, of times and metrics
_LEAST_TIME = 1e-6  # share of the limit
_MOST_TRIALS = 1000
_HASHED = "sha256:"
_CHECKSUM = re.compile(_HASHED + "[0-9a-f]{12}")


class UnfitError(UserError):
    """A study of which no summary is made; the text says why, after the study's name."""


def of_study(
    manifest: Manifest, folder: Path, trials: Sequence[Trial], *, least: int | None = None
) -> Summary:
    """The summary of a study.

    Its points are those of searched trials with a report, on the hardware of most of them; repeats
    count in the mean of what they repeat. Forks, trials that were interrupted, failed or were
    infeasible are left out.

    Args:
        manifest: the study's.
        folder: the study's, for messages.
        trials: all trials, repeats included.
        least: the trials that it must have; by default as many as a model of them needs.

    Raises:
        UnfitError: it has too few of them.
        UserError: the manifest has no space that this version knows.
    """
    from autotune.algorithms.experience.canonical import CanonicalSpace
    from autotune.algorithms.experience.model import LEAST_TRIALS
    from autotune.algorithms.experience.posterior import limit_of

    target, least = manifest.target, LEAST_TRIALS if least is None else least
    used = _used(trials, target)
    if len(used) < least:
        raise UnfitError(
            f"only {len(used)} trials of it tell anything (at least {least} are needed)"
        )
    space = CanonicalSpace(manifest.search_space(folder), manifest.canonical)
    limit = limit_of(used, target)
    train = manifest.train, manifest.train_source
    own = _identity(manifest.name, *train, manifest.space, manifest.target)
    return Summary(
        name=manifest.name,
        study_id=manifest.study_id,
        trainer=own.trainer,
        source=own.source,
        fingerprint=own.fingerprint,
        target=_target(target, limit),
        hardware=_hardware(used),
        version=manifest.versions.get("autotune") or "unknown",
        points=[public(space.point(trial.params or {})) for trial in used],
        times=[_time(trial, limit) for trial in used],
        ended=[_ended(trial, limit) for trial in used],
        curves=[_curve(trial, target, limit) for trial in used],
    )


@dataclass(frozen=True)
class Identity:
    """Which study it is, whoever ran it, and however often.

    Args:
        trainer: module and qualified name of the trainer, without where a recipe's file lies.
        source: a checksum of its source; empty where that is not known.
        fingerprint: a checksum of trainer, space and fixed values; where the source is not known,
            also of the study's name.
    """

    trainer: str
    source: str
    fingerprint: str


def identity_of(experiment: Experiment) -> Identity:
    """The identity of a study of the experiment.

    Raises:
        UserError: a value of its space has no JSON form.
    """
    train = experiment.train
    space = describe(experiment.space)
    named = source.name(train), source.checksum(train)
    return _identity(experiment.name, *named, space, experiment.target)


def _identity(
    name: str, train: str, train_source: str | None, space: Mapping[str, Any], target: Target
) -> Identity:
    trainer = re.sub(rf"^{FILE_PREFIX}(\w+)_[0-9a-f]{{12}}\.", r"\1.", train)
    known = train_source or ""
    if known and not re.fullmatch(r"[0-9a-f]{64}", known):  # a trainer may say any text
        known = hashlib.sha256(known.encode()).hexdigest()
    asked = [target.metric, target.mode, target.clock]
    content = [trainer, known or f"name:{name}", space.get("entries"), asked]
    text = json.dumps(content, sort_keys=True)
    return Identity(trainer, known, hashlib.sha256(text.encode()).hexdigest())


def public(point: Mapping[str, Any]) -> dict[str, Any]:
    """A canonical point as a summary has it: texts as checksums, except those of `words`.

    One text has the same checksum in every study.

    >>> public({"data": "/home/me/pictures", "optimizer": "sgd"})
    {'data': 'sha256:381685d574f3', 'optimizer': 'sgd'}
    """
    return {name: _public(encode(value)) for name, value in point.items()}


def _public(value: Any) -> Any:
    if not isinstance(value, str) or is_common(value) or _CHECKSUM.fullmatch(value):
        return value
    return _HASHED + hashlib.sha256(value.encode()).hexdigest()[:12]


def with_texts(point: Mapping[str, Any], options: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """A point of a summary with the texts of a space's `options` in place of their checksums."""
    found = dict(point)
    for name, value in point.items():
        if isinstance(value, str) and value.startswith(_HASHED):
            known = {_public(option): option for option in options.get(name, ())}
            found[name] = known.get(value, value)
    return found


def _used(trials: Sequence[Trial], target: Target) -> list[Trial]:
    lost = (State.FAILED, State.INFEASIBLE)
    found = [
        trial
        for trial in with_mean_times(trials, target)
        if is_informative(trial) and trial.state not in lost and not trial.is_fork
    ]
    found = [t for t in found if any(target.metric in report.metrics for report in t.reports)]
    usual = usual_hardware(found)
    comparable = [t for t in found if t.hardware == usual]

    def best_first(trial: Trial) -> float:
        score = target.score(trial)
        return math.inf if score is None else score

    return thinned(comparable, best_first, _MOST_TRIALS)


def _hardware(trials: Sequence[Trial]) -> str:
    """The hardware in words, without what its owner calls it."""
    usual = usual_hardware(trials)
    return str(replace(usual, label="", before="")) if usual is not None else ""


def _target(target: Target, limit: float) -> dict[str, Any]:
    known = math.isfinite(target.horizon)
    named = {name: getattr(target, name) for name in ("metric", "mode", "clock", "value")}
    return {**named, "limit": target.horizon if known else None, "longest": _rounded(limit)}


def _time(trial: Trial, limit: float) -> float | None:
    if trial.state is not State.REACHED:
        return None
    return _rounded(max(trial.seconds / limit, _LEAST_TIME))


def _came_to_its_end(trial: Trial) -> bool:
    return trial.state is State.COMPLETED or trial.reason in MISSED_REASONS


def _ended(trial: Trial, limit: float) -> float:
    if _came_to_its_end(trial):
        return 1.0  # its result stays as it is
    return _rounded(min(trial.seconds / limit, 1.0))


def _curve(trial: Trial, target: Target, limit: float) -> list[float | None]:
    """The metric at the marks up to the trial's end, best so far; see `Summary`."""
    from autotune.algorithms.experience.known_task import MARKS
    from autotune.algorithms.ranking.equal_time import GapCurve

    curve = GapCurve(trial, target)
    until = math.inf if _came_to_its_end(trial) else curve.until
    aim = target.value or 0.0
    aim = aim if target.mode == "max" else -aim
    marks = [float(mark) * limit for mark in MARKS]
    seen = list(takewhile(lambda seconds: seconds <= until * (1 + 1e-9), marks))
    gaps = [curve.at(seconds * (1 + 1e-9)) for seconds in seen]
    known = [_rounded(aim - gap) if abs(aim - gap) <= LARGEST else None for gap in gaps]
    return [*known, *[None] * (len(marks) - len(known))]


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
