"""`--register NAME`: a study's best trial as a version of a registered model of MLflow's.

A trainer whose model can be registered says how it is built: `train.model(config, states)` returns
a `torch.nn.Module` with the weights of `states`, the checkpoints of all ranks, and an example of
its input, at least two items. What is registered loads without the trainer's code.

`python -m autotune.evaluation.register DIR NAME` is the process that does it: MLflow is slow to
import and wants its own environment. MLFLOW_TRACKING_URI says where the store is; the last line of
stderr says what went wrong.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.errors import StudyError, UserError
from autotune.evaluation import summary
from autotune.evaluation.export import export
from autotune.evaluation.export.checkpoint import rank_files
from autotune.study import recipes, result
from autotune.study.experiment import Experiment
from autotune.study.manifest import Manifest
from autotune.study.result import StudyResult
from autotune.tracking import mirror
from autotune.tracking.uris import redact
from autotune.trial import Target, Trial, wording
from autotune.trial.trainer import said

FILES = ("config.json", "schedules.json", "schedules.png", "trial.json")
BEST_MODEL = "best_model.pt"
_BAD_NAME = "/:%\"'"  # MLflow's own addresses are made of them, or it takes none of them
_LONGEST = 200
_FINALISTS = 3  # that `autotune run --repeats` and `autotune confirm` run again


def prepared(experiment: Experiment, name: str | None, uri: str | None) -> Experiment:
    """The experiment, changed so that its best trial can be registered as `name`; None: unchanged.

    Checkpoints of the fastest trials are kept: these are confirmed, and one of them will be the
    best.

    Raises:
        UserError: the name is not valid, tracking is off, or the trainer cannot build its model.
    """
    if name is None:
        return experiment
    check(name, uri)
    hook(experiment)
    failure = experiment.failure
    kept = max(failure.keep_checkpoints, _FINALISTS)
    return replace(experiment, failure=replace(failure, keep_checkpoints=kept))


def check(name: str, uri: str | None) -> None:
    """Check that a registered model can have the name, and that tracking is on.

    Raises:
        UserError: one of these.
    """
    if (
        not name.strip()
        or not name.isprintable()
        or set(name) & {*_BAD_NAME}
        or len(name) > _LONGEST
    ):
        without = " ".join(_BAD_NAME)
        raise UserError(
            f"--register must be a model's name of up to {_LONGEST} characters without {without} "
            f"but got {name!r:.80}"
        )
    if uri == "off":
        raise UserError("--register needs MLflow, but --tracking-uri is off")


def refuse_replay(folder: Path, name: str | None) -> None:
    """Check that the model of a replay is not to be registered.

    Raises:
        UserError: it is.
    """
    if name is not None:
        raise UserError(f"--register: {folder} is a replay; register the study that it replays")


def hook(experiment: Experiment) -> Callable[..., Any]:
    """The trainer's `model`, which builds what is registered.

    Raises:
        UserError: it has none.
    """
    found = said(experiment.train, "model")
    if callable(found):
        return found  # type: ignore[no-any-return]
    name = getattr(experiment.train, "__qualname__", repr(experiment.train))
    raise UserError(
        f"--register needs the trainer to say how its model is built, but {name} has no "
        f"{name}.model = function(config, states) -> (module, example input)"
    )


def register(folder: Path, name: str, uri: str | None) -> dict[str, Any]:
    """Register the best trial of the study in `folder`: the model's name, version and address.

    Raises:
        UserError: nothing can be registered, or not now; in one line.
    """
    command = [sys.executable, "-m", "autotune.evaluation.register", str(folder.absolute()), name]
    done = subprocess.run(  # noqa: S603 (a list of words and no shell)
        command,
        env=mirror.environment(uri or mirror.default_uri(folder)),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"code {done.returncode}"])[-1]
        raise UserError(redact(last, uri or ""))
    printed: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return printed


def registered(folder: Path, name: str, uri: str) -> dict[str, Any]:
    """`register` in this process.

    Raises:
        UserError: as there.
        Exception: what the trainer's `model`, torch and MLflow raise.
    """
    from autotune.tracking import model_registry

    manifest = Manifest.read(folder)
    study, recipe = result.read(folder, manifest.target), manifest.options.recipe or ""
    if not recipe.rpartition(":")[0]:
        raise UserError(f"{folder} was not started from a recipe: its trainer is not known")
    trial = _best(study)
    experiment = recipes.load_again(manifest.options)
    config, ranks = {**trial.config, "seed": trial.seed}, states(folder, trial)
    model, example = hook(experiment)(config, ranks)
    found = summary.summary(study, manifest.name)
    with tempfile.TemporaryDirectory() as place:
        export.export(study, trial, Path(place) / "trial")
        files = [file for n in FILES if (file := Path(place, "trial", n)).is_file()]
        files += _saved(experiment, config, ranks, Path(place))
        entry = model_registry.ModelToRegister(
            *(manifest.study_id, trial.number, model, example, files),
            *(tags(manifest, trial, found), _text(trial, found)),
        )
        number, new = model_registry.register(uri, name, entry)
    return {"name": name, "version": number, "new": new, "trial": trial.number,
            "uri": f"models:/{name}/{number}"}  # fmt: skip


def _saved(
    experiment: Experiment, config: Mapping[str, Any], ranks: Sequence[Any], place: Path
) -> list[Path]:
    """The file of the model that the trainer makes (`best_model`), if it does."""
    made = said(experiment.train, "saved", lambda config, states: None)(config, ranks)
    if made is None:
        return []
    import torch

    torch.save(made, place / BEST_MODEL)
    return [place / BEST_MODEL]


def _best(study: StudyResult) -> Trial:
    if study.best is None:
        none = f"no trial has {wording.reached(study.target)}"
        raise UserError(f"{none}, so there is no model to register")
    return study.best


def states(folder: Path, trial: Trial) -> list[dict[str, Any]]:
    """Every rank's state when the trial had its result, read with `weights_only=True`.

    Each rank's state has the whole of a tensor that was sharded over the ranks.

    Raises:
        UserError: it was not kept.
        DamagedError, OSError: it cannot be read, or is not what was written.
    """
    from autotune.backends.worker import checkpoint_io

    manifest = Manifest.read(folder)
    target, files = manifest.target, rank_files(manifest, folder, trial)
    checkpoint = target.checkpoint(trial)
    if checkpoint is None or files.fault:
        raise UserError(
            f"the checkpoint of the best trial, {trial.number}, was not kept ({files.fault}): run "
            "with --register, or with FailurePolicy(keep_checkpoints=k) for the k fastest"
        )
    step = _step(trial, target)
    if checkpoint.step != step:
        best = f"its {wording.metric_name(target)} was"
        what = "the target was reached" if target.timed else best
        raise UserError(
            f"the checkpoint of the best trial, {trial.number}, is of step {checkpoint.step}, "
            f"and {what} at step {step}"
        )
    sums = checkpoint.sums or ("",) * trial.hardware.num_workers
    return checkpoint_io.all_ranks(files.place, sums)


def _step(trial: Trial, target: Target) -> int:
    """The step of the report that is the trial's result."""
    counted = None if target.timed else target.counted(trial)
    return (counted or trial.reports[-1]).step


