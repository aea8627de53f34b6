"""The commands that run a study: `run`, `resume`, `confirm` and `replay`.

Each makes the options of the study of its arguments and of the manifest in the study folder, which
it reads once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.cli.arguments import PLACE
from autotune.cli.checks import checked
from autotune.cli.console import (
    BROKEN,
    DONE,
    INTERRUPTED,
    UNREACHED,
    Output,
    finish,
    going_on,
    only_json,
    plain_out,
    say,
    say_left,
    study_in,
    without_password,
)
from autotune.cli.given import (
    ConfirmArguments,
    ReplayArguments,
    ResumeArguments,
    RunArguments,
)
from autotune.errors import StudyError, UserError
from autotune.storage.journal import JOURNAL
from autotune.study.options import StudyOptions

if TYPE_CHECKING:
    from autotune.evaluation.export.replay import Exported
    from autotune.study.experiment import Experiment
    from autotune.study.manifest import Manifest
    from autotune.study.result import StudyResult


def run(given: RunArguments) -> int:
    from autotune.evaluation import register
    from autotune.study import recipes

    options = checked(given.options, given.register)  # before the recipe, which may import torch
    uri = options.tracking_uri
    made = recipes.loaded(given.recipe, options.recipe_arguments)
    experiment = register.prepared(made.experiment, given.register, uri)
    folder = options.folder(experiment.name)
    if options.mirror:
        _fetch_if_new(experiment.name, folder, uri)
    options = replace(options, out=folder)
    options = replace(options, recipe=made.recipe, recipe_arguments=made.arguments)
    return _study(experiment, options, Output(given.json, given.register, uri))


def resume(given: ResumeArguments) -> int:
    from autotune.algorithms.ranking.repeats import all_failed
    from autotune.evaluation import register
    from autotune.evaluation.export import replay
    from autotune.study import earlier, recipes
    from autotune.study.completed import complete
    from autotune.study.manifest import Manifest
    from autotune.study.result import read

    folder, changes = given.folder, given.options
    if given.from_mlflow is not None:
        folder, changes = _fetched(given)
    elif "out" in changes:
        raise UserError(f"--out is for --from-mlflow: without it the study goes on in {folder}")
    manifest = Manifest.read(folder)
    exported = replay.source(manifest)
    _check_total(folder, manifest, changes.get("trials"), of_replay=exported is not None)
    options = _continued(manifest, folder, changes)
    output = Output(given.json, given.register, options.tracking_uri)
    if exported is not None:
        register.refuse_replay(folder, given.register)
        return _replay(replay.read(exported), options.trials, options, output, manifest)
    result = read(folder, manifest.target)
    # A mended trainer begins one anew of which every trial failed.
    ended = complete(result, options) and not all_failed(result.trials)
    if not ended or given.register:
        _check_recipe(folder, manifest, earlier.go_on(manifest, folder, options.trials))
        options = checked(options, given.register)
        experiment = recipes.load_again(options)
        experiment = register.prepared(experiment, given.register, options.tracking_uri)
    if ended:
        done = len(result.searched)
        say(f"{folder}: {done} of {done} trials were done")
        return _shown(result, manifest, output)
    return _study(experiment, options, output, manifest)


def confirm(given: ConfirmArguments) -> int:
    from autotune.evaluation.export import replay
    from autotune.study import earlier, recipes
    from autotune.study.completed import complete

    folder, repeats = given.folder, given.options["repeats"]
    manifest, result = study_in(folder)
    if replay.source(manifest) is not None:
        more = f"autotune resume {folder} --trials N"
        raise UserError(f"{folder} is a replay, all of it repeats: for more, {more}")
    if repeats < 1:
        raise UserError(f"--repeats must be a whole number >= 1 but got {repeats}")
    if result.best is None:
        return finish(result, manifest, Output(given.json, only_confirmed=True))
    options = replace(_continued(manifest, folder, given.options), search=False)
    output = Output(given.json, only_confirmed=True, tracking_uri=options.tracking_uri)
    if complete(result, options):
        return _shown(result, manifest, output)
    again = earlier.go_on(manifest, folder, options.trials)
    confirmed = f"confirm(repeats={repeats}, top={options.top})"
    _check_recipe(folder, manifest, f"{again}; what it returns has {confirmed}")
    options = checked(options)
    return _study(recipes.load_again(options), options, output, manifest)


def replay(given: ReplayArguments) -> int:
    from autotune.evaluation.export import replay

    exported = replay.read(given.export)
    default = Path("studies") / f"{exported.study}-replay-{exported.trial.number}"
    repeats = given.options["repeats"]
    place = {name: value for name, value in given.options.items() if name != "repeats"}
    options = StudyOptions(**{"out": default, **place})
    return _replay(exported, repeats, options, Output(given.json))


# --- the folder and its manifest ------------------------------------------------------------------


def _fetched(given: ResumeArguments) -> tuple[Path, Mapping[str, Any]]:
    """Make the study folder of the copy that MLflow keeps; it, and what changes in the options.

    The Ray cluster changes, too: another machine has another one.
    """
    from autotune.tracking import mirror
    from autotune.tracking.uris import check_server

    study, uri = str(given.folder), without_password(given.from_mlflow)
    check_server(uri)
    folder = Path(given.options.get("out") or Path("studies") / study)
    if folder.exists():
        raise UserError(f"{folder} exists: name a new folder with --out")
    if fault := mirror.fetch(str(uri), study, folder):
        raise UserError(fault)
    return folder, {"ray_address": None, **given.options, "tracking_uri": uri}


def _fetch_if_new(study: str, folder: Path, uri: str | None) -> None:
    """Fetch the study that MLflow keeps, where the folder has none yet."""
    from autotune.tracking import mirror

    if uri is not None and not (folder / JOURNAL).exists():
        mirror.fetch(uri, study, folder)


def _check_total(folder: Path, manifest: Manifest, trials: int | None, *, of_replay: bool) -> None:
    """Refuse fewer trials in all than a study has, or than a replay was to have."""
    from autotune.study import continuing

    planned = manifest.options.trials
    if trials is not None and not of_replay:
        continuing.check_total(folder, planned, trials)
    elif trials is not None and trials < planned:
        raise UserError(f"--trials is a total and must be at least {planned} but got {trials}")


def _check_recipe(folder: Path, manifest: Manifest, python: str) -> None:
    """Refuse a study whose trainer only a script has; `python` says how that goes on with it."""
    if not manifest.options.recipe:
        raise UserError(f"{folder} was started from Python, which has its trainer: {python}")


def _continued(manifest: Manifest, folder: Path, changes: Mapping[str, Any]) -> StudyOptions:
    """The options in the study's manifest, with the changes that a command was given."""
    from autotune.study import recipes
    from autotune.study.place import as_named

    if changes.get("ray_address") is not None:
        changes = {"backend": "ray", **changes}
    elif changes.get("backend") == "local":
        changes = {"ray_address": None, **changes}
    named = as_named(str(manifest.options.backend), manifest.backend_chosen_because)
    options = replace(manifest.options, **{"backend": named, **changes, "out": folder})
    recipe = recipes.moved(options.recipe) if options.recipe else None
    return replace(options, tracking_uri=without_password(options.tracking_uri), recipe=recipe)


