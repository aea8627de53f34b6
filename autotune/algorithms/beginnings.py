"""Shared beginnings: configurations that begin alike train their beginning once.

Two configurations whose schedules are the same up to a progress (`schedules.agreement`) are, with
one training seed, the same training up to there. So a new trial begins from a checkpoint of an
earlier one, the latest at which the two still agree: stage trees (Shin et al. 2020, Hippo, arXiv
2006.11972). A trial saves such checkpoints where points of the search space branch off from each
other, at most one for each of these places and beginning; all that is decided here is a function of
the trials. A checkpoint's progress is the metric `progress` of the report at its step: a trainer
that reports it says that its schedules are functions of it. Two schedules agree below the progress
at which they branch, not at it: a trainer may set the value at the end of a step.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from statistics import fmean

from autotune.algorithms.ranking.lineage import PROGRESS
from autotune.algorithms.ranking.repeats import is_searched, searched
from autotune.schedules.agreement import configs_agree_until
from autotune.space.search_space import SearchSpace
from autotune.storage.codec import plain
from autotune.trial import DIVERGED, Checkpoint, Config, Trial

BEGINNINGS = 8
"""The most different beginnings of a space in which they are shared."""
SHARE = 0.25
"""The least share of the horizon that two trials with the same beginning share on average."""
_SAMPLES = 64  # points of the space that are compared with each other
_ROUNDING = 1e-9  # of a sum of progresses
_EARLIER = (0.5, 0.75, 0.9, 0.97, 1.0)
"""Places by the first that was seen, as shares of it: samplers like the ends of a range."""
_PLACES = 64  # checkpoints that stay, of all beginnings together


@dataclass(frozen=True)
class SharedBeginnings:
    """How a study shares beginnings.

    Args:
        seed: the training seed of all its searched trials.
        configs: configurations of the space, with which a trial is compared to find where others
            may branch off from it.
        places: the progresses at which they branch off, increasing.
    """

    seed: int
    configs: tuple[Config, ...]
    places: tuple[float, ...]
    _known: dict[tuple[int, int], float] = field(default_factory=dict, compare=False, repr=False)

    def agreement(self, trial: Trial, other: Trial) -> float:
        """The progress up to which two trials of the study agree."""
        pair = min(trial.number, other.number), max(trial.number, other.number)
        if pair not in self._known:
            self._known[pair] = configs_agree_until(trial.config, other.config)
        return self._known[pair]

    def reach(self, trial: Trial) -> float:
        """The last progress at which another configuration may branch off from the trial's."""
        pair = trial.number, -1
        if pair not in self._known:
            found = (configs_agree_until(trial.config, config) for config in self.configs)
            self._known[pair] = max(found, default=0.0)
        return self._known[pair]


@dataclass(frozen=True)
class Beginning:
    """A checkpoint of a trial from which others may begin."""

    trial: Trial
    checkpoint: Checkpoint
    progress: float


# --- where it pays --------------------------------------------------------------------------------


