"""`autotune ui`: MLflow's UI on loopback, with the addresses at which the study is found in it."""

from __future__ import annotations

import contextlib
import json
import signal
import sqlite3
import subprocess
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from autotune.errors import UserError
from autotune.storage.journal import REPORT
from autotune.study.manifest import Manifest
from autotune.tracking import mirror, own_store
from autotune.tracking.run_content import clean, result_key
from autotune.trial import Target

_START_SECONDS = 120.0


def serve(folder: Path, say: Callable[[str], None]) -> int:
    """Serve the study's own MLflow store until Ctrl-C, and say where the study stands in it.

    Returns:
        0, or the server's exit code if it went by itself.

    Raises:
        UserError: the study is in no store, or in one that has a UI of its own.
    """
    manifest = Manifest.read(folder)
    uri = manifest.options.tracking_uri
    if uri == "off":
        raise UserError("this study was run with --tracking-uri off: it is in no MLflow store")
    if uri:
        raise UserError(f"this study is tracked at {uri}: open MLflow's UI there")
    prepare(folder, manifest.name, say)
    command = mirror.ui_command(folder)
    host = f"http://127.0.0.1:{command[command.index('--port') + 1]}"
    say(f"MLflow on {host} (Ctrl-C ends it)")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # or the server would stay behind
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as under `nohup`
        signal.signal(signal.SIGHUP, signal.default_int_handler)
    with subprocess.Popen(command, env=mirror.environment()) as server:  # noqa: S603
        try:
            for line in _where(host, manifest, server):
                say(line)
            return server.wait()
        except KeyboardInterrupt:
            return 0
        finally:
            server.terminate()


def prepare(folder: Path, study: str, say: Callable[[str], None]) -> None:
    """Check the study's own store, and correct it where the folder was moved.

    Raises:
        UserError: it is damaged.
    """
    store = folder / mirror.STORE
    if own_store.is_damaged(store):
        raise UserError(f"{store} is damaged: `autotune resume {folder}` makes it again")
    try:
        own_store.relocate(folder, study)
    except sqlite3.Error as error:
        say(f"if the folder was moved, artifacts are not found: {store}: {error}")


def _where(host: str, manifest: Manifest, server: subprocess.Popen[bytes]) -> list[str]:
    """The addresses of the study's trials and of its report, once the server answers."""
    deadline = time.monotonic() + _START_SECONDS
    while server.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError, ValueError, KeyError, IndexError):
            return addresses(host, manifest.name, manifest.study_id, manifest.target)
        time.sleep(0.3)
    return []


def addresses(host: str, name: str, study_id: str, target: Target) -> list[str]:
    """Where in MLflow's UI the study's trials, ranked by their results, and its report are.

    Raises:
        OSError, ValueError, KeyError, IndexError: the server does not answer (yet), or does not
            know the study.
    """
    found = _get(f"{host}/api/2.0/mlflow/experiments/get-by-name?experiment_name={quote(name)}")
    experiment = found["experiment"]["experiment_id"]
    wanted = f"tags.`autotune.kind` = 'study' and tags.`autotune.study_id` = '{study_id}'"
    ask = {"experiment_ids": [experiment], "filter": wanted, "max_results": 1}
    runs = _get(f"{host}/api/2.0/mlflow/runs/search", ask)["runs"]
    place = f"{host}/#/experiments/{experiment}/runs"
    lowest = str(target.timed or target.mode == "min").lower()
    key = quote(f"metrics.`{clean(result_key(target))}`")
    table = f"{place}?orderByKey={key}&orderByAsc={lowest}"
    run = runs[0]["info"]["run_id"]
    return [f"trials: {table}", f"report: {place}/{run}/artifacts/{REPORT}"]


def _get(url: str, body: Mapping[str, Any] | None = None) -> Any:
    data = json.dumps(body).encode() if body is not None else None
    ask = urllib.request.Request(url, data, {"Content-Type": "application/json"})  # noqa: S310
    with urllib.request.urlopen(ask, timeout=10) as answer:  # noqa: S310 (loopback)
        return json.load(answer)
