"""The command line's output: exit codes, results on stdout, everything else on stderr."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

from autotune.errors import UserError
from autotune.trial import wording
from autotune.trial.plain_text import plain_text

if TYPE_CHECKING:
    from autotune.study.manifest import Manifest
    from autotune.study.options import StudyOptions
    from autotune.study.result import StudyResult

DONE, USER, UNREACHED, BROKEN, INTERRUPTED = 0, 2, 3, 4, 130


def say(text: str) -> None:
    """Print a message for people, on stderr."""
    print(plain_text(text), file=sys.stderr, flush=True)


class _PlainOut:
    def write(self, text: str) -> int:
        return sys.stdout.write(plain_text(text))


def plain_out() -> TextIO:
    """Stdout for texts that may come from others: see `plain_text`."""
    return cast(TextIO, _PlainOut())


def tell(document: Any, as_json: bool, shown: Callable[[Any, Any], None]) -> None:
    """Print what was asked for: as one JSON document, or as `shown` writes it for people."""
    if as_json:
        print(json.dumps(document))
    else:
        shown(document, plain_out())


@dataclass(frozen=True)
class Output:
    """What a command does with its result.

    `json`: print one JSON document. `only_confirmed`: print no trials but the confirmed ones.
    `register`: the registered model that the best trial's becomes
    a version of, in MLflow's store `tracking_uri`.
    """

    json: bool = False
    register: str | None = None
    tracking_uri: str | None = None
    only_confirmed: bool = False


def study_in(folder: Path) -> tuple[Manifest, StudyResult]:
    """The manifest of the study in the folder, and its result as its journal has it."""
    from autotune.study import result
    from autotune.study.manifest import Manifest

    manifest = Manifest.read(folder)
    return manifest, result.read(folder, manifest.target)


def not_reached(result: StudyResult, so_far: str = "") -> str:
    """That the study has no best trial, and which one came nearest."""
    none = f"no trial has {wording.reached(result.target)}{so_far}"
    near = wording.came_to(result.target, result.nearest)
    return f"{none}; {near}" if near else none


def going_on(folder: Path, output: Output) -> str:
    """How to go on with a study that was left, to the same end."""
    more = f" --register {shlex.quote(output.register)}" if output.register else ""
    return f"go on with: autotune resume {folder}{more}"


def say_left(result: StudyResult, options: StudyOptions, output: Output) -> None:
    """Say how to go on with a study that did not come to its end."""
    from autotune.study.completed import complete

    if result.ended == "interrupted":
        say(f"interrupted; {going_on(result.folder, output)}")
    elif result.ended == "budget" and not complete(result, options):
        say(f"the time limit has passed; {going_on(result.folder, output)}")


def finish(result: StudyResult, manifest: Manifest, output: Output) -> int:
    """Print the result of the study, and say with the exit code how it ended."""
    from autotune.cli import final
    from autotune.evaluation import summary

    if output.json:
        print(json.dumps(summary.document(result, manifest.name)))
    else:
        shown = final.print_confirmed if output.only_confirmed else final.print_result
        shown(result, manifest, sys.stdout)
    say_left(result, manifest.options, output)
    if result.ended == "interrupted":
        return INTERRUPTED
    if result.best is None:
        return UNREACHED
    if not output.register:
        return DONE
    return _registered(result.folder, output.register, output.tracking_uri)


def _registered(folder: Path, name: str, uri: str | None) -> int:
    """Register the best trial's model; the study is done whether or not that works."""
    from autotune.evaluation import register

    try:
        model = register.register(folder, name, uri)
    except UserError as error:
        again = f"autotune resume {folder} --register {shlex.quote(name)}"
        say(f"autotune: no model is registered: {error}; try again with: {again}")
        return BROKEN
    say(f"registered trial {model['trial']} as {model['uri']}")
    return DONE


@contextlib.contextmanager
def only_json(wanted: bool) -> Iterator[None]:
    """Send everything that anyone prints to stderr, so that stdout holds one JSON document."""
    if not wanted:
        yield
        return
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def without_password(uri: str | None) -> str | None:
    """The tracking URI, without a password: that goes into this process's environment."""
    from autotune.tracking.uris import check_uri, split_credentials

    if uri is None or uri == "off":
        return uri
    check_uri(uri)
    plain, credentials = split_credentials(uri)
    if credentials:
        os.environ.update(credentials)
        say(
            "the tracking URI's user and password are left out of it: what stands on a command "
            f"line can be read by everyone here; set {' and '.join(credentials)} instead"
        )
    return plain
