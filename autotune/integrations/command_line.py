"""The command line of a script, as a function of a trial's configuration."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.errors import shown
from autotune.schedules import Schedule

_RESERVED = ("seed", "state", "microbatch")  # given by autotune: passed only if `args` says so


@dataclass(frozen=True)
class CommandLine:
    """How a script is called.

    Args:
        path: the script's absolute path.
        args: the key of the configuration that each option gets; None: each key as `--key`.
        words: the words between the script's name and these options, the same in all trials.
        folder: where it runs, if this machine has it.
    """

    path: str
    args: Mapping[str, str] | None
    words: tuple[str, ...]
    folder: str

    @property
    def name(self) -> str:
        return Path(self.path).name

    @property
    def is_python(self) -> bool:
        """Whether Python runs it; any other script must be executable."""
        return self.path.endswith(".py")

    @property
    def place(self) -> str:
        """The folder to run it in: on another machine its own, where the usual one is missing."""
        return self.folder if os.path.isdir(self.folder) else str(Path(self.path).parent)

    def options(self, config: Mapping[str, Any]) -> Mapping[str, str]:
        """The keys of this configuration by option."""
        if self.args is not None:
            return self.args
        return {f"--{key}": key for key in config if key not in _RESERVED}

    def arguments(self, config: Mapping[str, Any]) -> list[str]:
        """The words after the script's name."""
        made = [*self.words]
        for option, key in self.options(config).items():
            if config.get(key) is not None:
                made += _spelled(option, config[key])
        return made

    def command(self, config: Mapping[str, Any]) -> list[str]:
        """The whole command."""
        program = [sys.executable, self.path] if self.is_python else [self.path]
        return [*program, *self.arguments(config)]

    def check(self, config: Mapping[str, Any], *, schedules: bool) -> None:
        """Check that all of a configuration can be passed; `schedules` says whether these can.

        Raises:
            ValueError: a key that no option takes, or a value that is none of a command line.
        """
        passed = set(self.options(config).values())
        for key, value in config.items():
            if key in _RESERVED:
                continue
            if key not in passed:
                raise ValueError(
                    f"no argument of {self.name} takes {key!r}: args must have it, as in "
                    f"{{'--{key}': {key!r}}}"
                )
            if isinstance(value, Schedule) and not schedules:
                raise ValueError(
                    f"{key!r} is a schedule, which {self.name} cannot take: search a number, or "
                    'have the script call autotune.report (reports="call")'
                )
            if not _is_word(value) and not isinstance(value, Schedule):
                items = value if isinstance(value, list | tuple) else (object(),)
                if not all(_is_word(item) for item in items):
                    raise ValueError(f"{key!r} must be a number, text or a list of these to be "
                                     f"passed to {self.name} but got {shown(value)}")  # fmt: skip


def checked(args: Mapping[str, str] | None) -> dict[str, str] | None:
    """The arguments of a script as they were given.

    Raises:
        ValueError: they are no dict of keys by option.
    """
    if args is None:
        return None
    rule = "script args must be a dict like {'--lr': 'lr'}"
    if not isinstance(args, Mapping):
        raise ValueError(f"{rule} but got {shown(args)}")
    for option, key in args.items():
        if not isinstance(option, str) or not (option.startswith("-") or option.endswith("=")):
            raise ValueError(
                f"{rule}: an option begins with '-' or ends with '=', not {shown(option)}"
            )
        if not isinstance(key, str):
            raise ValueError(f"{rule}: {option} must name a key, not {shown(key)} (see words)")
    return dict(args)


def _is_word(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str)


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value.to_json() if isinstance(value, Schedule) else value)


def _spelled(option: str, value: Any) -> list[str]:
    """An option with its value, as words.

    >>> _spelled("--lr", 0.1), _spelled("--amp/--no-amp", False), _spelled("lr=", 0.1)
    (['--lr', '0.1'], ['--no-amp'], ['lr=0.1'])
    >>> _spelled("--shift", -1e-7), _spelled("--steps", [30, 60])
    (['--shift=-1e-07'], ['--steps', '30', '60'])
    """
    if option.endswith("="):
        return [f"{option}{_text(value)}"]
    if isinstance(value, bool):
        on, _, off = option.partition("/")
        return [word for word in (on if value else off,) if word]
    if isinstance(value, list | tuple):
        return [option, *map(_text, value)] if value else []
    text = _text(value)
    if text.startswith("-") and option.startswith("--"):  # argparse would take it for an option
        return [f"{option}={text}"]
    return [option, text]
