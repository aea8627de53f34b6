"""What a user gives to a job, checked: requirements and variables, which hold no secrets."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from autotune.cli.jobs.archive import is_utf8
from autotune.cli.jobs.secrets import holds_secret, secret
from autotune.errors import UserError

_FROM_THE_NODE = re.compile(r"(?<=://)(([\w.-]+|\$\{\w+\}):)?\$\{\w+\}@")  # as pip reads ${NAME}


def requirements(path: Path | None) -> Path | None:
    """A requirements file, of which every line can be read on the cluster."""
    if path is not None and not path.is_file():
        raise UserError(f"--pip: requirements file {str(path)!r} does not exist")
    for number, line in enumerate(_text(path).splitlines() if path else (), start=1):
        if holds_secret(_FROM_THE_NODE.sub("", line)):
            raise UserError(
                f"--pip: line {number} of {str(path)!r} holds a password or token, which everyone "
                "who reaches the cluster's dashboard could read: let the nodes' own pip know it"
            )
    return path


def check_utf8(texts: Iterable[str]) -> None:
    """Refuse what a job, which is sent as JSON, cannot hold."""
    for text in texts:
        if not is_utf8(text):
            raise UserError(f"a job takes UTF-8 text only but got {text!r}")


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise UserError(f"--pip: {str(path)!r} cannot be read: {reason}") from None


def environment(given: Sequence[str]) -> dict[str, str]:
    """Variables as NAME=VALUE, or NAME for its value here.

    Raises:
        UserError: a name that is none, is not set here, or a value that is a secret: the name says
            so, or credentials stand in it.
    """
    made = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not re.fullmatch(r"[A-Za-z_]\w*", name):
            raise UserError(f"--env must be like NAME=VALUE but got {name!r}")
        if secret(name):
            raise UserError(
                f"--env {name}: a job's variables can be read by everyone on the cluster; set it "
                "where the cluster's nodes are started"
            )
        if not equals and name not in os.environ:
            raise UserError(f"--env {name}: it is not set here; give its value as {name}=VALUE")
        made[name] = value if equals else os.environ[name]
        if holds_secret(made[name]):
            raise UserError(
                f"--env {name}: its value holds credentials, and a job's variables can be read by "
                "everyone on the cluster; set it where the cluster's nodes are started"
            )
    return made
