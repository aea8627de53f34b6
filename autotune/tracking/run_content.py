"""The content of a trial's run in a tracking store: names, values and texts from the trial.

These functions use no store and no clock: the same trial gives the same content, so that a store
can be written again at any time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.algorithms.plans.measured import measured
from autotune.algorithms.ranking.repeats import PROBE
from autotune.errors import UserError
from autotune.schedules import Constant
from autotune.storage import manifest
from autotune.storage.codec import encode
from autotune.storage.manifest import EXPERIMENT_JSON
from autotune.tracking.names import text
from autotune.trial import (
    SHOWN_KNOBS,
    STEPS,
    Config,
    Params,
    Report,
    State,
    Target,
    Trial,
    undisturbed,
)
from autotune.trial.plan_text import plan_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STUDY = -1  # stands for the study's own run where a trial's number stands for the trial's


@dataclass(frozen=True)
class MetricPoint:
    """A metric's value at a step (samples), at a time (milliseconds since 1970)."""

    key: str
    value: float
    step: int
    time_ms: int


@dataclass(frozen=True)
class StudyInfo:
    """The study's manifest as its run shows it; `others` are further scalars, as text.

    `mirrored`: the store also keeps a copy of the study folder. `user` is the folder's owner, and
    `source` the recipe, or the trainer of a study that was started from Python. `plan_keys` are
    the keys of the trainer's plans with their defaults.
    """

    name: str
    study_id: str
    target: Target
    others: Mapping[str, str]
    mirrored: bool = False
    user: str = ""
    source: str = ""
    plan_keys: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RunContent:
    """A run as the store should have it now, without its metric points."""

    name: str
    status: str
    tags: Mapping[str, str]
    params: Mapping[str, str]
    start_ms: int
    end_ms: int


def read_study_info(folder: Path) -> StudyInfo:
    """The `StudyInfo` of the study in `folder`.

    Raises:
        UserError: `experiment.json` is missing or has no name, study_id or target.
    """
    own = ("name", "study_id", "target", "mirrored")
    try:
        data = manifest.read(folder)
        target = Target(**data["target"])
        others = {
            k: text(v) for k, v in data.items() if k not in own and isinstance(v, str | int | float)
        }
        name, study_id, mirrored = data["name"], data["study_id"], data.get("mirrored") is True
        source = data.get("recipe") or data.get("train") or name
        user = _owner(folder / EXPERIMENT_JSON)
        keys = dict(data.get("plan_keys") or {})
        return StudyInfo(
            str(name), str(study_id), target, others, mirrored, user, text(source), keys
        )
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(f"{folder / EXPERIMENT_JSON} cannot be read: {error!r:.200}") from None


def _owner(path: Path) -> str:
    """The name of the user whose file it is; the user's number where it has no name."""
    try:
        return path.owner()
    except KeyError:
        return str(path.stat().st_uid)
    except (OSError, NotImplementedError):
        return ""


def reported(config: Config, report: Report, last: Report | None) -> dict[str, float]:
    """The values of a report; knobs that the trainer does not report are taken from constants."""
    values = {k: v for k in SHOWN_KNOBS if (v := _constant(config.get(k))) is not None}
    train = _train_seconds(report)
    if last is not None and train > _train_seconds(last):
        seconds = train - _train_seconds(last)
        values["samples_per_second"] = (report.step - last.step) / seconds
    return {**values, **report.metrics, "train_seconds": train}


def outcome(trial: Trial, target: Target) -> dict[str, float]:
    """The values that a trial has once, at its end. A resumable trial is not censored yet.

    A probe has no result, but its seconds per sample.
    """
    clock = trial.clock
    values = {f"clock/{f.name}": float(getattr(clock, f.name)) for f in fields(clock)}
    if trial.kind == PROBE:
        found = measured(trial)
        return values if found is None else {**values, "seconds_per_sample": found.seconds}
    best = target.best(trial)
    if best is not None:
        values[f"best_{target.metric}"] = best
    if trial.state is State.REACHED:
        values[time_key(target)] = trial.seconds
    elif trial.state is State.CENSORED and not trial.resumable:
        values[f"censored_at_{clock_unit(target)}"] = trial.seconds
    if trial.cpu_share is not None:
        values["cpu_share"] = trial.cpu_share
    return values


def clock_unit(target: Target) -> str:
    """What the target's clock counts, as the end of a name."""
    return STEPS if target.clock == STEPS else "seconds"


def time_key(target: Target) -> str:
    """The metric of a run that has its time to target."""
    return f"time_to_target_{clock_unit(target)}"


def confirmed_key(target: Target) -> str:
    """The metric of a trial's run with the mean result of its confirmations."""
    return f"confirmed_mean_{clock_unit(target) if target.timed else target.metric}"


def result_key(target: Target) -> str:
    """The metric of a run by which its trial is ranked."""
    return time_key(target) if target.timed else f"best_{target.metric}"