# --- running --------------------------------------------------------------------------------------


def _shown(result: StudyResult, manifest: Manifest, output: Output) -> int:
    """Bring MLflow up to date and print the result of a study with nothing left to do."""
    from autotune.tracking import mirror
    from autotune.tracking.uris import is_server

    folder, uri = result.folder, output.tracking_uri
    if manifest.options.mirror and is_server(uri):
        mirror.refuse_stale(str(uri), folder)
    if uri != "off":
        mirror.catch_up(folder, uri, 60.0)
    return finish(result, manifest, output)


def _study(
    experiment: Experiment,
    options: StudyOptions,
    output: Output,
    manifest: Manifest | None = None,
) -> int:
    result, manifest = _run(experiment, options, output, manifest)
    code = finish(result, manifest, output)
    if code in (DONE, BROKEN):  # or no model could be registered
        _write_best_model(experiment, result)
    return code


def _write_best_model(experiment: Experiment, result: StudyResult) -> None:
    """Write the best model, if the trainer makes a file of it; the study is done in any case."""
    from autotune.evaluation import best_model

    try:
        if path := best_model.write(experiment, result):
            say(f"wrote the best model to {path}")
    except UserError as error:
        say(f"autotune: no best_model.pt is written: {error}")


def _replay(
    exported: Exported,
    repeats: int,
    options: StudyOptions,
    output: Output,
    manifest: Manifest | None = None,
) -> int:
    """Measure an exported trial anew, where `options` say, and print the outcome."""
    from autotune.evaluation.export import replay, replay_report

    where = {name: getattr(options, name) for name in ("out", *PLACE)}
    options = replace(replay.options(exported, repeats), **where)
    result, manifest = _run(replay.experiment(exported), options, output, manifest)
    document = replay_report.document(exported, result, manifest)
    if output.json:
        print(json.dumps(document, allow_nan=False))
    else:
        replay_report.print_document(document, plain_out())
    say_left(result, options, output)
    if result.ended == "interrupted":
        return INTERRUPTED
    return DONE if document["reached"] else UNREACHED


def _run(
    experiment: Experiment, options: StudyOptions, output: Output, manifest: Manifest | None
) -> tuple[StudyResult, Manifest]:
    """Run the study; its result and manifest."""
    from autotune.study.run import carry_out

    options = replace(options, tracking_uri=without_password(options.tracking_uri))
    folder = options.folder(experiment.name)
    with only_json(output.json):
        try:
            return carry_out(experiment, options, manifest)
        except (StudyError, KeyboardInterrupt):
            if (folder / JOURNAL).is_file():
                say(going_on(folder, output))
            raise
