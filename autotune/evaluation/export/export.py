"""Export: a trial as a folder of its own, with what is needed to train it again.

An export has JSON, a picture, the trial's checkpoint (tensors, read with `weights_only=True`) and
a script; nothing in it is pickled code. `replay.py` reads it back and measures it anew. It
names the trainer that it runs, so replay only an export whose maker you trust.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import replace
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from autotune.algorithms.ranking.lineage import Segment, as_one, descent
from autotune.backends.recipe_modules import is_recipe_file
from autotune.errors import UserError
from autotune.evaluation.export.checkpoint import RankFiles, rank_files
from autotune.evaluation.export.open_loop import open_loop
from autotune.evaluation.export.readme import readme
from autotune.storage import atomic
from autotune.storage.codec import encode
from autotune.study.driver.microbatch import MICROBATCH
from autotune.study.manifest import Manifest
from autotune.study.result import StudyResult
from autotune.tracking.run_content import document, schedules_of
from autotune.trial import Trial
from autotune.trial.plan_text import plan_text

TRIAL = "trial.json"
FORMAT = 1  # of its content; goes up when an older reader would misread it
_FIELDS = (  # of a trial, written unchanged
    *("number", "kind", "seed", "state", "reason", "detail", "error", "seconds"),
    *("hardware", "clock", "attempts"),
)


def choose(result: StudyResult, number: int | None) -> Trial | None:
    """The trial to export: `number`, or the best, of which there may be none.

    Raises:
        UserError: the study has no trial of that number.
    """
    if number is None:
        return result.best
    found = next((t for t in result.trials if t.number == number), None)
    if found is None:
        numbers = f"from 0 to {len(result.trials) - 1}" if result.trials else "none yet"
        raise UserError(f"--trial {number}: the study's trials are {numbers}")
    return found


def export(
    result: StudyResult, trial: Trial, out: Path, manifest: Manifest | None = None
) -> dict[str, Any]:
    """Write `trial` of the study to the new folder `out`, completely or not at all.

    `manifest` is the study's, if the caller has read it.

    Returns:
        The content of `trial.json`.

    A fork is written as its whole line of descent: one configuration that trains it from scratch.

    Raises:
        UserError: `out` is not empty, or cannot be written.
    """
    out, folder = out.resolve(), result.folder
    manifest = manifest or Manifest.read(folder)
    checkpoint = rank_files(manifest, folder, trial)
    line: tuple[Segment, ...] = ()
    fault = ""
    if trial.is_fork:
        line, fault = _descent(result, trial)
        trial = trial if fault else replace(trial, config=as_one(line))
    if trial.microbatch is not None:  # the size at which it fitted into memory
        trial = replace(trial, config={**trial.config, MICROBATCH: trial.microbatch})
    content = document_of(manifest, trial)
    content["lineage"] = [
        {"trial": s.trial.number, "from_step": s.step, "config": encode(s.trial.config)}
        for s in line
    ]
    content |= {"lineage_fault": fault, "checkpoint_step": checkpoint.step}
    content["checkpoint_fault"] = checkpoint.fault
    try:
        if out.exists() and not (out.is_dir() and not any(out.iterdir())):
            raise UserError(f"{out} exists and is not an empty directory: choose another folder")
        with atomic.making(out, concurrent=True) as part:
            part.mkdir(parents=True)
            _write(part, content, trial, checkpoint)
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror or error}") from None
    return content


def _descent(result: StudyResult, trial: Trial) -> tuple[tuple[Segment, ...], str]:
    """The trial's line of descent, and why it cannot be written as one configuration, if so."""
    line = descent(trial, result.trials)
    try:
        as_one(line)
    except ValueError as error:
        return line, str(error)
    return line, ""


