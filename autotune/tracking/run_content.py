"""The content of a trial's run in a tracking store: names, values and texts from the trial.

These functions use no store and no clock: the same trial gives the same content, so that a store
can be written again at any time.
"""

from __future__ import annotations

import itertools
import json
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.errors import UserError
from autotune.schedules import Constant
from autotune.storage import manifest
from autotune.storage.codec import encode
from autotune.storage.manifest import EXPERIMENT_JSON
from autotune.trial import Config, Report, State, Target, Trial
from autotune.trial.plain_text import plain_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STUDY = -1  # stands for the study's own run where a trial's number stands for the trial's
INTERRUPTED = "interrupted"
KNOBS = ("lr", "batch_size", "momentum", "image_size", "sequence_length")
_LONGEST_KEY, _LONGEST_TEXT = 250, 5000  # MLflow takes 250 and 6000


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

    `mirrored`: the store also keeps a copy of the study folder.
    """

    name: str
    study_id: str
    target: Target
    others: Mapping[str, str]
    mirrored: bool = False


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
        return StudyInfo(str(name), str(study_id), target, others, mirrored)
    except (ValueError, TypeError, KeyError) as error:
        raise UserError(f"{folder / EXPERIMENT_JSON} cannot be read: {error!r:.200}") from None


def reported(config: Config, report: Report, last: Report | None) -> dict[str, float]:
    """The values of a report; knobs that the trainer does not report are taken from constants."""
    values = {k: v for k in KNOBS if (v := _constant(config.get(k))) is not None}
    train = _train_seconds(report)
    if last is not None and train > _train_seconds(last):
        seconds = train - _train_seconds(last)
        values["samples_per_second"] = (report.step - last.step) / seconds
    return {**values, **report.metrics, "train_seconds": train}


def outcome(trial: Trial, target: Target) -> dict[str, float]:
    """The values that a trial has once, at its end. A resumable trial is not censored yet."""
    clock = trial.clock
    values = {f"clock_{f.name}_seconds": float(getattr(clock, f.name)) for f in fields(clock)}
    best = target.best(trial)
    if best is not None:
        values[f"best_{target.metric}"] = best
    if trial.state is State.REACHED:
        values["time_to_target_seconds"] = trial.seconds
    elif trial.state is State.CENSORED and not trial.resumable:
        values["censored_at_seconds"] = trial.seconds
    if trial.cpu_share is not None:
        values["cpu_share"] = trial.cpu_share
    return values


def is_comparable(trial: Trial, baseline: Trial) -> bool:
    """Whether a searched trial reached the target on hardware equal to the baseline's."""
    reached = trial.state is State.REACHED and trial.seconds > 0 and trial.repeats is None
    return reached and trial.hardware == baseline.hardware


def status(trial: Trial) -> str:
    """MLflow's status of the trial's run."""
    if trial.ended and trial.resumable:
        return "KILLED"
    return {State.RUNNING: "RUNNING", State.FAILED: "FAILED"}.get(trial.state, "FINISHED")


def tags(trial: Trial) -> dict[str, str]:
    """The tags of the trial's run."""
    special = {}
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


def params(trial: Trial, shown: Callable[[str], str]) -> dict[str, str]:
    """The flattened configuration under the names that are `shown`, schedules as readable text."""
    return {shown(k): text(v) for k, v in [("seed", trial.seed), *_flat(trial.config)]}


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


def clean(name: str) -> str:
    """`name` as MLflow takes it for a metric, param or tag.

    >>> clean("val/top@5"), clean("/a//b/../c"), clean("")
    ('val/top_5', 'a/b/__/c', '_')
    """
    allowed = re.sub(r"[^\w\-. :/]", "_", name).replace("..", "__")
    path = posixpath.normpath(allowed.strip("/. ") or "_")
    return path[:_LONGEST_KEY].rstrip("/. ")


class ShownNames:
    """Names as MLflow takes them; names that differ stay different, in the order of their coming.

    >>> shown = ShownNames()
    >>> shown("a@b"), shown("a#b"), shown("a@b")
    ('a_b', 'a_b_2', 'a_b')
    """

    def __init__(self) -> None:
        self._shown: dict[str, str] = {}
        self._taken: set[str] = set()

    def __call__(self, name: str) -> str:
        if name not in self._shown:
            first = clean(name)
            others = (f"{first[: _LONGEST_KEY - 9]}_{n}" for n in itertools.count(2))
            chosen = next(n for n in itertools.chain([first], others) if n not in self._taken)
            self._shown[name] = chosen
            self._taken.add(chosen)
        return self._shown[name]


def text(value: Any) -> str:
    """`value` as text that is short and plain enough for a param or a tag."""
    nested = isinstance(value, list | tuple | dict)
    whole = plain_text(json.dumps(encode(value)) if nested else str(value))
    return whole if len(whole) <= _LONGEST_TEXT else whole[: _LONGEST_TEXT - 3] + "..."


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
