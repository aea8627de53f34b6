"""The files that are shown of a trial, and of the whole study."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from autotune.schedules.plot import draw
from autotune.tracking.projection import Projection
from autotune.tracking.run_content import CONTROLLER_FILE, draw_weights, schedules_of, trial_files
from autotune.trial import Trial

Say = Callable[[str], None]


def write_trial(trial: Trial, to: Path, say: Say) -> None:
    """Write the files of a trial that has ended into the folder `to`."""
    for name, content in trial_files(trial).items():
        (to / name).write_text(content, "utf-8")
    _draw(trial, to / "schedules.png", say)


def write_study(
    folder: Path, names: Sequence[str], projection: Projection, to: Path, say: Say
) -> None:
    """Write these files of the study folder, and those about its best trial, into `to`.

    Raises:
        OSError: one of the names cannot be read.
    """
    for name in names:
        (to / name).write_bytes((folder / name).read_bytes())
    (to / "best.json").write_text(projection.best_json())
    if (best := projection.best()) is not None:
        _draw(best, to / "best_schedules.png", say)
    _add_policy(folder, to, say)


def _add_policy(folder: Path, to: Path, say: Say) -> None:
    """Add the file of the controller's policy and a figure of its weights."""
    try:
        policy = (folder / CONTROLLER_FILE).read_text()
        (to / CONTROLLER_FILE).write_text(policy)
        draw_weights(json.loads(policy)).savefig(to / "controller.png", dpi=80)
    except FileNotFoundError:
        return
    except Exception as error:
        say(f"the controller's weights cannot be shown: {error!r:.300}")


def _draw(trial: Trial, file: Path, say: Say) -> None:
    """Write a figure of the trial's schedules, if it has any."""
    if found := schedules_of(trial.config):
        try:
            draw(found).savefig(file, dpi=80)
        except Exception as error:  # without a figure the rest is still written
            say(f"trial {trial.number}: schedules cannot be drawn: {error!r:.300}")
