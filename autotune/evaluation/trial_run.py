"""A recipe tried in this process: two milestones, twice the second, and what a study would take.

`try_recipe` trains the baseline to its second milestone, saving its state at both. Then it starts
again from the state at the first, trains to the second, and compares the two states bit for bit:
where they differ, a trial that loses its worker does not go on as it would have.
"""

from __future__ import annotations

import math
import resource
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from autotune.backends.groups.resources import fit, resolve_scaling
from autotune.backends.local import machine
from autotune.backends.local.here import ThisProcess
from autotune.backends.protocol import Finished, Launch, Progress, Raised, Signal, WorkerFailed
from autotune.errors import StudyError, UserError, unknown
from autotune.evaluation.differences import differences
from autotune.storage.codec import plain
from autotune.study.driver.decisions import unreported
from autotune.study.driver.settings import trial_seed
from autotune.study.experiment import Experiment, check_trainer
from autotune.trial import Checkpoint, Config, Report
from autotune.trial.scaling import Scaling

_MILESTONES = 2
_SHOWN = 3  # differences that are named


@dataclass(frozen=True)
class Check:
    """One thing that was looked at: whether it is well, None for a mere figure, and one line."""

    name: str
    ok: bool | None
    says: str


class TrainerError(StudyError):
    """The trainer raised; `trace` is its traceback."""

    def __init__(self, reason: str, trace: str) -> None:
        super().__init__(f"the trainer raised {reason}")
        self.trace = trace


@dataclass
class _Run:
    """What one run of the trainer has reported, and the folder of its state at each milestone."""

    reports: list[Report] = field(default_factory=list)
    saved: list[Checkpoint] = field(default_factory=list)
    setup_seconds: float = 0.0
    finished: Finished | None = None


def try_recipe(
    experiment: Experiment,
    *,
    trials: int = 20,
    seed: int = 0,
    on_error: Callable[[BaseException], object] | None = None,
) -> list[Check]:
    """Try a recipe: what holds of it, and what a study of so many trials will take here.

    Args:
        experiment: the recipe's.
        trials: of the study that is looked ahead to.
        seed: of that study.
        on_error: called with what the trainer raised, while its frames are there.

    Raises:
        UserError: the trainer refuses its configuration, or does not report the target's metric.
        TrainerError: the trainer raised.
    """
    check_trainer(experiment)
    config = _config(experiment)
    pool = ThisProcess(experiment.train, _one(experiment.scaling), on_error)
    try:
        with tempfile.TemporaryDirectory(prefix="autotune-try-") as folder:
            launch = Launch(0, config, trial_seed(seed, 0), metric=experiment.target.metric)
            first = _trained(pool, launch, Path(folder, "first"), _MILESTONES)
            checks = [_metric(first, experiment), *_pace(first)]
            checks.append(_state(pool, launch, first, Path(folder, "again")))
        return [*checks, _memory(), *_study(experiment, first, trials)]
    finally:
        pool.close()


def _config(experiment: Experiment) -> Config:
    """The baseline; where there is none the first configuration that a study would run."""
    given = experiment.given()
    if given:
        return dict(plain(experiment.space.complete(given[0])[0]))
    for point in experiment.space.sample(20):
        try:
            config = experiment.space.config(point)
        except ValueError:  # its schedules contradict each other
            continue
        if not experiment.space.broken(config):
            return dict(plain(config))
    raise UserError("no point of the search space can be tried: each breaks a constraint")


def _one(scaling: Scaling) -> Scaling:
    """One worker, with what of its cores and GPUs this machine has."""
    cpus, gpus = scaling.cpus_per_worker, scaling.gpus_per_worker
    here = machine.resources()
    return Scaling(
        1,
        None if cpus is None else min(cpus, here["CPU"]),
        None if gpus is None else min(gpus, here["GPU"]),
        1,
    )


# --- training -------------------------------------------------------------------------------------


def _trained(pool: ThisProcess, launch: Launch, folder: Path, milestones: int) -> _Run:
    """Train so many milestones after the set-up, saving the state at each."""
    run = _Run()
    pool.start(launch)
    signal = _next(pool)
    while isinstance(signal, Progress):
        report = signal.report
        assert report is not None
        set_up = not run.reports and not report.metrics
        if set_up:
            run.setup_seconds = report.clock.setup
        else:
            run.reports.append(report)
        path = str(folder / f"step-{report.step}") if signal.can_save and not set_up else None
        if path is not None:
            run.saved.append(Checkpoint(report.step, path, report.clock))
        if len(run.reports) == milestones:
            pool.stop(launch.trial, path)
            _next(pool)
            return run
        pool.resume(launch.trial, None, path)
        signal = _next(pool)
    run.finished = signal if isinstance(signal, Finished) else None
    if run.finished is not None and run.finished.report is not None:
        run.reports.append(run.finished.report)  # what a function returned
    return run


def _next(pool: ThisProcess) -> Signal:
    """The trainer's next signal, and with it a report; a TrainerError where it raised."""
    while (signal := pool.wait(None)) is None or signal == Progress(signal.trial, None):
        if signal is not None:  # its metrics come at the next milestone
            pool.resume(signal.trial, None, None)
    if isinstance(signal, Raised | WorkerFailed):
        raise TrainerError(signal.reason, signal.error.removeprefix("rank 0:\n"))
    return signal


# --- what is looked at ----------------------------------------------------------------------------


