"""`autotune ui`: MLflow's UI on loopback, with the addresses at which the study is found in it."""

from __future__ import annotations

import contextlib
import json
import signal
import sqlite3
import subprocess
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from autotune.errors import UserError
from autotune.storage.journal import REPORT
from autotune.study.manifest import Manifest
from autotune.tracking import mirror, own_store, shared_view
from autotune.tracking.names import clean
from autotune.trial import Target

_START_SECONDS = 120.0
_RUNS = "workflowType=machine_learning"  # or the page would be that of chats and their traces


def serve(folder: Path, say: Callable[[str], None]) -> int:
    """Serve the study's own MLflow store until Ctrl-C, and say where the study stands in it.

    Returns:
        0, or the server's exit code if it went by itself.

    Raises:
        UserError: the study is in no store, or in one that has a UI of its own.
    """
    manifest = Manifest.read(folder)
    check_own_store(manifest)
    prepare(folder, manifest.name, say)
    command = mirror.ui_command(folder)
    say(f"MLflow on {_host(command)} (Ctrl-C ends it)")
    end_in_order()
    with subprocess.Popen(command, env=mirror.environment()) as server:  # noqa: S603
        try:
            for line in where(command, manifest, server):
                say(line)
            return server.wait()
        except KeyboardInterrupt:
            return 0
        finally:
            server.terminate()


def end_in_order() -> None:
    """Have SIGTERM and SIGHUP end this process as Ctrl-C does, or its servers would stay behind."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as under `nohup`
        signal.signal(signal.SIGHUP, signal.default_int_handler)


def check_own_store(manifest: Manifest) -> None:
    """Refuse a study without a store of its own.

    Raises:
        UserError: it is in no store, or in one that has a UI of its own.
    """
    uri = manifest.options.tracking_uri
    if uri == "off":
        raise UserError("this study was run with --tracking-uri off: it is in no MLflow store")
    if uri:
        raise UserError(f"this study is tracked at {uri}: open MLflow's UI there")


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


def _host(command: Sequence[str]) -> str:
    return f"http://127.0.0.1:{command[command.index('--port') + 1]}"


def where(command: Sequence[str], manifest: Manifest, server: subprocess.Popen[bytes]) -> list[str]:
    """The `addresses` of the study, once the server that the command started answers.

    None where it ends before.
    """
    deadline = time.monotonic() + _START_SECONDS
    while server.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError, ValueError, KeyError, IndexError):
            return addresses(_host(command), manifest.name, manifest.study_id, manifest.target)
        time.sleep(0.3)
    return []


def addresses(host: str, name: str, study_id: str, target: Target) -> list[str]:
    """Where in MLflow's UI the study's leaderboard, its charts and its report are.

    Raises:
        OSError, ValueError, KeyError, IndexError: the server does not answer (yet), or does not
            know the study.
    """
    found = _get(f"{host}/api/2.0/mlflow/experiments/get-by-name?experiment_name={quote(name)}")
    experiment, tags = found["experiment"]["experiment_id"], found["experiment"].get("tags", [])
    wanted = f"tags.`autotune.kind` = 'study' and tags.`autotune.study_id` = '{study_id}'"
    ask = {"experiment_ids": [experiment], "filter": wanted, "max_results": 1}
    runs = _get(f"{host}/api/2.0/mlflow/runs/search", ask)["runs"]
    place = f"{host}/#/experiments/{experiment}/runs"
    report = f"report: {place}/{runs[0]['info']['run_id']}/artifacts/{REPORT}?{_RUNS}"
    if shared_view.tag_name(study_id) not in [tag["key"] for tag in tags]:  # an older study
        metric, lowest = shared_view.order(target)
        key = quote(f"metrics.`{clean(metric)}`")
        return [
            f"trials: {place}?{_RUNS}&orderByKey={key}&orderByAsc={str(lowest).lower()}",
            report,
        ]
    table = f"{place}?{_RUNS}&viewStateShareKey={shared_view.view_key(study_id)}"
    return [f"trials: {table}", f"charts: {table}&compareRunsMode=CHART", report]


def _get(url: str, body: Mapping[str, Any] | None = None) -> Any:
    data = json.dumps(body).encode() if body is not None else None
    ask = urllib.request.Request(url, data, {"Content-Type": "application/json"})  # noqa: S310
    with urllib.request.urlopen(ask, timeout=10) as answer:  # noqa: S310 (loopback)
        return json.load(answer)