def _write(part: Path, content: Mapping[str, Any], trial: Trial, checkpoint: RankFiles) -> None:
    config = trial.config if content["turned"] is None else open_loop(trial)
    assert config is not None
    schedules = schedules_of(config)
    (part / "config.json").write_text(document(config))
    (part / "schedules.json").write_text(document(schedules))
    (part / TRIAL).write_text(json.dumps(content, indent=2, allow_nan=False) + "\n")
    shutil.copyfile(Path(__file__).with_name("train_template.py"), part / "train.py")
    (part / "README.md").write_text(readme(content, schedules))
    if schedules:
        from autotune.schedules.plot import draw

        draw(schedules).savefig(part / "schedules.png", dpi=80)
    checkpoint.copy(part / "checkpoint")


def document_of(manifest: Manifest, trial: Trial) -> dict[str, Any]:
    """What a replay needs of the trial and of its study's manifest, as JSON types."""
    train, folders, recipe, arguments = _trainer(manifest)
    return {
        "autotune_export": FORMAT,
        "study": manifest.name,
        "study_id": manifest.study_id,
        "recipe": recipe,
        "recipe_arguments": arguments,
        "train": train,
        "python_path": folders,
        "target": encode(manifest.target),
        "scaling": manifest.scaling,
        "plan": plan_text(trial.config, manifest.plan_keys),
        "failure": manifest.failure,
        **{name: encode(getattr(trial, name)) for name in _FIELDS},
        "reports": [
            {"step": r.step, "seconds": r.seconds, "metrics": encode(r.metrics)}
            for r in trial.reports
        ],
        **_changes(trial),
        "versions": manifest.versions,
        "git_commit": manifest.git_commit,
    }


def _changes(trial: Trial) -> dict[str, Any]:
    """`changes`, which a replay makes; `turned`, which are in the schedules already, or None.

    `turned_from` are the values that `turned` replaced; training from the checkpoint needs them.
    """
    made = [{"step": step, "change": encode(change)} for step, change in trial.changes]
    path = open_loop(trial)
    if path is None:
        return {"changes": made, "turned": None}
    before = {name: value for name, value in trial.config.items() if path[name] != value}
    return {"changes": [], "turned": made, "turned_from": encode(before)}


def _trainer(
    manifest: Manifest,
) -> tuple[str | None, list[str], str | None, Mapping[str, str] | None]:
    """The trainer, where imports are found, and the recipe with its arguments.

    The trainer is named as `module:function` or `/path/file.py:function`. None for one that has no
    such name (`autotune.script`, a function inside another one, a partial one): it is that of the
    recipe.
    """
    module, _, name = manifest.train.rpartition(".")
    recipe = manifest.options.recipe or ""
    if recipe.endswith(".json"):  # the study is itself a replay of an export
        with contextlib.suppress(OSError, ValueError, KeyError):
            exported = json.loads(Path(recipe).read_text())
            of = exported["recipe"], exported.get("recipe_arguments")
            return exported["train"], exported["python_path"], *of
    of = manifest.options.recipe, manifest.options.recipe_arguments
    if "<" in manifest.train or name == "?" or module.partition(".")[0] == "__main__":
        return None, _beside(recipe), *of
    place, beside = recipe.rpartition(":")[0], _beside(recipe)
    if is_recipe_file(ModuleType(module)):
        return f"{place}:{name}" if beside else None, beside, *of
    home = _home(module.partition(".")[0], [*beside, str(Path.cwd())])
    return f"{module}:{name}", home, *of


def _beside(recipe: str) -> list[str]:
    """The folder of a recipe's file, if it is one."""
    place = recipe.rpartition(":")[0]
    return [str(Path(place).parent)] if place.endswith(".py") else []


def _home(package: str, folders: list[str]) -> list[str]:
    """The folder that a package is imported from, unless Python has it on its path anyway."""
    spec = PathFinder.find_spec(package, [*folders, *sys.path])
    if spec is None:
        return folders[:-1]
    roots = list(spec.submodule_search_locations or [])
    home = Path(roots[0]).parent if roots else Path(spec.origin or ".").parent
    installed = {Path(path) for path in sysconfig.get_paths().values()}
    return [str(home.resolve())] if home not in installed else []
