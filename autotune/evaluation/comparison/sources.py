"""What `autotune compare` is told, made into candidates: folders, trials, files, MLflow runs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from autotune.errors import UserError, unknown
from autotune.evaluation.comparison import dawnbench, from_mlflow, from_studies, survival
from autotune.evaluation.comparison.model import CONFIRMED, Aim, Candidate, Comparison
from autotune.evaluation.comparison.table import compare

_EXPORT = "trial.json"


@dataclass(frozen=True)
class Source:
    """What one word on the command line names: its candidates, and the study they are from."""

    candidates: tuple[Candidate, ...]
    study: from_studies.Study | None = None


def read(word: str, *, aim: Aim | None = None, tracking_uri: str | None = None) -> Source:
    """The candidates that `word` names.

    Args:
        word: a study folder; one of its trials, as `DIR#7`; a published run, as `FILE.tsv`; or
            `mlflow:EXPERIMENT/RUN`.
        aim: what published runs, and MLflow runs that autotune did not make, had to reach.
        tracking_uri: MLflow's store; by default `MLFLOW_TRACKING_URI`, or `mlflow.db` here.

    Raises:
        UserError: it names nothing that can be read, in one line that says why.
    """
    if word.startswith(from_mlflow.PREFIX):
        study, number, candidate = from_mlflow.read(word, tracking_uri, aim)
        if candidate is not None:
            return Source((candidate,))
        return _of_study(study, number) if study is not None else Source(())
    path = Path(word)
    if path.suffix == ".tsv" or path.is_file():
        return Source((dawnbench.read(_there(path), aim or dawnbench.TOP5),))
    trial = re.fullmatch(r"(.+)#(\d+)", word)
    if trial and not path.exists():
        return _of_study(_folder(Path(trial[1])), int(trial[2]))
    return _of_study(_folder(path), None)


def gather(
    words: Sequence[str],
    baseline: str | None = None,
    *,
    aim: Aim | None = None,
    tracking_uri: str | None = None,
) -> tuple[list[Candidate], str]:
    """All candidates with names of their own, and the baseline's name.

    Args:
        words: see `read`.
        baseline: such a word, of which the fastest candidate is taken, or `trial:N` of the first
            study in `words`. By default the first word's own baseline, or its first candidate.
        aim, tracking_uri: see `read`.

    Raises:
        UserError: see `read`; or `trial:N` without a study.
    """
    found = [read(word, aim=aim, tracking_uri=tracking_uri) for word in words]
    if aim is not None and not any(c.terms.target == aim for s in found for c in s.candidates):
        raise UserError(f"--target {aim}: no published run is compared, and studies have their own")
    base = _baseline(found, baseline, aim, tracking_uri)
    every = _distinct([*(c for source in found for c in source.candidates), base])
    named = _named(every)
    return named, named[every.index(_same(every, base))].name


def _baseline(
    found: Sequence[Source], word: str | None, aim: Aim | None, tracking_uri: str | None
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
        source = read(word, aim=aim, tracking_uri=tracking_uri)
        return min(source.candidates, key=_time)
    study = next((s.study for s in found if s.study is not None), None)
    if study is None:
        raise UserError(f"--baseline {word} is a trial of a study, but none is compared")
    return from_studies.of_trial(study, int(number[1]))


def _time(candidate: Candidate) -> float:
    """The median, infinite without one."""
    runs = candidate.runs
    curve = survival.kaplan_meier(
        survival.sample([r.seconds for r in runs], [r.reached for r in runs])
    )
    middle = survival.median(curve)
    return middle if middle is not None else float("inf")


def _of_study(study: from_studies.Study, number: int | None) -> Source:
    if number is None:
        return Source(tuple(from_studies.candidates(study)), study)
    return Source((from_studies.of_trial(study, number),), study)


def _folder(folder: Path) -> from_studies.Study:
    if (folder / _EXPORT).is_file():
        raise UserError(
            f"{folder} is an export, which has no times of its own: compare the study folder that "
            f"`autotune replay {folder}` makes"
        )
    return from_studies.read(folder)


def _there(file: Path) -> Path:
    """The file, if it is there."""
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
        if not any(_one(candidate, other) for other in kept):
            kept.append(candidate)
    return kept


def _same(candidates: Sequence[Candidate], wanted: Candidate) -> Candidate:
    return next(c for c in candidates if _one(c, wanted))


def _one(a: Candidate, b: Candidate) -> bool:
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


def confirmed(folder: Path) -> Comparison | None:
    """The confirmed times of a study against its baseline's; None where there are none yet."""
    try:
        candidates, name = gather([str(folder)])
        (baseline,) = (c for c in candidates if c.name == name)
        sure = [c for c in candidates if c.kind == CONFIRMED]
        if not baseline.baseline or baseline not in sure or len(sure) < 2:
            return None
        return compare(sure, name)
    except UserError:  # not all on the same terms, say: nothing is quoted then
        return None
