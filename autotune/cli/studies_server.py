"""`autotune ui FOLDER`: one page of all studies of a folder, on loopback.

Whoever reaches the page may read it. What changes something (a study that is stopped, a server that
is started) needs the token of the address that was printed. It is that address's fragment, which
browsers keep to themselves, and it travels in a header, which no other site can set. Requests under
another name than the server's own are refused, so that no other site can read the answers either.
"""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import json
import os
import secrets
import socket
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from autotune.cli import mlflow_ui
from autotune.cli.mlflow_servers import MlflowServers
from autotune.errors import UserError
from autotune.evaluation import studies
from autotune.evaluation.studies import Overviews
from autotune.storage import driver_process
from autotune.storage.journal import REPORT
from autotune.trial.plain_text import plain_text

HOST, PORT, TOKEN = "127.0.0.1", 8500, "X-Autotune-Token"
_HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_LONGEST_BODY = 1 << 16


class StudiesServer(ThreadingHTTPServer):
    """Serves the page of the studies in `folder`, and closes what it started.

    `token` is what requests that change something must have.

    Raises:
        UserError: the folder holds no study, or cannot be read.
        OSError: the port is taken.
    """

    daemon_threads = True

    def __init__(self, folder: Path, host: str = HOST, port: int = 0) -> None:
        studies.found(folder)
        self.token = secrets.token_urlsafe(16)
        self.mlflow = MlflowServers()
        self.host, self.folder = host, folder.absolute()
        self._overviews = Overviews(self.folder)
        self._reports: dict[Path, tuple[object, bytes]] = {}
        self._lock = threading.Lock()
        super().__init__((host, port), _Request)

    @property
    def address(self) -> str:
        """The page's address, with the token."""
        shown = "127.0.0.1" if self.host in ("", "0.0.0.0", "::") else self.host  # noqa: S104
        return f"http://{shown}:{self.server_address[1]}/#{self.token}"

    def server_close(self) -> None:
        self.mlflow.close()
        super().server_close()

    def studies(self) -> dict[str, studies.Overview]:
        """The studies by the key that stands for one in an address."""
        with self._lock:
            return {own.folder.name: own for own in self._overviews.read()}

    def rows(self) -> list[dict[str, Any]]:
        """What the page shows of each study, as JSON types; `place` is its address here."""
        found = self.studies()
        return [
            {
                **own.to_json(),
                "key": key,
                "place": f"study/{quote(os.fsencode(key), safe='')}",
                "mlflow": self.mlflow.state(own.folder, own.tracking_uri),
            }
            for key, own in found.items()
        ]

    def report(self, folder: Path) -> bytes:
        """The study's report, made again where the study has gone on.

        Raises:
            UserError: it cannot be made.
        """
        from dashboards.report import study_html

        stamp = studies.stamp(folder)
        known = self._reports.get(folder)
        if known is None or known[0] != stamp:
            known = self._reports[folder] = stamp, _encoded(study_html(folder))
        return known[1]


def _encoded(text: str) -> bytes:
    """The text as UTF-8; the name of a folder may be none."""
    return text.encode(errors="backslashreplace")


class _RefusedError(Exception):
    """A request that is answered with an error."""

    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.status, self.text = status, text


def _nothing() -> _RefusedError:
    return _RefusedError(HTTPStatus.NOT_FOUND, "there is nothing here")


class _Request(BaseHTTPRequestHandler):
    """Answers one request."""

    server: StudiesServer
    server_version, sys_version = "autotune", ""

    def do_GET(self) -> None:
        self._answer(self._get)

    def do_POST(self) -> None:
        self._answer(self._post)

    def _answer(self, work: Callable[[list[str]], None]) -> None:
        """Do the work of a request from the server's own page; errors are a line of text."""
        parts = self.path.partition("?")[0].split("/")
        path = [unquote(part, errors="surrogateescape") for part in parts if part]
        try:
            if not self._is_own(self.headers.get("Host", "")):
                raise _RefusedError(HTTPStatus.FORBIDDEN, "the Host header is not this server's")
            work(path)
        except _RefusedError as error:
            self._send(error.text.encode(), "text/plain", error.status)
        except UserError as error:
            self._send(_encoded(plain_text(str(error))), "text/plain", HTTPStatus.CONFLICT)
        except ConnectionError:
            self.close_connection = True

    def _is_own(self, host: str) -> bool:
        """Whether a name is this server's: an address, or one that this machine has by itself."""
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return name in ("localhost", self.server.host.lower(), socket.gethostname().lower())
        return True

    def _get(self, path: list[str]) -> None:
        match path:
            case []:
                from dashboards.studies import studies_page

                self._send(_encoded(studies_page(self.server.folder)), "text/html")
            case ["studies.json"]:
                self._send(json.dumps(self.server.rows()).encode(), "application/json")
            case ["study", key, name] if name == REPORT and key in (found := self.server.studies()):
                self._send(self.server.report(found[key].folder), "text/html")
            case _:
                raise _nothing()

    def _post(self, path: list[str]) -> None:
        self._check_post()
        match path:
            case ["study", key, "stop"] if key in (found := self.server.studies()):
                driver_process.stop(found[key].folder)
            case ["study", key, "mlflow"] if key in (found := self.server.studies()):
                self.server.mlflow.start(found[key].folder)
            case _:
                raise _nothing()
        self._send(b"{}", "application/json")

    def _check_post(self) -> None:
        """Refuse a request that is not from this server's own page, opened with its token."""
        length = self.headers.get("Content-Length", "0")
        if not length.isdecimal() or int(length) > _LONGEST_BODY:
            self.close_connection = True
            raise _RefusedError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "the request is too long")
        self.rfile.read(int(length))  # nothing is taken from it
        origin, given = self.headers.get("Origin"), self.headers.get(TOKEN, "")
        other = origin is not None and origin.partition("://")[2] != self.headers.get("Host")
        if other or not hmac.compare_digest(given.encode(), self.server.token.encode()):
            text = "this needs the token of the address that `autotune ui` printed"
            raise _RefusedError(HTTPStatus.FORBIDDEN, text)

    def _send(self, body: bytes, kind: str, status: HTTPStatus = HTTPStatus.OK) -> None:
        self.send_response(status)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing of each request."""


def serve(folder: Path, host: str, port: int | None, say: Callable[[str], None]) -> int:
    """Serve the page of all studies in the folder until Ctrl-C; without a port, on a free one.

    Raises:
        UserError: the folder holds no study, or the server cannot listen there.
    """
    server = _listening(folder, host, port)
    mlflow_ui.end_in_order()
    with server, contextlib.suppress(KeyboardInterrupt):
        say(f"studies: {server.address} (Ctrl-C ends it)")
        if not _is_loopback(host):
            say("others who reach this address can read all reports; only the token is secret")
        server.serve_forever()
    return 0


def _listening(folder: Path, host: str, port: int | None) -> StudiesServer:
    for number in (PORT, 0) if port is None else (port,):
        try:
            return StudiesServer(folder, host, number)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
    raise UserError(f"cannot listen on --host {host} --port {number}: {reason}")


def _is_loopback(host: str) -> bool:
    """Whether only this machine reaches a server there."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
