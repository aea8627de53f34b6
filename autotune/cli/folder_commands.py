"""The commands on a study folder that run nothing: `status`, `best`, `export`.

Each reads manifest and journal once.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from autotune.cli import text
from autotune.cli.console import DONE, UNREACHED, not_reached, say, study_in, tell
from autotune.errors import UserError
from autotune.evaluation import summary as documents

if TYPE_CHECKING:
    from autotune.study.manifest import Manifest
    from autotune.study.result import StudyResult
    from autotune.trial import Trial


def status(folder: Path, as_json: bool) -> int:
    """Print how the study stands."""
    from autotune.algorithms.beginnings import missing
    from autotune.evaluation import experience
    from autotune.storage import driver_lock
    from autotune.storage.journal import JOURNAL
    from autotune.study.experience import keeping

    manifest, result = study_in(folder)
    summarized = keeping.file_of(manifest)
    shares = manifest.options.shared_beginnings == "auto"
    summary = {
        **documents.summary(result, manifest.name),
        "trials_planned": manifest.options.trials,
        "sampler": manifest.options.sampler,
        "sampler_chosen_because": manifest.sampler_chosen_because,
        "experience": experience.now(manifest, result),
        "experience_summary": str(summarized) if summarized is not None else None,
        "confirmations": documents.confirmations(result, manifest.options),
        "no_shared_beginnings": missing(result.searched) if shares else "",
        "driver_alive": driver_lock.is_held(folder / JOURNAL),
    }
    tell(summary, as_json, text.print_status)
    return DONE


def best(folder: Path, as_json: bool) -> int:
    """Print the best trial's configuration; as JSON, null where there is none."""
    _, result = study_in(folder)
    if result.best is None:
        tell(None, as_json, lambda document, out: None)
        say(not_reached(result, " yet"))
        return UNREACHED
    tell(documents.best(result), as_json, text.print_best)
    return DONE


def export(folder: Path, to: Path | None, number: int | None, optuna: str | None) -> int:
    """Write a trial of the study to `to`, the study into the Optuna storage `optuna`, or both.

    Raises:
        UserError: neither is asked for, or cannot be written.
    """
    from autotune.evaluation.export import export as exports

    if to is None and optuna is None:
        raise UserError("export needs --to OUT for a trial, or --optuna URL for the whole study")
    if number is not None and to is None:
        raise UserError("--trial is the trial to export --to OUT; --optuna takes them all")
    manifest, result = study_in(folder)
    trial = exports.choose(result, number)  # before anything is written
    if optuna is not None:
        _export_study(manifest, result, optuna)
    if to is None:
        return DONE
    if trial is None:
        say(f"{not_reached(result)}; name a trial with --trial N")
        return UNREACHED
    _export_trial(manifest, result, trial, to)
    return DONE


def _export_trial(manifest: Manifest, result: StudyResult, trial: Trial, to: Path) -> None:
    from autotune.evaluation.export import export as exports

    content = exports.export(result, trial, to, manifest)
    say(f"wrote trial {trial.number} to {to}")
    if content["checkpoint_fault"]:
        say(f"it has no checkpoint: {content['checkpoint_fault']}")
    if content["lineage_fault"]:
        say(f"it is a fork, and a replay trains its last part only: {content['lineage_fault']}")
    if content["train"] is None and not content["recipe"]:
        say('its trainer has no name to be found by: set "train" in its trial.json')


def _export_study(manifest: Manifest, result: StudyResult, url: str) -> None:
    from autotune.evaluation.export import optuna_study

    name, space = manifest.name, manifest.search_space(result.folder)
    count = optuna_study.export(result.trials, space, result.target, url, name)
    say(f"wrote {count} trials as the Optuna study {name!r}")
