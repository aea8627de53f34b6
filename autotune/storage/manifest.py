"""`experiment.json`, the manifest of a study folder, as JSON types: read, and written whole.

`autotune.study.manifest` makes a typed value of it; folders below `study/` read it here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune.errors import StudyError, UserError, shown
from autotune.storage import atomic
from autotune.storage.checkpoint_places import located_folder, stored_folder
from autotune.storage.codec import parsed
from autotune.trial.checks import LONGEST_SECONDS, is_finite

EXPERIMENT_JSON = "experiment.json"
EXPERIENCE = "experience.json.gz"  # what the sampler knew of other studies when this one began
STUDY_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,99}")  # it is the name of folders
_STUDY_ID = re.compile(r"[0-9a-f]{32}")


def exists(folder: Path) -> bool:
    """Whether the folder has a manifest, readable or not."""
    return (folder / EXPERIMENT_JSON).is_file()


def read(folder: Path) -> dict[str, Any]:
    """The manifest of a study folder.

    Raises:
        UserError: there is none, or it is damaged.
    """
    path = folder / EXPERIMENT_JSON
    try:
        data = parsed(path.read_bytes())
    except FileNotFoundError:
        raise UserError(f"{folder} is not a study folder: it has no {EXPERIMENT_JSON}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    if not isinstance(data, dict) or "study_id" not in data or "target" not in data:
        raise UserError(f"{path} is not a study's manifest")
    return data


def write(folder: Path, data: Mapping[str, Any]) -> None:
    """Write the manifest, whole or not at all, and flush it to the disk.

    Raises:
        StudyError: it cannot be written.
    """
    try:
        atomic.write(folder / EXPERIMENT_JSON, json.dumps(data, indent=2) + "\n", durable=True)
    except OSError as error:
        reason = error.strerror
        raise StudyError(f"cannot write {folder / EXPERIMENT_JSON}: {reason}") from None


def policy(failure: Any, folder: Path) -> Any:
    """The failure policy in the manifest of the study folder, wherever that is now.

    Earlier versions let a trial hang for longer.
    """
    if not isinstance(failure, dict):
        return failure
    made, place = dict(failure), failure.get("checkpoint_folder")
    if is_finite(made.get("hang_timeout")):
        made["hang_timeout"] = min(made["hang_timeout"], LONGEST_SECONDS)
    if isinstance(place, str) and place:
        made["checkpoint_folder"] = located_folder(place, folder)
    return made


def stored_policy(failure: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The failure policy as `policy` reads it: a folder below the study's is relative to it."""
    place = failure.get("checkpoint_folder")
    return {**failure, "checkpoint_folder": stored_folder(place, folder)} if place else {**failure}


def check_names(data: Mapping[str, Any]) -> None:
    """Check the study's name, if it has one, and its id: folders are called by them.

    Raises:
        ValueError: one is none that this program gives.
    """
    name, study_id = data.get("name"), data["study_id"]
    if name is not None and not STUDY_NAME.fullmatch(name):
        raise ValueError(f"name must be letters, digits, '-', '_' and '.', but got {shown(name)}")
    if not _STUDY_ID.fullmatch(study_id):
        raise ValueError(f"study_id must be 32 hexadecimal digits but got {shown(study_id)}")
