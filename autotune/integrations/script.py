"""Existing scripts as trainers: `autotune.script("train.py", args={"--lr": "lr"})`.

A script that calls `autotune.report` runs as `__main__` in the process of its rank
(`CalledScript`). One that prints lines of JSON runs as a process of its own (`PrintingScript`), and
is suspended while the study decides: it, too, does nothing without the driver's decision.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import json
import os
import runpy
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TextIO

from autotune import errors
from autotune.errors import UserError, shown
from autotune.integrations import script_process
from autotune.integrations.command_line import CommandLine, checked
from autotune.integrations.script_group import free_port, ranks
from autotune.integrations.script_process import with_last_line
from autotune.trial import Milestone
from autotune.trial.checks import is_finite

_KEPT = 8000  # characters of a script's errors that are shown


@errors.checked
def script(
    path: str | Path,
    *,
    args: Mapping[str, str] | None = None,
    words: Sequence[str] = (),
    reports: str | None = None,
    step: str = "step",
    grace: float = 10.0,
) -> CalledScript | PrintingScript:
    """Make a trainer of a script, which gets the configuration as its command line.

    `{"--lr": "lr"}` passes the configuration's `lr` as `--lr 0.1`. True passes the option alone and
    False nothing (of `--amp/--no-amp` the one or the other), a list several words, and None leaves
    the option out. `lr=` instead of `--lr` passes `lr=0.1`. `seed` is passed if `args` has it. A
    schedule is passed as its JSON document to a script that calls `autotune.report`; others cannot
    take one.

    Args:
        path: the script, relative to the file that calls this function, or to the current folder.
            It runs in the current folder.
        args: the keys of the configuration by option; by default each key as `--key`.
        words: further words of its command line, the same in all trials; they come before `args`.
        reports: "call": it calls `autotune.report`, and runs in the process of its rank. "json": it
            prints lines like `{"step": 100, "val_accuracy": 0.9}`, and runs as a process of its
            own; evaluation then counts as training. By default "call" if it imports autotune.
        step: the key of a line that says how many samples (or other units) it has seen.
        grace: seconds for a script that is stopped to end after SIGTERM, before SIGKILL.

    Raises:
        UserError: no such file, or an argument outside its range; one line.
    """
    line = CommandLine(str(_found(path)), checked(args), _words(words), os.getcwd())
    text = Path(line.path).read_bytes()
    if reports not in (None, "call", "json"):
        raise ValueError(f"script reports must be 'call' or 'json' but got {shown(reports)}")
    if not isinstance(step, str) or not step:
        raise ValueError(f"script step must be the name of a key but got {shown(step)}")
    if not is_finite(grace) or grace < 0:
        raise ValueError(f"script grace must be seconds, at least 0, but got {shown(grace)}")
    source = hashlib.sha256(text).hexdigest()
    if reports == "call" or (reports is None and _imports_autotune(line, text)):
        return CalledScript(line, source, uses_torch=b"torch" in text)
    return PrintingScript(line, source, step, grace)


def _found(path: str | Path) -> Path:
    """The script: beside the file of `script`'s caller, three calls up, or from this folder."""
    if not isinstance(path, str | os.PathLike) or not str(path):
        raise ValueError(f"script path must be that of a file but got {shown(path)}")
    beside = Path(sys._getframe(3).f_globals.get("__file__") or ".").absolute().parent
    places = list(dict.fromkeys((beside / path, Path.cwd() / path)))
    for place in places:
        if place.is_file():
            return place.resolve()
    raise ValueError(f"script: there is no file {' or '.join(map(str, places))}")


def _words(words: Sequence[str]) -> tuple[str, ...]:
    if isinstance(words, str) or not all(isinstance(word, str) for word in words):
        raise ValueError(f"script words must be a list of words but got {shown(words)}")
    return tuple(words)


def _imports_autotune(line: CommandLine, text: bytes) -> bool:
    """Whether a script of Python's has an import of autotune in it."""
    if not line.is_python:
        return False
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"script {line.path} is no Python: {error}") from None
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.append(node.module or "")
    return any(name.partition(".")[0] == "autotune" for name in names)


def _name(trainer: object, line: CommandLine) -> None:
    """Name a trainer as a function is named: so the manifest knows it, and `tune` its study."""
    object.__setattr__(trainer, "__qualname__", f"<script {line.name}>")
    object.__setattr__(trainer, "__name__", Path(line.name).stem)


# --- in the process of its rank -------------------------------------------------------------------