def is_comparable(trial: Trial, baseline: Trial) -> bool:
    """Whether a searched trial succeeded on hardware equal to the baseline's."""
    done = trial.succeeded and trial.seconds > 0 and trial.repeats is None
    return done and trial.hardware == baseline.hardware


def against_baseline(trial: Trial, baseline: Trial, target: Target) -> dict[str, float]:
    """How much better a comparable trial is: the ratio of the times, or the gain of the metric.

    The seconds in which a disturbed one waited do not count.
    """
    own, other = (target.result(undisturbed(run)) for run in (trial, baseline))
    if own is None or other is None:
        return {}
    if target.timed:
        return {"speedup_vs_baseline": other / own} if own > 0 else {}
    return {"gain_vs_baseline": other - own}


def status(trial: Trial) -> str:
    """MLflow's status of the trial's run."""
    if trial.ended and trial.resumable:
        return "KILLED"
    return {State.RUNNING: "RUNNING", State.FAILED: "FAILED"}.get(trial.state, "FINISHED")


def study_tags(study: StudyInfo) -> dict[str, str]:
    """The tags of all runs of a study: whose they are, and what started them."""
    source = {"mlflow.source.name": study.source, "mlflow.source.type": "LOCAL"}
    own = {"mlflow.user": study.user, **(source if study.source else {})}
    return {"autotune.study_id": study.study_id, **{k: v for k, v in own.items() if v}}


def tags(trial: Trial, plan_keys: Mapping[str, Any]) -> dict[str, str]:
    """The tags of the trial's run."""
    special = {}
    if plan_keys:
        special["autotune.plan"] = text(plan_text(trial.config, plan_keys))
    if trial.origin is not None:
        special["autotune.parent"] = str(trial.origin.parent)
        special["autotune.parent_step"] = str(trial.origin.checkpoint.step)
    if trial.repeats is not None:
        special["autotune.repeats"] = str(trial.repeats)
    if trial.microbatch is not None:
        special["autotune.microbatch"] = str(trial.microbatch)
    if trial.disturbed:
        special["autotune.disturbed"] = "true"
    return {
        **special,
        "autotune.kind": trial.kind,
        "autotune.trial": str(trial.number),
        "autotune.state": str(trial.state),
        "autotune.reason": text(trial.reason),
        "autotune.detail": text(trial.detail),
        "autotune.attempts": str(trial.attempts),
        "autotune.hardware": str(trial.hardware) if trial.attempts else "",
        "autotune.shared": str(trial.hardware.shared).lower(),
    }


def params(trial: Trial, shown: Callable[[str], str], point: Params | None) -> dict[str, str]:
    """The flattened configuration under the names that are `shown`, schedules as readable text.

    Beside it the searched `point`, whose numbers MLflow's plots can use.
    """
    pairs = [("seed", trial.seed), *_flat(trial.config), *(point or {}).items()]
    return dict(reversed([(shown(k), text(v)) for k, v in pairs]))  # the configuration's wins


def trial_files(trial: Trial) -> dict[str, str]:
    """The text artifacts of a trial that has ended."""
    files = {"config.json": document(trial.config)}
    if found := schedules_of(trial.config):
        files["schedules.json"] = document(found)
    if trial.error:
        files["error.txt"] = trial.error
    return files


def schedules_of(config: Config) -> dict[str, Any]:
    """The schedules in a configuration, by flat name."""
    return {k: v for k, v in _flat(config) if hasattr(v, "to_json") and callable(v)}


def document(value: Any) -> str:
    """`value` as a JSON file."""
    return json.dumps(encode(value), indent=2) + "\n"


def _train_seconds(report: Report) -> float:
    return report.clock.seconds("train") if report.clock.total else report.seconds


def _constant(value: Any) -> float | None:
    if isinstance(value, Constant):
        return value(0.0)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


CONTROLLER_FILE = "controller.json"


def draw_weights(document: Mapping[str, Any]) -> Figure:
    """A bar per feature and knob: its weight times the feature's usual size.

    Without trials, from which that size is taken, the weight alone.
    """
    from matplotlib.figure import Figure

    weights, influence = document["weights"], document.get("influence", {})
    names = list(document["features"])
    figure = Figure(figsize=(1 + 4 * len(weights), 4), layout="constrained")
    all_axes = figure.subplots(1, len(weights), squeeze=False, sharey=True)[0]
    for axes, (knob, row) in zip(all_axes, weights.items(), strict=True):
        sizes = influence.get(knob, {})
        values = sizes if any(sizes.values()) else row
        signs = {name: -1 if row.get(name, 0.0) < 0 else 1 for name in names}
        lengths = [signs[name] * abs(values.get(name, 0.0)) for name in names]
        axes.barh(names, lengths, color=["C3" if x < 0 else "C0" for x in lengths])
        axes.axvline(0.0, color="black", linewidth=0.5)
        axes.set_title(f"{knob}: weight" + (" x usual size of feature" if values is sizes else ""))
    all_axes[0].invert_yaxis()
    return figure
