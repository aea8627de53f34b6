"""What a study knew of others when it began, and which of them it is most like by now."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.algorithms.names import EXPERIENCED
from autotune.algorithms.samplers.elite import informative_trials
from autotune.errors import UserError
from autotune.study.experience import known
from autotune.study.manifest import Manifest
from autotune.study.option import OFF
from autotune.study.result import StudyResult

if TYPE_CHECKING:
    from autotune.algorithms.samplers.experienced import ExperiencedSampler

_BEGUN_WITH = ("studies", "earlier_runs", "most_alike", "first")  # of the manifest


def now(manifest: Manifest, result: StudyResult) -> dict[str, Any] | None:
    """What the study knew, and what it is like by now, as JSON types; None where it knew nothing.

    `like_now` is the name of the known study with the greatest probability, and `none` the
    probability that it is like none of them; absent where another sampler is at work, or no trial
    has ended. `fault` says why it is not known, and `off` that the study was to know nothing.
    """
    if not any(manifest.known.get(name) for name in _BEGUN_WITH):
        return {"off": True} if manifest.options.experience == OFF else None
    begun = {name: manifest.known.get(name) for name in _BEGUN_WITH}
    ended = informative_trials(result.searched)
    if manifest.options.sampler != EXPERIENCED or not ended:
        return begun
    try:
        sampler = _sampler(result.folder, str(manifest.known.get("checksum")))
    except UserError as error:
        return {**begun, "fault": str(error)}
    posterior = sampler.posterior(ended)
    each = posterior.of_tasks(sampler.models.owner, len(sampler.models.tasks))
    most = int(each.argmax())
    likely = {
        "like_now": sampler.models.tasks[most].name,
        "probability": round(float(each[most]), 4),
    }
    return {**begun, **likely, "none": round(float(posterior.none), 4)}


@lru_cache(maxsize=4)
def _sampler(folder: Path, checksum: str) -> ExperiencedSampler:
    """The sampler of a study, for its models; `checksum` is that of what it knew.

    Raises:
        UserError: its file is missing or damaged.
    """
    from autotune.algorithms.samplers.experienced import ExperiencedSampler

    manifest = Manifest.read(folder)
    knew, space = known.read(manifest, folder), manifest.search_space(folder)
    about = space, manifest.target, manifest.options.seed
    return ExperiencedSampler(*about, knew.space(space), knew.tasks(space), _Nothing())


class _Nothing:
    """A search that is never asked."""

    def ask(self, number: int, trials: object) -> None:
        return None


def sentence(found: Mapping[str, Any]) -> str:
    """What `now` found of the present, in words; empty where there is nothing.

    >>> sentence({"like_now": "digits-lars", "probability": 0.62, "none": 0.1})
    'most like digits-lars by now (probability 0.62; like none of them 0.10)'
    """
    if found.get("off"):
        return "off"
    if found.get("fault"):
        return str(found["fault"])
    if "like_now" not in found:
        return ""
    of = f"probability {found['probability']:.2f}; like none of them {found['none']:.2f}"
    return f"most like {found['like_now']} by now ({of})"
