"""What one study hands to the next: the policy that its trials teach its sampler or controller.

The controller's is read from `controller.json`. The sampler's is made anew from the earlier study's
journal, so any study can be the source, whatever its sampler. `policy.json`, which a study with
sampler `policy` leaves in its folder, is the same for people and for folders without a journal. A
study that begins with a policy writes it into its own record: resumed, it needs the earlier study
no more.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.algorithms.samplers.distribution import document, from_document
from autotune.algorithms.samplers.elite import learned
from autotune.algorithms.samplers.policy import PolicySampler
from autotune.errors import StudyError, UserError
from autotune.storage import checkpoint_files
from autotune.storage.journal import RECORD
from autotune.study import manifest, result
from autotune.trial import Trial

if TYPE_CHECKING:
    from autotune.algorithms.controllers.weights_file import Saved

POLICY = "policy.json"
_SAMPLER, _CONTROLLER = "start", "start_controller"  # what a record calls them


@dataclass(frozen=True)
class Start:
    """What a study begins with; None where it takes none, or begins afresh.

    Documents, because they are what a resumed study reads: the same to the last bit.
    """

    sampler: dict[str, Any] | None = None
    controller: Saved | None = None
    takes: tuple[str, ...] = ()  # what a record is to say of, None included


def found(source: Path, folder: Path, sampler: bool = True, controller: bool = False) -> Start:
    """What the study in `source` has for that in `folder`, whose parts may take it.

    Where both parts take it, either may find nothing there, and begins afresh.

    Raises:
        UserError: no such study, one without an ended trial, or one whose files are damaged.
    """
    from autotune.algorithms.controllers import weights_file  # here, as controllers need numpy

    takes = (_SAMPLER,) * sampler + (_CONTROLLER,) * controller
    if (folder / RECORD).is_file():
        held, where = manifest.load(folder), folder / RECORD
        if held.get("start_from") == str(source.absolute()) and all(t in held for t in takes):
            mine, theirs = (held[t] if t in takes else None for t in (_SAMPLER, _CONTROLLER))
            return Start(
                _checked(mine, where) if mine is not None else None,
                weights_file.checked(theirs, where) if theirs is not None else None,
                takes,
            )
    if folder.absolute() == (source.parent if source.is_file() else source).absolute():
        raise UserError(f"start_from (--from) {str(source)!r} is the study's own folder")
    learned_there = controller and (not sampler or weights_file.is_in(source))
    weights = weights_file.read(source) if learned_there else None
    try:
        return Start(_of_sampler(source) if sampler else None, weights, takes)
    except UserError:
        if weights is None:
            raise
        return Start(None, weights, takes)


def _of_sampler(source: Path) -> dict[str, Any]:
    """The policy that the trials of the study in `source` teach, as a document."""
    if (source / RECORD).is_file():
        space, target = manifest.space_of(source), manifest.target(source)
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


def facts(source: str | Path | None, start: Start) -> dict[str, Any]:
    """What a study's record says of where it began; nothing, where it began by itself."""
    if source is None:
        return {}
    from autotune.algorithms.controllers import weights_file

    weights = weights_file.document(start.controller) if start.controller is not None else None
    told = {_SAMPLER: start.sampler, _CONTROLLER: weights}
    return {"start_from": str(Path(source).absolute()), **{t: told[t] for t in start.takes}}


def keep(folder: Path, sampler: Any, trials: Sequence[Trial]) -> None:
    """Write what the sampler has learned into the study's folder, if it is a policy."""
    if not isinstance(sampler, PolicySampler):
        return
    told = {"sampler": sampler.name, "trials": len(trials), **document(sampler.policy(trials))}
    try:
        with checkpoint_files.writing(str(folder), POLICY) as file:
            file.write((json.dumps(told, indent=2) + "\n").encode())
    except OSError as error:
        raise StudyError(f"cannot write {folder / POLICY}: {error.strerror}") from None
