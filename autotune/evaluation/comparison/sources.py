"""The candidates that `autotune compare` names: folders, trials, files, MLflow runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from autotune.errors import UserError, unknown
from autotune.evaluation.comparison import dawnbench, from_mlflow, from_studies
from autotune.evaluation.comparison.model import CONFIRMED, Candidate, ComparedTarget, Comparison
from autotune.evaluation.comparison.table import compare
from autotune.study.manifest import Manifest
from autotune.study.result import StudyResult

_EXPORT = "trial.json"


@dataclass(frozen=True)
class Source:
    """The candidates that one word on the command line names, and the study they are from."""

    candidates: tuple[Candidate, ...]
    study: from_studies.Study | None = None


class Folders:
    """Study folders, each read once."""

    def __init__(self) -> None:
        self._studies: dict[Path, from_studies.Study] = {}

    def study(self, folder: Path) -> from_studies.Study:
        """The study in the folder, called as this path calls it.

        Raises:
            UserError: see `from_studies.read`.
        """
        place = folder.resolve()
        if place not in self._studies:
            self._studies[place] = from_studies.read(folder)
        return replace(self._studies[place], source=str(folder))


def read(
    word: str,
    *,
    target: ComparedTarget | None = None,
    tracking_uri: str | None = None,
    folders: Folders | None = None,
) -> Source:
    """The candidates that `word` names.

    Args:
        word: a study folder; one of its trials, as `DIR#7`; a published run, as `FILE.tsv`; or
            `mlflow:EXPERIMENT/RUN`.
        target: what published runs, and MLflow runs that autotune did not make, had to reach.
        tracking_uri: MLflow's store; by default `MLFLOW_TRACKING_URI`, or `mlflow.db` here.
        folders: the study folders read so far.

    Raises:
        UserError: it names nothing that can be read, in one line that says why.
    """
    if word.startswith(from_mlflow.PREFIX):
        study, number, candidate = from_mlflow.read(word, tracking_uri, target)
        if candidate is not None:
            return Source((candidate,))
        return _of_study(study, number) if study is not None else Source(())
    path, folders = Path(word), folders or Folders()
    if path.suffix == ".tsv" or path.is_file():
        return Source((dawnbench.read(_existing(path), target or dawnbench.TOP5),))
    trial = re.fullmatch(r"(.+)#(\d+)", word)
    if trial and not path.exists():
        return _of_study(_folder(Path(trial[1]), folders), int(trial[2]))
    return _of_study(_folder(path, folders), None)


def gather(
    words: Sequence[str],
    baseline: str | None = None,
    *,
    target: ComparedTarget | None = None,
    tracking_uri: str | None = None,
) -> tuple[list[Candidate], str]:
    """All candidates with distinct names, and the baseline's name.

    Args:
        words: see `read`.
        baseline: such a word, of which the first candidate is taken, or `trial:N` of the first
            study in `words`. By default the first word's own baseline, or its first candidate.
        target, tracking_uri: see `read`.

    Raises:
        UserError: see `read`; or `trial:N` without a study.
    """
    known = Folders()
    found = [read(word, target=target, tracking_uri=tracking_uri, folders=known) for word in words]
    if target is not None and not any(
        c.conditions.target == target for s in found for c in s.candidates
    ):
        raise UserError(
            f"--target {target}: no published run is compared, and studies have their own"
        )
    base = _baseline(found, baseline, target, tracking_uri, known)
    every = _distinct([*(c for source in found for c in source.candidates), base])
    named = _named(every)
    return named, named[every.index(_same(every, base))].name


def _baseline(
    found: Sequence[Source],
    word: str | None,
    target: ComparedTarget | None,
    tracking_uri: str | None,
    folders: Folders,
) -> Candidate:
    if word is None:
        study = found[0].study
        own = from_studies.baseline(study) if study is not None else None
        return own or found[0].candidates[0]
    number = re.fullmatch(r"trial:(\d+)", word)
    if number is None and word.startswith("trial:") and not Path(word).exists():
        raise UserError(
            f"--baseline must be like trial:7, a trial of the first study, or a source but got "
            f"{word!r}"
        )
    if number is None:
        source = read(word, target=target, tracking_uri=tracking_uri, folders=folders)
        return source.candidates[0]  # the best one
    study = next((s.study for s in found if s.study is not None), None)
    if study is None:
        raise UserError(f"--baseline {word} is a trial of a study, but none is compared")
    return from_studies.of_trial(study, int(number[1]))


def _of_study(study: from_studies.Study, number: int | None) -> Source:
    if number is None:
        return Source(tuple(from_studies.candidates(study)), study)
    return Source((from_studies.of_trial(study, number),), study)


def _folder(folder: Path, folders: Folders) -> from_studies.Study:
    if (folder / _EXPORT).is_file():
        raise UserError(
            f"{folder} is an export, which has no times of its own: compare the study folder that "
            f"`autotune replay {folder}` makes"
        )
    return folders.study(folder)


def _existing(file: Path) -> Path:
    """The file, if it exists."""
    if file.is_file():
        return file
    near = [p.name for p in file.parent.glob("*.tsv")] if file.parent.is_dir() else []
    if not near:
        raise UserError(f"{file} does not exist")
    raise UserError(f"{file.parent}: {unknown('file', file.name, near)}")


def _distinct(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Each configuration of each source once."""
    kept: list[Candidate] = []
    for candidate in candidates:
        if not any(_same_runs(candidate, other) for other in kept):
            kept.append(candidate)
    return kept


def _same(candidates: Sequence[Candidate], wanted: Candidate) -> Candidate:
    return next(c for c in candidates if _same_runs(c, wanted))


def _same_runs(a: Candidate, b: Candidate) -> bool:
    """Whether both are the same runs of the same source."""
    return [r.name for r in a.runs] == [r.name for r in b.runs] and a.trial == b.trial


def _named(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Names as short as they can be: where two sources share one, with the whole source."""
    sources: dict[str, set[str]] = {}
    for candidate in candidates:
        sources.setdefault(_label(candidate), set()).add(candidate.source)

    def longer(candidate: Candidate) -> str:
        return f"{candidate.source}{candidate.name.removeprefix(_label(candidate))}"

    shared = {label for label, found in sources.items() if len(found) > 1}
    return [replace(c, name=longer(c)) if _label(c) in shared else c for c in candidates]


def _label(candidate: Candidate) -> str:
    """A name without its trial's number."""
    number = "" if candidate.trial is None else f"#{candidate.trial}"
    return candidate.name.removesuffix(number)


def confirmed(result: StudyResult, manifest: Manifest | None) -> Comparison | None:
    """The confirmed times of a study against its baseline's; None where there are none yet.

    Nothing is read: `result` has the trials.
    """
    if not result.confirmed or not result.target.timed:
        return None
    study = from_studies.of_result(result, manifest)
    found = [c for c in from_studies.candidates(study) if c.kind == CONFIRMED]
    own = from_studies.baseline(study)
    baseline = next((c for c in found if own is not None and _same_runs(c, own)), None)
    if baseline is None or len(found) < 2:
        return None
    try:
        return compare(found, baseline.name)
    except UserError:  # for example not all on the same conditions: no speedup is shown then
        return None
