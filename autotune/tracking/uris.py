"""Addresses of tracking stores: validation, and removal of credentials."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

from autotune.errors import UserError
from autotune.trial.plain_text import plain_text

_PORTS = {"http": ":80", "https": ":443"}  # defaults that an address may leave out
_PASSWORD = re.compile(r"//[^/?#@:]*:(?!\d+[/?#])[^@\s]*@")
_SCHEMES = ("sqlite", "postgresql", "mysql", "mssql", "http", "https", "databricks")


def is_server(uri: str | None) -> bool:
    """Whether it is an MLflow server, whose artifacts other machines can read."""
    return uri is not None and uri.partition(":")[0].lower() in ("http", "https", "databricks")


def check_server(uri: str | None) -> None:
    """Refuse a store that keeps artifacts on one machine only.

    Raises:
        UserError: it is no MLflow server.
    """
    if not is_server(uri):
        raise UserError(
            "--mirror needs the --tracking-uri of an MLflow server, like http://HOST:5000, that "
            "keeps artifacts"
        )


def check_uri(uri: str) -> None:
    """Validate the address of a tracking store.

    Raises:
        UserError: the scheme is unknown, or the address has no host or file.
    """
    scheme, colon, rest = uri.partition(":")
    kind = scheme.split("+")[0].lower()
    if uri == "databricks":
        return
    if not colon or kind == "file":
        raise UserError(
            "tracking URI: MLflow's file store is retired; use sqlite:///PATH/mlflow.db "
            "or the http:// address of an MLflow server"
        )
    if kind not in _SCHEMES:
        raise UserError(
            f"tracking URI: unknown scheme {scheme[:20]!r} (allowed: {', '.join(_SCHEMES)})"
        )
    form = "sqlite:///PATH/mlflow.db" if kind == "sqlite" else f"{kind}://HOST..."
    prefix = "///" if kind == "sqlite" else "//"
    if not rest.startswith(prefix) or not rest[len(prefix) :].rpartition("@")[2].strip("/:"):
        raise UserError(f"tracking URI: a {kind} address must look like {form}")
    try:
        urlsplit(uri).port  # noqa: B018 (reading it checks it)
    except ValueError as error:
        raise UserError(f"tracking URI: {redact(str(error), uri)}") from None


def has_credentials(uri: str) -> bool:
    """Whether `uri` has a password, or a user that may be a token.

    >>> has_credentials("http://me:secret@host"), has_credentials("postgresql://me@host/db")
    (True, False)
    """
    if _PASSWORD.search(uri):  # also with a slash, which SQLAlchemy accepts
        return True
    try:
        parts = urlsplit(uri)
    except ValueError:
        return "@" in uri
    named = bool(parts.username) and parts.scheme.endswith(("http", "https"))
    return named or parts.password is not None or "pass" in parts.query.lower()


def split_credentials(uri: str) -> tuple[str, dict[str, str]]:
    """A server's `uri` without credentials, and these as environment variables for MLflow.

    >>> split_credentials("http://me:p%40ss@host:5000")
    ('http://host:5000', {'MLFLOW_TRACKING_USERNAME': 'me', 'MLFLOW_TRACKING_PASSWORD': 'p@ss'})
    """
    parts = urlsplit(uri)
    if parts.scheme not in ("http", "https") or "@" not in parts.netloc:
        return uri, {}
    plain = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    credentials = {"USERNAME": parts.username or "", "PASSWORD": parts.password or ""}
    return plain, {f"MLFLOW_TRACKING_{k}": unquote(v) for k, v in credentials.items()}


def without_credentials(uri: str | None) -> str | None:
    """`uri` without the user, password and query, where a database's password may stand."""
    if uri is None or "://" not in uri:
        return uri
    scheme, _, rest = uri.partition("://")
    host, slash, path = rest.partition("?")[0].partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"


def label(uri: str) -> str:
    """`uri` without user, password and query: a name for the store without secrets.

    Different spellings of a server's address give the same name.

    >>> label("HTTP://me:secret@Host:80/"), label("https://host:443/ML/")
    ('http://host', 'https://host/ML')
    """
    scheme, colon, rest = uri.partition(":")
    if not colon:
        return uri
    named = rest.partition("?")[0].rpartition("@")[2].lstrip("/")
    if (usual := _PORTS.get(scheme.lower())) is not None:
        scheme = scheme.lower()
        host, slash, path = named.rstrip("/").partition("/")
        named = f"{host.lower().removesuffix(usual)}{slash}{path}"
    return f"{scheme}://{named}"


def redact(message: str, uri: str, env: Mapping[str, str] = os.environ) -> str:
    """`message` without secrets of the tracking store."""
    _, _, query = uri.partition("?")
    user = uri.partition("://")[2].rpartition("@")[0]
    password = user.partition(":")[2]
    tokens = [env.get(f"MLFLOW_TRACKING_{k}", "") for k in ("PASSWORD", "TOKEN")]
    settings = [part.partition("=")[2] for part in query.split("&")]
    for secret in (uri, user, query, *settings, password, unquote(password), *tokens):
        if secret:
            message = message.replace(secret, label(uri) if secret == uri else "***")
    return re.sub(r"//[^\s/@]+@", "//", message)


def cause(error: BaseException) -> BaseException:
    """The OSError at the root of the chain if there is one, as it is shorter and more specific."""
    root = error
    while (below := root.__cause__ or root.__context__) is not None:
        root = below
    return root if isinstance(root, OSError) else error


def error_line(error: Exception, uri: str) -> str:
    """The error of a store as one line without secrets."""
    root = cause(error)
    line = " ".join(f"{label(uri)}: {type(root).__name__}: {root}".split())
    return plain_text(redact(line, uri))
