"""`experience`: the summaries of studies from which new ones begin."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from autotune.cli.arguments import ACTIONS, path
from autotune.cli.columns import END, MIDDLE, Column, table
from autotune.cli.console import DONE, say
from autotune.cli.given import ExperienceArguments
from autotune.cli.screen import screen
from autotune.errors import UserError, canonical, unknown
from autotune.study.experience import document, store
from autotune.study.experience.document import SUFFIX, Summary, TooLargeError

_UNCUT = 100_000  # columns
_LEAST_ID = 8  # digits of an id that name a study
_COLUMNS = (
    Column("study", cut=MIDDLE),
    Column("id"),
    Column("trials", right=True),
    Column("reached", right=True),
    Column("target", cut=END),
    Column("trainer", cut=MIDDLE),
    Column("hardware"),
)
_Kept = Mapping[Path, list[Summary]]


def run(given: ExperienceArguments) -> int:
    """Do what was asked for.

    Raises:
        UserError: an unknown action or study, nothing to act on, or no folder.
    """
    action = canonical(given.action, ACTIONS)
    if action not in ACTIONS:
        raise UserError(unknown("action of experience", action, ACTIONS))
    if given.mlflow is not None and action != "add":
        raise UserError("--mlflow is for experience add")
    named = given.options.get("experience")
    folder = store.folder_of(named)
    if folder is None:
        by = store.VARIABLE if named is None else "--experience"
        raise UserError(f"experience is off ({by}): name a folder with --experience")
    done: dict[str, Callable[[Path, ExperienceArguments], int]] = {
        "list": _list,
        "add": _add,
        "remove": _remove,
        "export": _export,
    }
    store.check(folder)
    try:
        return done[action](folder, given)
    except OSError as error:
        raise UserError(f"{error.filename or folder}: {error.strerror}") from None


def _list(folder: Path, given: ExperienceArguments) -> int:
    """Print one line for each study of the folder, and how many came with autotune."""
    if given.names:
        raise UserError(f"experience list takes no names but got {given.names[0]!r}")
    kept, shipped = store.kept(folder, say), store.shipped(say)
    own = sorted((s for several in kept.values() for s in several), key=lambda s: s.name.lower())
    if given.json:
        rows = [_document(one, shipped=False) for one in own]
        print(json.dumps(rows + [_document(one, shipped=True) for one in shipped]))
        return DONE
    if own:
        on = screen(sys.stdout)
        width = on.width if sys.stdout.isatty() else _UNCUT
        for lines in table(_COLUMNS, [_line(one) for one in own], width, lines=1):
            on.lines(lines)
    say(f"{_studies(len(own))} in {folder}, {len(shipped)} that came with autotune")
    return DONE


def _line(one: Summary) -> Sequence[str]:
    target = one.target
    aim = f"{target.get('metric')} {'' if target.get('value') is None else target.get('value')}"
    counts = str(len(one.points)), str(one.reached)
    return (one.name, one.study_id[:8], *counts, aim.strip(), one.trainer, one.hardware)


def _document(one: Summary, *, shipped: bool) -> dict[str, Any]:
    """A summary without its trials, as JSON types."""
    long = ("points", "times", "ended", "curves")
    own = {name: value for name, value in one.to_json().items() if name not in long}
    names = sorted({name for point in one.points for name in point})
    counts = {"trials": len(one.points), "reached": one.reached, "parameters": names}
    return {**own, **counts, "shipped": shipped}


def _add(folder: Path, given: ExperienceArguments) -> int:
    """Write the summaries of studies into the folder; say which have none, and why."""
    from autotune.evaluation import experience_sources

    if given.mlflow is not None:
        from autotune.cli.console import without_password

        uri = str(without_password(given.mlflow))
        found = experience_sources.of_mlflow(uri, given.names)
    elif given.names:
        found = [one for name in given.names for one in experience_sources.of_path(_path(name))]
    else:
        needed = "a study, a folder of studies, an exported file, or --mlflow URI"
        raise UserError(f"experience add needs {needed}")
    added = [one.summary for one in found if one.summary is not None]
    skipped = [{"source": one.source, "reason": one.fault} for one in found if one.fault]
    if not added:
        first = "; ".join(f"{one['source']}: {one['reason']}" for one in skipped[:1])
        more = f" (and {len(skipped) - 1} more)" if len(skipped) > 1 else ""
        raise UserError(f"nothing to add: {first or 'no study has ended'}{more}")
    for summary in added:
        store.write(folder, summary)
    for one in skipped:
        say(f"{one['source']} is left out: {one['reason']}")
    if given.json:
        names = [{"name": s.name, "study_id": s.study_id, "trials": len(s.points)} for s in added]
        print(json.dumps({"folder": str(folder), "added": names, "skipped": skipped}))
    say(f"added {_studies(len(added))} to {folder}")
    return DONE


def _remove(folder: Path, given: ExperienceArguments) -> int:
    """Remove studies by their names, ids or files; nothing if one is unknown.

    A file that cannot be read is removed by its own name.
    """
    if not given.names:
        raise UserError("experience remove needs the name of a study, or its id")
    said: list[str] = []
    kept = store.kept(folder, said.append)
    files = {name: path for path in store.files(folder) for name in (path.name, str(path))}
    gone = _chosen(kept, [name for name in given.names if name not in files])
    named = dict.fromkeys(files[name] for name in given.names if name in files)
    damaged = [file for file in named if file not in kept]
    for line in said:
        if not any(str(file) in line for file in damaged):
            say(line)
    for file in named:
        gone += [one for one in kept.get(file, []) if one not in gone]
        file.unlink(missing_ok=True)
    for file, several in kept.items():
        left = [one for one in several if one not in gone]
        if not left:
            file.unlink(missing_ok=True)
        elif len(left) < len(several):
            store.export(file, left)
    if given.json:
        names = [{"name": one.name, "study_id": one.study_id} for one in gone]
        files_gone = [file.name for file in damaged]
        print(json.dumps({"folder": str(folder), "removed": names, "unreadable": files_gone}))
    for file in damaged:
        say(f"removed {file}, which had no study that can be read")
    if gone or not damaged:
        say(f"removed {_studies(len(gone))} from {folder}")
    return DONE


def _export(folder: Path, given: ExperienceArguments) -> int:
    """Write studies as one file: all of the folder, or those that are named."""
    if not given.names or not given.names[0].endswith(SUFFIX):
        raise UserError(f"experience export needs a file to write, like studies{SUFFIX}")
    file, *names = given.names
    kept = store.kept(folder, say)
    chosen = _chosen(kept, names) if names else [one for all_ in kept.values() for one in all_]
    if not chosen:
        raise UserError(f"{folder} has no experience to export")
    try:
        store.export(_path(file), chosen)
    except TooLargeError as error:
        fewer = f"name some of them, or share {folder} itself, which experience add takes"
        raise UserError(f"{error}: {fewer}") from None
    if given.json:
        written = [{"name": one.name, "study_id": one.study_id} for one in chosen]
        print(json.dumps({"file": file, "format": document.FORMAT, "exported": written}))
    say(f"wrote {_studies(len(chosen))} to {file}")
    return DONE


def _chosen(kept: _Kept, names: Sequence[str]) -> list[Summary]:
    """The studies of these names, or of ids that begin so.

    Raises:
        UserError: there is none of a name.
    """
    studies = [one for several in kept.values() for one in several]
    chosen: list[Summary] = []
    for name in names:
        found = [one for one in studies if one.name == name]
        begun = [one for one in studies if one.study_id.startswith(name)]
        found = found or (begun if len(name) >= _LEAST_ID else [])
        if not found:
            raise UserError(unknown("study", name, {one.name for one in studies}))
        chosen += [one for one in found if one not in chosen]
    return chosen


def _path(text: str) -> Path:
    try:
        return path(text)
    except ValueError as error:
        raise UserError(str(error)) from None


def _studies(count: int) -> str:
    return f"{count} stud{'y' if count == 1 else 'ies'}"
