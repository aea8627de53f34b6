"""Candidates from study folders: confirmed configurations, single trials, exported replays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from autotune.algorithms.ranking.repeats import missed, probes, timed, unconfirmed
from autotune.errors import UserError, unknown
from autotune.evaluation.comparison.model import (
    CONFIRMED,
    TUNING,
    Candidate,
    ComparedTarget,
    Conditions,
    Run,
)
from autotune.storage.journal import JOURNAL
from autotune.storage.manifest import EXPERIMENT_JSON
from autotune.study import result
from autotune.study.manifest import Manifest
from autotune.study.result import StudyResult
from autotune.study.rows import plain
from autotune.trial import (
    INTERRUPTED_REASONS,
    MISSED_REASONS,
    STEPS,
    Hardware,
    State,
    Target,
    Trial,
    usual_hardware,
)


@dataclass(frozen=True)
class Study:
    """A study's result as candidates are made of it.

    Args:
        label: the prefix of its candidates' names.
        source: where it comes from.
        result: its trials; their reports need only the target's metric and the clocks.
    """

    label: str
    source: str
    result: StudyResult
    gpus_per_worker: float

    @property
    def target(self) -> Target:
        return self.result.target

    @property
    def trials(self) -> tuple[Trial, ...]:
        return self.result.trials

    @property
    def searched(self) -> list[Trial]:
        """The trials of the search, without repeats and without the runs of a replay."""
        return [t for t in self.result.searched if t.kind != "confirm"]

    @cached_property
    def places(self) -> dict[int, int]:
        """The place of each searched trial in the study's ranking, from 1."""
        return {t.number: place for place, t in enumerate(self.result.ranked(), 1)}

    @cached_property
    def confirmations(self) -> dict[int | None, list[Trial]]:
        """Runs on fresh seeds by the trial that they repeat, the best first; None: of a replay."""
        groups: dict[int | None, list[Trial]] = {}
        for trial in self.trials:
            interrupted = trial.reason in INTERRUPTED_REASONS  # those are run again
            if trial.kind == "confirm" and not interrupted:
                groups.setdefault(trial.repeats, []).append(trial)
        first = len(self.places)
        order = sorted(groups, key=lambda n: first if n is None else self.places.get(n, first))
        return {number: groups[number] for number in order}

    def trial(self, number: int) -> Trial:
        """The trial with this number.

        Raises:
            UserError: there is none.
        """
        found = {t.number: t for t in self.trials}
        if number not in found:
            raise UserError(
                f"{self.source} has no trial {number}: its trials are {min(found)} to {max(found)}"
            )
        return found[number]


def read(folder: Path, label: str | None = None, source: str | None = None) -> Study:
    """The study in `folder`; of its reports only the target's metric, beside their clocks.

    Raises:
        UserError: there is no such folder, no study in it, or no trial in the study.
    """
    source = source or str(folder)
    if not folder.is_dir():
        near = [p.name for p in folder.parent.iterdir()] if folder.parent.is_dir() else []
        what = unknown("study folder", folder.name, near) if near else f"{folder} does not exist"
        raise UserError(f"{what} in {folder.parent}" if near else what)
    manifest = Manifest.read(folder)
    if not (folder / JOURNAL).is_file():
        raise UserError(f"{source} has no trial yet: it has no {JOURNAL}")
    found = result.read(folder, manifest.target, {manifest.target.metric})
    if not found.trials:
        raise UserError(f"{source} has no trial yet")
    study = of_result(found, manifest)
    return replace(study, label=label or study.label, source=source)