def _metric(run: _Run, experiment: Experiment) -> Check:
    metric, end = experiment.target.metric, run.finished
    names = {name for report in run.reports for name in report.metrics}
    if metric not in names:
        if end is not None:
            raise UserError(unreported(run.reports, metric, end.returned))
        if not names:
            raise UserError(f"the trainer never reported any metric, so not {metric!r}")
        raise UserError(unknown("target metric", metric, names))
    last = end.report if end is not None else None
    found = [r for r in run.reports if metric in r.metrics]
    at = ["its end" if r is last else f"{r.step} samples" for r in found]
    values = [f"{r.metrics[metric]:.4g} at {where}" for r, where in zip(found, at, strict=True)]
    return Check("metric", True, f"{metric} {', '.join(values)}")


def _pace(run: _Run) -> Iterator[Check]:
    """Seconds of the set-up, and of each milestone."""
    setup = f"{run.setup_seconds:.2f} s"
    if not run.setup_seconds:
        setup = "none: what the trainer does before its first report counts as training"
    yield Check("set-up", True if run.setup_seconds else None, setup)
    for before, report in zip([None, *run.reports], run.reports, strict=False):
        trained = report.clock.seconds("train") - (before.clock.seconds("train") if before else 0)
        evaluated = report.clock.eval - (before.clock.eval if before else 0)
        says = f"{trained:.2f} s of training, {evaluated:.2f} s of evaluation"
        yield Check(f"step {report.step}", None, says)


def _state(pool: ThisProcess, launch: Launch, first: _Run, folder: Path) -> Check:
    """Whether a trial that starts again from its first state comes to the same second one."""
    name = "state"
    if not first.saved:
        lost = "the milestones have no state: a trial whose worker dies starts again from scratch"
        return Check(name, None, lost)
    if len(first.saved) < _MILESTONES:
        return Check(name, None, f"the trainer came to its end at step {first.reports[-1].step}")
    start, end = first.saved
    again = _trained(
        pool, replace(launch, checkpoint=start, base=start.clock), folder, _MILESTONES - 1
    )
    if not again.saved or again.saved[-1].step != end.step:
        at = again.reports[-1].step if again.reports else "none"
        return Check(name, False, f"from step {start.step} it came to {at} and not {end.step}")
    different = differences(_read(end), _read(again.saved[-1]))
    if not different:
        return Check(name, True, f"restored bit for bit: at step {end.step} as without a restart")
    more = f" and {len(different) - _SHOWN} more" if len(different) > _SHOWN else ""
    on_gpu = bool(pool.scaling.gpus)  # where sums may come out in another order each time
    says = (
        f"not the same at step {end.step} after a restart from {start.step}: "
        f"{', '.join(different[:_SHOWN])}{more}"
    )
    advice = "a restart must bring back all: optimizer, random generators, the place in the data"
    return Check(name, None if on_gpu else False, f"{says} ({advice})")


def _read(saved: Checkpoint) -> Any:
    from autotune.backends.worker.checkpoint_io import load

    return load(saved.path, 0, "")


def _memory() -> Check:
    """The most memory that this process has had, on the host and on its GPUs."""
    unit = 1 if sys.platform == "darwin" else 2**10  # of what the system calls ru_maxrss
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    says = f"{used / 2**20:.0f} MiB at most"
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        free, total = torch.cuda.mem_get_info()
        most = torch.cuda.max_memory_reserved()
        says += f"; {most / 2**20:.0f} MiB of the GPU's {total / 2**20:.0f} (free {free >> 20})"
    return Check("memory", None, says)


# --- a study of it --------------------------------------------------------------------------------


def _study(experiment: Experiment, run: _Run, trials: int) -> Iterator[Check]:
    """What a study takes at most, and what of this machine it uses."""
    here = machine.resources()
    scaling, _ = resolve_scaling(experiment.scaling, [here])
    try:
        most, _ = fit(scaling, [here])
    except UserError as error:
        says = str(error).replace("the cluster has 1 node", "this machine has")
        yield Check("machine", None, f"{says}: on a cluster (--ray-address)")
        return
    at_once = min(most, scaling.max_concurrent_trials or most, trials)
    if scaling.num_workers > 1:
        yield Check("ranks", None, f"one was tried, and a trial has {scaling.num_workers}")
    yield Check("study", None, _duration(experiment, run, trials, at_once))
    workers = at_once * scaling.num_workers
    for name, each in (("CPU", scaling.cpus), ("GPU", scaling.gpus)):
        there, used = here[name], min(workers * each, here[name])
        if there:
            idle = f", {there - used:g} idle" if used < there else ""
            what = "cores" if name == "CPU" else "GPUs"
            says = (
                f"{used:g} of {there:g} used by {at_once} trial{'s' * (at_once > 1)} at once{idle}"
            )
            yield Check(what, None, says)


def _duration(experiment: Experiment, run: _Run, trials: int, at_once: int) -> str:
    """How long a study takes at most, from the pace of two milestones."""
    last, target = run.reports[-1], experiment.target
    trained = last.clock.seconds("train")
    share = last.clock.eval / trained if trained else 0.0
    seconds, steps = target.limit, target.limit_steps
    if steps is not None and last.step:  # the limit in samples, at the pace of these
        seconds = min(seconds or math.inf, trained * steps / last.step)
    if run.finished is not None:
        seconds = min(seconds or math.inf, trained)
    if not seconds or not math.isfinite(seconds):
        return f"{trials} trials, {at_once} at once; how long is not known without a limit"
    evaluated = 0.0 if target.clock == "wall" else share * seconds
    one = seconds + evaluated + run.setup_seconds
    rounds = math.ceil(trials / at_once)
    return (
        f"{trials} trials, {at_once} at once: {_time(rounds * one)} at most, {_time(one)} each; "
        "pruning ends most of them sooner"
    )


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
