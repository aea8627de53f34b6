"""The commands that run a study: `run`, `resume`, `confirm` and `replay`.

Each makes of its flags, and of what the study folder holds, what `autotune.run` is to be told.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from autotune.cli.arguments import duration
from autotune.cli.console import (
    DONE,
    INTERRUPTED,
    UNREACHED,
    complete,
    finish,
    going_on,
    only_json,
    result_in,
    say,
    say_left,
    without_password,
)
from autotune.errors import StudyError, UserError


def run(options: argparse.Namespace) -> int:
    from autotune.evaluation import register
    from autotune.study import recipes

    experiment = recipes.load(options.recipe)
    out = options.out if options.out is not None else Path("studies") / experiment.name
    options.tracking_uri = without_password(options.tracking_uri)
    experiment = register.prepared(experiment, options.register, options.tracking_uri)
    if options.mirror:
        _go_on(experiment.name, out, options.tracking_uri)
    settings = {
        "trials": options.trials,
        "sampler": options.sampler,
        "pruner": options.pruner,
        "controller": options.controller,
        "seed": options.seed,
        "start_from": options.start_from,
        "recipe": recipes.absolute(options.recipe),
        "repeats": options.repeats,
        "racing": options.racing,
        "mirror": options.mirror,
        "mix_hardware": options.mix_hardware,
    }
    return _study(experiment, out, options, settings)


def resume(options: argparse.Namespace) -> int:
    from autotune.evaluation import register
    from autotune.evaluation.export import replay
    from autotune.study import manifest, recipes

    if options.from_mlflow is not None:
        _fetch(options)
    held = manifest.load(options.folder)
    _check_recipe(options.folder, held)
    if options.trials is not None and options.trials < held["trials"]:
        least, got = held["trials"], options.trials
        raise UserError(f"--trials is a total and must be at least {least} but got {got}")
    _as_held(options, held)
    exported = replay.source(held)
    if exported is not None:
        register.refuse_replay(options.folder, options.register)
        return _replay(
            replay.read(exported), options.folder, options.trials or held["trials"], options
        )
    settings = {**_settings(held), "trials": options.trials or held["trials"]}
    result = result_in(options.folder)
    ended = complete(result, settings)
    if ended and not options.register:
        return _shown(options, result)
    experiment = recipes.load(settings["recipe"])
    experiment = register.prepared(experiment, options.register, options.tracking_uri)
    if ended:
        return _shown(options, result)
    return _study(experiment, options.folder, options, settings)


def confirm(options: argparse.Namespace) -> int:
    from autotune.evaluation.export import replay
    from autotune.study import manifest, recipes

    held, result = manifest.load(options.folder), result_in(options.folder)
    _check_recipe(options.folder, held)
    if replay.source(held) is not None:
        more = f"autotune resume {options.folder} --trials N"
        raise UserError(f"{options.folder} is a replay, all of it repeats: for more, {more}")
    if options.repeats < 1:
        raise UserError(f"--repeats must be a whole number >= 1 but got {options.repeats}")
    if result.best is None:
        return finish(result, options)
    _as_held(options, held)
    asked = {"repeats": options.repeats, "top": options.top, "search": False}
    settings = {**_settings(held), **asked}
    if complete(result, settings):
        return _shown(options, result)
    return _study(recipes.load(settings["recipe"]), options.folder, options, settings)


def replay(options: argparse.Namespace) -> int:
    from autotune.evaluation.export import replay

    exported = replay.read(options.export)
    default = Path("studies") / f"{exported.study}-replay-{exported.trial.number}"
    return _replay(exported, options.out or default, options.repeats, options)


# --- the folder and what it holds -----------------------------------------------------------------


def _fetch(options: argparse.Namespace) -> None:
    """Make the study folder of the copy that MLflow keeps of the study DIR."""
    from autotune.tracking import mirror
    from autotune.tracking.uris import check_keeps

    study, options.tracking_uri = str(options.folder), without_password(options.from_mlflow)
    check_keeps(options.tracking_uri)
    options.folder = options.out or Path("studies") / study
    if options.folder.exists():
        raise UserError(f"{options.folder} exists: name a new folder with --out")
    if fault := mirror.fetch(options.tracking_uri, study, options.folder):
        raise UserError(fault)


def _go_on(study: str, out: Path, uri: str | None) -> None:
    """Take up the study that MLflow keeps, where the folder has none yet."""
    from autotune.tracking import mirror
    from autotune.tracking.uris import check_keeps

    check_keeps(uri)
    if uri is not None and not (out / "journal.jsonl").exists():
        mirror.fetch(uri, study, out)


def _check_recipe(folder: Path, held: dict[str, Any]) -> None:
    if not held.get("recipe"):
        raise UserError(
            f"{folder} was started from Python: call autotune.run again with out={str(folder)!r}"
        )


def _as_held(options: argparse.Namespace, held: dict[str, Any]) -> None:
    """Take over what the study was begun with, where the command does not say."""
    options.tracking_uri = options.tracking_uri or held.get("tracking_uri")
    if getattr(options, "from_mlflow", None) is None:  # another machine has another cluster
        options.ray_address = options.ray_address or held.get("ray_address")
    options.tracking_uri = without_password(options.tracking_uri)


def _settings(held: dict[str, Any]) -> dict[str, Any]:
    """What `autotune.run` was told of the study; older records lack some of it."""
    from autotune.study import recipes

    later = {"repeats": 0, "top": 3, "racing": 0.0, "controller": None, "start_from": None}
    names = ("trials", "sampler", "pruner", "seed")
    told = {n: held[n] for n in names} | {n: held.get(n, other) for n, other in later.items()}
    place = {"recipe": recipes.moved(held["recipe"]), "mirror": held.get("mirrored", False)}
    place |= {"mix_hardware": held.get("mix_hardware", False)}
    return told | place


# --- running --------------------------------------------------------------------------------------


def _shown(options: argparse.Namespace, result: Any) -> int:
    """Bring MLflow up to date and print the result of a study with nothing left to do."""
    from autotune.tracking import mirror
    from autotune.tracking.uris import keeps

    if mirror.is_mirrored(options.folder) and keeps(options.tracking_uri):
        mirror.refuse_stale(str(options.tracking_uri), options.folder)
    if options.tracking_uri != "off":
        mirror.catch_up(options.folder, options.tracking_uri, 60.0)
    return finish(result, options)


def _study(
    experiment: Any, out: Path, options: argparse.Namespace, settings: dict[str, Any]
) -> int:
    return finish(_run(experiment, out, options, settings), options)


def _replay(exported: Any, out: Path, repeats: int, options: argparse.Namespace) -> int:
    """Measure an exported trial anew in the study folder `out`, and print what came of it."""
    from autotune.evaluation.export import replay, replay_report

    settings = replay.settings(exported, repeats)
    result = _run(replay.experiment(exported), out, options, settings)
    told = replay_report.document(exported, result)
    if options.json:
        print(json.dumps(told, allow_nan=False))
    else:
        replay_report.print_document(told, sys.stdout)
    say_left(result, settings, options)
    if result.ended == "interrupted":
        return INTERRUPTED
    return DONE if told["reached"] else UNREACHED


def _run(experiment: Any, out: Path, options: argparse.Namespace, settings: dict[str, Any]) -> Any:
    """The result of the study, whose progress is shown while it runs."""
    from autotune.cli import progress
    from autotune.study.run import run

    options.tracking_uri = without_password(options.tracking_uri)
    limit = duration(options.time_limit) if options.time_limit is not None else None
    with only_json(options.json), progress.progress(experiment, settings["trials"]) as shown:
        try:
            return run(
                experiment,
                **settings,
                time_limit=limit,
                out=out,
                tracking_uri=options.tracking_uri,
                ray_address=options.ray_address,
                watch=shown,
            )
        except (StudyError, KeyboardInterrupt):
            if (out / "journal.jsonl").is_file():
                say(going_on(out, options))
            raise