def shared_beginnings(space: SearchSpace, seed: int) -> SharedBeginnings | None:
    """How a study of the space shares beginnings; None where it does not pay.

    It pays where what acts from the first step on can take only few values, so that points have at
    most `BEGINNINGS` different beginnings, and others act so late that two points with the same
    beginning share at least `SHARE` of the horizon on average.
    """
    groups: list[list[int]] = []
    configs: list[Config] = []
    for config in _sampled(space):
        own = next((g for g in groups if configs_agree_until(configs[g[0]], config) > 0.0), None)
        if own is None:
            own = []
            groups.append(own)
        own.append(len(configs))
        configs.append(config)
        if len(groups) > BEGINNINGS:
            return None
    reaches, shares = [0.0] * len(configs), []
    for group in groups:
        for one, other in combinations(group, 2):
            until = _branch(configs[one], configs[other])
            reaches[one], reaches[other] = max(reaches[one], until), max(reaches[other], until)
            shares.append(until)
    if not shares or fmean(shares) < SHARE:
        return None
    places = sorted({place for place in reaches if place > 0.0})
    early = {share * places[0] for share in _EARLIER}
    most = max(1, _PLACES // len(groups) - len(early))
    thinned = {places[(i + 1) * len(places) // most - 1] for i in range(most)}
    return SharedBeginnings(seed, tuple(configs), tuple(sorted(early | thinned)))


def _branch(config: Config, other: Config) -> float:
    """Where two configurations branch; equal ones, as a space of few points has them, nowhere."""
    until = configs_agree_until(config, other)
    return until if until < 1.0 else 0.0


def _sampled(space: SearchSpace) -> Iterator[Config]:
    for point in space.sample(_SAMPLES):
        try:
            yield plain(space.config(point))
        except (ValueError, TypeError):  # schedules that do not fit together, or no JSON
            continue


def can_share(trials: Iterable[Trial], how: SharedBeginnings) -> bool:
    """Whether the trainer does what sharing needs, as far as trials show.

    It does not if it reports no progress, or if a trial had a checkpoint to save and could not.
    """
    seen = searched(trials)
    if _without_progress(seen):
        return False
    return any(t.saves for t in seen) or not any(t.ended and _was_due(t, how) for t in seen)


def missing(trials: Iterable[Trial]) -> str:
    """Why no trial of a study that could share beginnings did so; empty as long as any may."""
    if _without_progress(trials):
        return f"none, as the trainer reports no metric {PROGRESS!r}"
    return ""


def _without_progress(trials: Iterable[Trial]) -> bool:
    """Whether the last metrics of a trial lack its progress."""
    last = (next((r for r in reversed(t.reports) if r.metrics), None) for t in trials)
    return any(report is not None and PROGRESS not in report.metrics for report in last)


def _was_due(trial: Trial, how: SharedBeginnings) -> bool:
    """Whether a checkpoint was due before its last report."""
    earlier = (trial.reports[:count] for count in range(2, len(trial.reports)))
    return any(due(replace(trial, reports=reports), (), how) for reports in earlier)


# --- which checkpoints --------------------------------------------------------------------------


def kept(
    trials: Iterable[Trial], how: SharedBeginnings, gone: Collection[tuple[int, int]] = ()
) -> list[Beginning]:
    """The checkpoints from which other trials may begin, and which so stay while a study searches.

    For each place at which points of the space branch off and each beginning it is the last one
    before that place; of too many those of the longest beginnings. A diverged trial has none, nor
    has one that was disturbed by then, whose forward passes were limited to fit into memory, or
    whose knobs a controller turned.

    Args:
        gone: checkpoints that were found to be removed or damaged, as trial and step.
    """
    best: dict[int, list[Beginning]] = {}
    for trial in trials:
        for one in _own(trial, how, gone):
            at = best.setdefault(bisect_right(how.places, one.progress), [])
            same = _same_beginning(one, at, how)
            if same is None:
                at.append(one)
            elif one.progress > at[same].progress:
                at[same] = one
    found = sorted((one for at in best.values() for one in at), key=lambda one: one.progress)
    return found[-_PLACES:]


def _own(
    trial: Trial, how: SharedBeginnings, gone: Collection[tuple[int, int]]
) -> Iterator[Beginning]:
    """The trial's own checkpoints from which others may begin."""
    if not trial.saves or not _is_usable(trial, how):
        return
    reach = min(how.reach(trial), how.places[-1])
    result = trial.reports[-1].step if trial.succeeded else None
    for saved in trial.saves:
        if saved.step == result or (trial.number, saved.step) in gone:
            continue  # after its result there is nothing left to train
        then = replace(trial, reports=tuple(r for r in trial.reports if r.step <= saved.step))
        progress = _progress_at(then, saved.step)
        if progress is not None and 0.0 < progress < reach and not then.disturbed:
            yield Beginning(trial, saved, progress)


def _is_usable(trial: Trial, how: SharedBeginnings) -> bool:
    """Whether the trial is the training of its configuration, as others would make it."""
    plain_training = trial.microbatch is None and not trial.changes and trial.reason != DIVERGED
    return trial.seed == how.seed and plain_training and is_searched(trial)


def _progress_at(trial: Trial, step: int) -> float | None:
    """The progress at a step, if a report says it; one where training goes on has no metrics."""
    known = (r.metrics.get(PROGRESS) for r in trial.reports if r.step == step)
    return next((progress for progress in known if progress is not None), None)


def _same_beginning(
    one: Beginning, others: Sequence[Beginning], how: SharedBeginnings
) -> int | None:
    """Which of the others, by index, was trained as this one was, up to the later of the two."""
    for i, other in enumerate(others):
        until = max(one.progress, other.progress)
        if one.trial.number == other.trial.number:
            return i
        if how.agreement(one.trial, other.trial) > until:
            return i
    return None


def due(trial: Trial, beginnings: Iterable[Beginning], how: SharedBeginnings) -> bool:
    """Whether a trial at a milestone saves its state for others to begin from.

    It does at the last milestone before a place at which others may branch off from it, unless a
    checkpoint of the same training is there. The next milestone is expected at the same distance
    as the last one.
    """
    known = [0.0, *(r.metrics[PROGRESS] for r in trial.reports if PROGRESS in r.metrics)]
    now, before = known[-1], known[-2] if len(known) > 1 else 0.0
    if PROGRESS not in trial.reports[-1].metrics or not before < now < how.reach(trial):
        return False
    if not _is_usable(trial, how) or trial.disturbed:
        return False
    then = now + (now - before) + _ROUNDING
    places = [place for place in how.places if now < place <= then]
    if not places:
        return False
    return not any(
        now <= one.progress < places[-1] and how.agreement(trial, one.trial) > one.progress
        for one in beginnings
    )


def beginning_for(config: Config, beginnings: Iterable[Beginning]) -> Beginning | None:
    """The latest checkpoint at which the configuration agrees with that of its trial, if any."""
    for one in sorted(beginnings, key=lambda one: (-one.progress, one.trial.number)):
        if configs_agree_until(config, one.trial.config) > one.progress:
            return one
    return None
