"""What the trials of studies say of samples to the target and of seconds per sample."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import fmean, geometric_mean, median

import numpy as np

from autotune.algorithms.plans.measured import EXPOSED, blocks
from autotune.algorithms.ranking.repeats import PROBE
from autotune.errors import UserError
from autotune.evaluation.scaling.fit import Fit, fit
from autotune.evaluation.scaling.values import Run, Timing
from autotune.space.parameters import Choice
from autotune.study.manifest import Manifest
from autotune.study.result import StudyResult
from autotune.trial import INTERRUPTED_REASONS, STEPS, Hardware, State, Target, Trial
from autotune.trial.checks import is_finite
from autotune.trial.plan_text import plan_text

BATCH, NOISE_SCALE = "batch_size", "gradient_noise_scale"
"""The key, and the metric of the same name, of the global batch size; the metric of the noise."""

Study = tuple[Manifest, StudyResult]
Like = Callable[[Trial], bool]


def fitted(studies: Sequence[Study]) -> Fit:
    """The law that the trials of a study show, and those of others on other numbers of workers.

    Only trials with the best one's plan and choices (precision, optimizer) say how fast a step is,
    on the same kind of hardware; where these have one batch size only, all trials do.

    Args:
        studies: of one recipe; the first has a best trial.

    Raises:
        UserError: a target counts no seconds, or is another one than the first study's, or no
            trial of another study is comparable with the best one.
        TooLittleError: the trials do not say enough; the message says what is missing.
    """
    manifest, result = studies[0]
    best = result.best
    assert best is not None, "asked by the caller"
    for other, _ in studies:
        _check_target(other, manifest)
    every = [trial for _, found in studies for trial in found.trials]
    measured = [timings(found.trials, _like(best, of, found)) for of, found in studies]
    near = [timing for own in measured for timing in own]
    if len({timing.octave for timing in near}) < 2:
        near = timings(every, lambda trial: _hardware(trial) == _hardware(best))
    elif not all(measured):
        silent = next(of for (of, _), own in zip(studies, measured, strict=True) if not own)
        raise UserError(
            f"--also {silent.name}: none of its trials has the plan, the choices and the hardware "
            "of the best one, so that it says nothing of its steps"
        )
    return fit(runs(every), near, np.random.default_rng(0), timing_of(best))


def _check_target(manifest: Manifest, first: Manifest) -> None:
    own, wanted = manifest.target, first.target
    if not own.timed or own.clock == STEPS:
        raise UserError(
            f"scale is for a target with a value, on a clock of seconds; that of {manifest.name} "
            f"{'counts steps' if own.timed else 'has no value'}"
        )
    if _aim(own) != _aim(wanted):
        raise UserError(
            f"--also must be a study with the target {wanted.metric} {wanted.value:g}, but "
            f"{manifest.name} has {own.metric} {own.value:g}"
        )


def _aim(target: Target) -> tuple[object, ...]:
    return target.metric, target.value, target.mode, target.confirm


def _like(best: Trial, manifest: Manifest, result: StudyResult) -> Like:
    """Whether a trial differs from the best in nothing that may change how long a step takes."""
    space = manifest.search_space(result.folder).parameters()
    names = [n for n, p in space.items() if isinstance(p, Choice) and _may_change_steps(n)]
    plan, point = plan_text(best.config, manifest.plan_keys), best.point or {}

    def like(trial: Trial) -> bool:
        own = trial.point or {}
        same = all(repr(own.get(name)) == repr(point.get(name)) for name in names)
        planned = plan_text(trial.config, manifest.plan_keys) == plan
        return same and planned and _hardware(trial) == _hardware(best)

    return like


def _may_change_steps(name: str) -> bool:
    """Whether a choice may change how long a step takes: the batch size is known by itself."""
    return name.split(".")[0] != BATCH and not name.endswith(".family")


def _hardware(trial: Trial) -> tuple[object, ...]:
    """The kind of hardware of one worker."""
    on: Hardware = trial.hardware
    return on.device, on.cpus_per_worker, on.gpus_per_worker, on.cpu, on.label, on.shared


# --- samples to the target ------------------------------------------------------------------------


def runs(trials: Iterable[Trial]) -> list[Run]:
    """What each configuration needed, as the mean of its runs; forks and probes are left out."""
    own: dict[tuple[object, ...], list[Trial]] = {}
    for trial in trials:
        if trial.kind != PROBE and not trial.is_fork and trial.ended and trial.reports:
            own.setdefault(_configuration(trial), []).append(trial)
    return [run for same in own.values() if (run := _run(same)) is not None]


def _configuration(trial: Trial) -> tuple[object, ...]:
    return tuple(sorted((name, repr(value)) for name, value in trial.config.items()))


def _run(same: Sequence[Trial]) -> Run | None:
    """The run of trials of one configuration; None where they say nothing of a batch size."""
    batch_size = batch_size_of(same[0])
    if batch_size is None:
        return None
    reached = [t.reports[-1].step for t in same if t.state is State.REACHED]
    stopped = [
        t.reports[-1].step
        for t in same
        if t.state is State.CENSORED and t.reason not in INTERRUPTED_REASONS
    ]
    steps = [step for step in reached or stopped if step > 0]
    if not steps:
        return None
    scales = [v for t in same for v in _reported(t, NOISE_SCALE) if v > 0]
    samples = geometric_mean(steps) if reached else max(steps)
    return Run(batch_size, samples, bool(reached), median(scales) if scales else None)


def batch_size_of(trial: Trial) -> float | None:
    """The global batch size of a trial: as its configuration says, or the mean over its steps.

    That is for schedules, and where a controller changed it, from the metric `batch_size`; None
    where neither says it.
    """
    given = trial.config.get(BATCH)
    turned = any(change.batch_size is not None for _, change in trial.changes)
    if not turned and is_finite(given) and isinstance(given, int | float) and given > 0:
        return float(given)
    parts = [
        (after.step - before.step, after.metrics[BATCH])
        for before, after in pairwise(trial.reports)
        if after.metrics.get(BATCH, 0) > 0 and after.step > before.step
    ]
    steps = math.fsum(samples / batch_size for samples, batch_size in parts)
    return math.fsum(samples for samples, _ in parts) / steps if steps > 0 else None


# --- seconds of a step ----------------------------------------------------------------------------


def timings(trials: Iterable[Trial], like: Like) -> list[Timing]:
    """How fast those trials trained that were searched or probed; disturbed ones if all were."""
    own = [t for t in trials if t.point is not None and not t.is_fork and like(t)]
    calm = [t for t in own if not t.disturbed]
    return [timing for t in calm or own if (timing := timing_of(t)) is not None]


def timing_of(trial: Trial) -> Timing | None:
    """How fast a trial trained, without its first block; None where it does not say it."""
    every, batch_size = blocks(trial), batch_size_of(trial)
    if not every or batch_size is None:
        return None
    own = every[1:] or every
    seconds = math.fsum(block.seconds for block in own) / sum(block.samples for block in own)
    shares = _reported(trial, EXPOSED)
    exposed = fmean(shares) if shares else None
    return Timing(batch_size, trial.hardware.num_workers, seconds, exposed)


def _reported(trial: Trial, name: str) -> list[float]:
    found: Iterable[Mapping[str, float]] = (report.metrics for report in trial.reports)
    return [float(m[name]) for m in found if name in m and math.isfinite(m[name])]