def of_result(found: StudyResult, manifest: Manifest | None) -> Study:
    """The study of a result that has been read already, with its manifest.

    Raises:
        UserError: the manifest is damaged.
    """
    scaling = manifest.scaling if manifest is not None else {}
    try:
        gpus = float((scaling or {}).get("gpus_per_worker") or 0)
    except (TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{found.folder / EXPERIMENT_JSON} is damaged: {error}") from None
    return Study(found.folder.resolve().name, str(found.folder), found, gpus)


def candidates(study: Study) -> list[Candidate]:
    """The study's confirmed configurations, the best first, or else its best trial's one run.

    A replay is one confirmed configuration. Where no trial reached the target, the first of the
    study's ranking is the one that came nearest.

    Raises:
        UserError: no trial of the study has run.
    """
    found = [_candidate(study, number, runs) for number, runs in study.confirmations.items()]
    counted = [candidate for candidate in found if candidate.runs]
    if counted:
        return counted
    best = nearest(study)
    if best is None:
        raise UserError(f"{study.source} has no trial with a time")
    return [_candidate(study, best.number, [best])]


def of_trial(study: Study, number: int) -> Candidate:
    """Trial `number`'s configuration: its confirmations if any of them counts, else its one run."""
    trial, again = study.trial(number), study.confirmations.get(number)
    confirmed = _candidate(study, number, again) if again else None
    return confirmed if confirmed and confirmed.runs else _candidate(study, number, [trial])


def baseline(study: Study) -> Candidate | None:
    """The study's own baseline, confirmed or from its one run; None if it has none."""
    own = next((t for t in study.searched if t.kind == "baseline"), None)
    return of_trial(study, own.number) if own is not None else None


def nearest(study: Study) -> Trial | None:
    """The study's best trial, or the one that came nearest to the target; None without times."""
    first = next(iter(study.result.ranked()), None)
    return first if first is not None and study.target.score(first) is not None else None


def _candidate(study: Study, number: int | None, trials: Sequence[Trial]) -> Candidate:
    """A configuration with the runs that count, all of them on the same hardware."""
    hardware = _hardware(study, trials)
    counted, left_out = [], []
    for trial in trials:
        why = _excluded(trial, hardware)
        if why:
            left_out.append(f"trial {trial.number} {why}")
        else:
            counted.append(_run(study, trial))
    searched = study.searched
    own = next((t for t in searched if t.number == number), None)
    confirmed = trials[0].kind == "confirm"
    return Candidate(
        study.label if number is None else f"{study.label}#{number}",
        study.source,
        CONFIRMED if confirmed else TUNING,
        tuple(counted),
        _conditions(hardware, study),
        trial=number,
        baseline=own is not None and own.kind == "baseline",
        place=study.places.get(number) if own is not None and number is not None else None,
        tuning_seconds=own.time_to_target if own is not None else None,
        search_seconds=_searching(study) if searched else None,
        search_trials=len(searched) or None,
        config={k: plain(v) for k, v in trials[0].config.items()},
        left_out=tuple(left_out),
    )


def _searching(study: Study) -> float:
    """Worker-group seconds that the search has spent, races included."""
    return sum(t.spent_seconds for t in (*unconfirmed(study.trials), *probes(study.trials)))


def _hardware(study: Study, trials: Sequence[Trial]) -> Hardware | None:
    """What most of all confirmations ran on, if one of these did; else what most of these ran on.

    The first is what the study's ranking takes confirmed times from.
    """
    everyone = [t for runs in study.confirmations.values() for t in runs if timed(t)]
    usual = usual_hardware(everyone)
    if trials[0].kind == "confirm" and any(t.hardware == usual and timed(t) for t in trials):
        return usual
    return usual_hardware(trials)


def _excluded(trial: Trial, hardware: Hardware | None) -> str:
    """Why a trial's time does not count for its configuration; empty if it does."""
    if missed(trial).state in (State.FAILED, State.INFEASIBLE):
        return f"is left out, as it is {trial.state}: {' '.join(trial.reason.split()):.80}"
    if trial.state is State.RUNNING:
        return "is left out, as it is still running"
    if not trial.reports or trial.seconds <= 0:
        return f"is left out, as it was not timed ({trial.reason or 'no report'})"
    if trial.hardware != hardware:
        return f"is left out, as it ran on {trial.hardware} and the others on {hardware}"
    return ""


def _run(study: Study, trial: Trial) -> Run:
    """The trial as a run; one that cannot reach the target any more exceeds the limit."""
    metric, last = study.target.metric, trial.reports[-1]
    late = trial.state is State.CENSORED and trial.reason in MISSED_REASONS
    late = late or missed(trial) is not trial
    seconds = study.target.horizon if late else trial.seconds
    ranks = trial.hardware.num_workers
    gpus = ranks * study.gpus_per_worker
    in_steps = study.target.clock == STEPS  # of which nothing is known to take a second
    rated = last.seconds > 0 and last.step and not in_steps
    return Run(
        f"{study.source}#{trial.number}",
        seconds,
        trial.state is State.REACHED,
        seed=trial.seed,
        samples=float(last.step),
        samples_per_second=last.step / last.seconds if rated else None,
        worker_seconds=seconds * ranks if not in_steps else None,
        gpu_seconds=seconds * gpus if gpus and not in_steps else None,
        spent_seconds=trial.spent_seconds,
        trial=trial.number,
        reason=trial.reason,
        curve=tuple(
            (float(r.step), r.seconds, float(r.metrics[metric]))
            for r in trial.reports
            if metric in r.metrics
        ),
    )


def _conditions(hardware: Hardware | None, study: Study) -> Conditions:
    of = study.target
    if of.value is None:
        raise UserError(f"{study.source}: its target has no value, and so there is no time to it")
    target = ComparedTarget(of.metric, of.value, str(of.mode), of.confirm)
    if hardware is None:
        return Conditions(clock=of.clock, target=target)
    if hardware.mixed:
        return Conditions(_mixture(study), hardware.num_workers, None, of.clock, target)
    return Conditions(hardware.model, hardware.num_workers, hardware.shared, of.clock, target)


def _mixture(study: Study) -> str:
    """The hardware that the study ranks together; another study's need not be comparable."""
    models = {t.hardware.model for t in study.trials if t.attempts and t.hardware.mixed}
    return f"{' or '.join(sorted(models))}, ranked together"
