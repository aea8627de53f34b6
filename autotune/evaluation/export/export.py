"""Export: a trial as a folder of its own, with what is needed to train it again.

An export has JSON, a picture, the trial's checkpoint (tensors, read with `weights_only=True`) and
a script; nothing in it is pickled code. `replay.py` reads it back and measures it anew. It
names the trainer that it runs, so replay only an export whose maker you trust.
"""

from __future__ import annotations

import contextlib
import json
import re
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
from autotune.storage import atomic
from autotune.storage.codec import encode
from autotune.study.driver.microbatch import MICROBATCH
from autotune.study.manifest import Manifest
from autotune.study.result import StudyResult
from autotune.tracking.run_content import document, schedules_of
from autotune.trial import Report, Target, Trial
from autotune.trial.plan_text import plan_text
from autotune.trial.wording import aim, amount, metric_name, quantity

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
    (part / "README.md").write_text(_readme(content, schedules))
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


_README = """\
# Trial {number} of the study {study}

{state} ({reason}): {came}; seed {seed}.{plan}

| file | content |
|---|---|
| `config.json` | the configuration; a schedule is an object with `"schedule"` |
| `schedules.json` | the schedules alone, by name |
| `trial.json` | trainer, target, scaling, seed, versions, every report and change of the trial |
| `train.py` | trains the configuration, without Ray, Optuna or MLflow |
{more}{path}
Train it, and measure it anew on as many fresh seeds as you like:

```
{command}
autotune replay . --repeats 3
```
"""
_PATH = """
A controller turned knobs of this trial at the steps in `turned` of `trial.json`. Its path is in the
schedules here, so that training needs no controller; `turned_from` is what they were before.
"""
_PLAIN = """
A schedule in a loop of your own, where progress runs from 0 to 1 over your training:

```python
import json
from autotune.schedules import from_json

{variable} = from_json(json.load(open("schedules.json"))["{name}"])
{use}
```
"""
_USE_LR = """\
scheduler = lr.to_torch(optimizer, total_steps)  # then scheduler.step() after optimizer.step()
# or by hand, before each step:
for group in optimizer.param_groups:
    group["lr"] = lr(step / total_steps)"""
_USE_OTHER = "value = {variable}(step / total_steps)  # before each step"


def _readme(content: Mapping[str, Any], schedules: Mapping[str, Any]) -> str:
    target, ranks = Target(**content["target"]), content["scaling"]["num_workers"]
    more = "| `schedules.png` | their picture |\n" if schedules else ""
    if not content["checkpoint_fault"]:
        before = "" if not content["turned"] else ", under the schedules of `turned_from`"
        step = content["checkpoint_step"]
        more += (
            f"| `checkpoint/rank-N.pt` | rank N's state at step {step}{before}: "
            "`torch.load(path, weights_only=True)` |\n"
        )
    text = _README.format(
        number=content["number"],
        study=content["study"],
        state=content["state"],
        reason=content["reason"],
        came=_came(content, target),
        seed=content["seed"],
        plan=f" Plan: {content['plan']}." if content["plan"] else "",
        more=more,
        path=_PATH if content["turned"] else "",
        command="python train.py" if ranks == 1 else f"torchrun --nproc-per-node {ranks} train.py",
    )
    if content["checkpoint_fault"]:
        text += f"\nThere is no checkpoint: {content['checkpoint_fault']}.\n"
    text += _descended(content["lineage"], content["lineage_fault"])
    if not schedules:
        return text
    return text + _plain_use(schedules)


def _came(content: Mapping[str, Any], target: Target) -> str:
    """What the trial came to, in words."""
    seconds = amount(target, content["seconds"])
    if target.timed:
        return f"{aim(target)} {'in' if content['state'] == 'REACHED' else 'not within'} {seconds}"
    reports = [Report(r["step"], r["seconds"], r["metrics"]) for r in content["reports"]]
    best = target.best(Trial(0, {}, reports=tuple(reports)))
    return f"{metric_name(target)} {quantity(best, '')} in {seconds}"


def _descended(lineage: list[dict[str, Any]], fault: str) -> str:
    """A fork's line of descent in words; empty for a trial from scratch."""
    if not lineage:
        return ""
    steps = ", ".join(f"trial {part['trial']} from step {part['from_step']}" for part in lineage)
    if fault:
        return (
            f"\nThe trial is a fork ({steps}). What it descends from cannot be written as one "
            f"configuration: {fault}. `config.json` is its own, from its fork on; `lineage` in "
            "`trial.json` has all of them.\n"
        )
    return (
        f"\nThe trial is a fork ({steps}). `config.json` is the whole line of descent, in "
        "which what changed at a fork is a schedule: trained from scratch, it repeats the line.\n"
    )


def _plain_use(schedules: Mapping[str, Any]) -> str:
    """How to use the learning rate's schedule, or the first one if that has none."""
    knobs = {name: re.sub(r"\W", "_", name.rpartition(".")[2]) for name in schedules}
    name = next((name for name, knob in knobs.items() if knob == "lr"), next(iter(knobs)))
    use = _USE_LR if knobs[name] == "lr" else _USE_OTHER.format(variable=knobs[name])
    return _PLAIN.format(name=name, variable=knobs[name], use=use)
