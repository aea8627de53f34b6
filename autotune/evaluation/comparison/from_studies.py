"""Candidates from study folders: confirmed configurations, single trials, exported replays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.algorithms.ranking.hardware import scores
from autotune.algorithms.ranking.repeats import unconfirmed, winner
from autotune.errors import UserError, unknown
from autotune.evaluation.comparison.model import CONFIRMED, TUNING, Aim, Candidate, Run, Terms
from autotune.storage.journal import JOURNAL
from autotune.storage.manifest import EXPERIMENT_JSON
from autotune.study import result
from autotune.study.manifest import Manifest
from autotune.trial import INTERRUPTED_REASONS, Hardware, State, Target, Trial

_REPEATS = ("confirm", "race")  # kinds of trials that run another one's configuration again


@dataclass(frozen=True)
class Study:
    """A study folder as it was read. `label` is what its candidates are called, `source` where."""

    label: str
    source: str
    target: Target
    trials: tuple[Trial, ...]
    gpus_per_worker: float

    @property
    def searched(self) -> list[Trial]:
        """The trials of the search, without repeats."""
        return [t for t in self.trials if t.kind not in _REPEATS]

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
    try:
        gpus = float((manifest.scaling or {}).get("gpus_per_worker") or 0)
    except (TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{folder / EXPERIMENT_JSON} is damaged: {error}") from None
    if not (folder / JOURNAL).is_file():
        raise UserError(f"{source} has no trial yet: it has no {JOURNAL}")
    found = result.read(folder, manifest.target, {manifest.target.metric})
    if not found.trials:
        raise UserError(f"{source} has no trial yet")
    return Study(label or folder.resolve().name, source, manifest.target, found.trials, gpus)


def candidates(study: Study) -> list[Candidate]:
    """The study's confirmed configurations, or else its best trial's one run.

    A replay is one confirmed configuration. Where nothing reached the target the best trial is
    the one that came nearest.

    Raises:
        UserError: no trial of the study has run.
    """
    confirmed = _confirmed(study)
    if confirmed:
        return [_candidate(study, number, runs) for number, runs in confirmed.items()]
    best = best_trial(study)
    if best is None:
        raise UserError(f"{study.source} has no trial that says how long it takes")
    return [_candidate(study, best.number, [best])]


def of_trial(study: Study, number: int) -> Candidate:
    """Trial `number`'s configuration: its confirmations if there are any, else its one run."""
    trial = study.trial(number)
    again = _confirmed(study).get(number)
    return _candidate(study, number, again or [trial])


def baseline(study: Study) -> Candidate | None:
    """The study's own baseline, confirmed or from its one run; None if it has none."""
    own = next((t for t in study.searched if t.kind == "baseline"), None)
    return of_trial(study, own.number) if own is not None else None


def best_trial(study: Study) -> Trial | None:
    """The fastest trial of the search, or the one that came nearest to the target."""
    fastest = winner(unconfirmed(study.trials), study.target)
    if fastest is not None:
        return fastest
    stands = scores(study.searched, study.target)
    known = [(s, t.number, t) for t in study.searched if (s := stands[t.number]) is not None]
    return min(known, key=lambda entry: entry[:2])[2] if known else None


def _confirmed(study: Study) -> dict[int | None, list[Trial]]:
    """Confirmations by the trial that they repeat; None is what a replay repeats."""
    groups: dict[int | None, list[Trial]] = {}
    for trial in study.trials:
        if (
            trial.kind == "confirm" and trial.reason not in INTERRUPTED_REASONS
        ):  # those are made up for
            groups.setdefault(getattr(trial, "repeats", None), []).append(trial)
    return groups


def _candidate(study: Study, number: int | None, trials: Sequence[Trial]) -> Candidate:
    """A configuration with the runs that count, all on the hardware that most of them had."""
    hardware = _usual(trials)
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
        _terms(hardware, study),
        trial=number,
        baseline=own is not None and own.kind == "baseline",
        tuning_seconds=own.time_to_target if own is not None else None,
        search_seconds=_searching(study) if searched else None,
        search_trials=len(searched) or None,
        config={k: result.shown(v) for k, v in trials[0].config.items()},
        left_out=tuple(left_out),
    )


def _searching(study: Study) -> float:
    """Worker-group seconds that the search has spent, races included."""
    return sum(t.spent_seconds for t in unconfirmed(study.trials))


def _usual(trials: Sequence[Trial]) -> Hardware | None:
    ran = Counter(t.hardware for t in trials if t.attempts)
    return max(ran, key=lambda hardware: ran[hardware], default=None)


def _excluded(trial: Trial, hardware: Hardware | None) -> str:
    """Why a trial says nothing of its configuration's time; empty if it does."""
    if trial.state in (State.FAILED, State.INFEASIBLE):
        return f"is left out, as it is {trial.state}: {' '.join(trial.reason.split()):.80}"
    if trial.state is State.RUNNING:
        return "is left out, as it is still running"
    if not trial.reports or trial.seconds <= 0:
        return f"is left out, as it was not timed ({trial.reason or 'no report'})"
    if trial.hardware != hardware:
        return f"is left out, as it ran on {trial.hardware} and the others on {hardware}"
    return ""


def _run(study: Study, trial: Trial) -> Run:
    """The trial as a run; one that diverged is known not to arrive within the limit."""
    metric, last = study.target.metric, trial.reports[-1]
    lost = trial.state is State.CENSORED and trial.reason == "diverged"
    seconds = max(trial.seconds, study.target.limit) if lost else trial.seconds
    ranks = trial.hardware.num_workers
    gpus = ranks * study.gpus_per_worker
    return Run(
        f"{study.source}#{trial.number}",
        seconds,
        trial.state is State.REACHED,
        seed=trial.seed,
        samples=float(last.step),
        samples_per_second=last.step / last.seconds if last.seconds > 0 and last.step else None,
        worker_seconds=seconds * ranks,
        gpu_seconds=seconds * gpus if gpus else None,
        spent_seconds=trial.spent_seconds,
        trial=trial.number,
        reason=trial.reason,
        curve=tuple(
            (float(r.step), r.seconds, float(r.metrics[metric]))
            for r in trial.reports
            if metric in r.metrics
        ),
    )


def _terms(hardware: Hardware | None, study: Study) -> Terms:
    target = study.target
    aim = Aim(target.metric, target.value, target.mode, target.confirm)
    if hardware is None:
        return Terms(clock=target.clock, target=aim)
    if hardware.mixed:
        return Terms(_mixture(study), hardware.num_workers, None, target.clock, aim)
    return Terms(hardware.model, hardware.num_workers, hardware.shared, target.clock, aim)


def _mixture(study: Study) -> str:
    """All that was taken to be alike in the study: another one's need not be like it."""
    models = {t.hardware.model for t in study.trials if t.attempts and t.hardware.mixed}
    return f"{' or '.join(sorted(models))}, taken to be alike"
