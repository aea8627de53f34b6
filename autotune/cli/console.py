"""How the command line speaks: exit codes, results on stdout, everything else on stderr."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from autotune.errors import UserError

DONE, USER, UNREACHED, BROKEN, INTERRUPTED = 0, 2, 3, 4, 130


def say(text: str) -> None:
    """Tell whoever looks, without a trace on stdout."""
    print(text, file=sys.stderr, flush=True)


def tell(document: Any, as_json: bool, shown: Callable[[Any, Any], None]) -> None:
    """Print what was asked for: as one JSON document, or as `shown` writes it for people."""
    if as_json:
        print(json.dumps(document))
    else:
        shown(document, sys.stdout)


def result_in(folder: Path) -> Any:
    """The result of the study in the folder, as its journal has it."""
    from autotune.study import manifest, result

    return result.read(folder, manifest.target(folder))


def not_reached(result: Any) -> str:
    """That the study has no best trial."""
    return f"no trial has reached {result.target.metric} {result.target.value:g}"


def going_on(folder: Path, options: argparse.Namespace) -> str:
    """How to go on with a study that was left, to the same end."""
    name = getattr(options, "register", None)
    more = f" --register {shlex.quote(name)}" if name else ""
    return f"go on with: autotune resume {folder}{more}"


def complete(result: Any, asked: Mapping[str, Any]) -> bool:
    """Whether nothing is left to search or, without a search, to confirm."""
    from autotune.algorithms.ranking.finalists import next_to_confirm
    from autotune.algorithms.ranking.repeats import confirming

    search = asked.get("search", True)
    if any(t.goes_on for t in (result.trials if search else confirming(result.trials))):
        return False
    repeats = asked.get("repeats", 0), asked.get("top", 3)
    left = next_to_confirm(result.trials, result.target, *repeats) is not None
    return not left and (not search or len(result.searched) >= asked["trials"])


def say_left(result: Any, asked: Mapping[str, Any], options: argparse.Namespace) -> None:
    """Say how to go on with a study that did not come to its end."""
    if result.ended == "interrupted":
        say(f"interrupted; {going_on(result.folder, options)}")
    elif result.ended == "budget" and not complete(result, asked):
        say(f"the time limit has passed; {going_on(result.folder, options)}")


def finish(result: Any, options: argparse.Namespace) -> int:
    """Print what the study found, and say with the exit code how it ended."""
    from autotune.cli import text as display
    from autotune.evaluation import summary
    from autotune.study import manifest

    held = manifest.load(result.folder)
    if options.json:
        print(json.dumps(summary.document(result, held["name"])))
    else:
        display.print_result(result, held, sys.stdout)
    say_left(result, held, options)
    if result.ended == "interrupted":
        return INTERRUPTED
    if result.best is None:
        return UNREACHED
    return _registered(result.folder, options) if getattr(options, "register", None) else DONE


def _registered(folder: Path, options: argparse.Namespace) -> int:
    """Register the best trial's model; the study is done whether or not that works."""
    from autotune.evaluation import register

    try:
        told = register.register(folder, options.register, options.tracking_uri)
    except UserError as error:
        again = f"autotune resume {folder} --register {shlex.quote(options.register)}"
        say(f"autotune: no model is registered: {error}; try again with: {again}")
        return BROKEN
    say(f"registered trial {told['trial']} as {told['uri']}")
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
    from autotune.tracking.uris import check_uri, taken_out

    if uri is None or uri == "off":
        return uri
    check_uri(uri)
    plain, credentials = taken_out(uri)
    if credentials:
        os.environ.update(credentials)
        say(
            "the tracking URI's user and password are left out of it: what stands on a command "
            f"line can be read by everyone here; set {' and '.join(credentials)} instead"
        )
    return plain
