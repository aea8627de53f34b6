"""What one study hands to the next: the policy that its trials teach its sampler or controller.

The controller's is read from `controller.json`. The sampler's is computed from the earlier study's
journal, so any study can be the source, whatever its sampler. A study with sampler `policy:elite`
also writes the policy to `policy.json`, to be read by people, and for folders without a journal. A
study that starts from a policy writes it into its own manifest: a resume does not need the earlier
study.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.algorithms.names import ELITE
from autotune.algorithms.ranking.repeats import PROBE, searched
from autotune.algorithms.samplers.distribution import document, from_document
from autotune.algorithms.samplers.elite import learned_policy
from autotune.algorithms.samplers.elite_policy import PolicySampler
from autotune.algorithms.samplers.planned import PlannedSampler
from autotune.errors import StudyError, UserError
from autotune.storage import atomic
from autotune.storage import manifest as manifest_file
from autotune.storage.manifest import EXPERIMENT_JSON
from autotune.study import result
from autotune.study.experience.first import FirstPoints
from autotune.study.experience.starts import SAMPLER_POLICY_FILE
from autotune.study.manifest import START, START_CONTROLLER, Manifest
from autotune.trial import Trial

if TYPE_CHECKING:
    from autotune.algorithms.controllers.weights_file import SavedPolicy


@dataclass(frozen=True)
class Start:
    """What a study begins with; None where it takes none, or begins afresh.

    Documents, because they are what a resumed study reads: the same to the last bit.
    """

    sampler: dict[str, Any] | None = None
    controller: SavedPolicy | None = None
    takes: tuple[str, ...] = ()  # the manifest's keys of those that can take one, None included


def find(
    source: Path,
    folder: Path,
    existing: Manifest | None = None,
    *,
    sampler: bool = True,
    controller: bool = False,
) -> Start:
    """What the study in `source` has for that in `folder`, whose sampler or controller may take it.

    Where both take it, either may find nothing there, and begins afresh.

    Args:
        source: the folder of the earlier study, or of a `policy.json` alone.
        folder: the folder of the study that begins.
        existing: the manifest in that folder, where the study goes on.
        sampler: whether the sampler takes a policy.
        controller: whether the controller takes weights.

    Raises:
        UserError: no such study, one without an ended trial, or one whose files are damaged.
    """
    from autotune.algorithms.controllers import weights_file  # here, as controllers need numpy

    takes = (START,) * sampler + (START_CONTROLLER,) * controller
    if existing is not None and (start := _kept(existing, source, folder, takes)):
        return start
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


def shipped(controller: Any, folder: Path, existing: Manifest | None = None) -> Start:
    """The package's weights for a controller that takes them; a study goes on as it began.

    Raises:
        UserError: what its manifest has of them is damaged.
    """
    from autotune.algorithms.controllers import takes_shipped, weights_file

    if not takes_shipped(controller):
        return Start()
    if existing is None:
        return Start(None, weights_file.shipped(), (START_CONTROLLER,))
    weights = existing.start.get(START_CONTROLLER)
    if weights is None or existing.options.start_from:
        return Start()
    kept = weights_file.checked(weights, folder / EXPERIMENT_JSON)
    return Start(None, kept, (START_CONTROLLER,))


def _kept(manifest: Manifest, source: Path, folder: Path, takes: tuple[str, ...]) -> Start | None:
    """What the study in `folder` began with when it began from `source`; None if it did not."""
    from autotune.algorithms.controllers import weights_file

    same_source = manifest.options.start_from == str(source.absolute())
    if not same_source or not all(key in manifest.start for key in takes):
        return None
    where = folder / EXPERIMENT_JSON
    policy, weights = (
        manifest.start[key] if key in takes else None for key in (START, START_CONTROLLER)
    )
    return Start(
        _checked(policy, where) if policy is not None else None,
        weights_file.checked(weights, where) if weights is not None else None,
        takes,
    )


def _of_sampler(source: Path) -> dict[str, Any]:
    """The policy that the trials of the study in `source` teach, as a document."""
    if manifest_file.exists(source):
        manifest = Manifest.read(source)
        space, target = manifest.search_space(source), manifest.target
        trials = [t for t in result.read(source, target).trials if t.kind != PROBE]
        policy = learned_policy(space, target, trials)
        if policy is None:
            raise UserError(f"start_from (--from) {str(source)!r}: no trial of it has ended")
        return document(policy)
    if (source / SAMPLER_POLICY_FILE).is_file():
        try:
            policy_json = json.loads((source / SAMPLER_POLICY_FILE).read_text())
        except (OSError, ValueError) as error:
            raise UserError(f"{source / SAMPLER_POLICY_FILE} cannot be read: {error}") from None
        return _checked(policy_json, source / SAMPLER_POLICY_FILE)
    what = "has neither a study nor a policy.json" if source.is_dir() else "is no folder"
    raise UserError(f"start_from (--from) {str(source)!r} {what}")


def _checked(policy: Any, where: Path) -> dict[str, Any]:
    try:
        from_document(policy)
    except ValueError as error:
        raise UserError(f"{where}: {error}") from None
    checked: dict[str, Any] = policy
    return checked


def documents(start: Start) -> dict[str, Any]:
    """What a study's manifest says of its start, for a sampler or controller that can take one."""
    from autotune.algorithms.controllers import weights_file

    weights = weights_file.document(start.controller) if start.controller is not None else None
    made = {START: start.sampler, START_CONTROLLER: weights}
    return {key: made[key] for key in start.takes}


def keep(folder: Path, sampler: Any, trials: Sequence[Trial]) -> None:
    """Write what the sampler has learned into the study's folder, if it is a policy."""
    if isinstance(sampler, PlannedSampler):
        sampler, trials = sampler.then, sampler.seen(searched(trials))
    sampler = sampler.then if isinstance(sampler, FirstPoints) else sampler
    if not isinstance(sampler, PolicySampler):
        return
    parameters = document(sampler.policy(trials))
    policy = {"sampler": ELITE, "trials": len(trials), **parameters}
    try:
        atomic.write(
            folder / SAMPLER_POLICY_FILE, json.dumps(policy, indent=2) + "\n", durable=True
        )
    except OSError as error:
        raise StudyError(f"cannot write {folder / SAMPLER_POLICY_FILE}: {error.strerror}") from None
