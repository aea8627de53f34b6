"""What a study knows of other studies when it begins, and keeps in its folder.

It is found once: a study that goes on reads it from its own folder and nothing else, so that it
proposes what it would have proposed, whatever the store holds by then.
"""

from __future__ import annotations

import base64
import hashlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.algorithms.experience.canonical import CanonicalSpace
from autotune.errors import StudyError, UserError, shown
from autotune.space.search_space import SearchSpace
from autotune.storage import atomic
from autotune.storage.manifest import EXPERIENCE
from autotune.study.experience import document
from autotune.study.experience.document import Summary
from autotune.study.experience.summary import with_texts
from autotune.study.manifest import Manifest
from autotune.study.space_json import describe
from autotune.trial import Params

if TYPE_CHECKING:
    from autotune.algorithms.experience.known_task import KnownTask


@dataclass(frozen=True, kw_only=True)
class Known:
    """What a study knows of others.

    Args:
        studies: their summaries, with the trials from which something can be learned here.
        same: whether each is an earlier run of this very study.
        most_alike: the name of the study most like this one by its trainer and its parameters;
            empty if there is none.
        first: points to run before the sampler is asked.
        published: canonical points that are known from elsewhere, without results.
        canonical: what the experiment said of its parameters' names.
        own: the sampler that is used where the study is like none of them, and later.
        weights: the file of a trained sampler; empty for others.
        pruner_weights: that of a trained pruner.
    """

    studies: tuple[Summary, ...] = ()
    same: tuple[bool, ...] = ()
    most_alike: str = ""
    first: tuple[Params, ...] = ()
    published: tuple[Mapping[str, Any], ...] = ()
    canonical: Mapping[str, str] = field(default_factory=dict)
    own: str = ""
    weights: bytes = b""
    pruner_weights: bytes = b""

    def __bool__(self) -> bool:
        return bool(self.studies or self.first or self._trained)

    @property
    def _trained(self) -> dict[str, bytes]:
        both = {"weights": self.weights, "pruner_weights": self.pruner_weights}
        return {name: data for name, data in both.items() if data}

    @property
    def because(self) -> str:
        """Why `experienced` is chosen, in words; empty where nothing is known."""
        return because(len(self.studies), sum(self.same), self.most_alike)

    @cached_property
    def packed(self) -> bytes:
        """The file of the study folder.

        Raises:
            TooLargeError: it would be refused when the study goes on.
        """
        content = {
            **document.document(self.studies),
            "same": list(self.same),
            "most_alike": self.most_alike,
            "first": [dict(point) for point in self.first],
            "published": [dict(point) for point in self.published],
            "canonical": dict(self.canonical),
            "own": self.own,
        }
        for name, data in self._trained.items():
            content[name] = base64.b64encode(data).decode()
        return document.packed(content)

    def entry(self) -> dict[str, Any]:
        """What the manifest says of it; empty where nothing is known."""
        if not self:
            return {}
        return {
            **{name: _checksum(data) for name, data in self._trained.items()},
            "studies": len(self.studies),
            "earlier_runs": sum(self.same),
            "most_alike": self.most_alike,
            "first": len(self.first),
            "file": EXPERIENCE,
            "checksum": _checksum(self.packed),
        }

    def write(self, folder: Path) -> None:
        """Write it into the study folder, if there is anything.

        Raises:
            StudyError: it cannot be written.
        """
        if not self:
            return
        try:
            atomic.write(folder / EXPERIENCE, self.packed, durable=True)
        except OSError as error:
            raise StudyError(f"cannot write {folder / EXPERIENCE}: {error.strerror}") from None

    def tasks(self, space: SearchSpace) -> list[KnownTask]:
        """The studies as the sampler takes them, with the texts of the space's options."""
        from autotune.algorithms.experience.problems import by_problem

        own = self.space(space)
        tasks = [study.task(same=s) for study, s in zip(self.studies, self.same, strict=True)]
        named = [
            replace(task, points=[with_texts(point, own.texts) for point in task.points])
            for task in tasks
        ]
        return by_problem(named, own)

    def space(self, space: SearchSpace) -> CanonicalSpace:
        """A space in canonical names, as they were when the study began."""
        return CanonicalSpace(space, self.canonical)


NOTHING = Known()


def because(studies: int, earlier_runs: int, most_alike: str) -> str:
    """What is known, in words.

    >>> because(17, 0, "digits-lars")
    '17 studies that share parameters with this one are known, such as digits-lars'
    >>> because(1, 0, "digits-lars")
    '1 study that shares parameters with this one is known, digits-lars'
    >>> because(2, 2, "mine")
    '2 earlier runs of this study are known'
    >>> because(19, 2, "mine")
    '2 earlier runs of it and 17 other studies are known'
    """
    others = studies - earlier_runs
    runs = f"{earlier_runs} earlier run{'' if earlier_runs == 1 else 's'}"
    are = "is known" if studies == 1 else "are known"
    if not studies:
        return ""
    if not earlier_runs:
        share = "shares" if studies == 1 else "share"
        named = most_alike if studies == 1 else f"such as {most_alike}"
        return f"{others} {_counted(others)} that {share} parameters with this one {are}, {named}"
    if not others:
        return f"{runs} of this study {are}"
    return f"{runs} of it and {others} other {_counted(others)} {are}"


def _counted(number: int) -> str:
    return "study" if number == 1 else "studies"


def warn(text: str) -> None:
    """Print a warning on stderr."""
    print(f"warning: {text}", file=sys.stderr, flush=True)


# --- of a study that goes on ----------------------------------------------------------------------


def goes_on(existing: Manifest | None, kept: Manifest | None, space: SearchSpace) -> bool:
    """Whether the study in the folder has begun with what its folder says.

    Args:
        existing: the manifest in the folder.
        kept: the same, if the study has any result.
        space: the experiment's.
    """
    if kept is not None or existing is None:
        return kept is not None
    return bool(existing.known) and existing.space == describe(space)


def read(manifest: Manifest, folder: Path) -> Known:
    """What the study in the folder knew when it began.

    Raises:
        UserError: its file is missing, damaged or not the one that the manifest names.
    """
    if not manifest.known:
        return Known()
    path = folder / EXPERIENCE
    anew = "put it back, or begin the study anew in another folder"
    try:
        data = path.read_bytes()
    except OSError:
        raise UserError(f"{path}, with which this study began, is missing: {anew}") from None
    if _checksum(data) != manifest.known.get("checksum"):
        raise UserError(f"{path} has changed since this study began: {anew}")
    try:
        return _known(document.unpacked(data))
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} cannot be read: {shown(str(error), 200)}") from None


def _known(found: Mapping[str, Any]) -> Known:
    return Known(
        studies=tuple(document.summaries(found)),
        same=tuple(bool(one) for one in found["same"]),
        most_alike=str(found["most_alike"]),
        first=tuple(dict(point) for point in found["first"]),
        published=tuple(document.points(found["published"])),
        canonical=dict(found["canonical"]),
        own=str(found["own"]),
        weights=base64.b64decode(str(found.get("weights", ""))),
        pruner_weights=base64.b64decode(str(found.get("pruner_weights", ""))),
    )


def _checksum(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