def tags(manifest: Manifest, trial: Trial, found: Mapping[str, Any]) -> dict[str, str]:
    """The tags of the model version, from the manifest and the summary `found`."""
    target, best = manifest.target, found["best"]
    known = {
        "study": manifest.name,
        "study_id": manifest.study_id,
        "trial": trial.number,
        "step": _step(trial, target),
        "target": wording.aim(target),
        f"best_{target.metric}": best[f"best_{target.metric}"],
        "time_to_target_seconds": best["time_to_target_seconds"],
        "speedup_vs_baseline": found["speedup_vs_baseline"],
        "hardware": trial.hardware,
        "git_commit": manifest.git_commit,
    }
    if best["confirmed"]:
        mean = "mean_seconds" if target.timed else "mean_metric"
        known[f"confirmed_{mean}"] = best["confirmed"][mean]
        known["confirmed_runs"] = best["confirmed"]["runs"]
        known["confirmed_reached"] = best["confirmed"]["reached"]
        known["confirmed_speedup_vs_baseline"] = found["confirmed_speedup_vs_baseline"]
        low, high = found["confirmed_speedup_interval"] or (None, None)
        known |= {"confirmed_speedup_low": low, "confirmed_speedup_high": high}
        known["confirmed_gain_vs_baseline"] = found.get("confirmed_gain_vs_baseline")
    return {f"autotune.{key}": str(v) for key, v in known.items() if v is not None}


def _text(trial: Trial, found: Mapping[str, Any]) -> str:
    target = Target(**found["target"])
    result = wording.shown(target, target.result(trial))
    came = f"{wording.aim(target)}{' in' if target.timed else ':'} {result}"
    text = f"Trial {trial.number} of the study {found['study']}: {came} when it was tuned"
    if found["best"]["confirmed"]:
        text += f", {summary.confirmed_text(found['best']['confirmed'])}"
    return f"{text}. Its schedules are in extra_files/schedules.json."


def main(arguments: Sequence[str]) -> int:
    """Register the best trial of the study `arguments[0]` as the model `arguments[1]`."""
    uri = os.environ["MLFLOW_TRACKING_URI"]
    kept, sys.stdout = sys.stdout, sys.stderr  # other code prints, too
    try:
        version = registered(Path(arguments[0]), arguments[1], uri)
    except (UserError, StudyError) as error:
        print(error, file=sys.stderr)
        return 2
    except Exception as error:  # whatever the trainer, torch, MLflow or the disk raise
        line = " ".join(f"{type(error).__name__}: {error}".split())
        print(redact(line, uri)[:400], file=sys.stderr)
        return 1
    finally:
        sys.stdout = kept
    print(json.dumps(version))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