@dataclass(frozen=True)
class CalledScript:
    """A script that calls `autotune.report`. `source` is the SHA-256 of its text."""

    line: CommandLine
    source: str
    uses_torch: bool = True  # whether it names torch

    def __post_init__(self) -> None:
        _name(self, self.line)

    def check(self, config: Mapping[str, Any]) -> None:
        """Refuse a configuration that its command line cannot have.

        Raises:
            ValueError: one line.
        """
        self.line.check(config, schedules=True)

    def command(self, config: Mapping[str, Any]) -> list[str]:
        """The command that trains this configuration without autotune."""
        return self.line.command(config)

    def __call__(self, config: Mapping[str, Any]) -> None:
        """Run the script as `__main__`; what it changed of its process is put back.

        Raises:
            UserError: it left with another exit code than 0.
            Exception: what it raised.
        """
        self.line.check(config, schedules=True)
        with (
            _own_group(),
            _saved_state(self.line, config) as given,
            _as_main(self.line, given) as errors,
        ):
            try:
                runpy.run_path(self.line.path, run_name="__main__")
            except SystemExit as end:
                if end.code not in (None, 0):
                    end.add_note(f"Its stderr ended with:\n{errors.text}")
                    said = f"{self.line.name} called sys.exit({shown(end.code)})"
                    raise UserError(with_last_line(said, errors.text)) from end


class _Noted:
    """A stream whose last characters are kept."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.text = ""

    def write(self, text: str) -> int:
        self.text = (self.text + text)[-_KEPT:]
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def _as_main(line: CommandLine, config: Mapping[str, Any]) -> Iterator[_Noted]:
    """The process as the script expects it: its arguments, its folder on the path, its errors."""
    argv, path, folder, stderr = sys.argv, list(sys.path), os.getcwd(), sys.stderr
    errors = _Noted(stderr)
    sys.argv = [line.path, *line.arguments(config)]
    sys.path.insert(0, str(Path(line.path).parent))
    sys.stderr = errors
    try:
        os.chdir(line.place)
        yield errors
    finally:
        sys.argv, sys.path[:], sys.stderr = argv, path, stderr
        os.chdir(folder)


@contextlib.contextmanager
def _saved_state(line: CommandLine, config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The configuration with a file in place of the state from which the trial goes on.

    Raises:
        UserError: no argument takes it.
    """
    if config.get("state") is None:
        yield config
        return
    if "state" not in line.options(config).values():
        raise UserError(
            f"the trial goes on from the state that {line.name} reported, but no argument takes "
            "its file: args must be like {'--resume': 'state'}"
        )
    import torch

    with tempfile.TemporaryDirectory(prefix="autotune-state-") as folder:
        torch.save(config["state"], Path(folder) / "state.pt")
        yield {**config, "state": str(Path(folder) / "state.pt")}


@contextlib.contextmanager
def _own_group() -> Iterator[None]:
    """No process group, and a free port in torchrun's variables: the script opens its own.

    The rank opens one again for the next trial.
    """
    group = ranks()
    if group.dist is None:
        yield
        return
    before = os.environ.get("MASTER_PORT")
    os.environ["MASTER_PORT"] = str(free_port(group))
    group.dist.destroy_process_group()
    try:
        yield
    finally:
        if group.dist.is_initialized():
            group.dist.destroy_process_group()
        if before is not None:
            os.environ["MASTER_PORT"] = before


# --- as a process of its own ----------------------------------------------------------------------


@dataclass(frozen=True)
class PrintingScript:
    """A script that prints lines of JSON. `source` is the SHA-256 of its text.

    `in_child` says that its process trains, and not that of its rank, which so waits for that one.
    """

    line: CommandLine
    source: str
    step: str = "step"
    grace: float = 10.0
    uses_torch: ClassVar[bool] = False  # in this process
    in_child: ClassVar[bool] = True

    ends_by_itself: ClassVar[bool] = True  # so that a target needs no limit

    def __post_init__(self) -> None:
        _name(self, self.line)

    def check(self, config: Mapping[str, Any]) -> None:
        """Refuse a configuration that its command line cannot have.

        Raises:
            ValueError: one line.
        """
        self.line.check(config, schedules=False)

    def command(self, config: Mapping[str, Any]) -> list[str]:
        """The command that trains this configuration without autotune."""
        return self.line.command(config)

    def __call__(self, config: Mapping[str, Any]) -> Iterator[Milestone]:
        """Run the script, with a milestone for each line; when closed, it is ended.

        Of several ranks the lines of rank 0 count.

        Raises:
            UserError: it ended with another exit code than 0, or printed no such line.
            RuntimeError: it ended with a traceback, or by a signal.
        """
        self.line.check(config, schedules=False)
        group = ranks()
        environ = {} if group.dist is None else {"MASTER_PORT": str(free_port(group))}
        with script_process.running(self.line, config, environ, group.rank, self.grace) as process:
            milestones, count = process.milestones(self.step), 0
            while found := group.from_first(lambda: next(milestones, None)):
                count += 1
                step, metrics = found
                with process.suspended():
                    yield Milestone(step, lambda metrics=metrics: metrics)  # type: ignore[misc]
            process.check_end()
            if not count:
                raise UserError(self._silent())

    def _silent(self) -> str:
        example = json.dumps({self.step: 100, "val_accuracy": 0.9})
        return (
            f"{self.line.name} printed no line of JSON like {example}; if it calls "
            'autotune.report, say so: script(..., reports="call")'
        )
