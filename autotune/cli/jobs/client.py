"""The way to Ray's Jobs API: the dashboard's address, the token, and what goes wrong in one line.

Nothing here holds a token longer than a connection.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from autotune.errors import UserError

_ADDRESSES = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")  # Ray prefers them to its arguments
_ASK, _REFUSED = "Authentication required", "Authentication failed"


def dashboard(given: str | None) -> str:
    """The dashboard's address: given, of Ray's variables, or on this machine.

    Raises:
        UserError: it is none of a dashboard, or it holds a password.
    """
    in_environment = [os.environ.get(name, "") for name in _ADDRESSES]
    address = given or next(
        (a for a in in_environment if a.startswith("http")), "http://127.0.0.1:8265"
    )
    form = "--address must be the dashboard's, like http://HEAD:8265"
    if "@" in address:
        raise UserError(f"{form}, without user and password: a token comes from RAY_AUTH_TOKEN")
    try:
        parts = urlsplit(address)
        right = parts.scheme in ("http", "https") and parts.hostname and (parts.port or 1) > 0
    except ValueError:
        right = False
    if not right:
        raise UserError(f"{form}, but got {address!r}")
    return address.rstrip("/")


def connect(address: str) -> Any:
    _reach(address)
    mode = os.environ.get("RAY_AUTH_MODE", "").lower()
    token = None if mode == "disabled" else _token()
    if mode == "token" and token is None:
        raise UserError(_missing(address))
    try:
        return _client(address, token[0] if token and mode == "token" else None)
    except PermissionError as error:
        # A token is shown to a cluster only where the user said so, or where the cluster asks.
        if _ASK in str(error) and token and mode != "token":
            with contextlib.suppress(PermissionError):
                return _client(address, token[0])
        if token is None or mode == "disabled":
            raise UserError(_missing(address)) from None
        raise UserError(
            f"the cluster at {address} refuses the token of {token[1]}: `ray get-auth-token` on "
            "its head prints the right one"
        ) from None


def _client(address: str, token: str | None) -> Any:
    """A client of Ray's Jobs API; a PermissionError where the cluster wants another token."""
    with errors(address, PermissionError), _without(*_ADDRESSES):
        from ray.job_submission import JobSubmissionClient

        for chatty in ("dashboard_sdk", "job.sdk"):
            logging.getLogger(f"ray.dashboard.modules.{chatty}").setLevel(logging.WARNING)
        headers = {"Authorization": f"Bearer {token}"} if token else None
        return JobSubmissionClient(address, headers=headers)


def _token() -> tuple[str, str] | None:
    """Ray's token and where it stands, looked for where Ray looks for it.

    Raises:
        UserError: the file that RAY_AUTH_TOKEN_PATH names holds none.
    """
    if token := os.environ.get("RAY_AUTH_TOKEN", "").strip():
        return token, "RAY_AUTH_TOKEN"
    named = os.environ.get("RAY_AUTH_TOKEN_PATH")
    path = Path(named) if named else Path.home() / ".ray" / "auth_token"
    try:
        token = path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        token = ""
    if token:
        return token, str(path)
    if named:
        raise UserError(f"RAY_AUTH_TOKEN_PATH: {named!r} cannot be read, or holds no token")
    return None


def _missing(address: str) -> str:
    return (
        f"the cluster at {address} wants a token: set RAY_AUTH_TOKEN, name its file in "
        "RAY_AUTH_TOKEN_PATH or put it into ~/.ray/auth_token (on the head, `ray get-auth-token` "
        "prints it), and do not set RAY_AUTH_MODE=disabled"
    )


def _reach(address: str) -> None:
    """Say at once that nobody answers: Ray itself sets no limit to how long it tries."""
    parts = urlsplit(address)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((parts.hostname or "", port), timeout=10).close()
    except (OSError, OverflowError, UnicodeError) as error:
        raise UserError(f"no Ray dashboard answers at {address}: {error}") from None


@contextlib.contextmanager
def errors(address: str, refused: type[Exception] = UserError) -> Iterator[None]:
    """What Ray's client raises, in one line; `refused` where it is about the token."""
    try:
        yield
    except (UserError, PermissionError):
        raise
    except Exception as error:
        line = " ".join(str(error).split())
        if _ASK in line or _REFUSED in line:
            raise refused(f"the cluster at {address} refuses the token: {line:.80}") from None
        if "ray[default]" in line:
            raise UserError("Ray's Jobs API needs `pip install 'ray[default]'`") from None
        ours = type(error).__module__.partition(".")[0] in ("aiohttp", "ray")
        if not ours and not isinstance(error, OSError | RuntimeError | KeyError | ValueError):
            raise
        what = line or type(error).__name__
        raise UserError(f"the Ray dashboard at {address}: {what:.300}") from None


@contextlib.contextmanager
def _without(*names: str) -> Iterator[None]:
    kept = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(kept)
