"""What one study hands to the next: the policy that its trials teach.

The policy is made anew from the earlier study's journal, so any study can be the source, whatever
its sampler. `policy.json`, which a study with sampler `policy` leaves in its folder, is the same
for people and for folders without a journal. A study that begins with a policy writes it into its
own record: resumed, it needs the earlier study no more.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autotune import record, result
from autotune.errors import StudyError, UserError
from autotune.samplers.actor import document, from_document
from autotune.samplers.policy import PolicySampler, learned
from autotune.trackers.journal import RECORD
from autotune.trial import Trial

POLICY = "policy.json"


def found(source: Path, folder: Path) -> dict[str, Any]:
    """The policy of the study in `source`, for the study in `folder`, as a document.

    A document, because it is what a resumed study reads: the same to the last bit.

    Raises:
        UserError: no such study, one without an ended trial, or one whose files are damaged.
    """
    if (folder / RECORD).is_file():
        held = record.load(folder)
        if held.get("start") and held.get("start_from") == str(source.absolute()):
            return _checked(held["start"], folder / RECORD)
    if source.absolute() == folder.absolute():
        raise UserError(f"start_from (--from) {str(source)!r} is the study's own folder")
    if (source / RECORD).is_file():
        space, target = record.space_of(source), record.target(source)
        policy = learned(space, target, result.read(source, target).trials)
        if policy is None:
            raise UserError(f"start_from (--from) {str(source)!r}: no trial of it has ended")
        return document(policy)
    if (source / POLICY).is_file():
        try:
            held = json.loads((source / POLICY).read_text())
        except (OSError, ValueError) as error:
            raise UserError(f"{source / POLICY} cannot be read: {error}") from None
        return _checked(held, source / POLICY)
    what = "has neither a study nor a policy.json" if source.is_dir() else "is no folder"
    raise UserError(f"start_from (--from) {str(source)!r} {what}")


def _checked(held: Any, where: Path) -> dict[str, Any]:
    try:
        from_document(held)
    except ValueError as error:
        raise UserError(f"{where}: {error}") from None
    checked: dict[str, Any] = held
    return checked


def facts(source: str | Path | None, start: dict[str, Any] | None) -> dict[str, Any]:
    """What a study's record says of where it began; nothing, where it began by itself."""
    if source is None or start is None:
        return {}
    return {"start_from": str(Path(source).absolute()), "start": start}


def keep(folder: Path, sampler: Any, trials: Sequence[Trial]) -> None:
    """Write what the sampler has learned into the study's folder, if it is a policy."""
    if not isinstance(sampler, PolicySampler):
        return
    part = folder / f"{POLICY}.part"
    told = {"sampler": sampler.name, "trials": len(trials), **document(sampler.policy(trials))}
    try:
        part.write_text(json.dumps(told, indent=2) + "\n")
        part.replace(folder / POLICY)
    except OSError as error:
        raise StudyError(f"cannot write {folder / POLICY}: {error.strerror}") from None
